"""One server with scripted endpoints for the stock clients, and the Node client's packages."""

from __future__ import annotations

import fcntl
import shutil
import subprocess
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.server import Server, running_server

NODE = Path(__file__).parent / "node"

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
def node() -> Path:
    """The folder of the Node client with its packages installed, by one test process at a time."""
    for program in ("node", "npm"):
        if shutil.which(program) is None:
            pytest.skip(f"{program} is not installed: the Node client cannot run")
    with (NODE / ".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        if not (NODE / "node_modules" / "openai" / "package.json").exists():
            command = ["npm", "ci", "--silent", "--no-audit", "--no-fund"]
            subprocess.run(command, cwd=NODE, check=True, timeout=300)
    return NODE
