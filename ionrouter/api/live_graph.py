"""GET routing/graph: the routes as nodes and edges, what is known of each endpoint now laid over them."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Mapping
from contextlib import aclosing
from typing import Any

from aiohttp import web
from msgspec.structs import replace

from ionrouter.api.responses import json_response
from ionrouter.api.row_stream import paced
from ionrouter.api.state import EDGE, Edge, is_owner
from ionrouter.balancing.assignment import pick
from ionrouter.balancing.assumed_price import is_unpriced
from ionrouter.errors import IonrouterError
from ionrouter.routing.edges import Edge as Reference
from ionrouter.routing.edges import Kind, Node, Wiring, wiring_of_table
from ionrouter.routing.resolve import resolve, serves
from ionrouter.routing.table import Endpoint, ModelRoute, RoutingTable, Split
from ionrouter.schema.presets import MARK
from ionrouter.schema.request import EXAMPLE_PROMPT_TOKENS, Client, InferenceRequest
from ionrouter.schema.request import Kind as RequestKind

_MAX_USERS = 5000  # tried to find one in each arm of a split: an arm of 0.1 % is missed once in 150 names
_KINDS: tuple[RequestKind, ...] = ("chat", "embeddings", "rerank")
# What a candidate of a dry run says that is the endpoint's own; the rest is the request's.
_TOLD = (
    "share",
    "score",
    "expected_price",
    "expected_s",
    "expected_ttft_s",
    "expected_throughput",
    "success_rate",
)


async def graph(request: web.Request) -> web.Response:
    """Nodes are named `kind:name`; endpoints' shares are those of a request of 1000 tokens to their model."""
    edge = request.app[EDGE]
    table, facts = edge.router.table, dict[Node, Mapping[str, Any]]()
    wiring = wiring_of_table(table)
    async with aclosing(paced(_facts(edge, table, wiring, is_owner(request)), edge.stats_turn)) as found:
        async for node, known in found:
            facts[node] = known
    nodes = [{"id": _id(n), "kind": _word(n.kind), "name": n.name, **facts.get(n, {})} for n in wiring.nodes]
    edges = [_told(edge) for edge in wiring.edges]
    told = {"version": table.version, "prompt_tokens": EXAMPLE_PROMPT_TOKENS, "nodes": nodes, "edges": edges}
    return json_response({"data": told})


def _word(kind: Kind) -> str:
    return kind.name.lower()


def _id(node: Node) -> str:
    return f"{_word(node.kind)}:{node.name}"


def _told(edge: Reference) -> dict[str, Any]:
    return {
        "source": _id(edge.source),
        "target": _id(edge.target),
        "position": edge.position,
        "is_fallback": edge.is_fallback,
        "is_shadow": edge.is_shadow,
        "percent": edge.percent,
        "arm": edge.arm,
    }


def _facts(
    edge: Edge, table: RoutingTable, wiring: Wiring, is_whole: bool
) -> Iterator[tuple[Node, Mapping[str, Any]]]:
    """What nodes have besides names; one step of work a model; `table`: the one that is drawn."""
    for provider in table.providers.values():
        yield Node(Kind.PROVIDER, provider.slug), {"title": provider.name, "type": provider.type}
    for group, members in table.groups.items():
        yield Node(Kind.GROUP, group), {"members": members, "split": _split(table.splits.get(group))}
    for slug, fields in table.presets.items():
        yield Node(Kind.PRESET, slug), {"title": f"{MARK}{slug}", "fields": list(fields)}
    for node in wiring.nodes:
        if node.kind is Kind.MODEL:
            model = resolve(table, node.name)
            yield node, _of_model(node.name, model, table.settings.strategy)
            yield from () if model is None else _of_endpoints(edge, model, is_whole)


def _of_model(name: str, model: ModelRoute | None, strategy: str) -> dict[str, Any]:
    """A model that nothing serves (a group's member that no upstream lists now) has a name alone."""
    if model is None:
        model = ModelRoute(name, name, (), output_modalities=())
    return {
        "title": model.name,
        "strategy": model.strategy or strategy,
        "output_modalities": model.output_modalities,
        "split": _split(model.split),
        "hedge": str(model.hedge) if model.hedge else None,
        "shadow": str(model.shadow) if model.shadow else None,
    }


def _split(split: Split | None) -> dict[str, Any] | None:
    """As in the dry run."""
    if split is None:
        return None
    return {"name": split.name, "percents": {arm.name: arm.percent for arm in split.arms}}


def _of_endpoints(edge: Edge, model: ModelRoute, is_whole: bool) -> Iterator[tuple[Node, Mapping[str, Any]]]:
    chances = _chances(edge, model)
    for endpoint in model.endpoints:
        known = {**_of_endpoint(edge, endpoint, is_whole), **chances.get(endpoint.id, {})}
        yield Node(Kind.ENDPOINT, endpoint.id), known


def _of_endpoint(edge: Edge, endpoint: Endpoint, is_whole: bool) -> dict[str, Any]:
    """Prices in USD per million tokens, None where nobody said; `status` is OpenRouter's (-5 to 0)."""
    price = None if is_unpriced(endpoint) else endpoint.price
    return {
        "model": endpoint.model_id,
        "provider": endpoint.provider.slug,
        "tag": endpoint.tag,
        "upstream_model": endpoint.upstream_model,
        "prompt_price": None if price is None else price.prompt * 1e6,
        "completion_price": None if price is None else price.completion * 1e6,
        "disabled": endpoint.disabled,
        "unavailable": None if endpoint.disabled else edge.unavailable(endpoint, is_whole),
        "status": None if endpoint.disabled else edge.endpoint_status(endpoint),
        "breaker": "closed",
        "left_out": None,  # the filter that keeps it from serving the example
        **dict.fromkeys(_TOLD),
    }


def _chances(edge: Edge, model: ModelRoute) -> Mapping[str, Mapping[str, Any]]:
    """By endpoint id, what a dry run to this model says of its own endpoints."""
    kind: RequestKind = next((kind for kind in _KINDS if serves(model, kind)), "chat")
    ask = InferenceRequest(
        "graph", kind, model.id, {}, stream=kind == "chat", prompt_tokens=EXAMPLE_PROMPT_TOKENS
    )
    found, shares = dict[str, dict[str, Any]](), defaultdict[str, float](float)
    for weight, example in _examples(model, ask):
        try:
            told = edge.router.explain(example)
        except IonrouterError:  # nobody serves it now; its endpoints say why
            return {}
        for row in told.candidates:
            if row.model_id == model.id:
                shares[row.endpoint_id] += weight * row.share
                known = {name: getattr(row, name) for name in _TOLD}
                found[row.endpoint_id] = {"breaker": row.breaker, **known, "share": shares[row.endpoint_id]}
        for out in told.excluded:
            if out.model_id == model.id:
                found[out.endpoint_id] = {"breaker": out.breaker, "left_out": out.filter}
    return found


def _examples(model: ModelRoute, ask: InferenceRequest) -> Iterator[tuple[float, InferenceRequest]]:
    """Requests whose shares, so weighted, add up to the model's: of a split or a canary one for each arm."""
    if model.split is None:
        yield 1.0, ask
        return
    wanted = {arm.name for arm in model.split.arms if arm.percent > 0}
    for number in range(_MAX_USERS):
        arm = pick(model.split, f"user {number}")
        if arm.name in wanted:
            wanted.remove(arm.name)
            yield arm.percent / 100, replace(ask, client=Client(user=str(number)))
        if not wanted:
            return
