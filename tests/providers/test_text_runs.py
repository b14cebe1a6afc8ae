"""Runs of text: what is taken without parsing is what parsing would have found, and nothing else is taken."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.errors import UpstreamError
from ionrouter.providers.chunk_reader import ChunkReader
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.redact import Redactor
from ionrouter.schema.events import Chunk, TextRun
from ionrouter.schema.usage import Usage
from tests.support.endpoints import make_endpoint, make_request
from tests.support.sse import Pieces

DONE = b"data: [DONE]\n\n"


def event(text: Any, finish: str | None = None, *, ascii: bool = False, **more: Any) -> bytes:
    choice = {"index": 0, "delta": {"content": text}, "finish_reason": finish}
    body = {"id": "up-1", "model": "m", "choices": [choice], **more}
    return b"data: " + json.dumps(body, ensure_ascii=ascii).encode("utf-8", "surrogatepass") + b"\n\n"


async def read(pieces: Iterable[bytes]) -> tuple[list[Any], UpstreamError | None]:
    request = make_request(make_endpoint("http://127.0.0.1/v1"))
    reader = ChunkReader(request, ErrorReader("Up", Redactor()), 5.0)
    batches: list[Any] = []
    try:
        async for batch in reader.batches(Pieces(pieces)):
            batches.append(batch)
    except UpstreamError as error:
        return batches, error
    return batches, None


def chunks_of(batches: list[Any]) -> list[Chunk]:
    return [c for batch in batches for e in batch for c in (e.chunks() if isinstance(e, TextRun) else (e,))]


def runs_of(batches: list[Any]) -> list[TextRun]:
    return [e for batch in batches for e in batch if isinstance(e, TextRun)]


def texts_of(batches: list[Any]) -> list[str]:
    return [c.choices[0].delta["content"] for c in chunks_of(batches) if c.choices and c.choices[0].delta]


async def test_what_one_read_brings_is_one_batch_and_one_run() -> None:
    words = [f"w{i} " for i in range(50)]
    stream = b"".join(map(event, words)) + event("", "stop") + DONE
    batches, error = await read([stream])
    assert error is None
    assert len(batches) == 1
    assert [len(run.texts) for run in runs_of(batches)] == [49]
    assert texts_of(batches) == [*words, ""]


@pytest.mark.parametrize("ascii", [True, False])
async def test_any_text_comes_through_in_either_spelling(ascii: bool) -> None:
    words = ["plain", 'quo"ted \\ and \n lines', "Grüße 👋🏽", '"}}]}\n\ndata: [DONE]', "\x7f\u2028", "", "}"]
    stream = b"".join(event(w, ascii=ascii) for w in words) + event("", "stop") + DONE
    batches, error = await read([stream])
    assert error is None
    assert texts_of(batches) == [*words, ""]
    assert runs_of(batches)
    for run in runs_of(batches):
        assert [json.loads(literal) for literal in run.literals] == list(run.texts)


@given(st.lists(st.text(), min_size=1, max_size=8), st.data())
async def test_however_reads_cut_the_stream_the_texts_are_the_same(
    words: list[str], data: st.DataObject
) -> None:
    stream = b"".join(map(event, ["first", *words])) + event("", "stop") + DONE
    cuts = sorted(data.draw(st.lists(st.integers(0, len(stream)), max_size=6)))
    pieces = [stream[a:b] for a, b in zip([0, *cuts], [*cuts, len(stream)], strict=True)]
    batches, error = await read(pieces)
    assert error is None
    assert texts_of(batches) == ["first", *words, ""]


@pytest.mark.parametrize(
    ("odd", "expected", "texts"),
    [
        (event("x", usage={"prompt_tokens": 3, "completion_tokens": 4}), "usage", ["a", "b", "x", "c", ""]),
        (event("x", "length"), "finish", ["a", "b", "x", "c"]),
        (event(None), "none", ["a", "b", "c", ""]),
        (event(5), "number", ["a", "b", "5", "c", ""]),
        (event("x", service_tier="flex"), "tier", ["a", "b", "x", "c", ""]),
    ],
)
async def test_an_event_that_differs_elsewhere_is_parsed(odd: bytes, expected: str, texts: list[str]) -> None:
    batches, error = await read([event("a") + event("b") + odd + event("c") + event("", "stop") + DONE])
    assert error is None
    chunks = chunks_of(batches)
    if expected == "usage":
        assert chunks[-1].usage == Usage(3, 4)
    if expected == "finish":
        assert "length" in [c.choices[0].finish_reason for c in chunks if c.choices]
    if expected == "tier":
        assert "flex" in [c.service_tier for c in chunks]
    assert texts_of(batches) == texts
    assert not any({"x", "5"} & set(run.texts) for run in runs_of(batches))  # it came parsed, in no run


async def test_an_error_behind_a_run_comes_after_it() -> None:
    batches, error = await read(
        [event("a") + event("b") + b'data: {"error": {"message": "no"}}\n\n' + event("c")]
    )
    assert texts_of(batches) == ["a", "b"]
    assert error is not None


@pytest.mark.parametrize("literal", [b'"half', b"x", b'"a" "b"', b'"\\ud83d"', b'"\x01"', b'"\xff"', b"{}"])
async def test_what_is_no_string_is_left_to_the_parser(literal: bytes) -> None:
    """Nothing that JSON would refuse, or read as something else, is passed on as text."""
    broken = event("MARK").replace(b'"MARK"', literal)
    batches, _ = await read([event("a") + event("b") + broken + event("", "stop") + DONE])
    for run in runs_of(batches):
        assert set(run.texts) <= {"a", "b"}


async def test_a_text_that_stands_elsewhere_in_the_event_too_makes_no_pattern() -> None:
    """The model's name is the text: which of the two is meant would be a guess."""
    stream = [event("m") + event("n") + event("o"), event("p") + event("", "stop") + DONE]
    batches, error = await read(stream)
    assert error is None
    assert texts_of(batches) == ["m", "n", "o", "p", ""]


async def test_an_upstream_that_changes_every_event_is_given_up() -> None:
    stream = b"".join(event(f"w{i}", obfuscation=f"{i:08d}") for i in range(40)) + event("", "stop") + DONE
    batches, error = await read([stream])
    assert error is None
    assert runs_of(batches) == []
    assert texts_of(batches) == [*(f"w{i}" for i in range(40)), ""]


async def test_a_cut_in_the_middle_of_an_event_is_a_cut_after_what_was_whole() -> None:
    batches, error = await read([event("a") + event("b") + event("c")[:-9]])
    assert texts_of(batches) == ["a", "b"]
    assert error is not None
    assert error.code in ("cut", "malformed")
