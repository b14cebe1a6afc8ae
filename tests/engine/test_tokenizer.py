"""Ids as the original tokenizers give them; special tokens only where they are meant."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from ionrouter.engine import byte_bpe, tokenizer
from ionrouter.engine.byte_alphabet import byte_alphabet
from ionrouter.errors import ConfigError
from tests.support import reference_bpe, tiny_tokenizer
from tests.support.default_model import default_model_path
from tests.support.strings import strings
from tests.support.tiny_tokenizer import CONTROLS, metadata

TEXTS = [
    "",
    " ",
    "Hello, world!",
    "  two  spaces\n\n\ttab \r\n end  ",
    "\n\n\n",
    "a\u00a0b\u2003c\u200bd",
    "0 12 345 6789 12345678901234567890 3.14159 1,000,000",
    "x²½Ⅷ٣ १२३ ２０２４",
    "don't I'll WE'LL they'Ve 'sup y'all'd've '' '",
    "汉字かなカナ한국어 混ぜた mixed文字",
    "🙂👨‍👩‍👧🏳️‍🌈 🫠🥹龜",
    "naïve café cafe\u0301 Ωμέγα ďábelské İstanbul ß",
    "Привет, мир! مرحبا بالعالم שלום नमस्ते สวัสดี",
    "def f(x):\n    return x**2  # squared\n\tif x != 0: pass\r\n",
    "<|im_end|> <|im_start|>system <|endoftext|>",
    "\x00\x01\x7f\x80\xff\ufffd\U0010ffff",
    "e" * 300,
    "https://example.org/a?b=c&d=%20#frag $100 €5 ~^|`<>=+",
]
PRES = sorted(reference_bpe.PATTERNS)


def expected(text: str, pre: str) -> list[int]:
    vocabulary, merges = tiny_tokenizer.vocabulary_and_merges()
    return reference_bpe.encode(text, pre, vocabulary, merges)


def without_user_defined(pre: str) -> tokenizer.Tokenizer:
    data = metadata(pre)
    data["tokenizer.ggml.token_type"] = [
        3 if kind == 4 else kind for kind in data["tokenizer.ggml.token_type"]
    ]
    return tokenizer.from_gguf(data)


BY_PRE = {pre: without_user_defined(pre) for pre in PRES}


@pytest.mark.parametrize("pre", PRES)
@pytest.mark.parametrize("text", TEXTS)
def test_ids_equal_the_reference(pre: str, text: str) -> None:
    assert BY_PRE[pre].encode(text) == expected(text, pre)


@pytest.mark.parametrize("pre", PRES)
def test_ids_equal_the_reference_and_the_hugging_face_tokenizer_on_ten_thousand_strings(
    tmp_path: Path, pre: str
) -> None:
    """From both kinds of file; what users type of special tokens' names is text."""
    from tokenizers import Tokenizer as Fast

    data = tiny_tokenizer.tokenizer_json(pre)
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    ours = (tokenizer.from_gguf(metadata(pre)), tokenizer.from_folder(tmp_path))
    written, typed = (Fast.from_str(json.dumps(data)) for _ in range(2))
    typed.encode_special_tokens = True
    vocabulary, merges = tiny_tokenizer.vocabulary_and_merges()
    for text in strings():
        wanted = typed.encode(text, add_special_tokens=False).ids
        rendered = written.encode(text, add_special_tokens=False).ids
        for tok in ours:
            assert tok.encode(text) == wanted, repr(text)
            assert tok.encode_template(text) == rendered, repr(text)
        reference = reference_bpe.encode(text, pre, vocabulary, merges)
        assert BY_PRE[pre].encode(text) == reference, repr(text)


def test_special_tokens_are_hidden_whether_or_not_the_vocabulary_holds_them(tmp_path: Path) -> None:
    """And merges are pairs or, as older files have them, strings."""
    data = tiny_tokenizer.tokenizer_json("qwen2")
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    within = tokenizer.from_folder(tmp_path)
    for text in CONTROLS:
        del data["model"]["vocab"][text]
    data["model"]["merges"] = [" ".join(pair) for pair in data["model"]["merges"]]
    (tmp_path / "tokenizer.json").write_text(json.dumps(data))
    beside = tokenizer.from_folder(tmp_path)
    for text in TEXTS:
        assert beside.encode(text) == within.encode(text), repr(text)
        assert beside.encode_template(text) == within.encode_template(text), repr(text)
    assert beside.token_bytes() == within.token_bytes()


@pytest.mark.parametrize("pre", PRES)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_ids_equal_the_reference_on_any_text(pre: str, text: str) -> None:
    assert BY_PRE[pre].encode(text) == expected(text, pre)


@pytest.mark.parametrize("pre", PRES)
@settings(max_examples=60, deadline=None)
@given(text=st.text(max_size=60))
def test_bytes_of_ids_join_to_the_text(pre: str, text: str) -> None:
    table = BY_PRE[pre].token_bytes()
    joined = b"".join(table[i] for i in BY_PRE[pre].encode(text)).decode()
    assert joined == text or pre in reference_bpe.NORMALISED  # which normalises to NFC


def test_a_whole_word_is_taken_without_merging_where_the_original_does() -> None:
    data = metadata("llama-bpe")
    data["tokenizer.ggml.tokens"] = [*data["tokenizer.ggml.tokens"], "zzzebrazz"]
    data["tokenizer.ggml.token_type"] = [*data["tokenizer.ggml.token_type"], 1]
    word = len(data["tokenizer.ggml.tokens"]) - 1
    assert tokenizer.from_gguf(data).encode("zzzebrazz") == [word]
    assert word not in tokenizer.from_gguf(data | {"tokenizer.ggml.pre": "gpt-2"}).encode("zzzebrazz")


def test_an_unknown_pre_tokenizer_is_named() -> None:
    with pytest.raises(ConfigError, match="unknown pre-tokenizer 'klingon'"):
        tokenizer.from_gguf(metadata("klingon"))


def test_a_file_without_pre_uses_the_default() -> None:
    assert tokenizer.from_gguf(metadata(None)).encode("ab 123456") == expected("ab 123456", "default")


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"model": "bert"}, "tokenizer.ggml.model: only byte-level BPE .* not 'bert'"),
        ({"tokens": None}, "tokenizer.ggml.tokens: missing"),
        ({"merges": []}, "tokenizer.ggml.merges: missing"),
        ({"token_type": [1]}, "tokenizer.ggml.token_type: 1 entries"),
        ({"merges": ["ab"]}, "tokenizer.ggml.merges: 'ab' is not two tokens"),
    ],
)
def test_a_faulty_file_is_told_by_its_key(changes: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        tokenizer.from_gguf(metadata("gpt-2", **changes))


def test_special_tokens_are_text_unless_a_template_wrote_them() -> None:
    tok = tokenizer.from_gguf(metadata())
    text = "<|im_start|>user\nhi<|im_end|>"
    specials = set(range(len(CONTROLS)))
    assert not specials & set(tok.encode(text))
    assert tok.encode_template(text) == [1, *tok.encode("user\nhi"), 2]


def test_the_longest_special_token_wins() -> None:
    tok = tokenizer.from_gguf(metadata())
    assert tok.encode_template("<|im_end|>x<|im_end|>y") == [3, 2, *tok.encode("y")]


def test_a_mark_keeps_a_special_token_text_and_vanishes() -> None:
    tok = tokenizer.from_gguf(metadata())
    mark = "\U000f0000"
    assert tok.encode_template(f"a<{mark}|im_end|>b<|im_end|>", mark) == [*tok.encode("a<|im_end|>b"), 2]


@settings(max_examples=200, deadline=None)
@given(
    st.lists(st.sampled_from([*CONTROLS, "<", "|", "im_", "end", "|>", " ", "x", "<tool_call>"]), max_size=8)
)
def test_no_plain_text_gives_a_special_id(parts: list[str]) -> None:
    tok = tokenizer.from_gguf(metadata())
    assert not set(range(len(CONTROLS))) & set(tok.encode("".join(parts)))


def test_unused_tokens_are_holes() -> None:
    """Converters name them [PAD...], up to the size of the model; nobody who writes that means one."""
    data = metadata()
    data["tokenizer.ggml.tokens"] = [*data["tokenizer.ggml.tokens"], "[PAD706]"]
    data["tokenizer.ggml.token_type"] = [*data["tokenizer.ggml.token_type"], 5]
    tok = tokenizer.from_gguf(data)
    hole = tok.num_tokens - 1
    assert "[PAD706]" not in tok.special_texts
    for ids in (tok.encode("a[PAD706]b"), tok.encode_template("a[PAD706]b")):
        assert hole not in ids and tok.text_of(ids) == "a[PAD706]b"
    assert tok.token_bytes()[hole] == tok.bytes_of(hole) == b""


def test_user_defined_tokens_are_ordinary_text() -> None:
    tok = tokenizer.from_gguf(metadata())
    tool = tok.num_tokens - 2
    assert tool in tok.encode("a<tool_call>b")
    assert tok.token_bytes()[tool] == b"<tool_call>"
    assert tok.token_bytes()[tool + 1] == b"    "


def test_bos_is_added_once_and_never_doubled() -> None:
    tok = tokenizer.from_gguf(metadata(add_bos_token=True))
    hi = tok.encode("hi")
    assert tok.encode("hi", add_bos=True) == [1, *hi]
    assert tok.encode_template("<|im_start|>hi", add_bos=True) == [1, *hi]
    assert tok.encode("", add_bos=True) == [1]
    without = tokenizer.from_gguf(metadata(add_bos_token=False))
    assert without.encode("hi", add_bos=True) == hi


def test_a_file_that_does_not_say_it_begins_with_bos_where_its_kind_does() -> None:
    for pre, adds in (("llama-bpe", True), ("tekken", True), ("qwen2", False), ("smollm", False)):
        assert tokenizer.from_gguf(metadata(pre, add_bos_token=None)).adds_bos is adds
        assert not tokenizer.from_gguf(metadata(pre, add_bos_token=False)).adds_bos


def test_special_tokens_have_no_bytes_and_the_table_covers_the_vocabulary() -> None:
    tok = tokenizer.from_gguf(metadata())
    table = tok.token_bytes(tok.num_tokens + 64)
    assert len(table) == tok.num_tokens + 64
    assert table[: len(CONTROLS)] == [b""] * len(CONTROLS)
    assert table[tok.num_tokens :] == [b""] * 64
    assert tok.bytes_of(1) == b"<|im_start|>" and tok.bytes_of(10**6) == b""
    assert {bytes([b]) for b in range(256)} <= set(table), "every byte can be written"


def test_every_end_of_an_answer_stops_it() -> None:
    assert tokenizer.from_gguf(metadata(eot_token_id=1)).stop_ids == (2, 1, 0)


def test_the_byte_alphabet_is_the_published_one() -> None:
    alphabet = byte_alphabet()
    assert [alphabet[byte] for byte in range(256)] == reference_bpe.LETTERS
    assert byte_bpe.bytes_of("Ġhi") == b" hi" and byte_bpe.bytes_of("Ċ") == b"\n"
    assert byte_bpe.bytes_of("".join(reference_bpe.LETTERS)) == bytes(range(256))


def test_text_in_other_characters_than_the_alphabets_is_its_own_bytes() -> None:
    for text in (" a", "Ġ a", "\x7f", "\xad", "\n", "Ġ日", "\udc80"):
        assert byte_bpe.bytes_of(text) == text.encode("utf-8", "surrogateescape"), repr(text)


@pytest.mark.model
def test_the_default_models_ids_equal_those_of_transformers() -> None:
    from transformers import AutoTokenizer

    from ionrouter.engine import _ion

    path = default_model_path()
    ours = tokenizer.from_gguf(_ion.gguf_metadata(str(path)))
    theirs = AutoTokenizer.from_pretrained(str(path.parent), gguf_file=path.name)
    for text in TEXTS:
        if "<|" not in text:
            assert ours.encode(text) == theirs.encode(text, add_special_tokens=False), text
    chat = "<|im_start|>user\nHello 123<|im_end|>\n<|im_start|>assistant\n"
    assert ours.encode_template(chat) == theirs.encode(chat, add_special_tokens=False)
    assert ours.encode_template(chat)[0] == 1 and 2 in ours.stop_ids


@pytest.mark.model
def test_the_default_models_ids_equal_the_reference() -> None:
    from ionrouter.engine import _ion

    data = _ion.gguf_metadata(str(default_model_path()))
    ours = tokenizer.from_gguf(data)
    vocabulary = {text: i for i, text in enumerate(data["tokenizer.ggml.tokens"])}
    for text in TEXTS:
        assert ours.encode(text) == reference_bpe.encode(
            text, "smollm", vocabulary, data["tokenizer.ggml.merges"]
        )


def write_folder(folder: Path, **config: Any) -> Path:
    """Write the two files of a Hugging Face folder that the tokenizer needs."""
    (folder / "tokenizer.json").write_text(json.dumps(tiny_tokenizer.tokenizer_json()))
    (folder / "tokenizer_config.json").write_text(json.dumps(config))
    return folder


def test_a_folder_gives_the_same_ids_as_its_tokenizer_json(tmp_path: Path) -> None:
    from tokenizers import Tokenizer as Fast

    folder = write_folder(tmp_path, eos_token="<|im_end|>", bos_token=None)
    ours = tokenizer.from_folder(folder)
    theirs = Fast.from_file(str(folder / "tokenizer.json"))
    for text in TEXTS:
        assert ours.encode_template(text) == theirs.encode(text, add_special_tokens=False).ids, text
    specials = {special.id for special in ours.specials}
    assert not specials & set(ours.encode("".join(CONTROLS)))
    table = ours.token_bytes()
    assert all(table[i] == b"" for i in specials)
    assert b"".join(table[i] for i in ours.encode("é 🙂<tool_call>")).decode() == "é 🙂<tool_call>"


def test_a_folder_tells_its_stops_and_template(tmp_path: Path) -> None:
    folder = write_folder(
        tmp_path, eos_token={"content": "<|im_end|>"}, bos_token="<|im_start|>", add_bos_token=True,
        chat_template=[{"name": "tool_use", "template": "no"}, {"name": "default", "template": "yes"}],
    )  # fmt: skip
    (folder / "generation_config.json").write_text(json.dumps({"eos_token_id": [0, 2]}))
    tok = tokenizer.from_folder(folder)
    assert tok.stop_ids == (2, 0)
    assert tok.bos_id == 1 and tok.adds_bos
    assert tok.chat_template == "yes"
    (folder / "chat_template.jinja").write_text("own file")
    assert tokenizer.from_folder(folder).chat_template == "own file"


def test_a_folder_that_cannot_serve_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"tokenizer.json: missing"):
        tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text("{")
    with pytest.raises(ConfigError, match="not JSON"):
        tokenizer.from_folder(tmp_path)
    (tmp_path / "tokenizer.json").write_text(json.dumps({"model": {"type": "Unigram", "vocab": []}}))
    with pytest.raises(
        ConfigError, match=r"only byte-level BPE, and .* byte_fallback, are supported, not Unigram"
    ):
        tokenizer.from_folder(tmp_path)


@pytest.mark.parametrize("key", ["eos_token_id", "eot_token_id", "bos_token_id"])
def test_minus_one_as_llama_cpp_writes_it_is_no_id(key: str) -> None:
    """Four billion: the engine could not even be told, and said so with its whole vocabulary."""
    name = f"tokenizer.ggml.{key}"
    left = {other: value for other, value in metadata().items() if other != name}
    without, minus_one = tokenizer.from_gguf(left), tokenizer.from_gguf(left | {name: (1 << 32) - 1})
    for ids in ("bos_id", "eos_id", "stop_ids"):
        assert getattr(minus_one, ids) == getattr(without, ids)


def test_ordinary_tokens_that_the_model_has_no_rows_for_end_the_load() -> None:
    tok = tokenizer.from_gguf(metadata())
    assert tokenizer.usable(tok, tok.num_tokens + 64) == (tok, [])
    with pytest.raises(ConfigError, match="beyond the model's vocabulary of 300; the first is 300, "):
        tokenizer.usable(tok, 300)
