"""Parts of an ion endpoint in routes.yaml that are more than one value. Knows no engine."""

from __future__ import annotations

from pydantic import Field

from ionrouter.routing.spec_values import Bytes, Spec, Text


class KvTierSpec(Spec):
    """The second tier of an ion endpoint's KV cache: what the first has no room for is kept there."""

    bytes: Bytes = Field(description="Its size, e.g. 8GiB.")
    path: Text | None = Field(
        default=None,
        description="A folder for a file of that size, made if it is missing; without it the tier is memory.",
    )
