"""The graph of routes.yaml: checks of names, order of fallbacks, and the way into the frozen table.

The only file that knows networkx. Nothing here is live: health and latency belong to endpoints, not to edges.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass

import networkx as nx

from ionrouter.errors import Problem
from ionrouter.routing import models, picture, traffic
from ionrouter.routing.difference import RoutingDiff, difference
from ionrouter.routing.document import Catalog
from ionrouter.routing.edges import Edge, Kind, Node, Wiring, wiring_of, wiring_of_table
from ionrouter.routing.globs import best_match
from ionrouter.routing.table import ModelRoute, RoutingSettings, RoutingTable
from ionrouter.routing.yaml_source import Source

MIN_DEPTH = 8.0  # how far fallbacks of fallbacks are followed, in list positions added up


def build(wiring: Wiring) -> nx.DiGraph:
    """Make the graph; nodes that the file declares have `declared`, edges carry their Edge and a weight."""
    graph = nx.DiGraph()
    graph.add_nodes_from(wiring.nodes, declared=True)
    for edge in wiring.edges:
        if not graph.has_edge(edge.source, edge.target):
            graph.add_edge(edge.source, edge.target, edge=edge, weight=edge.position)
    return graph


def find_problems(source: Source) -> list[Problem]:
    """Alias loops and names that nothing declares, with the nearest spelling."""
    wiring = wiring_of(source.data)
    graph = build(wiring)
    return [*_alias_loops(graph, source), *_unknown_names(graph, wiring, source)]


def _alias_loops(graph: nx.DiGraph, source: Source) -> Iterator[Problem]:
    aliases = graph.subgraph([node for node in graph if node.kind is Kind.ALIAS])
    for loop in nx.simple_cycles(aliases):
        order = {node: place for place, node in enumerate(graph)}
        start = min(range(len(loop)), key=lambda i: order[loop[i]])
        names = [node.name for node in loop[start:] + loop[:start]]
        message = f"aliases go round in a circle: {' -> '.join([*names, names[0]])}"
        yield source.problem(("aliases", names[0]), message)


def _unknown_names(graph: nx.DiGraph, wiring: Wiring, source: Source) -> Iterator[Problem]:
    globs = wiring.patterns
    for edge in wiring.edges:
        node = edge.target
        if node.kind is Kind.ENDPOINT or graph.nodes[node].get("declared"):
            continue
        if node.kind is Kind.MODEL and best_match(globs, node.name) is not None:
            continue  # a pattern serves it
        yield source.problem(edge.loc, _unknown(node, graph))


def _unknown(node: Node, graph: nx.DiGraph) -> str:
    kinds = {Kind.MODEL, Kind.ALIAS} if node.kind is Kind.MODEL else {node.kind}
    names = [n.name for n, declared in graph.nodes(data="declared") if declared and n.kind in kinds]
    near = difflib.get_close_matches(node.name, names, n=1, cutoff=0.6)
    hint = f"; did you mean '{near[0]}'?" if near else ""
    return f"no {node.kind.value} '{node.name}'{hint}"


@dataclass(frozen=True, slots=True)
class FallbackOrder:
    """Fallback models of one model, nearest first, and the way to each: ("m", "a", "c")."""

    names: tuple[str, ...] = ()
    paths: Mapping[str, tuple[str, ...]] | None = None


def fallback_order(fallbacks: Mapping[str, tuple[str, ...]], model: str) -> FallbackOrder:
    """Order fallbacks by the sum of list positions on the way: M:[A,B], A:[C,M], B:[D] gives A, B, C, D.

    Dijkstra (1959) with weight = place in the list, cut off at the length of the model's own list or at
    MIN_DEPTH; ties keep the order of discovery. Cycles are legal: each model once, never itself.
    """
    return _order(_fallback_graph(fallbacks), model)


def _fallback_graph(fallbacks: Mapping[str, tuple[str, ...]]) -> nx.DiGraph:
    graph = nx.DiGraph()
    graph.add_nodes_from(fallbacks)
    for model, names in fallbacks.items():
        for position, name in enumerate(names, 1):
            if not graph.has_edge(model, name):
                graph.add_edge(model, name, weight=position)
    return graph


def _order(graph: nx.DiGraph, model: str) -> FallbackOrder:
    own = max((data["weight"] for _, _, data in graph.out_edges(model, data=True)), default=0)
    distances, paths = nx.single_source_dijkstra(graph, model, cutoff=max(MIN_DEPTH, own))
    # networkx settles equal distances in the order in which it met them, and the dict keeps it.
    names = tuple(name for name in distances if name != model)
    return FallbackOrder(names, {name: tuple(paths[name]) for name in names})


def compile_table(catalog: Catalog, env: Mapping[str, str]) -> RoutingTable:
    """Compile a catalog into what requests read. `env` decides which endpoints have a key."""
    aliases = resolve_aliases(catalog.spec.aliases)
    drafts = models.compile_models(catalog, env)
    listed = {
        name: tuple(aliases.get(f, f) for f in route.listed_fallbacks) for name, route in drafts.items()
    }
    graph = _fallback_graph(listed)
    routes = {name: models.with_fallbacks(drafts[name], *_names_and_paths(graph, name)) for name in drafts}
    return RoutingTable(
        models=traffic.with_traffic(catalog, routes),
        aliases=aliases,
        providers=models.compile_providers(catalog),
        patterns=models.compile_patterns(catalog, env),
        settings=_settings(catalog),
        version=catalog.version,
        folded=_folded(catalog, routes, aliases),
        groups={name: tuple(members) for name, members in traffic.groups(catalog).items()},
        splits=traffic.group_splits(catalog),
        presets=catalog.spec.presets,
    )


def _names_and_paths(graph: nx.DiGraph, model: str) -> tuple[tuple[str, ...], Mapping[str, tuple[str, ...]]]:
    order = _order(graph, model)
    return order.names, order.paths or {}


def resolve_aliases(aliases: Mapping[str, str]) -> dict[str, str]:
    """Follow alias chains to their end; the file's alias edges have no loop (find_problems)."""
    graph = nx.DiGraph(list(aliases.items()))
    final: dict[str, str] = {}
    for name in reversed(list(nx.topological_sort(graph))):
        if name in aliases:
            final[name] = final.get(aliases[name], aliases[name])
    return {alias: final[alias] for alias in aliases}


def _folded(catalog: Catalog, routes: Mapping[str, ModelRoute], aliases: Mapping[str, str]) -> dict[str, str]:
    """Names ignoring case; what the file lists goes before what was discovered."""
    folded: dict[str, str] = {}
    for name, target in [*((m, m) for m in catalog.spec.models), *aliases.items(), *((r, r) for r in routes)]:
        folded.setdefault(name.casefold(), target)
    return folded


def _settings(catalog: Catalog) -> RoutingSettings:
    spec = catalog.spec.routing
    return RoutingSettings(
        strategy=spec.strategy,
        value_of_time=spec.value_of_time,
        spread=spec.spread,
        explore=spec.explore,
        max_attempts=spec.max_attempts,
        total_timeout_s=spec.total_timeout,
        heartbeat_after_s=spec.heartbeat_after,
    )


def mermaid(routes: RoutingTable | Catalog) -> str:
    """Draw the routes as a Mermaid flowchart. A catalog is drawn as if every key were set."""
    table = routes if isinstance(routes, RoutingTable) else compile_table(routes, _all_keys(routes))
    return picture.mermaid(wiring_of_table(table), table)


def _all_keys(catalog: Catalog) -> dict[str, str]:
    return {key: "set" for provider in catalog.spec.providers.values() for key in provider.keys}


def diff(old: RoutingTable, new: RoutingTable) -> RoutingDiff:
    """What a reload changes: names, edges and fields, for the log."""
    return difference(old, new)


__all__ = [
    "Edge",
    "FallbackOrder",
    "RoutingDiff",
    "build",
    "compile_table",
    "diff",
    "fallback_order",
    "find_problems",
    "mermaid",
    "resolve_aliases",
]
