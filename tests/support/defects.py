"""Chat answers as an upstream may write them, and every defect of them that breaks some stock client.

Knows nothing of ionrouter: a defect is a place in the JSON and what stands there instead.
"""

from __future__ import annotations

import copy
from collections.abc import Mapping
from typing import Any

GONE = object()  # the key is not there at all
Defect = Mapping[tuple[str | int, ...], Any]

CALL = {"id": "c1", "type": "function", "function": {"name": "weather", "arguments": "{}"}}
USAGE = {
    "prompt_tokens": 5,
    "completion_tokens": 2,
    "total_tokens": 7,
    "cost": 0.5,
    "cost_details": {
        "upstream_inference_cost": 0.5,
        "upstream_inference_prompt_cost": 0.25,
        "upstream_inference_completions_cost": 0.25,
    },
}
ENVELOPE = {"id": "up-1", "created": 1733400000, "model": "u", "provider": "Else", "system_fingerprint": "fp"}
WHOLE: dict[str, Any] = {
    **ENVELOPE,
    "object": "chat.completion",
    "choices": [
        {
            "index": 0,
            "message": {"role": "assistant", "content": "hi there", "tool_calls": [CALL]},
            "finish_reason": "tool_calls",
            "native_finish_reason": "tool_calls",
        }
    ],
    "usage": USAGE,
}
C, M = ("choices", 0), ("choices", 0, "message")
ENVELOPE_DEFECTS: dict[str, Defect] = {
    **{f"no {key}": {(key,): GONE} for key in (*ENVELOPE, "object")},
    **{f"{key} null": {(key,): None} for key in (*ENVELOPE, "object")},
    "created with a fraction": {("created",): 1733400000.25},
    "created as text": {("created",): "1733400000"},
    "id a number": {("id",): 17},
    "provider an object": {("provider",): {"name": "Else"}},
}
USAGE_DEFECTS: dict[str, Defect] = {
    "no usage": {("usage",): GONE},
    "usage null": {("usage",): None},
    "usage of floats": {("usage",): {"prompt_tokens": 5.0, "completion_tokens": 2.0}},
    "cost_details in part": {("usage", "cost_details"): {"upstream_inference_cost": 0.5}},
    "cost_details null": {("usage", "cost_details"): None},
    "details null": {("usage", "prompt_tokens_details"): None, ("usage", "completion_tokens_details"): None},
}
WHOLE_DEFECTS: dict[str, Defect] = {
    **ENVELOPE_DEFECTS,
    **USAGE_DEFECTS,
    "no index": {(*C, "index"): GONE},
    "index null": {(*C, "index"): None},
    "no finish_reason": {(*C, "finish_reason"): GONE},
    "finish_reason null": {(*C, "finish_reason"): None},
    "unknown finish_reason": {(*C, "finish_reason"): "eos"},
    "no role": {(*M, "role"): GONE},
    "role null": {(*M, "role"): None},
    "foreign role": {(*M, "role"): "model"},
    "tool call without id": {(*M, "tool_calls", 0, "id"): GONE},
    "tool call id null": {(*M, "tool_calls", 0, "id"): None},
    "tool call without type": {(*M, "tool_calls", 0, "type"): GONE},
    "tool call arguments an object": {(*M, "tool_calls", 0, "function", "arguments"): {}},
    "tool calls null": {(*M, "tool_calls"): None},
    "error null": {("error",): None},
}


def spoiled(body: Any, *defects: Defect) -> Any:
    """A copy of a body with defects; one whose place is gone already changes nothing."""
    copied = copy.deepcopy(body)
    for path, value in (item for defect in defects for item in defect.items()):
        parent = copied
        try:
            for step in path[:-1]:
                parent = parent[step]
            if value is GONE:
                parent.pop(path[-1], None)
            else:
                parent[path[-1]] = value
        except (KeyError, IndexError, TypeError):
            continue
    return copied


def piece(delta: Mapping[str, Any], finish: str | None = None, **more: Any) -> dict[str, Any]:
    choice = {"index": 0, "delta": dict(delta), "finish_reason": finish}
    return {**ENVELOPE, "object": "chat.completion.chunk", "choices": [choice], **more}


PIECES = [
    piece({"role": "assistant", "content": ""}),
    piece({"content": "hi"}),
    piece({"content": " there"}),
    piece({"tool_calls": [{"index": 0, **CALL, "function": {"name": "weather", "arguments": ""}}]}),
    piece({"tool_calls": [{"index": 0, "function": {"arguments": "{}"}}]}),
    piece({}, "tool_calls"),
    {**ENVELOPE, "object": "chat.completion.chunk", "choices": [], "usage": USAGE},
]
D = (*C, "delta")
# Applied to every chunk of the stream.
STREAM_DEFECTS: dict[str, Defect] = {
    **ENVELOPE_DEFECTS,
    **USAGE_DEFECTS,
    "no index": {(*C, "index"): GONE},
    "index null": {(*C, "index"): None},
    "no role": {(*D, "role"): GONE},
    "role null": {(*D, "role"): None},
    "foreign role": {(*D, "role"): "model"},
    "tool call without id": {(*D, "tool_calls", 0, "id"): GONE},
    "tool call id null": {(*D, "tool_calls", 0, "id"): None},
    "tool call without index": {(*D, "tool_calls", 0, "index"): GONE},
    "tool call without type": {(*D, "tool_calls", 0, "type"): GONE},
    "usage on a chunk with a choice": {("usage",): USAGE},
    "error null": {("error",): None},
}
