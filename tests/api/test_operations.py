"""Health, metrics, dry runs, reload, over a real socket."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest
import structlog
from prometheus_client.parser import text_string_to_metric_families

from ionrouter.api.readiness import Phase
from ionrouter.errors import FailureClass, RequestError
from ionrouter.metrics import Metrics
from ionrouter.request_metrics import MAX_ENDPOINTS, OTHER
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.schema.load import EngineLoad
from ionrouter.schema.usage import Cost, Usage
from tests.support.edge import edge_server


@pytest.mark.parametrize("prefix", ["", "/api/v1", "/v1"])
async def test_readiness_follows_the_phase_and_liveness_does_not(tmp_path: Path, prefix: str) -> None:
    async with edge_server(tmp_path) as server:
        for phase, status in ((Phase.STARTING, 503), (Phase.READY, 200), (Phase.DRAINING, 503)):
            server.edge.readiness.phase = phase
            found, headers, body = await server.get(f"{prefix}/health")
            assert (found, headers["Content-Type"]) == (status, "application/json")
            assert body["status"] == ("ok" if status == 200 else phase.value)
            assert (await server.get(f"{prefix}/livez"))[0] == 200


async def test_a_server_that_can_serve_nothing_is_unavailable(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        server.edge.readiness.can_serve = lambda: False
        assert (await server.get("/health"))[2]["status"] == "unavailable"


async def test_head_works_for_probes(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server, server.session.head(server.url("/health")) as answer:
        assert answer.status == 200


async def test_explain_takes_a_whole_request_and_sends_nothing(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        body = {"model": "m", "messages": [{"role": "user", "content": "x" * 400}]}
        status, _, answer = await server.post("/api/v1/routing/explain", body)
        assert (status, answer["data"]["prompt_tokens"]) == (200, 100)
        assert server.routes.requests == []
        status, _, answer = await server.post("/api/v1/routing/explain", {"model": "m", "messages": []})
        assert (status, answer["error"]["param"]) == (400, "messages")


BODIES = {
    "chat/completions": {"messages": [{"role": "user", "content": "x" * 400}]},
    "completions": {"prompt": "x" * 400},
    "messages": {"max_tokens": 9, "messages": [{"role": "user", "content": "x" * 400}]},
    "responses": {"input": "x" * 400},
    "embeddings": {"input": "x" * 400},
    "rerank": {"query": "x" * 200, "documents": ["y" * 200]},
}


@pytest.mark.parametrize("api", BODIES)
async def test_explain_takes_the_body_of_any_api_that_is_named(tmp_path: Path, api: str) -> None:
    async with edge_server(tmp_path) as server:
        path = f"/api/v1/routing/explain?api={api}"
        status, _, answer = await server.post(path, {"model": "m", **BODIES[api]})
        assert (status, answer["data"]["prompt_tokens"]) == (200, 100)
        assert server.routes.requests == []
        status, _, answer = await server.post(path, {"model": "m", **BODIES[api], "provider": {"sort": 5}})
        assert (status, answer["error"]["param"].split(".")[0]) == (400, "provider")


async def test_explain_names_the_apis_that_there_are(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        path = "/api/v1/routing/explain?api=speech"
        status, _, answer = await server.post(path, {"model": "m", **BODIES["messages"]})
        assert (status, answer["error"]["param"]) == (400, "api")
        assert "embeddings" in answer["error"]["message"]


async def test_a_refused_reload_tells_every_problem(tmp_path: Path) -> None:
    async def refuse() -> Mapping[str, Any]:
        raise RequestError("routes.yaml has errors", metadata={"problems": ["line 3: no", "line 9: no"]})

    async with edge_server(tmp_path, reload=refuse) as server:
        assert server.edge.keys is not None
        key, _ = server.edge.keys.create("ops", "management", 1.0)
        status, _, body = await server.post(
            "/api/v1/admin/reload", {}, headers={"Authorization": f"Bearer {key}"}
        )
    assert status == 400
    assert body["error"]["metadata"]["problems"] == ["line 3: no", "line 9: no"]


def _record(**changes: Any) -> RequestRecord:
    attempt = AttemptRecord(
        "far/m", "m", "Far", 0.0, True, 0.5, 0.2, usage=Usage(10, 5, cached_tokens=4), cost=Cost(0.1, 0.2)
    )
    failed = AttemptRecord("near/m", "m", "Near", 0.0, True, 0.1, failure=FailureClass.CAPACITY)
    base: dict[str, Any] = {
        "id": "gen-1", "kind": "chat", "requested_model": "anything the client made up", "stream": True,
        "started_at": 0.0, "duration_s": 0.7, "status": 200, "attempts": (failed, attempt),
        "served_model": "m", "served_endpoint": "far/m",
    }  # fmt: skip
    return RequestRecord(**{**base, **changes})


def _samples(metrics: Metrics) -> dict[tuple[str, frozenset[tuple[str, str]]], float]:
    families = text_string_to_metric_families(metrics.render().decode())
    return {(s.name, frozenset(s.labels.items())): s.value for f in families for s in f.samples}


def test_metrics_count_requests_attempts_tokens_and_cost() -> None:
    metrics = Metrics()
    metrics.observe(_record())
    found = _samples(metrics)

    def value(name: str, **labels: str) -> float:
        return found[name, frozenset(labels.items())]

    assert value(
        "ionrouter_requests_total", kind="chat", model="m", endpoint="far/m", stream="true", status="200"
    ) == 1  # fmt: skip
    main = {"name": "ionrouter_attempts_total", "role": "main"}
    assert value(**main, endpoint="far/m", failure="", stage="") == 1
    assert value(**main, endpoint="near/m", failure="capacity", stage="before_commit") == 1
    assert value("ionrouter_first_token_seconds_sum", endpoint="far/m") == pytest.approx(0.2)
    assert value("ionrouter_first_token_seconds_bucket", endpoint="far/m", le="0.2") == 1
    assert value("ionrouter_request_seconds_count", endpoint="far/m", stream="true") == 1
    assert value("ionrouter_tokens_total", endpoint="far/m", direction="completion") == 5
    assert value("ionrouter_tokens_total", endpoint="far/m", direction="cached") == 4
    assert value("ionrouter_cost_usd_total", endpoint="far/m") == pytest.approx(0.3)


def test_what_a_client_sends_adds_no_time_series() -> None:
    metrics = Metrics()
    nobody: dict[str, Any] = {"served_model": None, "served_endpoint": None, "status": 400, "attempts": ()}
    for number in range(50):
        metrics.observe(_record(requested_model=f"made-up-{number}", session_id=f"s{number}", **nobody))
    assert "made-up" not in metrics.render().decode()
    series = [key for key in _samples(metrics) if key[0] == "ionrouter_requests_total"]
    assert len(series) == 1


def test_models_that_clients_invent_under_a_pattern_share_one_series_in_the_end() -> None:
    metrics = Metrics()
    for number in range(MAX_ENDPOINTS + 50):
        name = f"any/invented-{number}"
        attempt = AttemptRecord(name, name, "Any", 0.0, False, 0.1, usage=Usage(1, 1))
        metrics.observe(_record(served_model=name, served_endpoint=name, attempts=(attempt,)))
    series = [key for key in _samples(metrics) if key[0] == "ionrouter_requests_total"]
    assert len(series) == MAX_ENDPOINTS + 1
    others = _samples(metrics)["ionrouter_attempts_total", frozenset(
        {("endpoint", OTHER), ("failure", ""), ("stage", ""), ("role", "main")})]  # fmt: skip
    assert others == 50


def test_invented_models_take_no_series_from_those_that_are_listed() -> None:
    metrics = Metrics()
    metrics.list_endpoints(["far/m"])
    for number in range(MAX_ENDPOINTS + 50):
        attempt = AttemptRecord(f"any/{number}", f"{number}", "Any", 0.0, False, 0.1, usage=Usage(1, 1))
        metrics.record(attempt)
    metrics.observe(_record())
    counted = {
        dict(labels)["endpoint"] for name, labels in _samples(metrics) if name == "ionrouter_attempts_total"
    }
    assert {"far/m", OTHER} <= counted
    assert len(counted) == MAX_ENDPOINTS + 2
    assert "near/m" not in counted

    metrics.list_endpoints(["far/m", "near/m", *(f"any/{number}" for number in range(10))])
    metrics.observe(_record())  # of those that were invented some are listed now: others may come
    metrics.record(AttemptRecord("any/new", "new", "Any", 0.0, False, 0.1))
    counted = {
        dict(labels)["endpoint"] for name, labels in _samples(metrics) if name == "ionrouter_attempts_total"
    }
    assert {"near/m", "any/new"} <= counted


def test_reloads_that_change_every_name_add_series_up_to_a_bound() -> None:
    metrics = Metrics()
    for version in range(60):
        names = [f"e{version}-{number}" for number in range(50)]
        metrics.list_endpoints(names)
        for name in names:
            attempt = AttemptRecord(name, name, "Far", 0.0, False, 0.1, usage=Usage(1, 1))
            metrics.observe(_record(served_model=name, served_endpoint=name, attempts=(attempt,)))
    for family in ("ionrouter_requests_total", "ionrouter_attempts_total"):
        told = {dict(labels)["endpoint"] for name, labels in _samples(metrics) if name == family}
        assert len(told) <= MAX_ENDPOINTS + 50
        assert {"e59-0", "e50-0"} <= told
        assert "e0-0" not in told
    metrics.record(AttemptRecord("any/new", "new", "Any", 0.0, False, 0.1))
    assert 'endpoint="any/new"' in metrics.render().decode()  # what is gone holds no place for ever


async def test_a_scrape_of_many_endpoints_holds_up_nobody(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        server.edge.metrics.list_endpoints(f"e{number}" for number in range(1000))
        for number in range(1000):
            for stream in (True, False):
                attempt = AttemptRecord(
                    f"e{number}", "m", "P", 0.0, stream, 1.0, 0.2, usage=Usage(10, 20), queue_s=0.01
                )
                record = _record(attempts=(attempt,), served_endpoint=f"e{number}", stream=stream)
                server.edge.metrics.observe(record)
        whole = server.edge.metrics.render()
        steps = [len(piece) for piece in server.edge.metrics.pieces()]
        assert max(steps) < len(whole) / 20  # all at once they are a quarter of a second
        async with server.session.get(server.url("/metrics")) as answer:
            assert await answer.read() == whole
    heads = [line for line in whole.decode().splitlines() if line.startswith("# TYPE")]
    assert len(heads) == len(set(heads))
    families = list(text_string_to_metric_families(whole.decode()))
    assert len({family.name for family in families}) == len(families)
    assert len(whole) > 1_000_000


def test_the_engine_is_read_when_scraped() -> None:
    stats = {"preemptions": 6, "step_seconds": 1.5, "tier_copies_out": 3, "block_bytes": 1000}
    load = EngineLoad(
        ready=True, running=3, waiting=2, waiting_tokens=70, blocks_free=5, blocks_total=9, stats=stats
    )
    loads = {"local/m": load}
    metrics = Metrics(lambda: loads)
    found = _samples(metrics)
    label = frozenset({("endpoint", "local/m")})
    assert found["ionrouter_engine_running", label] == 3
    assert found["ionrouter_engine_blocks_free", label] == 5
    assert found["ionrouter_engine_waiting_tokens", label] == 70
    assert found["ionrouter_engine_blocks_used", label] == 4
    assert found["ionrouter_engine_preemptions_total", label] == 6
    assert found["ionrouter_engine_step_seconds_total", label] == 1.5
    assert found["ionrouter_engine_tier_out_bytes_total", label] == 3000
    loads.clear()
    assert ("ionrouter_engine_running", label) not in _samples(metrics)


async def test_metrics_are_served_as_prometheus_reads_them(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        await server.chat()
        status, headers, body = await server.get("/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain; version=0.0.4")
    assert list(text_string_to_metric_families(body))


async def test_what_never_reaches_the_router_is_counted_and_logged_without_its_words(tmp_path: Path) -> None:
    with structlog.testing.capture_logs() as logs:
        async with edge_server(tmp_path) as server:
            await server.chat(messages="my secret prompt")
            await server.get("/nowhere")
            await server.chat()
            _, _, body = await server.get("/metrics")
    found = {
        (s.name, s.labels.get("status")): s.value
        for f in text_string_to_metric_families(body)
        for s in f.samples
    }
    assert found["ionrouter_refusals_total", "400"] == 1
    assert found["ionrouter_refusals_total", "404"] == 1
    refused = [log for log in logs if log["event"] == "request_refused"]
    assert [(log["status"], log["param"], log["log_level"]) for log in refused] == [
        (400, "messages", "info"),
        (404, None, "debug"),
    ]
    assert "secret" not in str(logs)
