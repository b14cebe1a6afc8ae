"""litellm's translation without what acompletion wraps around it. Runs in the worker, never imports litellm.

`completion` undecorated chooses parameters, handler and transformation classes as ever, and the handler
sends; left out are the thread, the log records with their copies and prices, and CustomStreamWrapper's work
on every event. That both ways send the same is proved for each kind of call (litellm_proof.py).
"""

from __future__ import annotations

import datetime
import inspect
import uuid
from collections.abc import AsyncIterator
from functools import cache
from typing import Any

from ionrouter.providers.litellm_ends import claudes_end_of, ends_of

PROVIDERS = frozenset(("anthropic", "gemini"))  # whose answers tests/providers/test_litellm_wire.py compares

_READ = {"id", "choices", "usage", "service_tier"}  # of an event, by providers/normalise.py


async def call_bare(litellm: Any, arguments: dict[str, Any], seen: dict[str, Any], client: Any) -> Any:
    """Do what acompletion(**arguments) does, by `client`; `seen` gets the upstream's answer as `original`."""
    completion = inspect.unwrap(litellm.main.completion)
    quiet = _quiet_logging(litellm)(
        model=arguments["model"],
        messages=arguments["messages"],
        stream=arguments["stream"],
        call_type="acompletion",
        start_time=datetime.datetime.now(),
        litellm_call_id=str(uuid.uuid4()),
        function_id="",
        kwargs={},
    )
    quiet.seen = seen
    try:
        # Returns a coroutine that has nothing to wait for but the upstream.
        return await completion(**arguments, acompletion=True, litellm_logging_obj=quiet, client=client)
    except Exception as error:
        raise litellm.exception_type(
            model=arguments["model"],
            custom_llm_provider=arguments["model"].partition("/")[0],
            original_exception=error,
            completion_kwargs=arguments,
            extra_kwargs={},
        ) from error


async def bare_chunks(wrapper: Any) -> AsyncIterator[dict[str, Any]]:
    """Read the handler's own iterator, past the CustomStreamWrapper it was put into; raise as that would."""
    import httpx

    has_finish = False
    ends, stop = ends_of(wrapper.completion_stream), claudes_end_of(wrapper.completion_stream)
    try:
        async for chunk in wrapper.completion_stream:
            if not hasattr(chunk, "model_dump"):
                continue  # for lines that are no data
            payload = chunk.model_dump(include=_READ, exclude_none=True)
            if ends is not None:
                ends.strip(payload)
            if stop is not None:
                stop.mark(payload)
            has_finish = has_finish or any(c.get("finish_reason") for c in payload.get("choices", ()))
            yield payload
    except (httpx.ReadError, httpx.RemoteProtocolError) as error:
        if not has_finish:
            wrapper._handle_stream_fallback_error(error)
    except Exception as error:
        if stop is None or stop.error is None:
            wrapper._handle_stream_fallback_error(error)
        else:
            yield stop.error


@cache
def _quiet_logging(litellm: Any) -> type:
    """litellm's log of a call, which handlers read from; what they tell it goes nowhere."""

    class QuietLogging(litellm.litellm_core_utils.litellm_logging.Logging):  # type: ignore[misc]
        def pre_call(self, *_: Any, **__: Any) -> None: ...

        def post_call(self, original_response: Any, *_: Any, **__: Any) -> None:
            self.seen["original"] = original_response

        def set_per_call_pricing(self, *_: Any, **__: Any) -> None: ...

    return QuietLogging
