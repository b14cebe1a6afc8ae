"""Reads a request's JSON once: bounded, strict, and with text that can be sent on.

A half surrogate (\\ud83d alone) is legal JSON text but no Unicode; it becomes U+FFFD here, so that nothing
behind can fail on it.
"""

from __future__ import annotations

import asyncio
import json
from typing import Any

import orjson
from aiohttp import HttpVersion11, hdrs, web

from ionrouter.errors import RequestError
from ionrouter.inflate import InflateFault, Inflater, TooLarge, UnknownCoding, inflater_for
from ionrouter.schema.json import is_shallow

MAX_DEPTH = 200  # bodies are copied level by level, and Python ends at 1000 calls
BODY_TIMEOUT_S = 120.0  # 64 MiB at 4.5 Mbit/s; slower clients hold a connection for nothing


async def read_json(request: web.Request, max_bytes: int) -> Any:
    """Parse the body, compressed or not; raises RequestError 413 above `max_bytes` (declared, read or
    inflated), 415 for a compression that is not known and 400 for no JSON.
    """
    inflater = _inflater(request, max_bytes)
    if request.content_length is not None and request.content_length > max_bytes:
        raise too_large(max_bytes)
    try:
        if request.content.is_eof():  # all of it came with the head: nothing to wait for
            data = await request.read()
        else:
            _invite(request)
            async with asyncio.timeout(BODY_TIMEOUT_S):
                data = await request.read()
    except TimeoutError:
        raise RequestError(
            f"the request body did not arrive within {BODY_TIMEOUT_S:.0f} seconds",
            status=408,
            error_type="timeout",
        ) from None
    except web.HTTPRequestEntityTooLarge:
        raise too_large(max_bytes) from None
    except web.RequestPayloadError as error:
        raise RequestError(f"the request body could not be read: {error}") from None
    if inflater is not None:
        data = await _inflated(data, inflater, max_bytes)
    return parse_json(data)


def _invite(request: web.Request) -> None:
    """Ask a client for its body that waits to be asked."""
    if hdrs.EXPECT in request.headers and request.version >= HttpVersion11 and request.transport is not None:
        request.transport.write(b"HTTP/1.1 100 Continue\r\n\r\n")


def _inflater(request: web.Request, max_bytes: int) -> Inflater | None:
    coding = ", ".join(request.headers.getall("Content-Encoding", ()))
    try:
        return inflater_for(coding, max_bytes) if coding else None
    except UnknownCoding:
        raise RequestError(
            f"Content-Encoding {coding[:40]!r} is not read here; send gzip, deflate or none", status=415
        ) from None


async def _inflated(data: bytes, inflater: Inflater, max_bytes: int) -> bytes:
    try:
        return await asyncio.to_thread(_whole_of, data, inflater)  # a megabyte may take long
    except TooLarge:
        raise too_large(max_bytes) from None
    except InflateFault as fault:
        raise RequestError(f"the request body cannot be inflated by its Content-Encoding: {fault}") from None


def _whole_of(data: bytes, inflater: Inflater) -> bytes:
    pieces = inflater.feed(data)
    inflater.finish()
    return b"".join(pieces)


def too_large(max_bytes: int) -> RequestError:
    return RequestError(
        f"the request body is larger than {max_bytes} bytes (IONROUTER_MAX_BODY_BYTES)",
        status=413,
        error_type="payload_too_large",
    )


def parse_json(data: bytes) -> Any:
    """Parse strict JSON, half surrogates excepted; raises RequestError that says where it breaks."""
    if not data:
        raise RequestError("the request body is empty; send a JSON object")
    try:
        value = orjson.loads(data)
    except orjson.JSONDecodeError as fault:
        value = _parse_leniently(data, fault)
    # Most bodies have fewer brackets than that, and nobody looks inside.
    if data.count(b"[") + data.count(b"{") > MAX_DEPTH and not is_shallow(value, MAX_DEPTH):
        raise _too_deep()
    return value


def _parse_leniently(data: bytes, fault: ValueError) -> Any:
    try:
        return _whole(json.loads(data.decode("utf-8"), parse_constant=_refuse_constant))
    except RecursionError:
        raise _too_deep() from None
    except ValueError:
        raise RequestError(f"the request body is not JSON: {fault}") from None


def _too_deep() -> RequestError:
    return RequestError(f"the request body is nested too deeply; at most {MAX_DEPTH} levels are read")


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is not JSON")


def _whole(value: Any) -> Any:
    if isinstance(value, str):
        return value.encode("utf-16-le", "surrogatepass").decode("utf-16-le", "replace")
    if isinstance(value, dict):
        return {_whole(key): _whole(item) for key, item in value.items()}
    if isinstance(value, list):
        return [_whole(item) for item in value]
    return value
