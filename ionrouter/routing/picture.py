"""Routes as a Mermaid flowchart, for people. Knows nothing of how the graph was made."""

from __future__ import annotations

from collections import Counter

from ionrouter.routing.edges import Edge, Kind, Node, Wiring
from ionrouter.routing.resolve import resolve
from ionrouter.routing.table import RoutingTable

# One shape a kind: (opening, closing) around the label.
_SHAPES = {
    Kind.PRESET: (">", "]"),
    Kind.GROUP: ("[/", "/]"),
    Kind.ALIAS: ("([", "])"),
    Kind.PATTERN: ("([", "])"),
    Kind.MODEL: ("[", "]"),
    Kind.ENDPOINT: ("(", ")"),
    Kind.PROVIDER: ("[[", "]]"),
    Kind.DOMAIN: ("{{", "}}"),
}


def mermaid(wiring: Wiring, table: RoutingTable) -> str:
    """Draw a table: dotted arrows are fallbacks with their place, or shadows; disabled endpoints are grey.

    Percentages stand at the arrows; of an arm with several endpoints with its name, since they share it.
    """
    sizes = Counter((edge.source, edge.arm) for edge in wiring.edges)
    ids = {node: f"n{number}" for number, node in enumerate(wiring.nodes)}
    lines = ["flowchart LR"]
    lines += [f"    {ids[node]}{_shape(node)}" for node in wiring.nodes]
    for edge in wiring.edges:
        arrow = _arrow(edge, is_shared=sizes[edge.source, edge.arm] > 1)
        lines.append(f"    {ids[edge.source]} {arrow} {ids[edge.target]}")
    disabled = _disabled(wiring, table)
    greyed = [ids[node] for node in wiring.nodes if node.kind is Kind.ENDPOINT and node.name in disabled]
    if greyed:
        lines.append("    classDef disabled fill:#eee,stroke:#999,color:#777,stroke-dasharray:4")
        lines.append(f"    class {','.join(greyed)} disabled")
    return "\n".join(lines) + "\n"


def _shape(node: Node) -> str:
    opening, closing = _SHAPES[node.kind]
    return f'{opening}"{_escaped(node.name)}"{closing}'


def _arrow(edge: Edge, *, is_shared: bool) -> str:
    if edge.is_fallback:
        return f"-. {edge.position} .->"
    if edge.is_shadow:
        return f'-. "shadow {edge.percent:g}%" .->'
    if edge.percent is None:
        return "-->"
    arm = f" {_escaped(edge.arm)}" if is_shared and edge.arm else ""
    return f'-- "{edge.percent:g}%{arm}" -->'


# Mermaid's own entities, by number without the ampersand: it reads `&#35;` as an ampersand and a `#`.
_ENTITIES = str.maketrans({sign: f"#{ord(sign)};" for sign in '&"<>#`'})


def _escaped(text: str) -> str:
    return text.translate(_ENTITIES)


def _disabled(wiring: Wiring, table: RoutingTable) -> set[str]:
    """Those of models that patterns serve, too."""
    routes = (resolve(table, node.name) for node in wiring.nodes if node.kind is Kind.MODEL)
    return {endpoint.id for route in routes if route for endpoint in route.endpoints if endpoint.disabled}
