"""GET /generation and /generation/content: what became of a request, at once, for the key that made it."""

from __future__ import annotations

from typing import Any

from aiohttp import web

from ionrouter.api.account_cards import generation_card
from ionrouter.api.responses import json_response
from ionrouter.api.state import EDGE, KEY
from ionrouter.errors import RequestError
from ionrouter.schema import json
from ionrouter.store.generation import Generation


async def get_generation(request: web.Request) -> web.Response:
    """Another key's generation is a 404, as one that never was."""
    key = request.get(KEY)
    row = await _find(request)
    if row.key_hash != (key.hash if key else None):
        raise _unknown(row.id)
    return json_response({"data": generation_card(row).model_dump()})


async def get_content(request: web.Request) -> web.Response:
    """What was asked and answered, for a management key, where prompts are logged."""
    edge = request.app[EDGE]
    if not edge.settings.log_prompts:
        raise RequestError(
            "prompts and answers are not kept here; IONROUTER_LOG_PROMPTS=true keeps those to come",
            status=404,
            error_type="not_found",
        )
    row = await _find(request)
    words = await edge.accounts.ledger.words(row.id) if edge.accounts else None
    if words is None:
        raise _unknown(row.id)
    output = {"completion": words.completion, "reasoning": words.reasoning}
    return json_response({"data": {"input": words.input, "output": output, "error": _error(row)}})


async def _find(request: web.Request) -> Generation:
    name = request.query.get("id", "")
    if not name:
        raise RequestError("id: is required", param="id")
    accounts = request.app[EDGE].accounts
    row = await accounts.ledger.find(name) if accounts else None
    if row is None:
        raise _unknown(name)
    return row


def _unknown(name: str) -> RequestError:
    return RequestError(f"no generation '{name[:100]}'", status=404, error_type="not_found", param="id")


def _error(row: Generation) -> dict[str, Any] | None:
    """The failure that the client saw, after those that it did not."""
    if row.error is None:
        return None
    failed = [a for a in json.loads(row.attempts) if a["failure"] is not None]
    previous = [
        {
            "code": a["status"] or 502,
            "message": a["message"] or "",
            "provider_name": a["provider"],
            "raw": None,
        }
        for a in failed[:-1]
    ]
    return {
        "message": row.error,
        "status": row.status,
        "provider_name": failed[-1]["provider"] if failed else None,
        "raw": failed[-1]["message"] if failed else None,
        "previous_errors": previous,
    }
