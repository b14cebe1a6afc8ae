"""Calls litellm and hands on what the upstream said. Runs in the worker; gets litellm as an argument.

Three ways to an answer, best first: the upstream's own JSON text (providers on litellm's OpenAI stream
handler), the OpenAI SDK's parsed chunks, and litellm's translation for everything else.
"""

from __future__ import annotations

from collections.abc import AsyncGenerator, AsyncIterator
from contextvars import ContextVar
from typing import Any, cast

from ionrouter.providers.litellm_bare import bare_chunks, call_bare
from ionrouter.providers.litellm_capture import CAME
from ionrouter.providers.litellm_client import client_class
from ionrouter.providers.litellm_ends import claudes_end_of, ends_of, mark_stop, stop_string
from ionrouter.providers.litellm_order import mark_order
from ionrouter.providers.litellm_thinking import with_thinking
from ionrouter.providers.outgoing import Outgoing
from ionrouter.schema import json

CONNECT_S: ContextVar[float | None] = ContextVar("connect_s", default=None)  # of the call under way
RAW_HANDLER = "OpenAIChatCompletionStreamingHandler"
_SDK_STREAM = "AsyncStream"
_RERANK_OPTIONS = ("model", "api_key", "api_base", "num_retries", "max_retries", "logger_fn")
_SHAPES = {"chat": "choices", "completions": "choices", "embeddings": "data", "rerank": "results"}


async def raw_answer(litellm: Any, call: dict[str, Any], outgoing: Outgoing) -> dict[str, Any]:
    """Call without streaming; the upstream's own JSON where it has OpenAI's shape, else litellm's."""
    seen: dict[str, Any] = {}
    try:
        answer = await _call(litellm, call, seen, outgoing)
    except Exception:
        if (whole := _came_whole(call)) is None:
            raise
        return whole
    original = _parsed(seen.get("original"))
    if _is_shaped(original, call):
        return cast(dict[str, Any], original)
    if isinstance(original, dict) and original.get("error"):
        return original
    payload = _native(answer.model_dump(exclude_none=True))
    if (string := stop_string(original)) is not None:
        mark_stop(payload, string)
    mark_order(payload, original)
    return payload


async def stream_payloads(
    litellm: Any, call: dict[str, Any], outgoing: Outgoing
) -> AsyncGenerator[dict[str, Any], None]:
    """Call with streaming; yield frames {"op": "chunk", "payload"} and a last {"op": "end", "done"}."""
    try:
        wrapper = await _call(litellm, call, {}, outgoing)
    except Exception:
        if (whole := _came_whole(call)) is None:
            raise
        yield {"op": "chunk", "payload": whole}
        yield {"op": "end", "done": True}
        return
    try:
        if getattr(wrapper, "completion_stream", True) is None and hasattr(wrapper, "fetch_stream"):
            await wrapper.fetch_stream()
        stream = getattr(wrapper, "completion_stream", None)
        names = {cls.__name__ for cls in type(stream).__mro__}
        if call.get("bare"):
            frames = _bare_frames(wrapper)
        elif RAW_HANDLER in names:
            frames = _raw_frames(stream)
        elif _SDK_STREAM in names:
            frames = _sdk_frames(stream)
        else:
            frames = _translated_frames(wrapper)
        async for frame in frames:
            yield frame
    finally:
        await _close(wrapper)


def _came_whole(call: dict[str, Any]) -> dict[str, Any] | None:
    """The answer that came before litellm failed over it, if it is one in OpenAI's shape.

    Its providers' finishing touches trip over fields that may be absent: Groq's over `service_tier`. Of a
    stream it is what litellm asked for whole, to make a stream of it itself.
    """
    payload = _parsed(bytes(CAME.get() or b""))
    return cast(dict[str, Any], payload) if _is_shaped(payload, call) else None


def _is_shaped(payload: Any, call: dict[str, Any]) -> bool:
    return isinstance(payload, dict) and isinstance(payload.get(_SHAPES[call["kind"]]), list)


async def open_call(litellm: Any, call: dict[str, Any], outgoing: Outgoing) -> Any:
    """Make the call as both ways to an answer do; returns what litellm returns."""
    return await _call(litellm, call, {}, outgoing)


async def _call(litellm: Any, call: dict[str, Any], seen: dict[str, Any], outgoing: Outgoing) -> Any:
    import httpx

    def note(details: dict[str, Any]) -> None:
        if details.get("log_event_type") == "post_api_call":
            seen["original"] = details.get("original_response")

    CONNECT_S.set(call["connect_s"])
    functions = {
        "chat": litellm.acompletion,
        "completions": litellm.atext_completion,
        "embeddings": litellm.aembedding,
        "rerank": litellm.arerank,
    }
    options: dict[str, Any] = {
        "model": call["model"],
        "api_key": call["api_key"],
        "timeout": httpx.Timeout(call["total_s"], connect=call["connect_s"]),
        "num_retries": 0,
        "max_retries": 0,
        "logger_fn": note,
    }
    if call["api_base"]:
        options["api_base"] = call["api_base"]
    if call["headers"]:
        options["extra_headers"] = call["headers"]
    provider = call["model"].partition("/")[0]
    if provider == "openai" or provider in litellm.openai_compatible_providers:
        options["allowed_openai_params"] = list(call["arguments"])  # routes.yaml decides, not litellm's list
        call["extra_body"] |= _kept_nulls(call["arguments"])
    if call["extra_body"]:
        options["extra_body"] = call["extra_body"]
    if call["kind"] == "rerank":
        options = {name: options[name] for name in _RERANK_OPTIONS if name in options}
        options["timeout"] = call["total_s"]
        options["headers"] = call["headers"]  # rerank's name for extra_headers
    elif call["kind"] != "embeddings":
        options["stream"] = call["stream"]
        if call["stream"]:
            options["stream_options"] = {"include_usage": True}
    arguments = {**with_thinking(litellm, call), **options}
    if call.get("bare"):
        limits = {"connect_s": call["connect_s"], "allow_http": call["allow_http"]}
        return await call_bare(litellm, arguments, seen, client_class(litellm)(outgoing, **limits))
    return await functions[call["kind"]](**arguments)


def _kept_nulls(arguments: dict[str, Any]) -> dict[str, Any]:
    """litellm drops `content: null` from messages; some servers refuse a turn without the key."""
    messages = arguments.get("messages")
    is_at_stake = isinstance(messages, list) and any(
        isinstance(message, dict) and message.get("content", "") is None for message in messages
    )
    return {"messages": messages} if is_at_stake else {}


async def _raw_frames(stream: Any) -> AsyncIterator[dict[str, Any]]:
    """Read the handler's SSE lines before litellm parses them."""
    lines: list[str] = []

    def keep(str_line: str) -> None:
        lines.append(str_line)

    stream._handle_string_chunk = keep
    is_done = False
    async for _ in stream:
        for line in lines:
            data = line.removeprefix("data:").strip()
            if data == "[DONE]":
                is_done = True
                break
            if line.startswith("data:") or data.startswith("{"):
                yield {"op": "chunk", "payload": _parsed(data) if data.startswith("{") else data}
        lines.clear()
        if is_done:
            break
    yield {"op": "end", "done": is_done}


async def _sdk_frames(stream: Any) -> AsyncIterator[dict[str, Any]]:
    """The SDK builds its chunks without validation: unknown fields and native reasons are all there."""
    async for chunk in stream:
        yield {"op": "chunk", "payload": chunk.model_dump(mode="json", exclude_none=True)}
    yield {"op": "end", "done": False}


async def _bare_frames(wrapper: Any) -> AsyncIterator[dict[str, Any]]:
    async for payload in bare_chunks(wrapper):
        yield {"op": "chunk", "payload": _native(payload)}
    yield {"op": "end", "done": False}


async def _translated_frames(wrapper: Any) -> AsyncIterator[dict[str, Any]]:
    """litellm's chunks, without the finish and the usage it makes up when the upstream sent none.

    And with the usage that it keeps back until the end: should that never come, it is paid all the same.
    """
    source, num_seen = getattr(wrapper, "completion_stream", None), 0
    ends, stop = ends_of(source), claudes_end_of(source)
    try:
        async for chunk in wrapper:
            payload = _native(chunk.model_dump(exclude_none=True))
            if payload.get("usage") and not _has_usage(wrapper):
                payload.pop("usage")
            if not (_has_finish(wrapper) if ends is None else ends.any):
                for choice in payload.get("choices", ()):
                    choice.pop("finish_reason", None)
            if stop is not None:
                stop.mark(payload)
            if "usage" not in payload and (told := _usage_since(wrapper, num_seen)):
                payload["usage"] = told
            num_seen = len(getattr(wrapper, "chunks", ()))
            yield {"op": "chunk", "payload": payload}
    except Exception:
        if told := _usage_since(wrapper, num_seen):
            yield {"op": "chunk", "payload": {"choices": [], "usage": told}}
        if stop is None or stop.error is None:
            raise
        yield {"op": "chunk", "payload": stop.error}
    yield {"op": "end", "done": False}


def _usage_since(wrapper: Any, num_seen: int) -> dict[str, Any] | None:
    """The last usage of what the wrapper has read beyond so many chunks."""
    for chunk in reversed(getattr(wrapper, "chunks", [])[num_seen:]):
        if (told := getattr(chunk, "usage", None)) is not None:
            return dict(told) if isinstance(told, dict) else cast(dict[str, Any], told.model_dump())
    return None


def _has_finish(wrapper: Any) -> bool:
    inner = (
        getattr(wrapper, "completion_stream", None)
        if not hasattr(wrapper, "received_finish_reason")
        else None
    )
    source = inner if hasattr(inner, "received_finish_reason") else wrapper
    names = ("received_finish_reason", "intermittent_finish_reason")
    if not hasattr(source, names[0]):
        return True
    return any(getattr(source, name, None) is not None for name in names)


def _has_usage(wrapper: Any) -> bool:
    chunks = getattr(wrapper, "chunks", None)
    return chunks is None or any(getattr(chunk, "usage", None) is not None for chunk in chunks)


def _native(payload: dict[str, Any]) -> dict[str, Any]:
    """Put native finish reasons back where litellm keeps them aside."""
    for choice in payload.get("choices") or ():
        aside = choice.get("provider_specific_fields") or {}
        if isinstance(aside, dict) and aside.get("native_finish_reason"):
            choice["finish_reason"] = aside["native_finish_reason"]
    return payload


def _parsed(text: Any) -> Any:
    if not isinstance(text, str | bytes):
        return text
    try:
        return json.loads(text)
    except ValueError:
        return text


async def _close(wrapper: Any) -> None:
    """Close the upstream connection now, not when the garbage collector comes by."""
    for holder in (wrapper, getattr(wrapper, "completion_stream", None)):
        if close := getattr(holder, "aclose", None):
            await close()
            return
