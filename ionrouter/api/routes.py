"""Every path this server answers and what it asks of the caller. The rest is a 404 in the envelope."""

from __future__ import annotations

from collections.abc import Iterable

from aiohttp import web

from ionrouter.api import (
    analytics,
    batches,
    catalogue,
    embeddings,
    generations,
    inference,
    keys,
    live_graph,
    messages,
    operations,
    rerank,
    responses_api,
    stats,
)
from ionrouter.api.batch_runner import BATCHES, BatchRunner
from ionrouter.api.doors import Doors, Handler, decorate, expect
from ionrouter.api.guard import Access
from ionrouter.api.in_process import InProcess
from ionrouter.api.state import EDGE, Edge
from ionrouter.api.traced import traced

PREFIXES = ("/api/v1", "/v1")
BETA_PREFIX = "/api/beta"  # where OpenRouter's batches were first

# Under both prefixes.
API: tuple[tuple[str, str, Handler, Access], ...] = (
    ("POST", "/chat/completions", inference.chat_completions, Access.INFERENCE),
    ("POST", "/completions", inference.completions, Access.INFERENCE),
    ("POST", "/messages", messages.messages, Access.INFERENCE),
    ("POST", "/messages/count_tokens", messages.count_tokens, Access.INFERENCE),
    ("POST", "/responses", responses_api.responses, Access.INFERENCE),
    ("POST", "/embeddings", embeddings.embeddings, Access.INFERENCE),
    ("POST", "/rerank", rerank.rerank, Access.INFERENCE),
    ("GET", "/embeddings/models", embeddings.list_models, Access.CATALOGUE),
    ("GET", "/models", catalogue.list_models, Access.CATALOGUE),
    ("GET", "/models/count", catalogue.count_models, Access.CATALOGUE),
    ("GET", "/models/user", catalogue.list_own_models, Access.INFERENCE),
    ("GET", "/models/{model:.+}/endpoints", catalogue.model_endpoints, Access.CATALOGUE),
    ("GET", "/models/{model:.+}", catalogue.retrieve_model, Access.CATALOGUE),
    ("GET", "/model/{model:.+}", catalogue.get_model, Access.CATALOGUE),
    ("GET", "/endpoints/zdr", catalogue.zdr_endpoints, Access.CATALOGUE),
    ("GET", "/providers", catalogue.list_providers, Access.CATALOGUE),
    ("GET", "/generation", generations.get_generation, Access.INFERENCE),
    ("GET", "/generation/content", generations.get_content, Access.MANAGEMENT),
    ("GET", "/key", keys.own_key, Access.ANY_KEY),
    ("GET", "/auth/key", keys.own_key, Access.ANY_KEY),
    ("GET", "/credits", keys.credits, Access.ANY_KEY),
    ("POST", "/keys", keys.create_key, Access.MANAGEMENT),
    ("GET", "/keys", keys.list_keys, Access.MANAGEMENT),
    ("GET", "/keys/{hash}", keys.get_key, Access.MANAGEMENT),
    ("PATCH", "/keys/{hash}", keys.update_key, Access.MANAGEMENT),
    ("DELETE", "/keys/{hash}", keys.delete_key, Access.MANAGEMENT),
    ("GET", "/activity", analytics.get_activity, Access.MANAGEMENT),
    ("POST", "/analytics/query", analytics.query_analytics, Access.MANAGEMENT),
    ("GET", "/analytics/meta", analytics.get_meta, Access.MANAGEMENT),
    ("GET", "/stats/routes", stats.routes, Access.ANY_KEY),
    ("POST", "/routing/explain", operations.explain, Access.ANY_KEY),
    ("GET", "/routing/graph", live_graph.graph, Access.ANY_KEY),
    ("POST", "/admin/reload", operations.reload, Access.MANAGEMENT),
)
# Under both prefixes and the beta's.
BATCH_API: tuple[tuple[str, str, Handler, Access], ...] = (
    ("POST", "/batches", batches.submit, Access.INFERENCE),
    ("GET", "/batches", batches.list_batches, Access.INFERENCE),
    ("GET", "/batches/{id}", batches.get_batch, Access.INFERENCE),
    ("DELETE", "/batches/{id}", batches.delete_batch, Access.INFERENCE),
    ("POST", "/batches/{id}/cancel", batches.cancel_batch, Access.INFERENCE),
    ("GET", "/batches/{id}/results", batches.get_results, Access.INFERENCE),
)
# At the root and under both prefixes: probes and scrapers look in both places.
OPERATIONS: tuple[tuple[str, str, Handler, Access], ...] = (
    ("GET", "/health", operations.health, Access.CATALOGUE),
    ("GET", "/livez", operations.livez, Access.OPEN),
    ("GET", "/metrics", operations.prometheus, Access.ANY_KEY),
)


def make_application(edge: Edge, pages: Iterable[tuple[str, Handler]] = ()) -> web.Application:
    """Join the routes, the doors and the parts behind them. `pages`: further paths, open to anyone."""
    table = [(m, prefix + path, h, a) for prefix in PREFIXES for m, path, h, a in API + OPERATIONS]
    table += list(OPERATIONS)
    table += [(m, prefix + path, h, a) for prefix in (*PREFIXES, BETA_PREFIX) for m, path, h, a in BATCH_API]
    doors = Doors(edge, {handler: access for _, _, handler, access in table})
    posts = {handler for method, _, handler, a in API if method == "POST" and a is Access.INFERENCE}
    models = posts - {messages.count_tokens}  # which asks no model
    middlewares = [
        *([traced(edge.tracing, models)] if edge.tracing is not None else ()),
        doors.envelope,
    ]
    app = web.Application(
        middlewares=[*middlewares, doors.admit],
        client_max_size=edge.settings.max_body_bytes,
    )
    app[EDGE] = edge
    table += [("GET", path, handler, Access.OPEN) for path, handler in pages]
    for method, path, handler, _ in table:
        app.router.add_route(method, path, handler, expect_handler=expect)
        if method == "GET":
            app.router.add_route("HEAD", path, handler)
    app.on_response_prepare.append(decorate)
    if edge.batches is not None:
        paths = {"/v1" + path: handler for _, path, handler, _ in API if handler in models}
        runner = app[BATCHES] = BatchRunner(edge, edge.batches, InProcess(edge, paths, middlewares))
        app.on_startup.append(runner.start)
        app.on_shutdown.append(runner.close)
    return app
