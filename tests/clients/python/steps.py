"""What a client's script does, one step after the other: each prints one JSON line of what it saw.

Runs in the client's own environment, so it knows the standard library alone; the judging is elsewhere.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable, Mapping
from typing import Any

BASE_URL = os.environ["IONROUTER_BASE_URL"]  # ends with /api/v1
KEY = os.environ["IONROUTER_KEY"]
POOR_KEY = os.environ["IONROUTER_POOR_KEY"]  # its limit is used up
WRONG_KEY = "sk-or-v1-" + "0" * 64
TIMEOUT_S = 60.0  # a guard: no client may wait for ever

HI: Any = [{"role": "user", "content": "hi"}]
NOWHERE: Any = {"only": ["nowhere"]}  # a provider object that no endpoint satisfies
PLACE: Any = {
    "type": "object",
    "properties": {"city": {"type": "string"}, "degrees": {"type": "integer"}},
    "required": ["city", "degrees"],
    "additionalProperties": False,
}
PLACE_FORMAT: Any = {
    "type": "json_schema",
    "json_schema": {"name": "place", "strict": True, "schema": PLACE},
}
WEATHER: Any = {
    "type": "function",
    "function": {
        "name": "weather",
        "description": "The weather of a city",
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}},
            "required": ["city"],
        },
    },
}

Step = Callable[[], Mapping[str, Any]]


def play(steps: Iterable[tuple[str, Step]]) -> None:
    """Run each step and print its line, the exception it raised included."""
    for name, step in steps:
        try:
            seen = dict(step())
        except Exception as error:
            seen = {"raised": described(error)}
        print(json.dumps({"step": name, **seen}, default=str), flush=True)


def described(error: BaseException) -> dict[str, Any]:
    """An exception as its caller sees it, whatever the library calls its parts."""
    status = getattr(error, "status_code", None) or getattr(error, "status", None)
    return {"type": type(error).__name__, "status": status, "message": str(error)}


def refusals(ask: Callable[..., Any]) -> list[tuple[str, Step]]:
    """The steps that must fail before any token: `ask(model, key=..., provider=...)` is one whole answer."""
    cases: dict[str, tuple[str, dict[str, Any]]] = {
        "unauthorized": ("acme/json", {"key": WRONG_KEY}),
        "unpaid": ("acme/json", {"key": POOR_KEY}),
        "filtered": ("acme/json", {"provider": NOWHERE}),
        "limited": ("acme/limited", {}),
        "down": ("acme/down", {}),
    }
    return [(name, _answered(ask, model, more)) for name, (model, more) in cases.items()]


def _answered(ask: Callable[..., Any], model: str, more: dict[str, Any]) -> Step:
    return lambda: {"answered": repr(ask(model, **more))}


def joined_calls(parts: Iterable[Any]) -> dict[str, Any]:
    """Join the pieces of one streamed tool call, each with id, name and arguments."""
    found = list(parts)
    return {
        "id": next((part.id for part in found if part.id), None),
        "name": next((part.function.name for part in found if part.function.name), None),
        "arguments": "".join(part.function.arguments or "" for part in found),
        "num_calls": len({part.index for part in found}),
    }


def whole_call(calls: Any) -> dict[str, Any]:
    """The one tool call of a whole answer."""
    return {
        "id": calls[0].id,
        "name": calls[0].function.name,
        "arguments": calls[0].function.arguments,
        "num_calls": len(calls),
    }
