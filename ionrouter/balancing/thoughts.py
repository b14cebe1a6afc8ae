"""Who made the signed or encrypted reasoning that a request carries: only its maker's provider can read it.

Remembers fingerprints, never the thoughts; bounded; calls no clock.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema.events import Chunk, Complete, Event
from ionrouter.schema.request import InferenceRequest

MAX_SEALS = 65_536
MAX_LAST = 16_384
_SEALS = ("signature", "data")  # of a signed and of an encrypted detail

Key = tuple[str | None, str]  # the caller's key; a seal's fingerprint, or a model


@dataclass(slots=True)
class Makers:
    """Seal -> endpoint identity, and for seals never seen the endpoint that served the key's model last."""

    _by_seal: dict[Key, str] = field(default_factory=dict)
    _last: dict[Key, str] = field(default_factory=dict)

    def find(self, request: InferenceRequest) -> str | None:
        """Find the identity of the endpoint that a request must go back to; None where it carries no seal."""
        seals = sealed(request.body)
        if not seals:
            return None
        known = (self._by_seal.get((request.key_id, _fingerprint(seal))) for seal in reversed(seals))
        maker = next((identity for identity in known if identity is not None), None)
        return maker or self._last.get((request.key_id, request.model))

    def hear(self, request: InferenceRequest, event: Event, identity: str) -> None:
        """Note the seals of an answer's event."""
        for details in _details_of(event):
            for seal in _seals(details):
                _put(self._by_seal, (request.key_id, _fingerprint(seal)), identity, MAX_SEALS)

    def served(self, request: InferenceRequest, identity: str) -> None:
        """Note who answered well."""
        _put(self._last, (request.key_id, request.model), identity, MAX_LAST)


def sealed(body: Mapping[str, Any]) -> list[str]:
    """The signatures and encrypted data in a request's messages, in order."""
    seals: list[str] = []
    messages = body.get("messages")
    for message in messages if isinstance(messages, list) else ():
        if isinstance(message, dict) and (details := message.get("reasoning_details")):
            seals += _seals(details)
    return seals


def _details_of(event: Event) -> list[Any]:
    if isinstance(event, Chunk):
        told = [choice.delta.get("reasoning_details") for choice in event.choices]
    elif isinstance(event, Complete):
        told = [choice.message.get("reasoning_details") for choice in event.choices]
    else:
        return []
    return [details for details in told if details]


def _seals(details: Any) -> Iterator[str]:
    for detail in details if isinstance(details, list) else ():
        for name in _SEALS if isinstance(detail, dict) else ():
            if isinstance(value := detail.get(name), str) and value:
                yield value


def _fingerprint(seal: str) -> str:
    return hashlib.blake2b(seal.encode("utf-8", "surrogatepass"), digest_size=16).hexdigest()


def _put(entries: dict[Key, str], key: Key, identity: str, most: int) -> None:
    entries.pop(key, None)
    entries[key] = identity
    if len(entries) > most:
        del entries[next(iter(entries))]
