"""Models, endpoints, providers: every field that strict clients require, filters, statistics."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from ionrouter.api import catalogue
from ionrouter.api.cards import STATUS_DISABLED, pricing
from ionrouter.errors import FailureClass
from ionrouter.routing.table import ModelRoute, Price, RoutingTable
from ionrouter.schema.events import AttemptRecord
from ionrouter.schema.models import price_string
from ionrouter.schema.usage import Usage
from tests.support.edge import EdgeServer, a_table, edge_server

MODEL_FIELDS = {
    "id", "canonical_slug", "name", "created", "context_length", "architecture", "pricing", "top_provider",
    "per_request_limits", "supported_parameters", "default_parameters", "supported_voices", "links",
    "object", "owned_by",
}  # fmt: skip
ENDPOINT_FIELDS = {
    "name", "model_id", "model_name", "provider_name", "tag", "quantization", "context_length",
    "max_completion_tokens", "max_prompt_tokens", "pricing", "supported_parameters",
    "supports_implicit_caching", "status", "uptime_last_5m", "uptime_last_30m", "uptime_last_1d",
    "latency_last_30m", "throughput_last_30m", "native_tools", "service_tier", "supports_diarization",
    "supports_tool_choice", "perf_last_30m_by_workload",
}  # fmt: skip


def _record(
    server: EdgeServer, count: int, *, failure: FailureClass | None = None, ttft: float = 0.2
) -> None:
    for _ in range(count):
        server.edge.stats.record(
            AttemptRecord(
                endpoint_id="fake/m", model_id="acme/m", provider_name="Fake", started_at=time.time() - 2,
                stream=True, duration_s=1.0, ttft_s=ttft, failure=failure, usage=Usage(10, 50),
            )
        )  # fmt: skip


async def test_models_have_every_field_of_both_families_of_clients(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        for path in ("/api/v1/models", "/v1/models"):
            status, _, body = await server.get(path)
            assert status == 200
            assert (body["object"], body["total_count"], body["links"]) == ("list", 1, {"next": None})
            (model,) = body["data"]
    assert model.keys() >= MODEL_FIELDS
    assert (model["id"], model["object"], model["owned_by"]) == ("acme/m", "model", "acme")
    assert model["created"] == 1733400000
    assert model["context_length"] == 4096
    assert model["architecture"]["modality"] == "text->text"
    assert model["pricing"]["prompt"] == "0.000001"
    assert all(isinstance(v, str) for k, v in model["pricing"].items() if k != "discount")
    assert model["links"]["details"] == "/api/v1/models/acme/m/endpoints"


def test_prices_of_long_prompts_are_told_as_overrides() -> None:
    long = Price(3e-6, 5e-6, cache_read=1e-6)
    told = pricing(Price(1e-6, 2e-6, long=long, long_above=200_000))
    assert told["overrides"] == [
        {
            "min_prompt_tokens": 200_000,
            "prompt": "0.000003",
            "completion": "0.000005",
            "input_cache_read": "0.000001",
        }
    ]
    assert "overrides" not in pricing(long)


async def test_endpoints_have_every_field_that_the_newest_clients_require(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        status, _, body = await server.get("/api/v1/models/acme/m/endpoints")
    assert status == 200
    data = body["data"]
    assert data.keys() >= {"id", "name", "created", "description", "architecture", "endpoints"}
    here, asleep = data["endpoints"]
    for endpoint in (here, asleep):
        assert endpoint.keys() >= ENDPOINT_FIELDS
        assert set(endpoint["supports_tool_choice"]) == {"auto", "function", "none", "required"}
        assert isinstance(endpoint["context_length"], int)
        assert isinstance(endpoint["pricing"]["prompt"], str)
    assert (here["status"], here["disabled"]) == (0, None)
    assert (asleep["status"], asleep["disabled"]) == (STATUS_DISABLED, "FAR_API_KEY is unset")
    assert here["latency_last_30m"] is None
    assert here["uptime_last_5m"] is None
    assert here["provider_name"] == "Fake"


async def test_endpoints_tell_how_fast_they_have_been(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        _record(server, 90, ttft=0.2)
        _record(server, 10, ttft=1.0)
        _record(server, 100, failure=FailureClass.TRANSIENT)
        _record(server, 100, failure=FailureClass.CAPACITY)
        _, _, body = await server.get("/api/v1/models/acme/m/endpoints")
    endpoint = body["data"]["endpoints"][0]
    latency, throughput = endpoint["latency_last_30m"], endpoint["throughput_last_30m"]
    assert latency["p50"] == pytest.approx(200, rel=0.02)  # milliseconds
    assert latency["p99"] == pytest.approx(1000, rel=0.02)
    assert throughput["p50"] == pytest.approx(50, rel=0.02)
    assert set(latency) == {"p50", "p75", "p90", "p99", "n"}
    assert latency["n"] == 100
    assert endpoint["uptime_last_30m"] == pytest.approx(50)  # limits are not its fault
    workload = endpoint["perf_last_30m_by_workload"]["text_generation"]
    assert workload["request_count"] == 300
    assert workload["latency"] == latency


async def test_speed_is_for_those_with_a_key_uptime_for_all(tmp_path: Path) -> None:
    async with edge_server(tmp_path, asks_for_keys=True) as server:
        _record(server, 10)
        assert server.edge.keys is not None
        key, _ = server.edge.keys.create("app", "inference", 1.0)
        path = "/api/v1/models/acme/m/endpoints"
        _, _, public = await server.get(path)
        _, _, private = await server.get(path, headers={"Authorization": f"Bearer {key}"})
    assert public["data"]["endpoints"][0]["latency_last_30m"] is None
    assert public["data"]["endpoints"][0]["uptime_last_5m"] == 100
    assert private["data"]["endpoints"][0]["latency_last_30m"]["p50"] > 0


@pytest.mark.parametrize("name", ["acme/m", "m", "ACME/M", "acme/m:nitro", "acme%2Fm"])
async def test_a_model_is_found_by_its_other_names(tmp_path: Path, name: str) -> None:
    async with edge_server(tmp_path, table=replace(a_table(), folded={"acme/m": "acme/m"})) as server:
        bare = await server.get(f"/v1/models/{name}")
        wrapped = await server.get(f"/api/v1/model/{name}")
        endpoints = await server.get(f"/api/v1/models/{name}/endpoints")
    assert bare[2]["id"] == wrapped[2]["data"]["id"] == endpoints[2]["data"]["id"] == "acme/m"


async def test_an_unknown_model_is_a_404_that_names_it(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        for path in ("/api/v1/models/x/y/endpoints", "/api/v1/model/x/y", "/v1/models/x/y"):
            status, _, body = await server.get(path)
            assert (status, body["error"]["code"]) == (404, 404)
            assert "x/y" in body["error"]["message"]


def _several() -> RoutingTable:
    base = a_table()
    template = base.models["acme/m"].endpoints[0]

    def model(
        name: str, price: float, completion: float, context: int, created: int, **more: object
    ) -> ModelRoute:
        endpoint = replace(
            template, id=f"fake/{name}", model_id=name, context_length=context,
            price=replace(template.price, prompt=price / 1e6, completion=completion / 1e6),
        )  # fmt: skip
        return ModelRoute(name, name.title(), (endpoint,), created=created, **more)  # type: ignore[arg-type]

    models = (
        model("a/cheap", 1, 2, 1000, 30, input_modalities=("text", "image")),
        model("b/middle", 5, 30, 9000, 10),
        model("c/dear", 10, 20, 5000, 20),
    )
    return replace(base, models={m.id: m for m in models})


@pytest.mark.parametrize(
    ("query", "expected"),
    [
        ("", ["a/cheap", "b/middle", "c/dear"]),
        ("q=MID", ["b/middle"]),
        ("max_price=5", ["a/cheap", "b/middle"]),
        ("min_output_price=10", ["b/middle", "c/dear"]),
        ("context=5000", ["b/middle", "c/dear"]),
        ("input_modalities=image", ["a/cheap"]),
        ("supported_parameters=tools,temperature", ["a/cheap", "b/middle", "c/dear"]),
        ("supported_parameters=logprobs", []),
        ("model_authors=a,c", ["a/cheap", "c/dear"]),
        ("providers=FAKE", ["a/cheap", "b/middle", "c/dear"]),
        ("providers=other", []),
        ("distillable=true", []),
        ("distillable=false", ["a/cheap", "b/middle", "c/dear"]),
        ("sort=pricing-high-to-low", ["b/middle", "c/dear", "a/cheap"]),
        ("sort=context-high-to-low", ["b/middle", "c/dear", "a/cheap"]),
        ("sort=newest", ["a/cheap", "c/dear", "b/middle"]),
        ("sort=latency-low-to-high", ["c/dear", "b/middle", "a/cheap"]),
        ("sort=unheard-of&unknown=1", ["a/cheap", "b/middle", "c/dear"]),
        ("limit=2", ["a/cheap", "b/middle"]),
        ("offset=2&limit=2", ["c/dear"]),
    ],
)
async def test_the_list_is_filtered_sorted_and_paged(tmp_path: Path, query: str, expected: list[str]) -> None:
    async with edge_server(tmp_path, table=_several()) as server:
        for endpoint, ttft in (("fake/c/dear", 0.1), ("fake/b/middle", 0.5)):
            for _ in range(5):
                server.edge.stats.record(
                    AttemptRecord(endpoint, "", "", time.time() - 1, True, 1.0, ttft, usage=Usage(1, 1))
                )
        _, _, body = await server.get(f"/api/v1/models?{query}")
        assert [model["id"] for model in body["data"]] == expected


@pytest.mark.parametrize("order", ["most-popular", "top-weekly"])
async def test_the_list_is_sorted_by_the_tokens_of_a_week(tmp_path: Path, order: str) -> None:
    day_s = 86_400.0
    used = [  # model, age in days, purpose, tokens
        ("a/cheap", 0.1, "main", Usage(5, 5)),
        ("a/cheap", 8.0, "main", Usage(1000, 0)),  # too long ago
        ("a/cheap", 0.1, "probe", Usage(1000, 0)),  # nobody asked for it
        ("a/cheap", 0.1, "shadow", Usage(0, 1000)),
        ("c/dear", 6.5, "main", Usage(4, 3)),
        ("c/dear", 2.0, "hedge", Usage(2, 2)),
    ]
    async with edge_server(tmp_path, table=_several()) as server:
        for model, age, role, usage in used:
            at = time.time() - age * day_s
            server.edge.stats.record(
                AttemptRecord(f"fake/{model}", model, "Fake", at, True, 1.0, role=role, usage=usage)
            )
        _, _, body = await server.get(f"/api/v1/models?sort={order}")
        assert [model["id"] for model in body["data"]] == ["c/dear", "a/cheap", "b/middle"]
        assert (await server.get(f"/api/v1/models?sort={order}&q=cheap"))[2]["total_count"] == 1


async def test_pages_are_linked_and_counted(tmp_path: Path) -> None:
    async with edge_server(tmp_path, table=_several()) as server:
        _, _, first = await server.get("/api/v1/models?limit=2")
        assert first["total_count"] == 3
        _, _, second = await server.get(first["links"]["next"])
        assert [model["id"] for model in second["data"]] == ["c/dear"]
        assert second["links"]["next"] is None
        assert (await server.get("/api/v1/models/count"))[2] == {"data": {"count": 3}}
        status, _, body = await server.get("/api/v1/models?limit=many")
        assert (status, body["error"]["param"]) == (400, "limit")


def test_a_long_list_lets_others_work_in_between() -> None:
    """A thousand cards were 50 ms in which no stream moved, for whoever asks, without a key."""
    (model,) = a_table().models.values()
    making, num_rests = catalogue._model_cards([model] * 1000), 0
    try:
        while True:
            making.send(None)
            num_rests += 1
    except StopIteration as end:
        made = end.value
    assert [card["id"] for card in made] == ["acme/m"] * 1000
    assert num_rests == 1000 // catalogue.CARDS_AT_ONCE


async def test_providers_are_listed(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        _, _, body = await server.get("/api/v1/providers")
    assert [p["slug"] for p in body["data"]] == ["fake", "far"]
    assert all({"name", "slug", "privacy_policy_url"} <= p.keys() for p in body["data"])


@pytest.mark.parametrize(
    ("usd", "text"),
    [
        (0.0, "0"),
        (1e-7, "0.0000001"),
        (0.9e-6, "0.0000009"),
        (1.04e-6, "0.00000104"),
        (3.0, "3"),
        (1e-12, "0.000000000001"),
    ],
)
def test_prices_have_no_exponent(usd: float, text: str) -> None:
    assert price_string(usd) == text
