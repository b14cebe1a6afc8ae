"""What GET /models says of models that run inside: nothing of those that failed, and true lengths."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from ionrouter.routing.table import Endpoint, LocalModel, ModelRoute, Price, Provider, RoutingTable
from ionrouter.schema.load import EngineLoad
from tests.support.edge import EdgeServer, edge_server

FAILED = EngineLoad(ready=False, reason="failed: truncated", has_failed=True)
LOADING = EngineLoad(ready=False, reason="loading")
COLD = EngineLoad(ready=False, context_length=2912)
LOADED = EngineLoad(ready=True, context_length=2912)
BROKEN = EngineLoad(ready=False, reason="broken down; it comes back with a restart", has_failed=True)


def local(model: str, context_length: int | None = None, **changes: Any) -> Endpoint:
    provider = Provider("ion", "Ion", "ion")
    return Endpoint(
        f"ion/{model}", f"ion-{model}", model, provider, model, "ion",
        context_length=context_length, local=LocalModel(f"{model}.gguf"), **changes,
    )  # fmt: skip


def hosted(model: str, context_length: int | None = None) -> Endpoint:
    provider = Provider("far", "Far", "openai", base_url="https://far.example/v1")
    return Endpoint(
        f"far/{model}", f"far-{model}", model, provider, model, "far",
        price=Price(prompt=1e-6, completion=2e-6), context_length=context_length,
    )  # fmt: skip


def table(*endpoints: Endpoint, length: int | None = None, groups: Any = None) -> RoutingTable:
    """Models with the endpoints that name them; `length` is what the file says of every model."""
    names = dict.fromkeys(endpoint.model_id for endpoint in endpoints)
    models = {
        name: ModelRoute(name, name, tuple(e for e in endpoints if e.model_id == name), context_length=length)
        for name in names
    }
    providers = {endpoint.provider.slug: endpoint.provider for endpoint in endpoints}
    return RoutingTable(models=models, aliases={}, providers=providers, groups=groups or {})


def tell(server: EdgeServer, loads: Mapping[str, EngineLoad]) -> None:
    """Let the engines be in these states, by endpoint."""
    server.edge.engine_load = lambda endpoint: loads.get(endpoint.id)


async def listed(server: EdgeServer, query: str = "") -> dict[str, Any]:
    status, _, body = await server.get(f"/api/v1/models{query}")
    assert status == 200
    _, _, count = await server.get(f"/api/v1/models/count{query}")
    assert count["data"]["count"] == len(body["data"])
    return {model["id"]: model for model in body["data"]}


@pytest.mark.parametrize(
    ("load", "is_listed"), [(FAILED, False), (BROKEN, False), (LOADING, True), (COLD, True), (LOADED, True)]
)
async def test_a_model_whose_every_endpoint_failed_is_not_listed(
    tmp_path: Path, load: EngineLoad, is_listed: bool
) -> None:
    groups = {"house/own": ("m",), "house/all": ("m", "n")}
    async with edge_server(tmp_path, table=table(local("m"), hosted("n"), groups=groups)) as server:
        tell(server, {"ion/m": load})
        assert ("m" in await listed(server), "house/own" in await listed(server)) == (is_listed, is_listed)
        assert {"n", "house/all"} <= (await listed(server)).keys()
        assert (await server.get("/api/v1/models/m"))[0] == 200
        (card,) = (await server.get("/api/v1/models/m/endpoints"))[2]["data"]["endpoints"]
        assert (card["endpoint_id"], card["disabled"]) == ("ion/m", None)


async def test_a_failed_endpoint_gives_its_model_neither_price_nor_provider(tmp_path: Path) -> None:
    async with edge_server(tmp_path, table=table(local("m"), hosted("m"))) as server:
        tell(server, {"ion/m": LOADED})
        assert (await listed(server))["m"]["pricing"]["prompt"] == "0"
        assert "m" in await listed(server, "?providers=ion")
        tell(server, {"ion/m": FAILED})
        assert (await listed(server))["m"]["pricing"]["prompt"] == "0.000001"
        assert "m" not in await listed(server, "?providers=ion")


@pytest.mark.parametrize(
    ("stated", "load", "told"),
    [
        (1_000_000, LOADED, 2912),
        (1_000_000, COLD, 2912),
        (1_000_000, LOADING, 1_000_000),
        (1024, LOADED, 1024),
        (None, LOADED, 2912),
        (None, LOADING, None),
    ],
)
async def test_the_smaller_of_the_files_length_and_the_engines_is_told(
    tmp_path: Path, stated: int | None, load: EngineLoad, told: int | None
) -> None:
    offers = table(local("m", stated), length=stated, groups={"house/own": ("m",)})
    async with edge_server(tmp_path, table=offers) as server:
        tell(server, {"ion/m": load})
        for name, card in (await listed(server)).items():
            assert card["context_length"] == card["top_provider"]["context_length"] == told, name
        assert (await server.get("/api/v1/models/m"))[2]["context_length"] == told
        assert (await server.get("/api/v1/model/m"))[2]["data"]["context_length"] == told
        (card,) = (await server.get("/api/v1/models/m/endpoints"))[2]["data"]["endpoints"]
        assert card["context_length"] == (told or 0)
        assert ("m" in await listed(server, "?context=2913")) == ((told or 0) > 2912)


async def test_a_longer_endpoint_keeps_its_models_length(tmp_path: Path) -> None:
    async with edge_server(tmp_path, table=table(local("m"), hosted("m", 32_768), length=65_536)) as server:
        tell(server, {"ion/m": LOADED})
        assert (await listed(server))["m"]["context_length"] == 32_768
        ours, theirs = (await server.get("/api/v1/models/m/endpoints"))[2]["data"]["endpoints"]
        assert (ours["context_length"], theirs["context_length"]) == (2912, 32_768)
