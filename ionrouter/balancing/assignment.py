"""Which arm of a split a request belongs to: always the same one for a session, a user or a key. Pure.

Each arm draws a number by hash from its own name and the unit's, exponential with its percentage as rate; the
smallest wins (an exponential race, that is, rendezvous hashing with weights). So an arm wins in proportion
to its percentage, and a change moves few: between two arms exactly the difference, and a new arm takes only
what it gets.
"""

from __future__ import annotations

import hashlib
import math
import random
from collections.abc import Iterable, Mapping

from msgspec import Struct

from ionrouter.routing.table import Arm, Endpoint, ModelRoute, Split
from ionrouter.schema.request import InferenceRequest


class Assignment(Struct, frozen=True):
    """An arm, and by what it was chosen: session, user, key, or chance."""

    split: Split
    arm: Arm
    by: str

    def __str__(self) -> str:
        return f"{self.split.name}: {self.arm.name} ({self.arm.percent:g}%) by {self.by}"


class Assignments(Struct, frozen=True):
    """A request's arms, by the name of their splits."""

    by_split: Mapping[str, Assignment]

    def misses(self, endpoint: Endpoint, route: ModelRoute) -> int:
        """How far off an endpoint is: 0 where splits lead, 1 for another endpoint, 2 for another model."""
        if not self.by_split:
            return 0
        group, own = self._of(route.group_split), self._of(route.split)
        is_other_model = group is not None and route.group_arm not in group.arm.members
        is_other_endpoint = own is not None and endpoint.id not in own.arm.members
        return 2 * is_other_model + is_other_endpoint

    def _of(self, split: Split | None) -> Assignment | None:
        return self.by_split.get(split.name) if split is not None else None

    def of_pick(self, route: ModelRoute) -> tuple[Assignment, ...]:
        """The assignments that lead to a model, for people."""
        if not self.by_split:
            return ()
        return tuple(a for split in (route.group_split, route.split) if (a := self._of(split)) is not None)


def assigned(routes: Iterable[ModelRoute], request: InferenceRequest, rng: random.Random) -> Assignments:
    """Find the arm of every split on the way; `rng` decides where the request has nothing to stay with."""
    splits: dict[str, Split] = {}
    for route in routes:
        for split in (route.group_split, route.split):
            if split is not None:
                splits[split.name] = split
    if not splits:
        return NONE
    by, unit = unit_of(request) or ("chance", rng.random().hex())
    return Assignments({name: Assignment(split, pick(split, unit), by) for name, split in splits.items()})


NONE = Assignments({})


def unit_of(request: InferenceRequest) -> tuple[str, str] | None:
    """What a request stays with: its session, else its user, else its key."""
    units = (("session", request.session_id), ("user", request.client.user), ("key", request.key_id))
    return next(((kind, f"{kind} {name}") for kind, name in units if name), None)


def pick(split: Split, unit: str) -> Arm:
    """The arm that wins the race for a unit."""
    return min(split.arms, key=lambda arm: _time(split.name, arm, unit))


def _time(split: str, arm: Arm, unit: str) -> float:
    if arm.percent <= 0:
        return math.inf
    digest = hashlib.blake2b(
        f"{split}\0{arm.name}\0{unit}".encode("utf-8", "replace"), digest_size=8
    ).digest()
    uniform = (int.from_bytes(digest, "big") + 0.5) / 2**64  # in (0, 1)
    return -math.log(uniform) / arm.percent
