"""Servers with scripted endpoints for the stock clients, and the packages of the Node clients."""

from __future__ import annotations

import fcntl
import json
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.accounts import Bank
from tests.support.accounts import bank as open_bank
from tests.support.server import Server, running_server
from tests.support.upstream import Upstream

NODE = Path(__file__).parent / "node"
NODE_PACKAGES = json.loads((NODE / "package.json").read_text())["dependencies"]

# Each model is one behaviour.
ROUTES = """
providers:
  fake: { type: fake, name: Fake }
  slow: { type: fake, name: Slow, options: { tokens: 40, gap_s: 0.01 } }
models:
  acme/hello:
    name: Acme Hello
    created: 2024-12-06
    context_length: 4096
    endpoints:
      - provider: fake
        prices: { prompt: 1, completion: 2 }
        supported_parameters: [temperature, max_tokens, tools, tool_choice, stop, seed]
        options: { text: "Hello from the router", reasoning: "thinking" }
  acme/embed:
    output_modalities: [embeddings]
    endpoints: [ { provider: fake, prices: { prompt: 1, completion: 0 } } ]
  acme/rank:
    output_modalities: [rerank]
    endpoints: [ { provider: fake, prices: { prompt: 1, completion: 0 } } ]
  acme/slow: { endpoints: [ { provider: slow } ] }
  acme/tools:
    endpoints:
      - provider: fake
        supported_parameters: [tools, tool_choice]
        options:
          text: ""
          finish_reason: tool_calls
          tool_calls:
            - { id: call_1, type: function, function: { name: weather, arguments: '{"city":"Oslo"}' } }
  acme/json:
    endpoints:
      - provider: fake
        prices: { prompt: 1, completion: 2 }
        supported_parameters: [response_format, structured_outputs, tools, tool_choice, max_tokens]
        options: { text: '{"city": "Oslo", "degrees": 4}' }
  acme/limited:
    endpoints: [ { provider: fake, options: { status: 429, retry_after_s: 20, message: slow down } } ]
  acme/down: { endpoints: [ { provider: fake, options: { status: 503, message: all busy } } ] }
  acme/breaks: { endpoints: [ { provider: fake, options: { cut_after: 2, message: wire cut } } ] }
"""


@pytest.fixture(scope="session")
def server(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Server]:
    with running_server(tmp_path_factory.mktemp("clients"), ROUTES) as running:
        yield running


@pytest.fixture(scope="session")
def bank(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    """The same endpoints behind a server that asks for keys."""
    with open_bank(tmp_path_factory.mktemp("keyed"), ROUTES, max_wrong_keys=1000) as opened:
        yield opened


@pytest.fixture(scope="session")
def poor_key(bank: Bank) -> str:
    """A key whose limit pays for nothing."""
    return bank.make_key(limit=0)[0]


@pytest.fixture(scope="session")
def node() -> Path:
    """The folder of the Node clients with its packages installed, by one test process at a time."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: the Node client cannot run")
    with (NODE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not all((NODE / "node_modules" / name / "package.json").exists() for name in NODE_PACKAGES):
            command = ["npm", "ci", "--silent", "--no-audit", "--no-fund"]
            subprocess.run(command, cwd=NODE, check=True, timeout=300)
    return NODE


# cooldown 0: an endpoint that fails is asked again at once.
ONE_UPSTREAM = """
providers: {{ up: {{ type: openai, name: Up, base_url: {up} }} }}
models:
  m: {{ endpoints: [ {{ provider: up, model: u, cooldown: 0, prices: {{ prompt: 1, completion: 2 }} }} ] }}
"""


@pytest.fixture(scope="session")
def serving(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Server, Upstream]]:
    """A server before one scripted upstream: model m, provider Up."""
    folder = tmp_path_factory.mktemp("strict")
    with Upstream() as up, running_server(folder, ONE_UPSTREAM.format(up=up.base_url)) as server:
        yield server, up
