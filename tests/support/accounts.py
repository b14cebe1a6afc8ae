"""A whole server with keys on, over fake endpoints with prices, and its keys made before it starts."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ionrouter.store.keys import KeyStore
from ionrouter.store.place import database_of
from tests.support.server import CHAT, Server, running_server

# m: 10 prompt and 3 completion tokens are 0.000016 USD. slow: a token every 0.2 s, 200 of them.
ROUTES = """
providers:
  fake: { type: fake, name: Fake, options: { text: "one two three" } }
  bad: { type: fake, name: Bad, options: { status: 503, message: "no room" } }
  slow: { type: fake, name: Slow, options: { tokens: 200, gap_s: 0.2 } }
  far: { type: openai, name: Far, base_url: https://far.example/v1, keys: [FAR_API_KEY] }
models:
  acme/m:
    endpoints: [{ provider: fake, prices: { prompt: 1, completion: 2 }, context_length: 4096 }]
  acme/fallback:
    endpoints: [{ provider: bad, prices: { prompt: 0, completion: 0 } }]
    fallbacks: [acme/m]
  acme/broken:
    endpoints: [{ provider: bad, prices: { prompt: 1, completion: 2 } }]
  acme/slow:
    endpoints: [{ provider: slow, prices: { prompt: 1, completion: 2 } }]
  acme/unpriced:
    endpoints: [{ provider: far, model: far-m }]
  acme/half-priced:
    endpoints: [{ provider: far, model: far-n }, { provider: fake, prices: { prompt: 1, completion: 2 } }]
  acme/free:
    endpoints: [{ provider: fake, prices: { prompt: 0, completion: 0 } }]
  acme/vectors:
    endpoints: [{ provider: fake, prices: { prompt: 1, completion: 0 } }]
    output_modalities: [embeddings]
aliases: { m: acme/m }
"""
COST = 0.000016
FAR = {"FAR_API_KEY": "far-key-123456"}


@dataclass
class Bank:
    """The server, a key without a limit, and a way to make more."""

    server: Server
    key: str

    def ask(self, path: str, key: str | None = None) -> Any:
        """GET with a key (the first one unless said), which must work; returns the JSON."""
        status, body = self.server.get(f"/api/v1{path}", key or self.key)
        assert status == 200, body
        return body

    def manage(self, path: str) -> Any:
        return self.ask(path, self.server.management_key())

    def chat(self, key: str | None = None, **body: Any) -> tuple[int, Any]:
        return self.server.post("/api/v1/chat/completions", {**CHAT, **body}, key or self.key)

    def generation(self, name: str, key: str | None = None) -> Any:
        return self.ask(f"/generation?id={name}", key)["data"]

    def make_key(self, **body: Any) -> tuple[str, str]:
        """Make a key over HTTP; returns the key and its hash."""
        status, made = self.server.post(
            "/api/v1/keys", {"name": "made", **body}, self.server.management_key()
        )
        assert status == 201, made
        return made["key"], made["data"]["hash"]


@contextmanager
def bank(folder: Path, routes: str = ROUTES, **settings: Any) -> Iterator[Bank]:
    """Start a server that asks for keys; a state folder that is there is gone on with."""
    database = database_of(settings.get("store_url"), folder / "state" / "ionrouter.db")
    with closing(KeyStore.open(database)) as store:
        plain, _ = store.create("first", "inference", 1.0)
    with running_server(folder, routes, require_keys="true", env=FAR, **settings) as server:
        yield Bank(server, plain)
