"""Answers as Anthropic's Messages API and Gemini's generateContent write them: whole, in events, refused.

Bytes, and nothing of ionrouter. An answer is said once, as parts, and written in either provider's words:
("thinking", text, signature), ("text", piece, ...), ("tool", id, name, JSON arguments).
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from typing import Any

from tests.support.wire import Cut, Script, Step, chunked, error, json_response

Part = tuple[str, ...]
_STOPS = {
    "anthropic": {"stop": "end_turn", "tools": "tool_use", "length": "max_tokens", "refused": "refusal",
                  "string": "stop_sequence"},
    "gemini": {"stop": "STOP", "tools": "STOP", "length": "MAX_TOKENS", "refused": "SAFETY",
               "string": "STOP"},
}  # fmt: skip
_STRINGS = {"string": "END"}  # the stop string that matched
_ERRORS = {
    400: ("invalid_request_error", "INVALID_ARGUMENT"),
    401: ("authentication_error", "UNAUTHENTICATED"),
    403: ("permission_error", "PERMISSION_DENIED"),
    404: ("not_found_error", "NOT_FOUND"),
    413: ("request_too_large", "INVALID_ARGUMENT"),
    429: ("rate_limit_error", "RESOURCE_EXHAUSTED"),
    500: ("api_error", "INTERNAL"),
    503: ("api_error", "UNAVAILABLE"),
    529: ("overloaded_error", "UNAVAILABLE"),
}


def whole(name: str, parts: Sequence[Part], finish: str) -> Script:
    """The answer to a call without streaming."""
    return json_response((_anthropic_body if name == "anthropic" else _gemini_body)(parts, finish))


def events(name: str, parts: Sequence[Part], finish: str | None) -> list[Step]:
    """The events of a stream, one write each; `finish` None leaves the end out."""
    return list((_anthropic_events if name == "anthropic" else _gemini_events)(parts, finish))


def streamed(name: str, parts: Sequence[Part], finish: str | None, *after: Step) -> Script:
    """A stream; a Cut among `after` ends the connection in the middle of the body."""
    return chunked([*events(name, parts, finish), *after], end=not any(isinstance(s, Cut) for s in after))


def refused(name: str, status: int, message: str, headers: dict[str, str] | None = None) -> Script:
    """An error answer."""
    return error(status, error_body(name, status, message), headers)


def error_body(name: str, status: int, message: str) -> dict[str, Any]:
    """The JSON of an error, as it stands in an answer of its own or in a stream."""
    kinds = _ERRORS[status]
    if name == "anthropic":
        return {"type": "error", "error": {"type": kinds[0], "message": message}, "request_id": "req_1"}
    return {"error": {"code": status, "message": message, "status": kinds[1]}}


def kept_for_an_hour(for_hour: int, for_minutes: int, *, streams: bool) -> Script:
    """Anthropic's answer to a prompt of which so many tokens were written to its cache."""
    written = {"ephemeral_1h_input_tokens": for_hour, "ephemeral_5m_input_tokens": for_minutes}
    told = {"cache_creation_input_tokens": for_hour + for_minutes, "cache_creation": written}
    if not streams:
        body = _anthropic_body([("text", "A")], "stop")
        return json_response({**body, "usage": {**body["usage"], **told}})
    started = _message(
        content=[], stop_reason=None, stop_sequence=None, usage={**_anthropic_usage(1), **told}
    )
    rest = list(_anthropic_events([("text", "A")], "stop"))[1:]
    return chunked([anthropic_event("message_start", message=started), *rest])


def anthropic_event(name: str, **fields: Any) -> bytes:
    """One event of a Messages stream."""
    return f"event: {name}\ndata: {json.dumps({'type': name, **fields})}\n\n".encode()


def gemini_event(payload: Any) -> bytes:
    """One event of streamGenerateContent with alt=sse."""
    return b"data: " + json.dumps(payload).encode() + b"\r\n\r\n"


# Anthropic


def _anthropic_usage(output: int) -> dict[str, Any]:
    cached = {"cache_read_input_tokens": 90, "cache_creation_input_tokens": 0}
    return {"input_tokens": 10, "output_tokens": output, **cached}


def _message(**fields: Any) -> dict[str, Any]:
    return {"id": "msg_1", "type": "message", "role": "assistant", "model": "claude-sonnet-4-5", **fields}


def _anthropic_body(parts: Sequence[Part], finish: str) -> dict[str, Any]:
    stop = {"stop_reason": _STOPS["anthropic"][finish], "stop_sequence": _STRINGS.get(finish)}
    return _message(content=[_block(part) for part in parts], **stop, usage=_anthropic_usage(7))


def _block(part: Part) -> dict[str, Any]:
    match part:
        case ("thinking", text, mark):
            return {"type": "thinking", "thinking": text, "signature": mark}
        case ("tool", id, name, arguments):
            return {"type": "tool_use", "id": id, "name": name, "input": json.loads(arguments)}
        case (_, *pieces):
            return {"type": "text", "text": "".join(pieces)}
    raise ValueError(part)


def _anthropic_events(parts: Sequence[Part], finish: str | None) -> Iterable[bytes]:
    start = _message(content=[], stop_reason=None, stop_sequence=None, usage=_anthropic_usage(1))
    yield anthropic_event("message_start", message=start)
    yield anthropic_event("ping")
    for index, part in enumerate(parts):
        opened, deltas = _block_events(part)
        yield anthropic_event("content_block_start", index=index, content_block=opened)
        for delta in deltas:
            yield anthropic_event("content_block_delta", index=index, delta=delta)
        yield anthropic_event("content_block_stop", index=index)
    if finish is not None:
        stop = {"stop_reason": _STOPS["anthropic"][finish], "stop_sequence": _STRINGS.get(finish)}
        yield anthropic_event("message_delta", delta=stop, usage={"output_tokens": 7})
        yield anthropic_event("message_stop")


def _block_events(part: Part) -> tuple[dict[str, Any], list[dict[str, Any]]]:
    match part:
        case ("thinking", text, mark):
            deltas = [
                {"type": "thinking_delta", "thinking": text},
                {"type": "signature_delta", "signature": mark},
            ]
            return {"type": "thinking", "thinking": "", "signature": ""}, deltas
        case ("tool", id, name, arguments):
            halves = arguments[:3], arguments[3:]
            deltas = [{"type": "input_json_delta", "partial_json": half} for half in ("", *halves)]
            return {"type": "tool_use", "id": id, "name": name, "input": {}}, deltas
        case (_, *pieces):
            return {"type": "text", "text": ""}, [{"type": "text_delta", "text": piece} for piece in pieces]
    raise ValueError(part)


# Gemini

_GEMINI_USAGE = {
    "promptTokenCount": 100,
    "cachedContentTokenCount": 90,
    "candidatesTokenCount": 7,
    "thoughtsTokenCount": 3,
    "totalTokenCount": 110,
    "promptTokensDetails": [
        {"modality": "TEXT", "tokenCount": 67},
        {"modality": "AUDIO", "tokenCount": 30},
        {"modality": "VIDEO", "tokenCount": 3},
    ],
    "candidatesTokensDetails": [
        {"modality": "TEXT", "tokenCount": 1},
        {"modality": "AUDIO", "tokenCount": 2},
        {"modality": "IMAGE", "tokenCount": 4},
    ],
}


def _gemini_parts(part: Part) -> list[dict[str, Any]]:
    match part:
        case ("thinking", text, _):
            return [{"text": text, "thought": True}]
        case ("tool", _, name, arguments):
            return [
                {"functionCall": {"name": name, "args": json.loads(arguments)}, "thoughtSignature": "U0lH"}
            ]
        case (_, *pieces):
            return [{"text": piece} for piece in pieces]
    raise ValueError(part)


def _answer(parts: list[dict[str, Any]], finish: str | None, usage: bool) -> dict[str, Any]:
    candidate: dict[str, Any] = {"index": 0}
    if parts:
        candidate["content"] = {"role": "model", "parts": parts}
    if finish is not None:
        candidate["finishReason"] = _STOPS["gemini"][finish]
    body = {"candidates": [candidate], "modelVersion": "gemini-2.5-flash", "responseId": "r1"}
    return {**body, "usageMetadata": _GEMINI_USAGE} if usage else body


def _gemini_body(parts: Sequence[Part], finish: str) -> dict[str, Any]:
    return _answer([piece for part in parts for piece in _gemini_parts(part)], finish, usage=True)


def _gemini_events(parts: Sequence[Part], finish: str | None) -> Iterable[bytes]:
    pieces = [piece for part in parts for piece in _gemini_parts(part)]
    for piece in pieces[:-1]:
        yield gemini_event(_answer([piece], None, usage=False))
    if pieces or finish is not None:
        yield gemini_event(_answer(pieces[-1:], finish, usage=finish is not None))


# What only one of them says


def strange(name: str) -> dict[str, tuple[Script, Script]]:
    """By label: an answer without streaming, and one with."""
    return _strange_anthropic() if name == "anthropic" else _strange_gemini()


def _strange_anthropic() -> dict[str, tuple[Script, Script]]:
    cited = {"type": "char_location", "cited_text": "x", "document_index": 0, "document_title": "d",
             "start_char_index": 0, "end_char_index": 1}  # fmt: skip
    sealed = {"type": "redacted_thinking", "data": "SEALED"}
    text = {"type": "text", "text": "hi", "citations": [cited]}
    start = _message(content=[], stop_reason=None, stop_sequence=None, usage=_anthropic_usage(1))
    opened = anthropic_event("message_start", message=start)
    said = [
        {"type": "citations_delta", "citation": cited},
        {"type": "text_delta", "text": "hi"},
    ]
    block = [
        anthropic_event("content_block_start", index=0, content_block=sealed),
        anthropic_event("content_block_stop", index=0),
        anthropic_event("content_block_start", index=1, content_block={"type": "text", "text": ""}),
        *(anthropic_event("content_block_delta", index=1, delta=delta) for delta in said),
        anthropic_event("content_block_stop", index=1),
    ]
    out: dict[str, tuple[Script, Script]] = {}
    for stop in ("stop_sequence", "pause_turn", "model_context_window_exceeded", "a_new_one"):
        end = {"stop_reason": stop, "stop_sequence": "x" if stop == "stop_sequence" else None}
        body = _message(content=[sealed, text], **end, usage=_anthropic_usage(7))
        last = anthropic_event("message_delta", delta=end, usage=_anthropic_usage(7))
        out[stop] = (json_response(body), chunked([opened, *block, last, anthropic_event("message_stop")]))
    return out


def _strange_gemini() -> dict[str, tuple[Script, Script]]:
    image = [{"text": "see"}, {"inlineData": {"mimeType": "image/png", "data": "AAAA"}}]
    web = {"web": {"uri": "https://example.org", "title": "e"}}
    support = {"segment": {"startIndex": 0, "endIndex": 2, "text": "hi"}, "groundingChunkIndices": [0]}
    found = {"groundingChunks": [web], "groundingSupports": [support], "webSearchQueries": ["q"]}
    bodies = {label: _answer([{"text": "hi"}], "stop", usage=True) for label in _GEMINI_STOPS}
    for label, body in bodies.items():
        body["candidates"][0]["finishReason"] = label
    bodies["image"] = _answer(image, "stop", usage=True)
    bodies["grounded"] = _answer([{"text": "hi"}], "stop", usage=True)
    bodies["grounded"]["candidates"][0]["groundingMetadata"] = found
    bodies["two"] = _answer([{"text": "hi"}], "stop", usage=True)
    bodies["two"]["candidates"] += [{**bodies["two"]["candidates"][0], "index": 1}]
    bodies["blocked"] = {"promptFeedback": {"blockReason": "SAFETY"}, "usageMetadata": _GEMINI_USAGE}
    return {label: (json_response(body), chunked([gemini_event(body)])) for label, body in bodies.items()}


_GEMINI_STOPS = ("RECITATION", "MALFORMED_FUNCTION_CALL", "OTHER", "A_NEW_ONE")
