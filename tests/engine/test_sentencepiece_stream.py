"""Answers of a SentencePiece model through the C++ engine: bytes joined to characters, the first space."""

from __future__ import annotations

import json
import select
from collections.abc import Iterator
from typing import Any

import pytest
from tokenizers import Tokenizer as Fast

from ionrouter.engine import _ion, tokenizer
from tests.support import tiny_sentencepiece as tiny
from tests.support.strings import strings
from tests.support.tiny_sentencepiece import write_model

GUARD_S = 60.0


@pytest.fixture(scope="module")
def engine(tmp_path_factory: pytest.TempPathFactory) -> Iterator[_ion.Engine]:
    path = write_model(tmp_path_factory.mktemp("model") / "x.gguf")
    model = _ion.Model.load_gguf(str(path))
    table = tokenizer.from_gguf(_ion.gguf_metadata(str(path))).token_bytes(model.config["vocab_size"])
    engine = _ion.Engine(model, table, [2], {"num_blocks": 64})
    yield engine
    engine.close()


def spoken(engine: _ion.Engine, ids: list[int], *, drops_space: bool) -> list[str]:
    """Have the model say these ids, by masks that allow nothing else; return the text of each event."""
    sequence = engine.submit(
        [1, 5], max_tokens=len(ids), temperature=0.0, grammar=True, drops_space=drops_space
    )
    words = -(-tokenizer_size() // 32)
    pieces, finish = [], 0
    while not finish:
        for _, _, index, has_ended in engine.mask_requests(0.05):
            if not has_ended:
                mask = (1 << ids[index]).to_bytes(4 * words, "little")
                engine.give_masks([(sequence, index, mask)])
        if select.select([engine.event_fd], [], [], 0)[0]:
            for _, text, flags, _, _, detail, *_ in engine.drain():
                assert flags & 0xFF in (0, 1, 2), detail
                pieces.append(text.decode("utf-8"))
                finish = flags & 0xFF
    return pieces


def tokenizer_size() -> int:
    return len(tiny.vocabulary())


TEXTS = ["hello 龜🙂 é", "龜", " two spaces", "a\nb\tc", "🏳️‍🌈 flags 汉字", "x"]


@pytest.mark.parametrize("text", [*TEXTS, *(text for text in strings()[40:400] if 0 < len(text) < 30)][:60])
def test_streamed_text_is_what_decoding_the_answer_alone_gives(engine: _ion.Engine, text: str) -> None:
    theirs = Fast.from_str(json.dumps(tiny.tokenizer_json()))
    theirs.encode_special_tokens = True
    ids = theirs.encode(text, add_special_tokens=False).ids
    pieces = spoken(engine, ids, drops_space=True)
    assert "".join(pieces) == theirs.decode(ids, skip_special_tokens=True)
    assert "".join(spoken(engine, ids, drops_space=False)) == " " + "".join(pieces)


def test_a_character_of_several_byte_tokens_comes_whole(engine: _ion.Engine) -> None:
    ids = [3 + byte for byte in "龜🙂".encode()]
    pieces = [piece for piece in spoken(engine, ids, drops_space=True) if piece]
    assert "".join(pieces) == "龜🙂" and set(pieces) <= {"龜", "🙂", "龜🙂"}
    cut = spoken(engine, ids[:-1], drops_space=True)
    assert "".join(cut) == "龜\ufffd"


def test_a_special_token_within_an_answer_is_no_text(engine: _ion.Engine) -> None:
    the: Any = tiny.vocabulary()["▁the"]
    assert "".join(spoken(engine, [1, the, 1, the], drops_space=True)) == "the the"
