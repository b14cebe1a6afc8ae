"""What a running request tells of itself for traces: shapes only. ionrouter/tracing/ listens.

Nothing here may block or raise: a request never waits for its trace and never fails because of it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, Protocol

if TYPE_CHECKING:  # they hold what is here
    from ionrouter.schema.events import AttemptRecord, RequestRecord
    from ionrouter.schema.request import InferenceRequest


class AttemptSpan(Protocol):
    """One attempt at one endpoint, from its making to its record. Never ended: it never began."""

    @property
    def traceparent(self) -> str | None:
        """The W3C header that its upstream is sent; None: this upstream gets none."""
        ...

    def end(self, record: AttemptRecord) -> None:
        """Note how it ended."""
        ...


class RequestSpan(Protocol):
    """One request of a caller, from its arrival to its last byte."""

    def attempt(self, errand: Any) -> AttemptSpan | None:
        """Begin an attempt; `errand` is an ionrouter.errand.Errand. None: nobody keeps this trace."""
        ...

    def report(self, record: RequestRecord, request: InferenceRequest, strategy: str) -> None:
        """Note what became of it; `strategy` is empty when no endpoint was chosen."""
        ...
