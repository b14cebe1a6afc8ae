"""What makes an endpoint itself across reloads: statistics and breakers are kept by it.

An identity is `<account>:<model>`, both hashes. A pattern's is the account alone, and all that it makes
begins with it. What is published goes by a subject: one upstream under one of our models.
"""

from __future__ import annotations

import hashlib
import json

from ionrouter.routing.table import Provider


def account_of(provider: Provider, key_variable: str | None) -> str:
    """Hash of (type, address, key variable, region); the address is the base URL, else litellm's name."""
    address = provider.base_url or provider.litellm_name
    return _hash(provider.type, address, key_variable or "", provider.region or "")


def identity_of(provider: Provider, upstream_model: str, key_variable: str | None) -> str:
    """Identity of one model at one account. Price, timeouts and weight may change without changing it.

    `upstream_model` is the source of the weights for the engine inside.
    """
    return f"{account_of(provider, key_variable)}:{_hash(upstream_model)}"


def subject_of(identity: str, model_id: str) -> str:
    """Whose statistics: ids follow the order in the file, and are given to other upstreams."""
    return f"{identity}:{model_id}"


def _hash(*parts: str) -> str:
    return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:16]
