"""The batch endpoints: submit, list, poll, cancel, delete. How a batch is run is batch_runner.py's."""

from __future__ import annotations

import asyncio
import secrets
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from typing import Any

import structlog
from aiohttp import hdrs, web

from ionrouter.api.batch_runner import BATCHES, BatchRunner
from ionrouter.api.body import read_json
from ionrouter.api.responses import json_response
from ionrouter.api.sse import WRITE_TIMEOUT_S
from ionrouter.api.state import EDGE, GENERATION_ID, KEY
from ionrouter.errors import RequestError
from ionrouter.schema import json
from ionrouter.schema.batches import WINDOW, WINDOW_S, Submission, result_error
from ionrouter.schema.validation import validated
from ionrouter.store.batches import ROWS_AT_ONCE, Batch, Line, Which
from ionrouter.store.database import RowFault, StoreFault

_log = structlog.get_logger(__name__)

MAX_LIVE = 100  # batches of one key that are not over
PAGE, MAX_PAGE = 20, 100
STATUSES = ("validating", "in_progress", "completed", "failed", "expired", "cancelled")  # of a list
# What of a submission's headers each of its requests is sent with.
KEPT_HEADERS = (
    hdrs.USER_AGENT, hdrs.REFERER, "HTTP-Referer", "X-Title", "X-OpenRouter-Title", "X-Session-Id",
    "X-OpenRouter-Metadata", "X-OpenRouter-Cache", "X-OpenRouter-Cache-TTL", "X-OpenRouter-Cache-Clear",
)  # fmt: skip


async def submit(request: web.Request) -> web.Response:
    """Check a batch as a whole and keep it: from 202 on it outlives this process."""
    runner, settings = _runner(request), request.app[EDGE].settings
    body = await read_json(request, settings.max_body_bytes)
    wanted, lines = await asyncio.to_thread(_read, body, settings.batch_max_requests)
    now = time.time()
    headers = {name: request.headers[name] for name in KEPT_HEADERS if name in request.headers}
    batch = Batch(
        id=f"batch_{secrets.token_hex(12)}",
        key_hash=_caller(request),
        endpoint=wanted.endpoint,
        model=wanted.model,
        headers=json.dumps(headers).decode(),
        status="validating",
        created_at=now,
        expires_at=now + WINDOW_S,
        finalized_at=None,
        error=None,
        num_requests=len(lines),
    )
    try:
        has_room = await runner.store.submit(batch, lines, MAX_LIVE)
    except (StoreFault, RowFault) as fault:
        raise _unavailable() from fault
    if not has_room:
        raise RequestError(
            f"{MAX_LIVE} batches of this key are not over yet; wait for one to end",
            status=429,
            error_type="rate_limit_exceeded",
            headers={"Retry-After": "60"},
        )
    runner.look()
    return json_response(_card(batch), status=202)


def _read(body: Any, max_requests: int) -> tuple[Submission, Sequence[tuple[str, str]]]:
    """In a thread: a submission may have megabytes."""
    wanted = validated(Submission, body)
    return wanted, [(name, json.dumps(body).decode()) for name, body in wanted.bodies(max_requests)]


async def list_batches(request: web.Request) -> web.Response:
    """The key's own, newest first; `after` names the last one of the page before."""
    store, after, which = _runner(request).store, None, _which(request)
    limit = _number(request, "limit", PAGE, least=1, most=MAX_PAGE)
    if name := request.query.get("after"):
        after = await _found(request, name)
    try:
        found = await store.listed(_caller(request), after, limit + 1, which)
    except StoreFault as fault:
        raise _unavailable() from fault
    data = [_card(batch) for batch in found[:limit]]
    return json_response(
        {
            "object": "list",
            "data": data,
            "first_id": data[0]["id"] if data else None,
            "last_id": data[-1]["id"] if data else None,
            "has_more": len(found) > limit,
        }
    )


async def get_batch(request: web.Request) -> web.StreamResponse:
    """One batch; with the results of all its requests, in their order, once it is over."""
    batch = await _found(request, request.match_info["id"])
    if batch.is_live:
        return json_response(_card(batch))
    before, after = json.dumps({**_card(batch), "results": []}).split(b'"results":[]')
    lines = await _lines(request, batch, 0)
    response = web.StreamResponse(headers={hdrs.CONTENT_TYPE: "application/json"})
    await response.prepare(request)
    piece = before + b'"results":['
    try:
        while lines:  # a page in memory at a time
            piece += b",".join(_result(batch, line) for line in lines)
            async with asyncio.timeout(WRITE_TIMEOUT_S):
                await response.write(piece)
            lines, piece = await _lines(request, batch, lines[-1].number + 1), b","
        await response.write_eof(b"]" + after)
    except (ConnectionError, TimeoutError, RequestError) as error:  # no other answer can follow
        _log.debug("client_left", request=request[GENERATION_ID], reason=str(error))
        if request.transport is not None:
            request.transport.abort()
    return response


async def get_results(request: web.Request) -> web.Response:
    """A page of a batch's results; `cursor` is the `next_cursor` of the page before."""
    batch = await _found(request, request.match_info["id"])
    if batch.is_live:
        raise _conflict(f"the batch is {batch.status}; its results are there when it is over")
    start = _number(request, "cursor", 0, least=0, most=10**9)
    limit = _number(request, "limit", MAX_PAGE, least=1, most=MAX_PAGE)
    found = await _lines(request, batch, start, limit + 1)
    following = str(found[limit].number) if len(found) > limit else None
    data = b",".join(_result(batch, line) for line in found[:limit])
    rest = json.dumps({"has_more": following is not None, "next_cursor": following})
    body = b'{"object":"list","data":[' + data + b"]," + rest[1:]
    return web.Response(body=body, headers={hdrs.CONTENT_TYPE: "application/json"})


async def cancel_batch(request: web.Request) -> web.Response:
    """Let no further request begin; those that run end, and their answers are kept."""
    batch, runner = await _found(request, request.match_info["id"]), _runner(request)
    if not batch.is_live:
        raise _conflict(f"the batch is {batch.status} already")
    try:
        await runner.store.cancel(batch.id)
    except StoreFault as fault:
        raise _unavailable() from fault
    runner.look()
    return json_response(_card(await _found(request, batch.id)))


async def delete_batch(request: web.Request) -> web.Response:
    """Forget a batch that is over, its results too; generations and spending stay."""
    batch = await _found(request, request.match_info["id"])
    if batch.is_live:
        raise _conflict(f"the batch is {batch.status}; POST /batches/{batch.id}/cancel ends it first")
    try:
        await _runner(request).store.delete(batch.id)
    except StoreFault as fault:
        raise _unavailable() from fault
    return json_response({"id": batch.id, "object": "batch", "deletion": {"openrouter": "deleted"}})


def _runner(request: web.Request) -> BatchRunner:
    runner = request.app.get(BATCHES)
    if runner is None:
        raise RequestError(
            "there is no Batch API here: IONROUTER_BATCH_CONCURRENCY is 0, or the server has no state folder",
            status=404,
            error_type="not_found",
        )
    return runner


def _caller(request: web.Request) -> str:
    key = request.get(KEY)
    return key.hash if key else ""


async def _found(request: web.Request, name: str) -> Batch:
    """The caller's batch; another key's is a 404, as one that never was."""
    try:
        batch = await _runner(request).store.find(name, _caller(request))
    except StoreFault as fault:
        raise _unavailable() from fault
    except RowFault:  # a name that the database takes for none: a NUL in it
        batch = None
    if batch is None:
        raise RequestError(f"no batch '{name[:100]}'", status=404, error_type="not_found", param="id")
    return batch


async def _lines(request: web.Request, batch: Batch, start: int, limit: int = ROWS_AT_ONCE) -> Sequence[Line]:
    try:
        return await _runner(request).store.lines(batch.id, start, limit)
    except StoreFault as fault:
        raise _unavailable() from fault


def _number(request: web.Request, name: str, default: int, *, least: int, most: int) -> int:
    text = request.query.get(name)
    if not text:
        return default
    if not (text.isascii() and text.isdigit() and len(text) <= 10 and least <= int(text) <= most):
        raise RequestError(f"{name}: should be an integer from {least} to {most}", param=name)
    return int(text)


def _which(request: web.Request) -> Which:
    """`status`, several times perhaps, `created_after` and `created_before`."""
    statuses = request.query.getall("status", [])
    for status in statuses:
        if status not in STATUSES:
            raise RequestError(f"status: should be one of {', '.join(STATUSES)}", param="status")
    if "in_progress" in statuses:
        statuses.append("cancelling")  # which OpenRouter's lists do not tell apart
    return Which(tuple(statuses), _moment(request, "created_after"), _moment(request, "created_before"))


def _moment(request: web.Request, name: str) -> float | None:
    """Seconds since the epoch, or a day or moment of ISO 8601, in UTC where it names no other zone."""
    text = request.query.get(name)
    if not text:
        return None
    try:
        if text.isascii() and text.isdigit() and len(text) <= 12:
            return float(text)
        moment = datetime.fromisoformat(text)
    except ValueError:
        raise RequestError(
            f"{name}: should be seconds since 1970 or a moment of ISO 8601", param=name
        ) from None
    return (moment if moment.tzinfo is not None else moment.replace(tzinfo=UTC)).timestamp()


def _card(batch: Batch) -> dict[str, Any]:
    """The batch object, without its results."""
    used = {
        "prompt_tokens": batch.prompt_tokens,
        "completion_tokens": batch.completion_tokens,
        "total_tokens": batch.prompt_tokens + batch.completion_tokens,
        "cost": round(batch.cost, 12),
    }
    return {
        "id": batch.id,
        "object": "batch",
        "endpoint": batch.endpoint,
        "model": batch.model,
        "provider": None,  # each request has its own
        "status": batch.status,
        "completion_window": WINDOW,
        "created_at": int(batch.created_at),
        "expires_at": int(batch.expires_at),
        "finalized_at": None if batch.finalized_at is None else int(batch.finalized_at),
        "request_counts": {
            "total": batch.num_requests,
            "completed": batch.num_completed,
            "failed": batch.num_failed,
        },
        "usage": used if batch.num_completed else None,
        "error": None if batch.error is None else {"message": batch.error},
        "results": None,
    }


def _result(batch: Batch, line: Line) -> bytes:
    """A request's result; a good answer goes as it was written."""
    head = {"id": f"{batch.id}_{line.number}", "custom_id": line.custom_id}
    if line.answer is None or line.status is None:
        return json.dumps({**head, "response": None, "error": result_error(batch.status, None, None)})
    if not 200 <= line.status < 300:
        error = result_error(batch.status, line.status, json.loads(line.answer))
        return json.dumps({**head, "response": None, "error": {**error, "request_id": line.request_id}})
    told = json.dumps({"status_code": line.status, "request_id": line.request_id})
    response = told[:-1] + b',"body":' + line.answer.encode() + b"}"
    return json.dumps(head)[:-1] + b',"response":' + response + b',"error":null}'


def _conflict(message: str) -> RequestError:
    return RequestError(message, status=409, error_type="invalid_request")


def _unavailable() -> RequestError:
    return RequestError("the state database cannot be used now", status=503, error_type="provider_overloaded")
