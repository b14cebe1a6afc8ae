"""The names in routes.yaml and who points at whom, as plain values. Knows no graph library.

Read from raw data, so that a file with a wrong number in one place still gets all of its names checked.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from enum import Enum
from typing import Any

from ionrouter.routing.table import RoutingTable
from ionrouter.routing.yaml_source import Loc


class Kind(Enum):
    """Kinds of node. The value is the word for people."""

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
    """`source` points at `target`. `position`: 1-based place in its list. `loc`: where the file says so."""

    source: Node
    target: Node
    position: int = 1
    loc: Loc = ()

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
    """The same picture of a compiled table, with failure domains."""
    nodes: dict[Node, None] = {}
    edges: dict[Edge, None] = {}

    def link(source: Node, target: Node, position: int = 1) -> None:
        nodes.update({source: None, target: None})
        edges[Edge(source, target, position)] = None

    for alias, model_id in table.aliases.items():
        link(Node(Kind.ALIAS, alias), Node(Kind.MODEL, model_id))
    for model in table.models.values():
        nodes[Node(Kind.MODEL, model.id)] = None
        for position, endpoint in enumerate(model.endpoints, 1):
            link(Node(Kind.MODEL, model.id), Node(Kind.ENDPOINT, endpoint.id), position)
            link(Node(Kind.ENDPOINT, endpoint.id), Node(Kind.PROVIDER, endpoint.provider.slug))
            link(Node(Kind.PROVIDER, endpoint.provider.slug), Node(Kind.DOMAIN, endpoint.domain))
        for position, fallback in enumerate(model.listed_fallbacks or model.fallbacks, 1):
            target = table.aliases.get(fallback, fallback)
            link(Node(Kind.MODEL, model.id), Node(Kind.MODEL, target), position)
    for pattern in table.patterns:
        link(Node(Kind.PATTERN, pattern.glob), Node(Kind.PROVIDER, pattern.endpoint.provider.slug))
    return Wiring(tuple(nodes), tuple(edges))
