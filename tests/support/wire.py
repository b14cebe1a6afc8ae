"""What a scripted upstream says: steps, scripts, and ready-made answers in several providers' shapes.

Bytes on purpose, and nothing of ionrouter: a fault in our own encoders must not hide one in our decoders.
"""

from __future__ import annotations

import json
import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True)
class Wait:
    """Say nothing for a while, in seconds."""

    seconds: float


@dataclass(frozen=True)
class WaitFor:
    """Say nothing until the test sets the event."""

    event: threading.Event


@dataclass(frozen=True)
class Hang:
    """Say nothing until the client leaves."""


@dataclass(frozen=True)
class Cut:
    """Close the connection here (FIN), however much was promised."""


@dataclass(frozen=True)
class Reset:
    """Close the connection with an RST (SO_LINGER 0)."""


Step = bytes | Wait | WaitFor | Hang | Cut | Reset


@dataclass(frozen=True)
class Script:
    """What happens on one connection after one request. Without Cut or Reset the connection stays open."""

    steps: tuple[Step, ...]

    def then(self, *steps: Step) -> Script:
        return Script(self.steps + steps)


def raw(*steps: Step) -> Script:
    """Script the connection byte by byte."""
    return Script(steps)


def head(status: int, headers: Iterable[tuple[str, str]]) -> bytes:
    lines = [f"HTTP/1.1 {status} {'OK' if status == 200 else 'Scripted'}", *(f"{k}: {v}" for k, v in headers)]
    return ("\r\n".join(lines) + "\r\n\r\n").encode("latin-1")


def response(
    status: int,
    body: bytes | str,
    headers: Mapping[str, str] | None = None,
    *,
    content_type: str | None = "application/json",
) -> Script:
    """A whole answer with Content-Length."""
    data = body.encode() if isinstance(body, str) else body
    fields = dict(headers or {})
    if content_type is not None:
        fields.setdefault("Content-Type", content_type)
    fields.setdefault("Content-Length", str(len(data)))
    return Script((head(status, fields.items()) + data,))


def json_response(body: Any, status: int = 200, headers: Mapping[str, str] | None = None) -> Script:
    return response(status, json.dumps(body), headers)


def error(status: int, body: Any = None, headers: Mapping[str, str] | None = None) -> Script:
    """An error answer; `body` None makes OpenAI's shape, a str or bytes goes out as it is."""
    if body is None:
        body = {"error": {"message": f"scripted {status}", "type": "scripted", "param": None, "code": None}}
    data = body if isinstance(body, str | bytes) else json.dumps(body)
    return response(status, data, headers)


def http_chunk(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n" % (len(data), data)


END = b"0\r\n\r\n"


def chunked(
    pieces: Iterable[Step],
    *,
    status: int = 200,
    content_type: str = "text/event-stream",
    headers: Mapping[str, str] | None = None,
    end: bool = True,
) -> Script:
    """A chunked answer: each bytes step is one HTTP chunk and one write; `end` sends the terminator."""
    fields = {"Content-Type": content_type, "Transfer-Encoding": "chunked", **(headers or {})}
    steps = [http_chunk(p) if isinstance(p, bytes) else p for p in pieces if p != b""]
    return Script((head(status, fields.items()), *steps, *([END] if end else [])))


def event(payload: Any) -> bytes:
    """One SSE event holding JSON, raw UTF-8; a lone surrogate goes out as its ASCII escape."""
    try:
        text = json.dumps(payload, ensure_ascii=False).encode()
    except UnicodeEncodeError:
        text = json.dumps(payload).encode()
    return b"data: " + text + b"\n\n"


DONE = b"data: [DONE]\n\n"


def chunk(
    delta: Mapping[str, Any] | None = None,
    finish_reason: str | None = None,
    *,
    index: int = 0,
    **extra: Any,
) -> dict[str, Any]:
    """A chat.completion.chunk; `delta` None makes one without choices."""
    choices = (
        [] if delta is None else [{"index": index, "delta": dict(delta), "finish_reason": finish_reason}]
    )
    base = {"id": "c", "object": "chat.completion.chunk", "created": 1, "model": "up", "choices": choices}
    return {**base, **extra}


def usage(prompt: int, completion: int, **extra: Any) -> dict[str, Any]:
    total = prompt + completion
    return {"prompt_tokens": prompt, "completion_tokens": completion, "total_tokens": total, **extra}


def sse(events: Sequence[Any], *, pause_s: float = 0.0, done: bool = True, **options: Any) -> Script:
    """A stream: dicts become events, bytes and other steps pass as they are, `pause_s` between two."""
    pieces: list[Step] = []
    for item in events:
        if pieces and pause_s:
            pieces.append(Wait(pause_s))
        pieces.append(event(item) if isinstance(item, dict) else item)
    return chunked([*pieces, DONE] if done else pieces, **options)


# OpenAI's shape, as vLLM, SGLang and llama.cpp speak it.


def chat_json(text: str, finish_reason: str = "stop", *, prompt: int = 5, completion: int = 2) -> Script:
    message = {"role": "assistant", "content": text}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason}
    body = {"id": "c", "object": "chat.completion", "created": 1, "model": "up", "choices": [choice]}
    return json_response({**body, "usage": usage(prompt, completion)})


def chat_stream(
    pieces: Sequence[str],
    finish_reason: str = "stop",
    *,
    pause_s: float = 0.0,
    prompt: int = 5,
    done: bool = True,
) -> Script:
    """Role, one event a piece, finish, usage, [DONE]."""
    events = [chunk({"role": "assistant", "content": ""})]
    events += [chunk({"content": piece}) for piece in pieces]
    events += [chunk({}, finish_reason), chunk(usage=usage(prompt, len(pieces)))]
    return sse(events, pause_s=pause_s, done=done)


def completion_json(text: str, finish_reason: str = "stop") -> Script:
    choice = {"index": 0, "text": text, "finish_reason": finish_reason, "logprobs": None}
    body = {"id": "t", "object": "text_completion", "created": 1, "model": "up", "choices": [choice]}
    return json_response({**body, "usage": usage(5, 2)})


def completion_stream(pieces: Sequence[str], finish_reason: str = "stop") -> Script:
    base = {"id": "t", "object": "text_completion", "created": 1, "model": "up"}
    events: list[Any] = [
        {**base, "choices": [{"index": 0, "text": piece, "finish_reason": None}]} for piece in pieces
    ]
    events.append({**base, "choices": [{"index": 0, "text": "", "finish_reason": finish_reason}]})
    events.append({**base, "choices": [], "usage": usage(5, len(pieces))})
    return sse(events)


def embeddings_json(vectors: Sequence[Sequence[float]]) -> Script:
    data = [{"object": "embedding", "index": i, "embedding": list(v)} for i, v in enumerate(vectors)]
    tokens = {"prompt_tokens": 4, "total_tokens": 4}
    return json_response({"object": "list", "model": "up", "data": data, "usage": tokens})


# Together: `prompt` beside the choices, `seed` and `token_id` in them, finish reason `eos`, and the usage
# on the finish chunk itself.


def together_json(text: str, finish_reason: str = "eos", *, tool_calls: Sequence[Any] = ()) -> Script:
    message = {"role": "assistant", "content": text, "tool_calls": list(tool_calls)}
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "logprobs": None, "seed": 7}
    body = {"id": "nz1-t", "object": "chat.completion", "created": 1, "model": "up", "prompt": []}
    return json_response({**body, "choices": [choice], "usage": usage(5, 2, cached_tokens=0)})


def together_stream(pieces: Sequence[str], finish_reason: str = "eos", *, pause_s: float = 0.0) -> Script:
    events = [_together_chunk(piece, token_id=100 + i) for i, piece in enumerate(pieces)]
    last = _together_chunk("", token_id=128009, finish_reason=finish_reason, seed=7)
    events.append({**last, "usage": usage(5, len(pieces), cached_tokens=0)})
    return sse(events, pause_s=pause_s)


def _together_chunk(
    text: str, *, token_id: int, finish_reason: str | None = None, **extra: Any
) -> dict[str, Any]:
    delta = {"token_id": token_id, "role": "assistant", "content": text, "tool_calls": None}
    choice = {
        "index": 0,
        "text": text,
        "logprobs": None,
        "finish_reason": finish_reason,
        "delta": delta,
        **extra,
    }
    base = {"id": "nz1-t", "object": "chat.completion.chunk", "created": 1, "model": "up"}
    return {**base, "choices": [choice], "usage": None}


def together_error(status: int, message: str, *, code: str | None = None, kind: str = "error") -> Script:
    body = {"message": message, "type": kind, "param": None, "code": code}
    return error(status, {"id": "nz1-e", "error": body})


# Fireworks: the usage on the finish chunk with cached tokens in its details, perf_metrics when asked for.


def fireworks_json(text: str, finish_reason: str = "stop", *, tool_calls: Sequence[Any] = ()) -> Script:
    message: dict[str, Any] = {"role": "assistant", "content": text}
    if tool_calls:
        message["tool_calls"] = list(tool_calls)
    choice = {"index": 0, "message": message, "finish_reason": finish_reason, "token_ids": None}
    body = {"id": "fw-1", "object": "chat.completion", "created": 1, "model": "up", "choices": [choice]}
    return json_response({**body, "usage": _fireworks_usage(2), "perf_metrics": None})


def fireworks_stream(pieces: Sequence[str], finish_reason: str = "stop", *, pause_s: float = 0.0) -> Script:
    events: list[Any] = [chunk({"role": "assistant"}, id="fw-1", usage=None)]
    events += [chunk({"content": piece}, id="fw-1", usage=None) for piece in pieces]
    metrics = {"prompt-tokens": "5", "server-time-to-first-token": "0.05"}
    last = chunk({}, finish_reason, id="fw-1", usage=_fireworks_usage(len(pieces)), perf_metrics=metrics)
    return sse([*events, last], pause_s=pause_s)


def fireworks_error(status: int, message: str, *, code: str | None = None) -> Script:
    body = {"object": "error", "type": "invalid_request_error", "code": code, "message": message}
    return error(status, {"error": body})


def _fireworks_usage(completion: int) -> dict[str, Any]:
    return usage(5, completion, prompt_tokens_details={"cached_tokens": 3})
