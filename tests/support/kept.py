"""A server whose response cache is asked for, and what its answers are without what may differ."""

from __future__ import annotations

import http.client
import json
import re
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from tests.support.server import GUARD_S, Server, running_server
from tests.support.upstream import Upstream

Trio = tuple[Server, Upstream, Upstream]
Pair = tuple[Server, Upstream]
ON = {"X-OpenRouter-Cache": "true"}


def routes(up: Upstream, other: Upstream, more: str = "") -> str:
    return f"""
providers:
  up: {{ type: openai, name: Up, base_url: {up.base_url} }}
  other: {{ type: openai, name: Other, base_url: {other.base_url} }}
routing: {{ explore: 0 }}
defaults: {{ breaker: {{ cooldown: 0 }} }}
models:
  acme/m:
    endpoints:
      - {{ provider: up, model: m, prices: {{ prompt: 1, completion: 2 }} }}
  acme/two:
    endpoints:
      - {{ provider: up, model: m, prices: {{ prompt: 1, completion: 2 }} }}
      - {{ provider: other, model: m, prices: {{ prompt: 100, completion: 200 }} }}
  acme/race:
    hedge: {{ after: 0.05, budget: 1 }}
    endpoints:
      - {{ provider: up, model: m, prices: {{ prompt: 1, completion: 2 }} }}
      - {{ provider: other, model: m, prices: {{ prompt: 100, completion: 200 }} }}
  acme/embed:
    output_modalities: [embeddings]
    endpoints: [ {{ provider: up, model: e, prices: {{ prompt: 1, completion: 0 }} }} ]
aliases: {{ m: acme/m }}
presets:
  cached: {{ model: acme/m, cache_enabled: true, cache_ttl_seconds: 77 }}
  never: {{ model: acme/m, cache_enabled: false }}
{more}"""


@dataclass
class Answer:
    status: int
    headers: Mapping[str, str]
    body: bytes

    @property
    def cache(self) -> str | None:
        return self.headers.get("X-OpenRouter-Cache-Status")

    @property
    def words(self) -> bytes:
        """What was answered, without ids, times and usage."""
        ids = re.sub(rb"[A-Za-z0-9]{20}", b"ID", re.sub(rb"gen-\d+-", b"gen-", self.body))
        times = re.sub(rb'"(created|created_at|completed_at)":\d+', b"", ids)
        return re.sub(rb'"usage":\{(?:[^{}]|\{[^{}]*\})*\}', b"", times)

    @property
    def usage(self) -> Any:
        """The last usage that it tells."""
        found = re.findall(rb'"usage":(\{(?:[^{}]|\{[^{}]*\})*\})', self.body)
        return json.loads(found[-1])

    def json(self) -> Any:
        return json.loads(self.body)


def ask(
    server: Server, body: Any, path: str = "/chat/completions", key: str | None = None, **headers: str
) -> Answer:
    """POST with the header that asks for the cache; `headers` with _ for -."""
    said = {"Content-Type": "application/json", **ON, **{k.replace("_", "-"): v for k, v in headers.items()}}
    if key is not None:
        said["Authorization"] = f"Bearer {key}"
    data = body if isinstance(body, bytes) else json.dumps(body).encode()
    link = http.client.HTTPConnection(server.host, server.port, timeout=GUARD_S)
    try:
        link.request("POST", f"/api/v1{path}", data, said)
        answer = link.getresponse()
        return Answer(answer.status, dict(answer.headers), answer.read())
    finally:
        link.close()


def chat(server: Server, text: str, **body: Any) -> Answer:
    """Ask the model, in a conversation of its own."""
    return ask(server, {"model": "m", "messages": [{"role": "user", "content": text}], **body})


def figure(server: Server, name: str) -> float:
    (line,) = [line for line in server.get("/metrics")[1].splitlines() if line.startswith(f"{name} ")]
    return float(line.split()[1])


def patch(server: Server, path: str, body: Any) -> None:
    """Change a key."""
    said = {"Content-Type": "application/json", "Authorization": f"Bearer {server.management_key()}"}
    link = http.client.HTTPConnection(server.host, server.port, timeout=GUARD_S)
    try:
        link.request("PATCH", path, json.dumps(body), said)
        assert link.getresponse().status == 200
    finally:
        link.close()


@contextmanager
def kept_server(folder: Path) -> Iterator[Trio]:
    """A server and its two upstreams."""
    with Upstream() as up, Upstream() as other, running_server(folder, routes(up, other)) as server:
        yield server, up, other


def pair_of(trio: Trio) -> Pair:
    """The server and its first upstream, which remember no earlier test."""
    server, *upstreams = trio
    for upstream in upstreams:
        upstream.forget()
        upstream.requests.clear()
    return server, upstreams[0]
