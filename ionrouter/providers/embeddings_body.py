"""Vectors on their way back: one for each input, all of one size, whoever answers. No sockets."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.indexes import read_index
from ionrouter.schema.embeddings import num_inputs
from ionrouter.schema.vectors import is_vector, num_dimensions

_Row = dict[str, Any]


def read_embeddings(data: Any, body: Mapping[str, Any], errors: ErrorReader) -> tuple[_Row, ...]:
    """Normalise an answer's `data` to `body`: rows of index and embedding, in the order of the inputs.

    Raises UpstreamError for an answer without rows, a row without a vector, another number of vectors than of
    inputs, an input with two of them, and vectors of several sizes, or of another one than asked for.
    """
    if not isinstance(data, list) or not data:
        raise errors.fault("empty", "the upstream answered without embeddings")
    rows = [_row(row, position, errors) for position, row in enumerate(data)]
    if len(rows) != (wanted := num_inputs(body.get("input"))):
        raise errors.fault("malformed", f"{len(rows)} vectors for {wanted} inputs")
    sizes, dimensions = {num_dimensions(row["embedding"]) for row in rows}, body.get("dimensions")
    if len(sizes) > 1 or (dimensions is not None and sizes != {dimensions}):
        found = " and ".join(map(str, sorted(sizes)))
        asked = "" if dimensions is None else f" where {dimensions} were asked for"
        raise errors.fault("malformed", f"vectors of {found} dimensions{asked}")
    return tuple(_in_order(rows, errors))


def _row(row: Any, position: int, errors: ErrorReader) -> _Row:
    found = row if isinstance(row, Mapping) else {}
    vector, index = found.get("embedding"), read_index(found.get("index"))
    if not is_vector(vector):
        raise errors.fault("malformed", f"embedding {position} is not a list of numbers that float32 holds")
    return {"object": "embedding", "index": position if index is None else index, "embedding": vector}


def _in_order(rows: Sequence[_Row], errors: ErrorReader) -> list[_Row]:
    """Sort by index; some servers write the same one on every row, which says nothing."""
    indexes = {row["index"] for row in rows}
    if len(indexes) == 1:
        return [{**row, "index": position} for position, row in enumerate(rows)]
    if indexes != set(range(len(rows))):
        raise errors.fault("malformed", f"the indexes of {len(rows)} vectors are not those of the inputs")
    return sorted(rows, key=lambda row: row["index"])
