"""Access log: one event for every request that ended, with everything but the words.

Knows records; where lines go and what a secret looks like is log.py's business.
"""

from __future__ import annotations

import structlog

from ionrouter.log import clean_log
from ionrouter.schema.events import RequestRecord

MAX_ERROR_CHARS = 300


class AccessLog:
    """An observer of the router. Logs as logs are set up when it is made."""

    def __init__(self) -> None:
        clean = clean_log()
        self._log = structlog.get_logger(__name__) if clean is None else clean
        self._redact = None if clean is None else clean.redact  # a logger sees to that itself

    def observe(self, record: RequestRecord) -> None:
        """Log it: never a prompt, an answer or a key. Ids and words of our own hold no secret."""
        _log, clean, usage = self._log, self._clean, record.usage
        _log.info(
            "request_finished",
            request=record.id,
            kind=record.kind,
            model=clean(record.requested_model),
            stream=record.stream,
            status=record.status,
            served_model=clean(record.served_model),
            endpoint=clean(record.served_endpoint),
            provider=clean(record.served_provider),
            route=clean(record.route),
            attempts=[
                (clean(a.endpoint_id), a.failure.value if a.failure else "ok") for a in record.attempts
            ],
            ttft_s=record.ttft_s,
            duration_s=record.duration_s,
            prompt_tokens=usage.prompt_tokens,
            completion_tokens=usage.completion_tokens,
            cached_tokens=usage.cached_tokens,
            cost=record.cost.total,
            error=clean(record.error[:MAX_ERROR_CHARS]) if record.error else None,
        )

    def _clean(self, text: str | None) -> str | None:
        return text if text is None or self._redact is None else self._redact(text)
