"""Servers before two scripted upstreams: model m at a, and at b as the fallback."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from tests.support.server import Server, running_server
from tests.support.upstream import Upstream, chat_stream

KEY = "UP-KEY-123456"

FAKE = """
providers:
  fake: { type: fake, name: Fake, options: { text: "hello there" } }
models:
  m: { endpoints: [ { provider: fake } ] }
"""


def two_upstreams(a: Upstream, b: Upstream) -> str:
    """Model m at a, and at b, which is so dear that it is only ever the fallback."""
    return f"""
providers:
  a: {{ type: openai, name: Aye, base_url: {a.base_url}, keys: [A_KEY] }}
  b: {{ type: openai, name: Bee, base_url: {b.base_url} }}
routing: {{ explore: 0 }}
models:
  m:
    endpoints:
      - {{ provider: a, model: up-a, prices: {{ prompt: 1, completion: 2 }} }}
      - {{ provider: b, model: up-b, prices: {{ prompt: 3000, completion: 4000 }} }}
"""


@contextmanager
def serving_two(folder: Path, **settings: object) -> Iterator[tuple[Server, Upstream, Upstream]]:
    a, b = Upstream(chat_stream(["from", " a"])), Upstream(chat_stream(["from", " b"]))
    with (
        a,
        b,
        running_server(folder, two_upstreams(a, b), env={"A_KEY": KEY}, **settings) as server,
    ):
        yield server, a, b
