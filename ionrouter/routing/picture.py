"""Routes as a Mermaid flowchart, for people. Knows nothing of how the graph was made."""

from __future__ import annotations

from ionrouter.routing.edges import Edge, Kind, Node, Wiring
from ionrouter.routing.table import RoutingTable

# One shape a kind: (opening, closing) around the label.
_SHAPES = {
    Kind.ALIAS: ("([", "])"),
    Kind.PATTERN: ("([", "])"),
    Kind.MODEL: ("[", "]"),
    Kind.ENDPOINT: ("(", ")"),
    Kind.PROVIDER: ("[[", "]]"),
    Kind.DOMAIN: ("{{", "}}"),
}


def mermaid(wiring: Wiring, table: RoutingTable) -> str:
    """Draw a table: dotted arrows are fallbacks with their place, disabled endpoints are grey."""
    ids = {node: f"n{number}" for number, node in enumerate(wiring.nodes)}
    lines = ["flowchart LR"]
    lines += [f"    {ids[node]}{_shape(node)}" for node in wiring.nodes]
    lines += [f"    {ids[e.source]} {_arrow(e)} {ids[e.target]}" for e in wiring.edges]
    disabled = _disabled(table)
    greyed = [ids[node] for node in wiring.nodes if node.kind is Kind.ENDPOINT and node.name in disabled]
    if greyed:
        lines.append("    classDef disabled fill:#eee,stroke:#999,color:#777,stroke-dasharray:4")
        lines.append(f"    class {','.join(greyed)} disabled")
    return "\n".join(lines) + "\n"


def _shape(node: Node) -> str:
    opening, closing = _SHAPES[node.kind]
    return f'{opening}"{_escaped(node.name)}"{closing}'


def _arrow(edge: Edge) -> str:
    return f"-. {edge.position} .->" if edge.is_fallback else "-->"


# Mermaid's own entities, by number without the ampersand: it reads `&#35;` as an ampersand and a `#`.
_ENTITIES = str.maketrans({sign: f"#{ord(sign)};" for sign in "&\"<>#`"})


def _escaped(text: str) -> str:
    return text.translate(_ENTITIES)


def _disabled(table: RoutingTable) -> set[str]:
    endpoints = (endpoint for model in table.models.values() for endpoint in model.endpoints)
    return {endpoint.id for endpoint in endpoints if endpoint.disabled}
