"""What stock clients demand of /messages and /responses: each event's shape, and what holds between them.

Measured with anthropic, openai and both OpenRouter SDKs. Reads raw JSON; knows nothing of ionrouter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from tests.support.strict_shapes import INTEGER, TEXT, TEXT_OR_NULL, WORD, assert_fits, listing, shape

NULL = {"type": "null"}
COUNT = {"type": "integer", "minimum": 0}
GEN = {"type": "string", "pattern": "^gen-"}


def _named(kind: str, **properties: Any) -> dict[str, Any]:
    return shape({"type": {"const": kind}, **properties})


MESSAGE_USAGE = shape(
    {
        **dict.fromkeys(
            ("input_tokens", "output_tokens", "cache_creation_input_tokens", "cache_read_input_tokens"), COUNT
        ),
        "server_tool_use": NULL,
        "service_tier": {"enum": ["standard", "priority", "batch"]},
    }
)
STOPS = ["end_turn", "max_tokens", "stop_sequence", "tool_use", "pause_turn", "refusal"]
TEXT_BLOCK = _named("text", text=TEXT, citations=NULL)
TOOL_BLOCK = _named("tool_use", id=WORD, name=WORD, input={"type": "object"})
MESSAGE = {
    "id": GEN,
    "type": {"const": "message"},
    "role": {"const": "assistant"},
    "model": WORD,
    "provider": WORD,
    "usage": MESSAGE_USAGE,
}
WHOLE_MESSAGE = shape(
    {
        **MESSAGE,
        "content": listing({"anyOf": [TEXT_BLOCK, TOOL_BLOCK]}),
        "stop_reason": {"enum": STOPS},
        "stop_sequence": TEXT_OR_NULL,
    }
)
MESSAGES_ERROR = _named("error", error=shape({"type": WORD, "message": WORD}), request_id=GEN)
MESSAGES_EVENTS: Mapping[str, Any] = {
    "message_start": shape(
        {
            "message": shape(
                {**MESSAGE, "content": {"maxItems": 0}, "stop_reason": NULL, "stop_sequence": NULL}
            )
        }
    ),
    "content_block_start": shape({"index": COUNT, "content_block": {"anyOf": [TEXT_BLOCK, TOOL_BLOCK]}}),
    "content_block_delta": shape(
        {
            "index": COUNT,
            "delta": {
                "anyOf": [_named("text_delta", text=TEXT), _named("input_json_delta", partial_json=TEXT)]
            },
        }
    ),
    "content_block_stop": shape({"index": COUNT}),
    "message_delta": shape(
        {
            "delta": shape({"stop_reason": {"enum": STOPS}, "stop_sequence": TEXT_OR_NULL}),
            "usage": MESSAGE_USAGE,
        }
    ),
    "message_stop": shape({}),
    "error": MESSAGES_ERROR,
}


def assert_messages(events: Sequence[Mapping[str, Any]]) -> tuple[str, list[Mapping[str, Any]]]:
    """Check a stream: blocks one after another between start and stop; returns its text and its tools."""
    kinds = [event["type"] for event in events]
    for event in events:
        assert_fits(MESSAGES_EVENTS[event["type"]], event)
    text, tools, current, num_blocks = "", [], None, 0
    for event in events:
        if event["type"] == "content_block_start":
            assert (current, event["index"]) == (None, num_blocks)
            current, num_blocks = event["content_block"], num_blocks + 1
            tools += [current] if current["type"] == "tool_use" else []
        elif event["type"] == "content_block_delta":
            assert current is not None
            assert event["index"] == num_blocks - 1
            assert (event["delta"]["type"] == "text_delta") == (current["type"] == "text")
            text += event["delta"].get("text", "")
        elif event["type"] == "content_block_stop":
            assert current is not None
            assert event["index"] == num_blocks - 1
            current = None
    assert kinds[0] == "message_start"
    assert kinds.count("message_start") == 1
    if "error" in kinds:
        assert kinds.index("error") == len(kinds) - 1
    else:
        assert kinds[-2:] == ["message_delta", "message_stop"]
        assert current is None
    return text, tools


PART = _named("output_text", text=TEXT, annotations={"type": "array"}, logprobs={"type": "array"})
STATUS = {"enum": ["in_progress", "completed", "incomplete"]}
ITEM = {
    "anyOf": [
        _named("message", id=WORD, role={"const": "assistant"}, status=STATUS, content=listing(PART)),
        _named("function_call", id=WORD, call_id=WORD, name=WORD, arguments=TEXT, status=STATUS),
    ]
}
RESPONSE_USAGE = shape(
    {
        **dict.fromkeys(("input_tokens", "output_tokens", "total_tokens"), COUNT),
        "input_tokens_details": shape({"cached_tokens": COUNT}),
        "output_tokens_details": shape({"reasoning_tokens": COUNT}),
        "cost": {"type": "number"},
    }
)
FAULT_OR_NULL = {"anyOf": [NULL, shape({"code": WORD, "message": WORD})]}


def _response(status: str, usage: Any) -> dict[str, Any]:
    """Every key that strict clients require of a response, whatever became of it."""
    optional = ["usage"] if usage == NULL else []
    return shape(
        {
            "id": GEN,
            "object": {"const": "response"},
            "created_at": INTEGER,
            "completed_at": {"type": ["integer", "null"]},
            "model": WORD,
            "status": {"const": status},
            "error": FAULT_OR_NULL,
            "incomplete_details": {"type": ["object", "null"]},
            "output": listing(ITEM),
            "usage": usage,
            "tools": {"type": "array"},
            "tool_choice": {},
            "parallel_tool_calls": {"type": "boolean"},
            "instructions": {},
            "metadata": {"type": ["object", "null"]},
            "temperature": {"type": ["number", "null"]},
            "top_p": {"type": ["number", "null"]},
            "presence_penalty": {"type": ["number", "null"]},
            "frequency_penalty": {"type": ["number", "null"]},
        },
        optional=optional,
    )


WHOLE_RESPONSE = _response("completed", RESPONSE_USAGE)
_PLACE = {"item_id": WORD, "output_index": COUNT}
_IN_PART = {**_PLACE, "content_index": COUNT}
RESPONSE_EVENTS: Mapping[str, Any] = {
    "response.created": shape({"response": _response("in_progress", NULL)}),
    "response.in_progress": shape({"response": _response("in_progress", NULL)}),
    "response.output_item.added": shape({"output_index": COUNT, "item": ITEM}),
    "response.output_item.done": shape({"output_index": COUNT, "item": ITEM}),
    "response.content_part.added": shape({**_IN_PART, "part": PART}),
    "response.content_part.done": shape({**_IN_PART, "part": PART}),
    "response.output_text.delta": shape({**_IN_PART, "delta": TEXT, "logprobs": {"type": "array"}}),
    "response.output_text.done": shape({**_IN_PART, "text": TEXT, "logprobs": {"type": "array"}}),
    "response.function_call_arguments.delta": shape({**_PLACE, "delta": TEXT}),
    "response.function_call_arguments.done": shape({**_PLACE, "name": WORD, "arguments": TEXT}),
    "response.completed": shape({"response": WHOLE_RESPONSE}),
    "response.failed": shape({"response": _response("failed", NULL)}),
}


def assert_responses(events: Sequence[Mapping[str, Any]]) -> Mapping[str, Any]:
    """Check a stream: numbers in a row, deltas that make up what `done` says; returns the last response."""
    assert [event["sequence_number"] for event in events] == list(range(len(events)))
    text, arguments, done = "", "", []
    for event in events:
        kind = event["type"]
        assert_fits(RESPONSE_EVENTS[kind], event)
        if kind == "response.output_item.added":
            assert event["output_index"] == len(done), "one item at a time"
            text = arguments = ""
        elif kind == "response.output_text.delta":
            text += event["delta"]
        elif kind == "response.output_text.done":
            assert event["text"] == text
        elif kind == "response.function_call_arguments.delta":
            arguments += event["delta"]
        elif kind == "response.function_call_arguments.done":
            assert event["arguments"] == arguments
        elif kind == "response.output_item.done":
            assert event["output_index"] == len(done)
            done.append(event["item"])
    assert [event["type"] for event in events[:2]] == ["response.created", "response.in_progress"]
    last: Mapping[str, Any] = events[-1]
    assert last["type"] in ("response.completed", "response.failed")
    assert last["response"]["output"] == done
    ids = [item["id"] for item in done]
    assert len(set(ids)) == len(ids)
    return dict(last["response"])
