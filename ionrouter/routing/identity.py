"""What makes an endpoint itself across reloads: statistics and breakers are kept by it."""

from __future__ import annotations

import hashlib
import json

from ionrouter.routing.table import Provider


def identity_of(provider: Provider, upstream_model: str, key_variable: str | None) -> str:
    """Hash of (type, address, upstream model, key variable, region), 16 hexadecimal digits.

    Price, timeouts and weight may change without changing it. `upstream_model` is the source of the weights
    for the engine inside. The address is the base URL, or else litellm's name of the provider.
    """
    address = provider.base_url or provider.litellm_provider or provider.slug
    parts = [provider.type, address, upstream_model, key_variable or "", provider.region or ""]
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
