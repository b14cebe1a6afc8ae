"""Where the operator keeps files is the operator's: callers are told a file's name and its fault."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ionrouter.redact import without_places
from tests.engine.test_broken_models import bad_magic, config_without_key, fifo_config, truncated_safetensors
from tests.support.accounts import Bank, bank
from tests.support.server import CHAT
from tests.support.tiny_model import write_tiny_model

pytestmark = pytest.mark.xdist_group("broken-models")

BROKEN = (bad_magic, truncated_safetensors, config_without_key, fifo_config)
NAMES = [make.__name__.replace("_", "-") for make in BROKEN]


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder whose name is long, has a space, and is nobody's business."""
    path = tmp_path_factory.mktemp("operator") / "the operator's" / ("deep-" * 20) / "models"
    path.mkdir(parents=True)
    return path


@pytest.fixture(scope="module")
def server(place: Path) -> Iterator[Bank]:
    paths = {name: make(place) for name, make in zip(NAMES, BROKEN, strict=True)}
    paths["sound"] = write_tiny_model(place / "sound.gguf")
    lines = [
        f'  {name}: {{ endpoints: [ {{ provider: ion, weights: "{path}", kv_memory: 16MiB }} ] }}'
        for name, path in paths.items()
    ]
    routes = "\n".join(["providers: { ion: { type: ion } }", "models:", *lines])
    with bank(place.parents[2], routes) as running:
        running.server.wait_for_event("server_ready")
        yield running


@pytest.mark.parametrize("name", NAMES)
def test_a_caller_is_told_the_file_and_not_where_it_is(server: Bank, place: Path, name: str) -> None:
    file = name.replace("-", "_")
    status, answer = server.chat(model=name)
    assert status == 503
    told: list[Any] = [
        answer,
        server.ask(f"/models/{name}/endpoints"),
        server.server.get("/health", server.key),
    ]
    told.append(server.server.post("/api/v1/routing/explain", {**CHAT, "model": name}, server.key))
    told.append(server.chat(model=name, ionrouter={"explain": True}))
    for each in told:
        assert file in str(each)
        for part in ("operator", "deep-", str(place.parents[2]), "/tmp"):
            assert part not in str(each), each
    assert "failed: " in answer["error"]["message"]


@pytest.mark.parametrize("name", NAMES)
def test_the_owner_is_told_all(server: Bank, place: Path, name: str) -> None:
    key = server.server.management_key()
    card = server.server.get(f"/api/v1/models/{name}/endpoints", key)[1]["data"]["endpoints"][0]
    (excluded,) = server.server.post("/api/v1/routing/explain", {**CHAT, "model": name}, key)[1]["data"][
        "excluded"
    ]
    health = server.server.get("/health", key)[1]
    (local,) = [local for local in health["local"] if local["endpoint"] == f"ion/{name}"]
    failed = [
        e["error"] for e in server.server.events("engine_load_failed") if name.replace("-", "_") in e["error"]
    ]
    for text in (card["unavailable"], excluded["reason"], local["reason"], failed[0]):
        assert str(place) in text
    assert Path(health["routes"]["path"]).is_absolute()


@pytest.mark.parametrize(
    ("text", "known", "told"),
    [
        ("/srv/a b/m.gguf: no such file", ["/srv/a b/m.gguf"], "m.gguf: no such file"),
        ("models/m.gguf: broken", ["models/m.gguf"], "m.gguf: broken"),
        ("'/srv/a b/m.gguf': header at byte 4", [], "'m.gguf': header at byte 4"),
        ("...'rv/a b/m.gguf': header", [], "'m.gguf': header"),
        ("file:///srv/a.whl: damaged", [], "a.whl: damaged"),
        ("free in /srv/cache; make room", [], "free in cache; make room"),
        ("https://index.example/simple/x: 404", [], "https://index.example/simple/x: 404"),
        ("hf:org/repo/m.gguf: gated", [], "hf:org/repo/m.gguf: gated"),
        ("tensor 'a/b' and 3 / 4", [], "tensor 'a/b' and 3 / 4"),
    ],
)
def test_of_a_path_the_last_part_stays(text: str, known: list[str], told: str) -> None:
    assert without_places(text, known) == told
