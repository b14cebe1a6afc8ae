"""The keys endpoints: make, list, change and delete keys for inference, and what the caller's own may do.

Changes go to the file through a connection of their own, off the event loop; look-ups see them at once.
Management keys are made and deleted by the command line only.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable
from contextlib import closing
from typing import Any, TypeVar

from aiohttp import web

from ionrouter.api.account_cards import current_key, key_card
from ionrouter.api.body import read_json
from ionrouter.api.responses import json_response
from ionrouter.api.state import EDGE, KEY, Edge
from ionrouter.errors import ConfigError, RequestError
from ionrouter.schema.accounts import WORKSPACE, KeyToChange, KeyToMake
from ionrouter.schema.validation import validated
from ionrouter.store.database import StoreFault
from ionrouter.store.keys import ApiKey, KeyStore
from ionrouter.store.place import database_for
from ionrouter.store.reader import unavailable
from ionrouter.store.spending import NO_KEY, SpendingBook

Result = TypeVar("Result")
PAGE = 100


async def create_key(request: web.Request) -> web.Response:
    """Make a key; the answer is the one place where it is shown."""
    edge = request.app[EDGE]
    body = validated(KeyToMake, await read_json(request, edge.settings.max_body_bytes))
    now = time.time()
    plain, key = await _changed(
        edge,
        lambda store: store.create(
            body.name,
            "inference",
            now,
            limit=body.limit,
            limit_reset=body.limit_reset,
            expires_at=body.expires_at.timestamp() if body.expires_at else None,
            includes_byok=body.include_byok_in_limit,
            creator_user_id=body.creator_user_id,
        ),
    )
    return json_response({"data": _card(edge, key), "key": plain}, status=201)


async def list_keys(request: web.Request) -> web.Response:
    """Newest first, 100 a page, without disabled ones unless asked for."""
    edge, query = request.app[EDGE], request.query
    keys = [key for key in reversed(_keys(edge).list()) if key.kind == "inference"]
    if query.get("include_disabled", "").lower() not in ("true", "1"):
        keys = [key for key in keys if not key.is_disabled]
    if query.get("workspace_id", WORKSPACE) != WORKSPACE:
        keys = []
    offset = _offset(query.get("offset"))
    page = keys[offset : offset + PAGE]
    await _refreshed(request, *(key.hash for key in page))
    return json_response({"data": [_card(edge, key) for key in page]})


async def get_key(request: web.Request) -> web.Response:
    digest = _named(request, request.app[EDGE]).hash
    edge = await _refreshed(request, digest)
    return json_response({"data": _card(edge, _named(request, edge))})


async def update_key(request: web.Request) -> web.Response:
    edge = request.app[EDGE]
    digest = _named(request, edge).hash
    changes = validated(KeyToChange, await read_json(request, edge.settings.max_body_bytes)).changes()
    now = time.time()
    key = await _changed(edge, lambda store: store.update(digest, changes, now))
    return json_response({"data": _card(edge, key)})


async def delete_key(request: web.Request) -> web.Response:
    """Forget a key; what it spent stays in every total."""
    edge = request.app[EDGE]
    digest = _named(request, edge).hash
    await _changed(edge, lambda store: store.delete(digest))
    return json_response({"deleted": True})


async def own_key(request: web.Request) -> web.Response:
    """GET /key: label, limit and spending of the key that asks."""
    key = request.get(KEY)
    edge = await _refreshed(request, key.hash if key else NO_KEY)
    return json_response({"data": current_key(key, _spending(edge), time.time()).model_dump()})


async def credits(request: web.Request) -> web.Response:
    """What was bought and spent: of everybody for a management key, else of the caller's own key."""
    key, edge = request.get(KEY), request.app[EDGE]
    total = edge.settings.credits
    if key is not None and key.kind == "inference":
        await _refreshed(request, key.hash)
        used = _spending(edge).of(key.hash).since(None, time.time())
        total = total if key.limit is None or key.limit_reset else key.limit
    else:
        used = await edge.accounts.ledger.spent() if edge.accounts else 0.0
    return json_response({"data": {"total_credits": total, "total_usage": round(used, 12)}})


def _card(edge: Edge, key: ApiKey) -> dict[str, Any]:
    return key_card(key, _spending(edge), time.time()).model_dump()


def _named(request: web.Request, edge: Edge) -> ApiKey:
    """The key in the path, by its whole hash."""
    digest = request.match_info["hash"].lower()
    key = _keys(edge).by_hash(digest)
    if key is None or key.kind != "inference":
        raise RequestError(f"no key with the hash '{digest[:64]}'", status=404, error_type="not_found")
    return key


def _keys(edge: Edge) -> KeyStore:
    if edge.keys is None:
        raise unavailable("the state folder could not be opened at start")
    return edge.keys


async def _refreshed(request: web.Request, *key_hashes: str) -> Edge:
    """The edge, with the sums of these keys as other servers of the same store left them."""
    edge = request.app[EDGE]
    if edge.accounts is not None:
        await edge.accounts.ledger.refresh(*key_hashes)
    return edge


def _spending(edge: Edge) -> SpendingBook:
    return edge.accounts.ledger.spending if edge.accounts else SpendingBook()


async def _changed(edge: Edge, change: Callable[[KeyStore], Result]) -> Result:
    keys, database = _keys(edge), database_for(edge.settings)

    def run() -> Result:
        with closing(database.open()) as link:
            result = change(KeyStore(link))
            keys.refresh(link)  # the next request counts on it
            return result

    try:
        return await asyncio.to_thread(run)
    except (StoreFault, ConfigError) as error:
        raise RequestError(
            f"the state database cannot be written now: {error}",
            status=503,
            error_type="provider_overloaded",
        ) from error


def _offset(text: str | None) -> int:
    if text is None or text in ("", "null"):
        return 0
    if not text.isascii() or not text.isdigit():
        raise RequestError("offset: should be an integer of at least 0", param="offset")
    return min(int(text[:9]), 10**9)
