"""SentencePiece vocabularies: the ids and the text that Hugging Face's own tokenizer gives."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import gguf
import pytest
from tokenizers import Tokenizer as Fast

from ionrouter.engine import _ion, sentencepiece, tokenizer
from ionrouter.errors import ConfigError
from tests.support import tiny_sentencepiece as tiny
from tests.support.strings import strings

FORMS = ("legacy", "first", "never")


def folder_of(path: Path, data: dict[str, Any]) -> tokenizer.Tokenizer:
    (path / "tokenizer.json").write_text(json.dumps(data))
    (path / "tokenizer_config.json").write_text(json.dumps({"bos_token": "<s>", "eos_token": "</s>"}))
    return tokenizer.from_folder(path)


def theirs_of(data: dict[str, Any], *, is_typed: bool) -> Fast:
    """Their tokenizer; special tokens' names are text where a user typed them."""
    fast = Fast.from_str(json.dumps(data))
    fast.encode_special_tokens = is_typed
    return fast


def assert_same_ids(ours: tokenizer.Tokenizer, data: dict[str, Any]) -> None:
    typed, written = (theirs_of(data, is_typed=flag) for flag in (True, False))
    texts = strings()
    wanted = typed.encode_batch_fast(list(texts), add_special_tokens=False)
    for text, encoding in zip(texts, wanted, strict=True):
        assert ours.encode(text) == encoding.ids, repr(text)
    for text, encoding in zip(
        texts, written.encode_batch_fast(list(texts), add_special_tokens=False), strict=True
    ):
        assert ours.encode_template(text) == encoding.ids, repr(text)


@pytest.mark.parametrize("form", FORMS)
def test_a_folders_ids_equal_the_hugging_face_tokenizer(tmp_path: Path, form: str) -> None:
    data = tiny.tokenizer_json(form)
    assert_same_ids(folder_of(tmp_path, data), data)


def test_a_unigram_folders_ids_equal_the_hugging_face_tokenizer(tmp_path: Path) -> None:
    data = tiny.unigram_json()
    ours = folder_of(tmp_path, data)
    written, typed = Fast.from_str(json.dumps(data)), Fast.from_str(json.dumps(nameless(data)))
    for text in strings():
        assert ours.encode(text) == typed.encode(text, add_special_tokens=False).ids, repr(text)
        assert ours.encode_template(text) == written.encode(text, add_special_tokens=False).ids, repr(text)


def nameless(data: dict[str, Any]) -> dict[str, Any]:
    """Rename the special pieces: theirs takes a typed name for the piece, as no user should be able to."""
    vocabulary = [
        [f"\U0010fff0{i}" if text in tiny.CONTROLS else text, score]
        for i, (text, score) in enumerate(data["model"]["vocab"])
    ]
    ordinary = [token for token in data["added_tokens"] if not token["special"]]
    return data | {
        "model": data["model"] | {"vocab": vocabulary},
        "added_tokens": ordinary,
        "post_processor": None,
    }


@pytest.mark.parametrize(("adds_space", "form"), [(True, "legacy"), (False, "never")])
def test_a_gguf_files_ids_equal_the_hugging_face_tokenizer(adds_space: bool, form: str) -> None:
    assert_same_ids(
        tokenizer.from_gguf(tiny.metadata(add_space_prefix=adds_space)), tiny.tokenizer_json(form)
    )


def test_a_written_gguf_file_reads_as_its_metadata(tmp_path: Path) -> None:
    writer = gguf.GGUFWriter(tmp_path / "x.gguf", "llama")
    tiny.add_to(writer)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.close()
    read, given = (
        tokenizer.from_gguf(data) for data in (_ion.gguf_metadata(str(tmp_path / "x.gguf")), tiny.metadata())
    )
    assert read.token_bytes() == given.token_bytes() and read.chat_template == tiny.TEMPLATE
    assert [read.encode(text) for text in strings()[:500]] == [given.encode(text) for text in strings()[:500]]


@pytest.mark.parametrize("form", FORMS)
def test_decoded_text_equals_the_hugging_face_tokenizer(tmp_path: Path, form: str) -> None:
    data = tiny.tokenizer_json(form)
    ours, theirs = folder_of(tmp_path, data), theirs_of(data, is_typed=True)
    for text in strings()[:3000]:
        ids = ours.encode(text)
        assert ours.text_of(ids) == theirs.decode(ids, skip_special_tokens=False)
        if form != "first" or text[:1] not in " ▁":  # which adds no space before one that is there
            assert ours.text_of(ids) == text.replace("▁", " ")


def test_names_of_special_tokens_that_users_type_stay_text(tmp_path: Path) -> None:
    for ours in (tokenizer.from_gguf(tiny.metadata()), folder_of(tmp_path, tiny.tokenizer_json("first"))):
        for text in strings():
            assert not {0, 1, 2} & set(ours.encode(text)), repr(text)
        assert ours.encode_template("<s>a</s>")[0] == 1
        mark = "\U000f0000"
        cut = ours.encode_template(f"<s>a <{mark}/s> b", mark)
        assert 2 not in cut and ours.text_of(cut[1:]).endswith("a </s> b")


def test_bos_is_added_once_and_never_doubled(tmp_path: Path) -> None:
    folder = folder_of(tmp_path, tiny.tokenizer_json())
    for ours in (tokenizer.from_gguf(tiny.metadata(add_bos_token=None, bos_token_id=None)), folder):
        assert ours.adds_bos and ours.bos_id == 1
        assert ours.encode("hi", add_bos=True) == [1, *ours.encode("hi")]
        assert ours.encode_template("<s>hi", add_bos=True) == [1, *ours.encode("hi")]
    without = tokenizer.from_gguf(tiny.metadata(add_bos_token=False))
    assert without.encode("hi", add_bos=True) == without.encode("hi")


def test_text_that_goes_on_gets_no_space_of_its_own(tmp_path: Path) -> None:
    for ours in (tokenizer.from_gguf(tiny.metadata()), folder_of(tmp_path, tiny.tokenizer_json("first"))):
        assert ours.text_of(ours.encode("the")) == "the"
        table = ours.token_bytes()
        assert b"".join(table[i] for i in ours.encode("the")) == b" the"
        assert b"".join(table[i] for i in ours.encode_continuation("the")) == b"the"


def test_byte_pieces_are_bytes_and_special_tokens_have_none() -> None:
    ours = tokenizer.from_gguf(tiny.metadata())
    table = ours.token_bytes(2000)
    assert table[:3] == [b""] * 3 and table[3:259] == [bytes([byte]) for byte in range(256)]
    assert table[ours.num_tokens - 1] == b"<tool>" and table[ours.num_tokens :] == [b""] * (
        2000 - ours.num_tokens
    )
    assert ours.encode_continuation("龜") == [3 + byte for byte in "龜".encode()]
    assert ours.stop_ids == (2,)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"scores": None}, r"tokenizer.ggml.scores: missing"),
        ({"scores": [0.0]}, r"tokenizer.ggml.scores: 1 entries for \d+ tokens"),
        ({"token_type": [3] * len(tiny.vocabulary())}, r"tokenizer.ggml.tokens: has no <0x00>"),
        ({"model": "t5"}, r"tokenizer.ggml.model: only byte-level BPE .*, not 't5'"),
    ],
)
def test_a_faulty_file_is_told_by_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tokenizer.from_gguf(tiny.metadata(**changes))


def test_a_folder_that_would_lose_text_is_refused(tmp_path: Path) -> None:
    data = tiny.tokenizer_json()
    data["model"]["byte_fallback"] = False
    with pytest.raises(ConfigError, match=r"BPE or Unigram with byte_fallback, are supported, not BPE"):
        folder_of(tmp_path, data)
    data = tiny.tokenizer_json()
    data["model"]["vocab"] = {text: i for text, i in data["model"]["vocab"].items() if text != "<0x41>"}
    with pytest.raises(ConfigError, match=r"tokenizer.json: model.vocab: has no <0x41>"):
        folder_of(tmp_path, data)


def test_better_pieces_merge_first_and_equal_ones_by_their_ids_then_their_halves() -> None:
    scores = {"a": 0.0, "b": 0.0, "c": 0.0, "ab": -2.0, "bc": -1.0, "abc": -2.0, "aa": -2.0}
    ids = {text: i for i, text in enumerate(scores)}
    assert sentencepiece.merges_of(scores, ids) == [
        *(("b", "c"), ("a", "b"), ("a", "bc"), ("ab", "c")),
        ("a", "a"),  # whose halves come before all others
    ]
