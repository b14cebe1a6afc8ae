"""What an endpoint is taken to cost when nobody said: for choosing only, never for a bill. Arithmetic."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from ionrouter.routing.table import Endpoint, Price

DEFAULT = Price(prompt=5e-6, completion=5e-6)  # USD per token; dearer than most models that one may forget


def is_unpriced(endpoint: Endpoint) -> bool:
    """Ask whether nobody said what an endpoint costs; a written 0 and the machine's own models are prices."""
    return endpoint.price_source == "unknown"


def as_weighed(endpoint: Endpoint, peers: Sequence[Endpoint]) -> Endpoint:
    """Give an unpriced endpoint the dearest known price among its model's endpoints, else DEFAULT.

    What is free says nothing about what a stranger asks. A half that is written stays if it is dearer.
    """
    if not is_unpriced(endpoint):
        return endpoint
    known = [peer.price for peer in peers if not is_unpriced(peer) and _is_charged(peer.price)] or [DEFAULT]
    return replace(endpoint, price=_dearest([endpoint.price, *known]))


def _is_charged(price: Price) -> bool:
    return max(price.prompt, price.completion, price.request) > 0


def _dearest(prices: Sequence[Price]) -> Price:
    return Price(
        prompt=max(price.prompt for price in prices),
        completion=max(price.completion for price in prices),
        request=max(price.request for price in prices),
    )
