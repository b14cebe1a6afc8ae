"""A whole answer that broke off is read as far as it came: never a part of a number or of a name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from ionrouter.providers.cut_answer import note_cut, read_cut
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.redact import Redactor
from ionrouter.schema.request import Kind
from tests.support.endpoints import make_endpoint, make_request

USED = {"prompt_tokens": 1000, "completion_tokens": 200}
SAID: dict[str, Any] = {
    "role": "assistant",
    "content": 'h\u00e9 \\ "llo" \u2028',
    "n": [1, -2.5e3, True, None, {}],
}
ANSWER: dict[str, Any] = {"choices": [{"index": 0, "message": SAID, "finish_reason": "stop"}], "usage": USED}
FORMS = {
    "escaped": json.dumps(ANSWER).encode(),
    "plain": json.dumps(ANSWER, ensure_ascii=False).encode(),
    "over lines": json.dumps(ANSWER, indent=1).encode(),
    "close": json.dumps(ANSWER, separators=(",", ":")).encode(),
}


def is_part_of(part: Any, whole: Any, *, is_last: bool = True) -> bool:
    if isinstance(whole, dict):
        names = list(part)
        is_begin = isinstance(part, dict) and names == list(whole)[: len(names)]
        return is_begin and all(is_part_of(part[n], whole[n], is_last=n == names[-1]) for n in names)
    if isinstance(whole, list):
        pairs = zip(part, whole, strict=False)
        return len(part) <= len(whole) and all(is_part_of(a, b) for a, b in pairs)
    if isinstance(whole, str):
        return isinstance(part, str) and (whole.startswith(part) if is_last else part == whole)
    return bool(part == whole)


@pytest.mark.parametrize("form", FORMS.values(), ids=FORMS)
def test_each_beginning_of_an_answer_is_a_part_of_it(form: bytes) -> None:
    for end in range(1, len(form)):
        part = read_cut(form[:end])
        assert part is not None and is_part_of(part, ANSWER), form[:end]
    assert read_cut(form) == read_cut(form[:-1]) == ANSWER


@pytest.mark.parametrize("data", [b"", b" \n", b"[1", b"<html>", b"data: {", b"oops"])
def test_what_is_no_beginning_of_an_answer_is_none(data: bytes) -> None:
    assert read_cut(data) is None


@pytest.mark.parametrize(
    ("kind", "data", "characters", "prompt"),
    [
        ("chat", b'{"id": "x', 0, None),
        ("chat", b'{"choices": [{"message": {"content": "hello', 5, None),
        ("chat", b'{"choices": [{"message": {"content": "hi", "reasoning": "so', 4, None),
        ("chat", b'{"usage": {"prompt_tokens": 10, "completion_tokens": 2', 0, 10),
        ("chat", b'{"error": {"mess', None, None),
        ("chat", b'{"message": "no su', None, None),
        ("completions", b'{"choices": [{"text": "hello', 5, None),
        ("embeddings", b'{"data": [{"embedding": [0.1, 0.', 0, None),
        ("rerank", b'{"results": [{"index": 0, "relevance_score": 0.', 0, None),
        ("rerank", b'{"meta": {"tokens": {"input_tokens": 7}}, "results": [', 0, 7),
    ],
)
def test_what_came_is_told(kind: Kind, data: bytes, characters: int | None, prompt: int | None) -> None:
    request = make_request(make_endpoint("http://127.0.0.1:1"), kind=kind, stream=False)
    note_cut(request, data, ErrorReader("Up", Redactor()))
    told = request.told
    assert told.num_characters == characters
    assert (None if told.usage is None else told.usage.prompt_tokens) == prompt
