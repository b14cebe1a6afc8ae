"""Published vocabularies: ids equal Hugging Face's tokenizer and the makers' own on ten thousand strings."""

from __future__ import annotations

import json
import os
import unicodedata
from collections.abc import Sequence
from pathlib import Path

import pytest
from tokenizers import Tokenizer as Fast

from ionrouter.engine import _ion, tokenizer
from tests.support import gguf_vocabulary, published
from tests.support.published import Published
from tests.support.strings import strings

VOCABULARIES = {
    "gpt-2": lambda _: published.gpt2("gpt-2"),
    "default": lambda _: published.gpt2("default"),
    "smollm": lambda _: published.smollm(),
    "llama-bpe": lambda _: published.llama3(),
    "qwen2": lambda _: published.qwen2(),
    "deepseek-v3": lambda _: published.deepseek(),
    "tekken": published.tekken,
    "llama-2": lambda _: published.llama2(),
    "mistral-v1": lambda _: published.mistral("v1"),
    "mistral-v3": lambda _: published.mistral("v3"),
}
# Folders in which a tokenizer.json lies as it was published: too large to fetch for every run.
FOLDERS = "IONROUTER_TEST_TOKENIZERS"


@pytest.fixture(scope="module", params=VOCABULARIES)
def case(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Published:
    return VOCABULARIES[request.param](tmp_path_factory.mktemp("published"))


def of_gguf(folder: Path, case: Published) -> tokenizer.Tokenizer:
    return tokenizer.from_gguf(
        _ion.gguf_metadata(str(gguf_vocabulary.write(folder / "x.gguf", case.metadata)))
    )


def of_folder(folder: Path, text: str) -> tokenizer.Tokenizer:
    (folder / "tokenizer.json").write_text(text, "utf-8")
    return tokenizer.from_folder(folder)


def texts_for(ours: tokenizer.Tokenizer) -> Sequence[str]:
    """The ten thousand, runs of white space, and the names of this vocabulary's own control tokens."""
    runs = [
        f"{a}{space * n}{b}" for space in " \n\t" for n in range(1, 101) for a in ("", "x") for b in ("", "y")
    ]
    names = [
        text
        for name in ours.special_texts[:300]
        for text in (name, f"a{name}b", f" {name} {name[:-1]}", f"{name}{name}\n")
    ]
    return [*strings(), *runs, *names]


def ids_of(fast: Fast, texts: Sequence[str]) -> list[list[int]]:
    return [encoding.ids for encoding in fast.encode_batch_fast(list(texts), add_special_tokens=False)]


def assert_same_ids(ours: tokenizer.Tokenizer, theirs: str, texts: Sequence[str]) -> None:
    """What users type, and what a template writes."""
    typed, written = published.typed_and_written(theirs, ours.special_ids)
    for text, wanted in zip(texts, ids_of(typed, texts), strict=True):
        assert ours.encode(text) == wanted, repr(text)
    for text, wanted in zip(texts, ids_of(written, texts), strict=True):
        assert ours.encode_template(text) == wanted, repr(text)


def test_ids_of_a_gguf_file_equal_the_hugging_face_tokenizer(tmp_path: Path, case: Published) -> None:
    ours = of_gguf(tmp_path, case)
    assert_same_ids(ours, case.theirs, texts_for(ours))


def test_ids_of_a_folder_equal_the_hugging_face_tokenizer(tmp_path: Path, case: Published) -> None:
    ours = of_folder(tmp_path, case.theirs)
    assert_same_ids(ours, case.theirs, texts_for(ours))


def test_ids_equal_the_makers_own_library(tmp_path: Path, case: Published) -> None:
    """And name no control token, whatever is typed."""
    ours = of_gguf(tmp_path, case)
    for text in texts_for(ours):
        ids = ours.encode(text)
        assert not ours.special_ids & set(ids), repr(text)
        assert case.original is None or ids == case.original(text), repr(text)


def test_bytes_of_the_ids_join_to_the_text(tmp_path: Path, case: Published) -> None:
    """Less the bytes that no token has, as some control characters in SmolLM2's; theirs loses them, too."""
    ours = of_gguf(tmp_path, case)
    table = ours.token_bytes()
    absent = bytes(set(range(256)) - set(b"".join(table)))
    assert not absent or case.metadata["tokenizer.ggml.pre"] == "smollm"
    for text in texts_for(ours):
        wanted = text
        if case.metadata["tokenizer.ggml.pre"] == "qwen2":
            wanted = unicodedata.normalize("NFC", text)
        if ours.drops_space and text:  # ▁ is how these vocabularies write a space
            wanted = " " + text.replace("▁", " ")
        joined = b"".join(table[i] for i in ours.encode(text))
        assert joined == wanted.encode().translate(None, absent), repr(text)


def test_published_files_of_hugging_face_folders(tmp_path: Path) -> None:
    """As above from a model's very tokenizer.json, with its merges, its special tokens and their flags."""
    named = os.environ.get(FOLDERS)
    if not named:
        pytest.skip(f"{FOLDERS} names no folders with a tokenizer.json (PRE=FOLDER, joined by colons)")
    for entry in named.split(":"):
        pre, _, folder = entry.partition("=")
        theirs = (Path(folder) / "tokenizer.json").read_text("utf-8")
        ours = of_folder(tmp_path, theirs)
        assert_same_ids(ours, theirs, texts_for(ours))
        if pre == "llama":  # whose scores are not in this file
            continue
        metadata = gguf_vocabulary.of_tokenizer_json(theirs, pre)
        of_file = of_gguf(tmp_path, Published(theirs, metadata))
        assert_same_ids(of_file, theirs, texts_for(of_file))
        assert json.loads(theirs)["model"]["type"] == "BPE"
