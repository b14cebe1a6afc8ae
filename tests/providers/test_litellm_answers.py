"""Whichever way a call to litellm's providers takes, answers and errors come out the same."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.litellm_recipe import BARE
from ionrouter.schema.usage import CompletionParts, PromptParts
from tests.support.endpoints import Answer, collect
from tests.support.litellm_matrix import BODIES, CARRIED, TRANSLATED, asking, is_ours, plain_answer
from tests.support.litellm_ways import both, learnt, told, way
from tests.support.translated_wire import (
    anthropic_event,
    error_body,
    gemini_event,
    kept_for_an_hour,
    refused,
    strange,
    streamed,
    whole,
)
from tests.support.upstream import (
    Cut,
    Reset,
    Script,
    Upstream,
    chunk,
    chunked,
    error,
    json_response,
    raw,
    response,
    sse,
)

pytestmark = pytest.mark.asyncio(loop_scope="session")
THOUGHT = ("thinking", "hm, so", "U0lH")
TOOL = ("tool", "toolu_1", "f", '{"a": [1, 2.5], "b": "\\u00e9"}')
OTHER = ("tool", "toolu_2", "g", "{}")
TEXT = ("text", "hel", "lo, w\u00f6rld", "\u2028", "")
ANSWERS: dict[str, tuple[list[tuple[str, ...]], str]] = {
    "text": ([TEXT], "stop"),
    "thought": ([THOUGHT, TEXT], "stop"),
    "tool": ([TOOL], "tools"),
    "tools": ([THOUGHT, TEXT, TOOL, OTHER], "tools"),
    "cut short": ([TEXT], "length"),
    "refused": ([], "refused"),
    "refused late": ([TEXT], "refused"),
    "nothing": ([], "stop"),
}
ASKED: dict[str, Any] = {
    "plain": BODIES["plain"],
    "tools": BODIES["beside"],
    "schema": BODIES["schema"],
    "strict tools": BODIES["strict tools"],
    "thoughts": BODIES["budget"],
}


# Where the bare translation says what the other doors say. In streams acompletion makes "500 server error" of
# an end without a finish, and an error of a break after it; and it drops the finish of a second choice.
CLEARER = {
    ("anthropic", True, "no finish"),
    ("anthropic", True, "nonsense in the middle"),
    ("gemini", True, "cut after the finish"),
    ("gemini", True, "two"),
}


def _check(old: Answer, new: Answer, name: str, stream: bool, label: str) -> None:
    if (name, stream, label) not in CLEARER:
        assert told(old) == told(new), label
        return
    assert old.error is not None and old.error.failure is FailureClass.TRANSIENT, label
    assert old.text() == new.text(), label
    if new.error is None:
        assert {reason for reason, _ in new.finishes().values()} == {"stop"}, label
    else:
        assert (new.error.failure, new.error.code) == (FailureClass.TRANSIENT, "cut"), label


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", TRANSLATED)
async def test_answers_come_out_the_same(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, name: str, stream: bool
) -> None:
    write = streamed if stream else whole
    with Upstream(plain_answer) as up:
        for case, body in ASKED.items():
            request = asking(up, name, body, stream=stream)
            await learnt(carrying, request)
            assert way(carrying, request) == BARE, case
            for label, (parts, finish) in ANSWERS.items():
                up.enqueue(*[write(name, parts, finish)] * 2)
                old, new = await both(litellm, carrying, request)
                _check(old, new, name, stream, label)
            for label, scripts in strange(name).items():
                up.enqueue(*[scripts[stream]] * 2)
                old, new = await both(litellm, carrying, request)
                _check(old, new, name, stream, label)


@pytest.mark.parametrize("stream", [False, True])
async def test_tokens_of_media_are_as_gemini_counts_them(litellm: LiteLLMProvider, stream: bool) -> None:
    write = streamed if stream else whole
    with Upstream(write("gemini", [TEXT], "stop")) as up:
        answer = await collect(litellm, asking(up, "gemini", stream=stream))
    (used,) = answer.usages() if stream else [answer.complete.usage]
    assert used is not None
    assert (used.prompt_parts, used.completion_parts) == (PromptParts(0, 30, 3), CompletionParts(2, 4))


@pytest.mark.parametrize("stream", [False, True])
async def test_what_anthropic_keeps_for_an_hour_is_told_apart(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, stream: bool
) -> None:
    with Upstream(plain_answer) as up:
        request = asking(up, "anthropic", stream=stream)
        await learnt(carrying, request)
        assert way(carrying, request) == BARE
        up.enqueue(*[kept_for_an_hour(40, 20, streams=stream)] * 2)
        for answer in await both(litellm, carrying, request):
            (used,) = answer.usages() if stream else [answer.complete.usage]
            assert used is not None
            assert (used.cache_write_tokens, used.cache_write_1h_tokens) == (60, 40)


def _faults(name: str) -> dict[str, tuple[Script, Script]]:
    """By label: what answers a call without streaming, and one with."""
    headers = {"Retry-After": "7", "anthropic-ratelimit-requests-remaining": "0"}
    alike = {
        str(s): refused(name, s, f"words {s}", headers) for s in (400, 401, 403, 404, 413, 429, 500, 503, 529)
    }
    alike |= {
        "too long": refused(name, 400, "prompt is too long: 210000 tokens > 200000 maximum"),
        "html": error(502, "<html><h1>502 Bad Gateway</h1></html>", {"Content-Type": "text/html"}),
        "empty error": error(503, b""),
        "html in 200": response(200, "<html>login</html>", content_type="text/html"),
        "redirect": error(307, b"", {"Location": "http://127.0.0.1:9/elsewhere"}),
        "no answer": raw(Cut()),
        "reset": raw(Reset()),
        "cut head": raw(b"HTTP/1.1 200 O", Cut()),
        "cut body": raw(
            b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nContent-Length: 99\r\n\r\n{", Cut()
        ),
    }
    same = {label: (script, script) for label, script in alike.items()}
    over = error_body(name, 529 if name == "anthropic" else 503, "over")
    said = anthropic_event("error", **{k: v for k, v in over.items() if k != "type"}), gemini_event(over)
    spoilt = said[0 if name == "anthropic" else 1]
    text = [("text", "hi")]
    pairs = {
        "error in 200": (json_response(over), chunked([spoilt])),
        "empty": (json_response({}), chunked([])),
        "not json": (response(200, "words"), chunked([b"data: {nonsense\n\n"])),
        "error in the middle": (json_response([]), streamed(name, text, None, spoilt)),
        "cut in the middle": (whole(name, text, "stop"), streamed(name, text, None, Cut())),
        "cut after the finish": (whole(name, text, "stop"), streamed(name, text, "stop", Cut())),
        "no finish": (whole(name, text, "stop"), streamed(name, text, None)),
        "nonsense in the middle": (
            whole(name, text, "stop"),
            streamed(name, text, None, b"data: {nonsense\n\n"),
        ),
    }
    return same | pairs


@pytest.mark.parametrize("stream", [False, True])
@pytest.mark.parametrize("name", TRANSLATED)
async def test_translated_errors_come_out_the_same(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, name: str, stream: bool
) -> None:
    with Upstream(plain_answer) as up:
        request = asking(up, name, stream=stream)
        await learnt(carrying, request)
        assert way(carrying, request) == BARE
        for label, scripts in _faults(name).items():
            first = len(up.requests)
            # A kept connection that is closed without a byte is no answer yet: ours asks on a fresh one.
            num = 3 if label in ("no answer", "reset") else 2
            up.enqueue(*[scripts[stream]] * num)
            old, new = await both(litellm, carrying, request)
            up.forget()
            if stream:
                assert (new.error is None) is (label == "cut after the finish"), label
            _check(old, new, name, stream, label)
            assert len(up.requests) <= first + num, label  # nobody tried again


FAULTS: dict[str, Script] = {
    "400": error(400, {"error": {"message": "bad temperature", "type": "invalid_request_error"}}),
    "401": error(401),
    "404": error(404, {"error": {"message": "no such model", "code": "model_not_found"}}),
    "429": error(429, headers={"Retry-After": "7"}),
    "500": error(500),
    "503": error(503),
    "529": error(529),
    "error in 200": sse([{"error": {"message": "overloaded", "code": 503}}]),
    "mid-stream": sse([chunk({"content": "hi"}), {"error": {"message": "overloaded", "code": 503}}]),
}


@pytest.mark.parametrize("name", CARRIED)
async def test_errors_come_out_the_same(
    litellm: LiteLLMProvider, carrying: LiteLLMProvider, name: str
) -> None:
    with Upstream(plain_answer) as up:
        await learnt(carrying, asking(up, name))
        for label, script in FAULTS.items():
            up.enqueue(script, script)
            old, new = await both(litellm, carrying, asking(up, name))
            assert old.error is not None and _fault(old) == _fault(new), label
            assert is_ours(up.requests[-1]), label


def _fault(answer: Answer) -> Any:
    fault = answer.error
    assert fault is not None
    texts = len(answer.chunks)
    return texts, fault.failure, fault.status, fault.message, fault.error_type, fault.retry_after_s
