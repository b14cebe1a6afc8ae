"""What the strictest stock clients demand of answers, as JSON schemas: the union of what any of them refuses.

Measured with openrouter 1.3.84, @openrouter/sdk 1.3.19, ai 6 with its OpenRouter provider 2.10, openai,
litellm, langchain-openrouter and pydantic-ai. Reads raw JSON; knows nothing of ionrouter.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from jsonschema import Draft202012Validator

FINISH_REASONS = ["stop", "length", "tool_calls", "content_filter", "error"]


def shape(properties: Mapping[str, Any], optional: Sequence[str] = ()) -> dict[str, Any]:
    """An object with these properties, all of them there unless named."""
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": dict(properties), "required": required}


def listing(items: Any) -> dict[str, Any]:
    return {"type": "array", "items": items}


WORD = {"type": "string", "minLength": 1}
TEXT = {"type": "string"}
TEXT_OR_NULL = {"type": ["string", "null"]}
# A float with nothing behind the point counts as an integer for a schema, not for a client: see `_no_floats`.
INTEGER = {"type": "integer"}
NUMBER_OR_NULL = {"type": ["number", "null"]}

USAGE = shape(
    {
        "prompt_tokens": INTEGER,
        "completion_tokens": INTEGER,
        "total_tokens": INTEGER,
        "cost": {"type": "number"},
        "prompt_tokens_details": shape({"cached_tokens": INTEGER}),
        "completion_tokens_details": shape({"reasoning_tokens": INTEGER}),
        "cost_details": shape(
            {
                "upstream_inference_cost": NUMBER_OR_NULL,
                "upstream_inference_prompt_cost": {"type": "number"},
                "upstream_inference_completions_cost": {"type": "number"},
            }
        ),
    }
)
CALL = shape(
    {"id": WORD, "type": {"const": "function"}, "function": shape({"name": WORD, "arguments": TEXT})}
)
ERROR = shape({"code": INTEGER, "message": WORD, "metadata": shape({"error_type": WORD})})
ENVELOPE = {
    "id": {"type": "string", "pattern": "^gen-"},
    "created": INTEGER,
    "model": WORD,
    "provider": WORD,
}
ANSWER = shape(
    {
        **ENVELOPE,
        "object": {"const": "chat.completion"},
        "system_fingerprint": TEXT_OR_NULL,
        "usage": USAGE,
        "choices": {
            "minItems": 1,
            **listing(
                shape(
                    {
                        "index": INTEGER,
                        "finish_reason": {"enum": FINISH_REASONS},
                        "message": shape(
                            {"role": {"const": "assistant"}, "content": {}, "tool_calls": listing(CALL)},
                            optional=["tool_calls"],
                        ),
                    }
                )
            ),
        },
    }
) | {"not": {"required": ["error"]}}
CHUNK = shape(
    {
        **ENVELOPE,
        "object": {"const": "chat.completion.chunk"},
        "system_fingerprint": TEXT,
        "usage": USAGE,
        "error": ERROR,
        "choices": listing(
            shape(
                {
                    "index": INTEGER,
                    "finish_reason": {"enum": [*FINISH_REASONS, None]},
                    "delta": shape(
                        {
                            "role": {"const": "assistant"},
                            "content": TEXT_OR_NULL,
                            "tool_calls": listing(shape({"index": INTEGER, "id": WORD}, optional=["id"])),
                        },
                        optional=["role", "content", "tool_calls"],
                    ),
                }
            )
        ),
    },
    optional=["system_fingerprint", "usage", "error"],
)
REFUSAL = shape({"error": ERROR})
TEXTS = listing(TEXT)
ARCHITECTURE = shape({"modality": TEXT_OR_NULL, "input_modalities": TEXTS, "output_modalities": TEXTS})
PRICES = shape({"prompt": TEXT, "completion": TEXT})
MODELS = shape(
    {
        "object": {"const": "list"},
        "total_count": INTEGER,
        "links": shape({"next": TEXT_OR_NULL}),
        "data": listing(
            shape(
                {
                    "id": WORD,
                    "object": {"const": "model"},
                    "owned_by": WORD,
                    "canonical_slug": WORD,
                    "name": WORD,
                    "created": INTEGER,
                    "context_length": {"type": ["integer", "null"]},
                    "architecture": ARCHITECTURE,
                    "pricing": PRICES,
                    "top_provider": shape({"is_moderated": {"type": "boolean"}}),
                    "per_request_limits": {"type": ["object", "null"]},
                    "supported_parameters": TEXTS,
                    "default_parameters": {"type": ["object", "null"]},
                    "supported_voices": {"type": ["array", "null"]},
                    "links": shape({"details": WORD}),
                }
            )
        ),
    }
)
PERCENTILES = {
    "anyOf": [{"type": "null"}, shape({name: {"type": "number"} for name in ("p50", "p75", "p90", "p99")})]
}
ENDPOINTS = shape(
    {
        "data": shape(
            {
                "id": WORD,
                "name": WORD,
                "created": INTEGER,
                "description": TEXT,
                "architecture": ARCHITECTURE,
                "endpoints": listing(
                    shape(
                        {
                            **dict.fromkeys(("name", "model_id", "model_name", "provider_name", "tag"), WORD),
                            "quantization": TEXT_OR_NULL,
                            "context_length": {"type": ["integer", "null"]},
                            "max_completion_tokens": {"type": ["integer", "null"]},
                            "max_prompt_tokens": {"type": ["integer", "null"]},
                            "pricing": PRICES,
                            "supported_parameters": TEXTS,
                            "supports_implicit_caching": {"type": "boolean"},
                            "status": INTEGER,
                            "uptime_last_5m": NUMBER_OR_NULL,
                            "uptime_last_30m": NUMBER_OR_NULL,
                            "uptime_last_1d": NUMBER_OR_NULL,
                            "latency_last_30m": PERCENTILES,
                            "throughput_last_30m": PERCENTILES,
                            "native_tools": {"type": "object"},
                            "service_tier": TEXT_OR_NULL,
                            "supports_diarization": {"type": "boolean"},
                            "supports_tool_choice": {"type": "object"},
                            "perf_last_30m_by_workload": {"type": "object"},
                        }
                    )
                ),
            }
        )
    }
)


def assert_fits(schema: Mapping[str, Any], found: Any) -> None:
    """Fail with the path of everything that a client would refuse."""
    faults = [
        f"{fault.json_path}: {fault.message}" for fault in Draft202012Validator(schema).iter_errors(found)
    ]
    assert not faults, f"{faults} in {found}"


def assert_whole(answer: Any) -> None:
    """Check a whole answer."""
    assert_fits(ANSWER, answer)
    _no_floats(answer)


def assert_refusal(status: int, body: Any) -> None:
    """Check an error answer: its code is its status."""
    assert_fits(REFUSAL, body)
    assert body["error"]["code"] == status
    assert type(body["error"]["code"]) is int


def assert_stream(chunks: Sequence[Any]) -> None:
    """Check every chunk and what must hold between them."""
    for chunk in chunks:
        assert_fits(CHUNK, chunk)
        _no_floats(chunk)
    assert len({chunk["id"] for chunk in chunks}) == 1
    assert len({chunk["created"] for chunk in chunks}) == 1
    broken = ["error" in chunk for chunk in chunks]
    if any(broken):
        assert broken == [False] * (len(chunks) - 1) + [True], "an error ends the stream"
        assert [choice["finish_reason"] for choice in chunks[-1]["choices"]] == ["error"]
    else:
        assert [number for number, chunk in enumerate(chunks) if "usage" in chunk] == [len(chunks) - 1]
        assert chunks[-1]["choices"] == []
    _calls_begin_whole(chunks)


def _calls_begin_whole(chunks: Sequence[Any]) -> None:
    """The first piece of each call has its id and its name."""
    seen = set()
    for choice in (choice for chunk in chunks for choice in chunk["choices"]):
        for call in choice["delta"].get("tool_calls", ()):
            if (key := (choice["index"], call["index"])) not in seen:
                assert_fits(CALL, call)
                seen.add(key)


def _no_floats(answer: Any) -> None:
    """1.0 is an integer for a JSON schema, and for no client."""
    numbers = [answer["created"], *(choice["index"] for choice in answer["choices"])]
    assert {type(number) for number in numbers} == {int}
