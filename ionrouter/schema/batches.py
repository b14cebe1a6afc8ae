"""Batches on the wire: what is submitted, and the objects that tell of it. Knows no database."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, StrictBool, StrictStr

from ionrouter.errors import RequestError
from ionrouter.schema.common import ModelName

WINDOW = "24h"
WINDOW_S = 24 * 3600.0
MAX_CUSTOM_ID = 512  # characters
Endpoint = Literal[
    "/v1/chat/completions", "/v1/completions", "/v1/responses", "/v1/messages", "/v1/embeddings", "/v1/rerank"
]
# What a request that was never answered is told, by its batch's status.
UNANSWERED: Mapping[str, tuple[str, str]] = {
    "cancelled": ("batch_cancelled", "the batch was cancelled before this request had an answer"),
    "expired": ("batch_expired", f"the batch's {WINDOW} were over before this request had an answer"),
    "failed": ("batch_failed", "the batch failed before this request had an answer"),
}


class BatchProvider(BaseModel):
    """The routing preferences that a whole batch may have."""

    model_config = ConfigDict(extra="forbid")
    only: list[StrictStr] | None = None
    allow_fallbacks: StrictBool | None = None


class BatchRequest(BaseModel):
    model_config = ConfigDict(extra="forbid")
    custom_id: Annotated[StrictStr, Field(min_length=1, max_length=MAX_CUSTOM_ID)]
    body: dict[str, Any]


class Submission(BaseModel):
    """A batch to be run. Its fields may come in any order."""

    model_config = ConfigDict(extra="forbid", protected_namespaces=())
    endpoint: Endpoint
    model: ModelName
    requests: Annotated[list[BatchRequest], Field(min_length=1)]
    completion_window: Literal["24h"] | None = None
    provider: BatchProvider | None = None
    callback_url: Any = None

    def bodies(self, max_requests: int) -> Iterator[tuple[str, dict[str, Any]]]:
        """Custom id and whole body of each request; raises RequestError naming the first that is at fault."""
        if self.callback_url is not None:
            raise _fault("callback_url", "no webhooks are sent here; poll GET /batches/{id} instead")
        if len(self.requests) > max_requests:
            raise _fault(
                "requests", f"should have at most {max_requests} items (IONROUTER_BATCH_MAX_REQUESTS)"
            )
        if "\0" in self.model:
            raise _fault("model", "should have no NUL in it")
        seen: dict[str, int] = {}
        for number, request in enumerate(self.requests):
            path = f"requests[{number}]"
            first = seen.setdefault(request.custom_id, number)
            if first != number:
                raise _fault(f"{path}.custom_id", f"is that of requests[{first}] already")
            if "\0" in request.custom_id:  # PostgreSQL keeps none
                raise _fault(f"{path}.custom_id", "should have no NUL in it")
            yield request.custom_id, self._whole(f"{path}.body", request.body)

    def _whole(self, path: str, body: Mapping[str, Any]) -> dict[str, Any]:
        """A request's body with what the batch says for all."""
        if body.get("stream"):
            raise _fault(f"{path}.stream", "requests of a batch are not streamed")
        if body.get("model") not in (None, self.model):
            raise _fault(f"{path}.model", f"should be the batch's '{self.model}', or left out")
        whole = {**body, "model": self.model}
        given = {} if self.provider is None else self.provider.model_dump(exclude_none=True)
        if given:
            own = body.get("provider")
            if own is not None and not isinstance(own, dict):
                raise _fault(f"{path}.provider", "should be an object")
            for name, value in given.items():
                if own and own.get(name) not in (None, value):
                    raise _fault(f"{path}.provider.{name}", "contradicts the batch's provider")
            whole["provider"] = {**(own or {}), **given}
        return whole


def _fault(path: str, sentence: str) -> RequestError:
    return RequestError(f"{path}: {sentence}", param=path)


def result_error(status: str, answered_status: int | None, answer: Any) -> dict[str, Any]:
    """The `error` of a result: the refusal that a request was answered with, or why it has no answer."""
    if answered_status is None:
        kind, message = UNANSWERED[status]
        return {"type": kind, "message": message, "param": None, "code": None}
    error = answer.get("error") if isinstance(answer, dict) else None
    told = error if isinstance(error, dict) else {}
    return {
        "type": told.get("type") or "server_error",
        "message": told.get("message") or f"status {answered_status}",
        "param": told.get("param"),
        "code": answered_status,
        **_class_of(told, answer),
    }


def _class_of(told: Mapping[str, Any], answer: Any) -> dict[str, Any]:
    """`error_type` and `metadata` as they were told: each surface has the first at a place of its own."""
    metadata = told.get("metadata")
    places = (metadata, told, answer)
    names = [place.get("error_type") for place in places if isinstance(place, dict)]
    found = next((name for name in names if isinstance(name, str)), None)
    known: dict[str, Any] = {} if found is None else {"error_type": found}
    return known if metadata is None else {**known, "metadata": metadata}


def used_by(answer: Any) -> tuple[int, int, float]:
    """Prompt tokens, completion tokens and cost in USD of an answer's `usage`, in any surface's words."""
    usage = answer.get("usage") if isinstance(answer, dict) else None
    if not isinstance(usage, dict):
        return 0, 0, 0.0
    prompt = usage.get("prompt_tokens", usage.get("input_tokens"))
    completion = usage.get("completion_tokens", usage.get("output_tokens"))
    cost = usage.get("cost")
    return _count(prompt), _count(completion), float(cost) if isinstance(cost, int | float) else 0.0


def _count(value: Any) -> int:
    return value if isinstance(value, int) else 0
