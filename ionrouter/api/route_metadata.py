"""The `openrouter_metadata` object of an answer or an error, for callers that ask with a header.

Says which endpoints could have served, which did, and what was tried; read from a dry run and the outcome.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from aiohttp import web

from ionrouter.api.responses import plain
from ionrouter.api.state import EDGE, Edge
from ionrouter.balancing.verdict import client_status
from ionrouter.errors import AllAttemptsFailed, IonrouterError, StreamBroken
from ionrouter.routing.naming import FREE_ROUTER
from ionrouter.routing.resolve import find_id, split_variant
from ionrouter.routing.table import RoutingTable
from ionrouter.schema.events import AttemptRecord, Committed, Finished
from ionrouter.schema.plugins import CONTEXT_COMPRESSION, RESPONSE_HEALING
from ionrouter.schema.request import InferenceRequest

HEADER, OLDER_HEADER = "X-OpenRouter-Metadata", "X-OpenRouter-Experimental-Metadata"
NAME = "openrouter_metadata"
_STAGES = {CONTEXT_COMPRESSION: "context_compression", RESPONSE_HEALING: "response_healing"}
UNKNOWN_FAILURE = 502  # an attempt that ended without a status: no connection, a cut, a deadline


@dataclass(slots=True)
class RouteMetadata:
    """What is known before the request goes out; the rest comes with its end."""

    requested: str
    strategy: str  # in OpenRouter's words: direct, alias, auto, free
    candidates: list[Mapping[str, Any]] = field(default_factory=list)
    num_excluded: int = 0

    def of_answer(
        self, committed: Committed, finished: Finished, notes: Iterable[str] = ()
    ) -> dict[str, Any]:
        """The object of a good answer."""
        attempts = [_attempt(attempt) for attempt in finished.attempts]
        is_fallback = committed.attempt > 1 and self.strategy in ("direct", "alias")
        return self._object(
            "fallback" if is_fallback else self.strategy,
            committed.reason,
            committed.attempt,
            attempts,
            notes,
            selected=committed.endpoint_id,
        )

    def of_error(self, error: BaseException, committed: Committed | None = None) -> dict[str, Any]:
        """The object beside an error; no endpoint is selected."""
        attempts = []
        if isinstance(error, AllAttemptsFailed):
            endpoints = {c["endpoint_id"]: c for c in self.candidates}
            attempts = [
                {
                    "provider": failure.provider or endpoint_id,
                    "model": endpoints.get(endpoint_id, {}).get("model_id", self.requested),
                    "status": failure.status or client_status(failure),
                }
                for endpoint_id, failure in error.errors
            ]
        elif isinstance(error, StreamBroken) and committed is not None:
            status = error.cause.status or client_status(error.cause)
            attempts = [{"provider": committed.provider_name, "model": committed.model_id, "status": status}]
        number = committed.attempt if committed else len(attempts)
        return self._object(self.strategy, str(error)[:300], number, attempts, ())

    def _object(
        self,
        strategy: str,
        summary: str,
        attempt: int,
        attempts: list[dict[str, Any]],
        notes: Iterable[str],
        selected: str | None = None,
    ) -> dict[str, Any]:
        available = [
            {
                "provider": candidate["provider_name"],
                "model": candidate["model_id"],
                "selected": candidate["endpoint_id"] == selected,
            }
            for candidate in self.candidates
        ]
        told: dict[str, Any] = {
            "requested": self.requested,
            "strategy": strategy,
            "region": None,
            "summary": summary,
            "attempt": attempt,
            "is_byok": False,
            "endpoints": {"total": len(available) + self.num_excluded, "available": available},
        }
        if attempts:
            told["attempts"] = attempts
        if pipeline := [_stage(note) for note in notes]:
            told["pipeline"] = pipeline
        return told


def metadata_for(request: web.Request, wanted: InferenceRequest) -> RouteMetadata | None:
    """Begin the object if the caller asked for it."""
    wish = request.headers.get(HEADER) or request.headers.get(OLDER_HEADER) or ""
    if wish.strip().lower() != "enabled":
        return None
    edge: Edge = request.app[EDGE]
    metadata = RouteMetadata(wanted.model, _strategy(wanted.model, edge.router.table))
    try:
        plan = plain(edge.router.explain(wanted))
    except IonrouterError:
        return metadata  # the request itself will meet the same refusal
    metadata.candidates = plan.get("candidates", [])
    metadata.num_excluded = len(plan.get("excluded", ()))
    return metadata


def _strategy(name: str, table: RoutingTable) -> str:
    base, _ = split_variant(name, table)
    if base == FREE_ROUTER:
        return "free"
    if base in table.groups:
        return "auto"
    return "alias" if find_id(table, base) not in (None, base) else "direct"


def _attempt(attempt: AttemptRecord) -> dict[str, Any]:
    status = attempt.status or (200 if attempt.ok else UNKNOWN_FAILURE)
    return {"provider": attempt.provider_name, "model": attempt.model_id, "status": status}


def _stage(note: str) -> dict[str, Any]:
    name, _, summary = note.partition(": ")
    return {"type": _STAGES.get(name, "plugin"), "name": name, "summary": summary}
