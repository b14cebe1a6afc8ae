"""G138: a colon in a model's name is part of it, a variant, or an error; never another model."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.server import Server, running_server
from tests.support.upstream import Upstream, chat_json

NAMES = ("acme/m3:free", "llama3.2:latest", "m")


@pytest.fixture(scope="module")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    with Upstream(chat_json("hi")) as up:
        models = "".join(
            f'  "{name}": {{ endpoints: [ {{ provider: up, model: "up-{name}" }} ] }}\n' for name in NAMES
        )
        routes = f"providers: {{ up: {{ type: openai, base_url: {up.base_url} }} }}\nmodels:\n{models}"
        with running_server(tmp_path_factory.mktemp("colons"), routes) as server:
            yield server, up


@pytest.mark.parametrize(
    ("asked", "served"),
    [*((name, name) for name in NAMES), ("m:nitro", "m"), ("m:floor", "m"), ("acme/m3:free:nitro", NAMES[0])],
)
def test_a_configured_name_wins_and_a_known_suffix_is_a_variant(
    serving: tuple[Server, Upstream], asked: str, served: str
) -> None:
    server, up = serving
    status, _ = server.chat(model=asked)
    assert (status, up.requests[-1].json()["model"]) == (200, f"up-{served}")


@pytest.mark.parametrize("asked", ["m:later", "acme/m3", "acme:m3", "llama3.2", "m:"])
def test_an_unknown_name_or_suffix_is_refused_and_reaches_nobody(
    serving: tuple[Server, Upstream], asked: str
) -> None:
    server, up = serving
    num_before = len(up.requests)
    status, body = server.chat(model=asked)
    assert (status in (400, 404), len(up.requests)) == (True, num_before)
    assert asked.split(":")[0] in body["error"]["message"]
