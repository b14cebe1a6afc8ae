"""The names in routes.yaml and who points at whom, as plain values. Knows no graph library.

Read from raw data, so that a file with a wrong number in one place still gets all of its names checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ionrouter.routing.resolve import find_id, resolve, split_variant
from ionrouter.routing.table import Arm, Endpoint, ModelRoute, RoutingTable, Split
from ionrouter.routing.yaml_source import Loc


class Kind(Enum):
    """Kinds of node. The value is the word for people."""

    PRESET = "preset"
    GROUP = "group"
    ALIAS = "alias"
    PATTERN = "pattern"
    MODEL = "model"
    ENDPOINT = "endpoint"
    PROVIDER = "provider"
    DOMAIN = "failure domain"


@dataclass(frozen=True, slots=True)
class Node:
    kind: Kind
    name: str


@dataclass(frozen=True, slots=True)
class Edge:
    """`source` points at `target`. `position`: 1-based place in its list. `loc`: where the file says so.

    `percent`: of the source's requests, what the arm of a canary or a split gets (all endpoints of that `arm`
    together; 0 for an endpoint in none), or, of a shadow, what is copied. None where nobody says percentages.
    """

    source: Node
    target: Node
    position: int = 1
    loc: Loc = ()
    percent: float | None = None
    arm: str | None = None
    is_shadow: bool = False

    @property
    def is_fallback(self) -> bool:
        return self.source.kind is Kind.MODEL and self.target.kind is Kind.MODEL


@dataclass(frozen=True, slots=True)
class Wiring:
    """All nodes a file declares and all edges between names, declared or not."""

    nodes: tuple[Node, ...]
    edges: tuple[Edge, ...]

    @property
    def patterns(self) -> tuple[str, ...]:
        return tuple(node.name for node in self.nodes if node.kind is Kind.PATTERN)


_SECTIONS = {
    "providers": Kind.PROVIDER,
    "models": Kind.MODEL,
    "aliases": Kind.ALIAS,
    "patterns": Kind.PATTERN,
}


def wiring_of(data: Any) -> Wiring:
    """Read names and references out of the data of routes.yaml; skips what has the wrong type."""
    sections = {name: _mapping(_mapping(data).get(name)) for name in _SECTIONS}
    nodes = [Node(_SECTIONS[name], key) for name, section in sections.items() for key in section]
    edges = [*_alias_edges(sections), *_endpoint_edges(sections), *_fallback_edges(sections)]
    edges += _pattern_edges(sections)
    return Wiring(tuple(nodes), tuple(edges))


Sections = Mapping[str, Mapping[str, Any]]


def _alias_edges(sections: Sections) -> Iterator[Edge]:
    for alias, name in sections["aliases"].items():
        if isinstance(name, str):
            yield Edge(Node(Kind.ALIAS, alias), _name_node(name, sections), loc=("aliases", alias))


def _endpoint_edges(sections: Sections) -> Iterator[Edge]:
    for model, fields in sections["models"].items():
        for index, offer in enumerate(_list(_mapping(fields).get("endpoints"))):
            provider = _mapping(offer).get("provider")
            endpoint = Node(Kind.ENDPOINT, f"{model}[{index}]")
            loc: Loc = ("models", model, "endpoints", index)
            yield Edge(Node(Kind.MODEL, model), endpoint, index + 1, loc)
            if isinstance(provider, str):
                yield Edge(endpoint, Node(Kind.PROVIDER, provider), loc=(*loc, "provider"))


def _fallback_edges(sections: Sections) -> Iterator[Edge]:
    for model, fields in sections["models"].items():
        for index, name in enumerate(_list(_mapping(fields).get("fallbacks"))):
            if isinstance(name, str):
                loc: Loc = ("models", model, "fallbacks", index)
                yield Edge(Node(Kind.MODEL, model), _name_node(name, sections), index + 1, loc)


def _pattern_edges(sections: Sections) -> Iterator[Edge]:
    for glob, fields in sections["patterns"].items():
        provider = _mapping(fields).get("provider")
        if isinstance(provider, str):
            target = Node(Kind.PROVIDER, provider)
            yield Edge(Node(Kind.PATTERN, glob), target, loc=("patterns", glob, "provider"))


def _name_node(name: str, sections: Sections) -> Node:
    return Node(Kind.ALIAS if name in sections["aliases"] else Kind.MODEL, name)


def _mapping(value: Any) -> Mapping[str, Any]:
    return {k: v for k, v in value.items() if isinstance(k, str)} if isinstance(value, Mapping) else {}


def _list(value: Any) -> list[Any]:
    return value if isinstance(value, list) else []


def wiring_of_table(table: RoutingTable) -> Wiring:
    """The same picture of a compiled table, with failure domains, groups, presets, percentages, shadows."""
    edges = dict.fromkeys(_names_of_table(table))
    for model in table.models.values():
        edges |= dict.fromkeys((*_to_endpoints(model), *_to_fallbacks(model, table)))
    named = (edge.target.name for edge in edges if edge.target.kind is Kind.MODEL)
    for name in dict.fromkeys(name for name in named if name not in table.models):
        route = resolve(table, name)  # a pattern serves it
        edges |= dict.fromkeys(_to_endpoints(route) if route else ())
    for pattern in table.patterns:
        provider = Node(Kind.PROVIDER, pattern.endpoint.provider.slug)
        edges[Edge(Node(Kind.PATTERN, pattern.glob), provider)] = None
    nodes = dict.fromkeys(node for edge in edges for node in (edge.source, edge.target))
    nodes |= dict.fromkeys(Node(Kind.MODEL, name) for name in table.models)
    nodes |= dict.fromkeys(Node(Kind.PRESET, slug) for slug in table.presets)
    return Wiring(tuple(nodes), tuple(edges))


def _names_of_table(table: RoutingTable) -> Iterator[Edge]:
    """Presets, groups and aliases, each with the models that it stands for."""
    for slug, fields in table.presets.items():
        names = [
            name for name in (fields.get("model"), *_list(fields.get("models"))) if isinstance(name, str)
        ]
        for position, name in enumerate(names, 1):
            yield Edge(Node(Kind.PRESET, slug), _named(table, name), position)
    for group, members in table.groups.items():
        split = table.splits.get(group)
        for position, member in enumerate(members, 1):
            percent, arm = _percent(split, member)
            yield Edge(Node(Kind.GROUP, group), _named(table, member), position, percent=percent, arm=arm)
    for alias, model_id in table.aliases.items():
        yield Edge(Node(Kind.ALIAS, alias), Node(Kind.MODEL, model_id))


def _named(table: RoutingTable, name: str) -> Node:
    """The group or model that a name means, whatever its suffixes and aliases."""
    base, _ = split_variant(name, table)
    return Node(Kind.GROUP, base) if base in table.groups else Node(Kind.MODEL, find_id(table, base) or base)


def _to_endpoints(model: ModelRoute) -> Iterator[Edge]:
    source = Node(Kind.MODEL, model.id)
    for position, endpoint in enumerate(model.endpoints, 1):
        percent, arm = _percent(model.split, endpoint.id)
        yield Edge(source, Node(Kind.ENDPOINT, endpoint.id), position, percent=percent, arm=arm)
        yield from _behind(endpoint)
    if model.shadow is not None:
        target, percent = Node(Kind.ENDPOINT, model.shadow.endpoint.id), round(model.shadow.share * 100, 9)
        yield Edge(source, target, percent=percent, is_shadow=True)


def _behind(endpoint: Endpoint) -> Iterator[Edge]:
    provider = Node(Kind.PROVIDER, endpoint.provider.slug)
    yield Edge(Node(Kind.ENDPOINT, endpoint.id), provider)
    yield Edge(provider, Node(Kind.DOMAIN, endpoint.domain))


def _to_fallbacks(model: ModelRoute, table: RoutingTable) -> Iterator[Edge]:
    for position, fallback in enumerate(model.listed_fallbacks or model.fallbacks, 1):
        target = table.aliases.get(fallback, fallback)
        yield Edge(Node(Kind.MODEL, model.id), Node(Kind.MODEL, target), position)


def _percent(split: Split | None, member: str) -> tuple[float | None, str | None]:
    """What the arm of a member gets, and the arm's name."""
    if split is None:
        return None, None
    arm: Arm | None = next((arm for arm in split.arms if member in arm.members), None)
    return (0.0, None) if arm is None else (arm.percent, arm.name)
