"""How long a local model's context is: what the engine has room for, whatever routes.yaml states."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
from structlog.testing import capture_logs

from tests.support.ion_provider import local_endpoint, provider_of
from tests.support.server import running_server
from tests.support.tiny_model import write_tiny_model

LENGTH = 512  # the tiny model's own


@pytest.fixture(scope="module")
def model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf", context_length=LENGTH)


def capped(logs: list[Any]) -> list[tuple[str, int, int]]:
    told = [entry for entry in logs if entry["event"] == "context_length_capped"]
    return [(entry["endpoint"], entry["stated"], entry["context_length"]) for entry in told]


async def test_a_file_that_states_more_than_there_is_room_for_is_told_once(model: Path) -> None:
    much = local_endpoint(model, context_length=1_000_000)
    less = local_endpoint(model, context_length=LENGTH, id="ion/less")
    silent = local_endpoint(model, id="ion/silent")
    with capture_logs() as logs:
        async with provider_of(much, less, silent, cache=model.parent) as provider:
            assert capped(logs) == [("ion/tiny", 1_000_000, LENGTH)]
            assert {provider.load_of(at).context_length for at in (much, less, silent)} == {LENGTH}
            provider.prepare([much, less, silent])
            assert len(capped(logs)) == 1
            more = local_endpoint(model, context_length=2_000_000)
            provider.prepare([more])
            assert capped(logs)[1:] == [("ion/tiny", 2_000_000, LENGTH)], "the engine stays, the file changed"


async def test_kv_memory_may_leave_less_room_than_the_model_has(model: Path) -> None:
    endpoint = local_endpoint(model, kv_memory_bytes=64 << 10)
    async with provider_of(endpoint, cache=model.parent) as provider:
        assert 0 < (provider.load_of(endpoint).context_length or 0) < LENGTH


@pytest.mark.parametrize("stated", ["", "context_length: 1000000, "])
def test_a_server_tells_and_filters_by_the_engines_length(tmp_path: Path, model: Path, stated: str) -> None:
    endpoint = f"{{ provider: ion, {stated}kv_memory: 1MiB, weights: {model} }}"
    routes = f"providers: {{ ion: {{ type: ion }} }}\nmodels: {{ m: {{ endpoints: [{endpoint}] }} }}\n"
    with running_server(tmp_path, routes) as server:
        length = server.wait_for_event("engine_started")[0]["context_length"]
        (card,) = server.get("/api/v1/models")[1]["data"]
        assert card["context_length"] == card["top_provider"]["context_length"] == length <= LENGTH
        (card,) = server.get("/api/v1/models/m/endpoints")[1]["data"]["endpoints"]
        assert card["context_length"] == length
        status, answer = server.chat(messages=[{"role": "user", "content": "a " * 4 * length}])
        assert (status, f"over the context length {length}" in answer["error"]["message"]) == (400, True)
        assert server.chat(max_tokens=100_000)[0] == 200, "the answer gets what is left"
        assert len(server.events("context_length_capped")) == (1 if stated else 0)
