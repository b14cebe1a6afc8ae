"""Rerank bodies on their way out and back: what Cohere, Jina, vLLM, TEI and others agree on. No sockets."""

from __future__ import annotations

import sys
from collections.abc import Mapping
from typing import Any, TypeGuard

from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.indexes import read_index
from ionrouter.providers.usage_body import MAX_TOKENS, read_usage
from ionrouter.schema.events import Complete
from ionrouter.schema.usage import Usage

_SCORES = ("relevance_score", "score")
_ROWS = ("results", "data")


def sent_documents(body: Mapping[str, Any]) -> list[Any]:
    """Write documents that are text alone as plain strings, which every server takes."""
    return [_sent(document) for document in body.get("documents") or ()]


def _sent(document: Any) -> Any:
    if not isinstance(document, Mapping):
        return document
    said = {name: value for name, value in document.items() if value is not None}
    return said["text"] if said.keys() == {"text"} else said


def read_rerank(payload: Mapping[str, Any], body: Mapping[str, Any], errors: ErrorReader) -> Complete:
    """Normalise an answer: rows of index and relevance_score, most relevant first.

    Raises UpstreamError for an answer without rows, a row without a finite score, an index that is no
    document's or comes twice, and fewer rows than were asked for.
    """
    rows = next((found for name in _ROWS if isinstance(found := payload.get(name), list)), [])
    if not rows:
        raise errors.fault("empty", "the upstream answered without results")
    num_documents = len(body.get("documents") or ())
    data = [_row(row, position, num_documents, errors) for position, row in enumerate(rows)]
    if len({row["index"] for row in data}) < len(data):
        raise errors.fault("malformed", "a document was ranked twice")
    wanted = min(body.get("top_n") or num_documents, num_documents)
    if len(data) < wanted:
        raise errors.fault("malformed", f"{len(data)} results where {wanted} were asked for")
    ordered = tuple(sorted(data, key=lambda row: (-row["relevance_score"], row["index"])))
    return Complete(usage=read_rerank_usage(payload), data=ordered, search_units=_search_units(payload))


def _row(row: Any, position: int, num_documents: int, errors: ErrorReader) -> dict[str, Any]:
    found = row if isinstance(row, Mapping) else {}
    score = next((found[name] for name in _SCORES if name in found), None)
    if not _is_finite(score):
        raise errors.fault("malformed", f"result {position} has no finite relevance_score")
    index = read_index(found.get("index"))
    if index is None or index >= num_documents:
        told = repr(found.get("index"))[:40]
        message = f"result {position} has index {told}, but there are {num_documents} documents"
        raise errors.fault("malformed", message)
    return {"index": index, "relevance_score": float(score)}


def _is_finite(value: Any) -> TypeGuard[int | float]:
    """Whether it is a number that a float holds."""
    is_number = isinstance(value, int | float) and not isinstance(value, bool)
    return is_number and abs(value) <= sys.float_info.max


def _meta(payload: Mapping[str, Any], name: str) -> Mapping[str, Any]:
    meta = payload.get("meta")
    found = meta.get(name) if isinstance(meta, Mapping) else None
    return found if isinstance(found, Mapping) else {}


def read_rerank_usage(payload: Mapping[str, Any]) -> Usage | None:
    """Every token of a rerank is a prompt's: OpenAI's `usage`, or Cohere's `meta.tokens`."""
    usage = read_usage(payload.get("usage"))
    if usage is None:
        usage = read_usage(_meta(payload, "tokens")) or read_usage(_meta(payload, "billed_units"))
    return None if usage is None else Usage(prompt_tokens=usage.total_tokens)


def _search_units(payload: Mapping[str, Any]) -> int | None:
    usage = payload.get("usage")
    places = (usage if isinstance(usage, Mapping) else {}, _meta(payload, "billed_units"))
    found = (place.get("search_units") for place in places)
    numbers = (n for n in found if _is_finite(n) and 0 <= n <= MAX_TOKENS)
    return next((int(number) for number in numbers), None)
