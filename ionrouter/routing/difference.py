"""What a reload changes, for the log: names that came and went, fields that differ. Compares two tables."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass
from typing import Any

from ionrouter.routing.edges import Edge, Kind, wiring_of_table
from ionrouter.routing.table import Endpoint, Hedge, PartPrices, Price, RoutingTable, Shadow, Split


@dataclass(frozen=True, slots=True)
class Change:
    """One field of one thing: `together/m.price.prompt`, old and new value."""

    name: str
    old: Any
    new: Any

    def __str__(self) -> str:
        return f"{self.name}: {self.old} -> {self.new}"


@dataclass(frozen=True, slots=True)
class RoutingDiff:
    """The difference of two tables. Identities tell which statistics to keep: those in neither set."""

    added: tuple[str, ...] = ()  # arrows, e.g. "model a -> endpoint together/a"
    removed: tuple[str, ...] = ()
    changed: tuple[Change, ...] = ()
    new_identities: frozenset[str] = frozenset()
    gone_identities: frozenset[str] = frozenset()

    @property
    def is_empty(self) -> bool:
        return not (self.added or self.removed or self.changed)

    def lines(self) -> list[str]:
        """One line per difference: `+`, `-`, `~`."""
        return [
            *(f"+ {text}" for text in self.added),
            *(f"- {text}" for text in self.removed),
            *(f"~ {change}" for change in self.changed),
        ]


def difference(old: RoutingTable, new: RoutingTable) -> RoutingDiff:
    """Compare two tables by their edges and by the fields of what both have."""
    before, after = _arrows(old), _arrows(new)
    old_ids, new_ids = set(_identities(old)), set(_identities(new))
    return RoutingDiff(
        added=tuple(text for text in after if text not in before),
        removed=tuple(text for text in before if text not in after),
        changed=tuple(_changes(old, new)),
        new_identities=frozenset(new_ids - old_ids),
        gone_identities=frozenset(old_ids - new_ids),
    )


_SECTIONS = frozenset({Kind.GROUP, Kind.PRESET})  # told entry by entry, whole


def _arrows(table: RoutingTable) -> dict[str, None]:
    wiring = wiring_of_table(table)
    nodes = {f"{node.kind.value} {node.name}": None for node in wiring.nodes if node.kind not in _SECTIONS}
    edges = (edge for edge in wiring.edges if edge.source.kind not in _SECTIONS and not edge.is_shadow)
    return nodes | {_arrow(edge): None for edge in edges}


def _arrow(edge: Edge) -> str:
    source, target = edge.source, edge.target
    return f"{source.kind.value} {source.name} -> {target.kind.value} {target.name}"


def _identities(table: RoutingTable) -> list[str]:
    models = [e.identity for model in table.models.values() for e in model.endpoints]
    return models + [pattern.endpoint.identity for pattern in table.patterns]


def _changes(old: RoutingTable, new: RoutingTable) -> list[Change]:
    changes = _field_changes("routing", old.settings, new.settings)
    for slug in old.providers.keys() & new.providers.keys():
        changes += _field_changes(f"providers.{slug}", old.providers[slug], new.providers[slug])
    for name in old.models.keys() & new.models.keys():
        changes += _field_changes(f"models.{name}", old.models[name], new.models[name], {"endpoints"})
    before, after = _endpoints(old), _endpoints(new)
    for name in before.keys() & after.keys():
        changes += _field_changes(name, before[name], after[name], {"provider"})
    changes += _section_changes("groups", old.groups, new.groups)
    changes += _section_changes("presets", old.presets, new.presets)
    changes += _section_changes("splits", old.splits, new.splits)
    return sorted(changes, key=lambda change: change.name)


def _section_changes(section: str, old: Mapping[str, Any], new: Mapping[str, Any]) -> list[Change]:
    """Entries that came, went or differ, whole; None stands for none."""
    names = sorted(old.keys() | new.keys())
    pairs = [(name, old.get(name), new.get(name)) for name in names]
    return [Change(f"{section}.{name}", a, b) for name, a, b in pairs if a != b]


def _endpoints(table: RoutingTable) -> dict[str, Endpoint]:
    """Those of models by their ids, those of patterns (one for each key) by theirs, numbered."""
    found = {endpoint.id: endpoint for model in table.models.values() for endpoint in model.endpoints}
    numbers = Counter[str]()
    for pattern in table.patterns:
        name = pattern.endpoint.id
        numbers[name] += 1
        found[name if numbers[name] == 1 else f"{name}#{numbers[name]}"] = pattern.endpoint
    return found


# Compared through what they are made of.
_DERIVED = frozenset({"fallback_paths", "identity", "subject"})
# Told in one line each, if that differs: the endpoints that they lead to have lines of their own.
_WHOLE = (Hedge, Shadow, Split)


def _field_changes(name: str, old: Any, new: Any, skip: Set[str] = frozenset()) -> list[Change]:
    """Changed fields, going into nested dataclasses."""
    changes: list[Change] = []
    for field in dataclasses.fields(old):
        a, b = getattr(old, field.name), getattr(new, field.name)
        if field.name in skip or field.name in _DERIVED or a == b:
            continue
        path = f"{name}.{field.name}"
        if dataclasses.is_dataclass(a) and type(a) is type(b) and type(a) not in _WHOLE:
            changes += _field_changes(path, a, b)
        elif isinstance(old, Price) and field.name == "parts":
            changes += _field_changes(path, a or PartPrices(), b or PartPrices())
        elif isinstance(old, Price) and field.name == "tiers":
            changes += _tier_changes(name, old, new)
        elif type(a) not in _WHOLE or str(a) != str(b):
            changes.append(Change(path, _shown(a), _shown(b)))
    return changes


def _tier_changes(name: str, old: Price, new: Price) -> list[Change]:
    """Prices of levels of service, each against the usual one where there was or is none of its own."""
    changes: list[Change] = []
    for tier in dict.fromkeys(name for price in (old, new) for name, _ in price.tiers):
        before, after = (price.of_tier(tier) or dataclasses.replace(price, tiers=()) for price in (old, new))
        changes += _field_changes(f"{name}.tiers.{tier}", before, after)
    return changes


def _shown(value: Any) -> Any:
    return sorted(value) if isinstance(value, frozenset) else value
