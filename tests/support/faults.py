"""The sixteen classic faults of an upstream, as scripts for sockets: streaming and whole.

Knows nothing of ionrouter: what the router must make of each stands in tests/faults/.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from tests.support.wire import (
    DONE,
    Cut,
    Hang,
    Reset,
    Script,
    Wait,
    chat_json,
    chat_stream,
    chunk,
    chunked,
    error,
    event,
    json_response,
    raw,
    response,
    sse,
    usage,
)

ROLE = chunk({"role": "assistant", "content": ""})
HALF = chunk({"content": "half "})
REFUSED = {
    "message": "This model's maximum context length is 8192 tokens. However, your messages resulted in 9000.",
    "type": "invalid_request_error",
    "param": "messages",
    "code": "context_length_exceeded",
}
INNER = {"message": "worker limit reached", "type": "server_error", "param": None, "code": 503}
BROKEN = b'data: {"id":"c","choices":[{"index":0,\n\n'


@dataclass(frozen=True)
class Fault:
    """What the primary does to the requests of one test, in order; the fallback is well throughout."""

    name: str
    stream: tuple[Script, ...]
    whole: tuple[Script, ...]

    def scripts(self, stream: bool) -> Sequence[Script]:
        return self.stream if stream else self.whole


def _both(name: str, *scripts: Script) -> Fault:
    return Fault(name, scripts, scripts)


def _one(name: str, stream: Script, whole: Script) -> Fault:
    return Fault(name, (stream,), (whole,))


def _open(*events: bytes) -> Script:
    """A stream that stays open after its last event: it is the router that must hang up."""
    return chunked(events, end=False).then(Hang())


def _begun(*steps: bytes | Wait | Cut | Hang) -> Script:
    """A whole answer of which only the beginning comes at once."""
    (data,) = chat_json("half an answer").steps
    assert isinstance(data, bytes)
    return raw(data[:-20], *steps)


def _trickled() -> Script:
    (data,) = chat_json("slow").steps
    assert isinstance(data, bytes)
    header, _, body = data.partition(b"\r\n\r\n")
    pieces = [step for at in range(len(body)) for step in (Wait(0.1), body[at : at + 1])]
    return raw(header + b"\r\n\r\n", *pieces)


def _to_the_end_of_the_connection() -> Script:
    (data,) = chat_json("ended by closing").steps
    assert isinstance(data, bytes)
    body = data.partition(b"\r\n\r\n")[2]
    return raw(
        b"HTTP/1.1 200 OK\r\nContent-Type: application/json\r\nConnection: close\r\n\r\n" + body, Cut()
    )


_DOWN = error(503)
_FILTERED = {"role": "assistant", "content": ""}
_FILTERED_BODY = {
    "id": "c",
    "object": "chat.completion",
    "created": 1,
    "model": "up",
    "choices": [{"index": 0, "message": _FILTERED, "finish_reason": "content_filter"}],
    "usage": usage(5, 0),
}

FAULTS: tuple[Fault, ...] = (
    _both("429 with Retry-After", error(429, headers={"Retry-After": "600"})),
    _both("persistent 503", *[_DOWN] * 3),
    _both("reset before headers", raw(Reset())),
    _both("silence", raw(Hang())),
    _one(
        "slow first token",
        chunked([event(ROLE), b": still here\n\n", Wait(20), event(HALF), DONE]),
        raw(Wait(0.6), *chat_json("from a").steps),
    ),
    _one("cut stream", sse([ROLE, HALF], done=False, end=False).then(Cut()), _begun(Cut())),
    _one("stalled stream", sse([ROLE, HALF], done=False, end=False).then(Hang()), _begun(Hang())),
    _one("malformed event", _open(event(ROLE), BROKEN), response(200, b'{"id":"c","choices":[')),
    _one(
        "malformed event after text",
        _open(event(ROLE), event(HALF), BROKEN),
        response(200, b'{"id":"c","choices":[{"index":0,"message":{"content":"half '),
    ),
    _one("missing [DONE]", chat_stream(["from", " a"], done=False), _to_the_end_of_the_connection()),
    _both("context overflow", error(400, {"error": REFUSED})),
    _one(
        "content filter",
        sse([ROLE, chunk({}, "content_filter"), chunk(usage=usage(5, 0))]),
        json_response(_FILTERED_BODY),
    ),
    Fault(
        "flapping primary",
        (_DOWN, chat_stream(["from", " a"])) * 2,
        (_DOWN, chat_json("from a")) * 2,
    ),
    _both("usage and cost of the fallback", error(500)),
    _one(
        "error inside 200",
        _open(event({"error": INNER})),
        json_response({"error": INNER}),
    ),
    _one(
        "error inside 200 after text",
        _open(event(ROLE), event(HALF), event({"error": INNER, "choices": []})),
        json_response({"error": INNER, "choices": []}),
    ),
    _one("empty 200", chunked([DONE]), response(200, b"")),
    _one("slow trickle", chat_stream([f"{n} " for n in range(200)], pause_s=0.1), _trickled()),
)
