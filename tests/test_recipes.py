"""The recipes hold: their files are read by what reads them, their commands run, their names exist."""

from __future__ import annotations

import configparser
import re
import shlex
import subprocess
import sys
import tomllib
from pathlib import Path

import pytest
import yaml

from ionrouter import cli
from ionrouter.metrics import Metrics
from ionrouter.settings import Settings
from tests.support.pages import text_of
from tests.support.server import GUARD_S, ROOT, environment, running_server

PAGE = "docs/recipes.md"
KEYS = {"TOGETHER_API_KEY": "together-key-123456", "OPENROUTER_API_KEY": "openrouter-key-123456"}


def _blocks(language: str) -> list[str]:
    return re.findall(rf"(?ms)^```{language}\n(.*?)^```$", text_of(PAGE))


def _ionrouter(folder: Path, *arguments: str) -> str:
    env = {**environment(folder / "state"), **KEYS}
    command = [sys.executable, "-m", "ionrouter", *arguments]
    done = subprocess.run(command, cwd=ROOT, env=env, capture_output=True, text=True, timeout=GUARD_S)
    assert done.returncode == 0, done.stderr
    return done.stdout


def test_routes_with_a_server_of_ones_own_first(tmp_path: Path) -> None:
    config = tmp_path / "routes.yaml"
    config.write_text(_blocks("yaml")[0])
    assert _ionrouter(tmp_path, "check", "--config", str(config)).endswith("no errors, no warnings\n")
    told = _ionrouter(tmp_path, "explain", "qwen/qwen-2.5-7b-instruct", "--config", str(config))
    rows = [line.split()[0].partition("/")[0] for line in told.splitlines() if "/qwen/" in line]
    assert rows[-3:] == ["own", "openrouter", "together"]


def test_the_unit_starts_the_server_with_settings_that_exist() -> None:
    unit = configparser.ConfigParser(strict=False, interpolation=None)
    unit.optionxform = str  # type: ignore[assignment, method-assign]
    unit.read_string(_blocks("ini")[0])
    service = unit["Service"]
    arguments = cli.parser().parse_args(shlex.split(service["ExecStart"])[1:])
    assert (arguments.run, arguments.require_keys) == (cli.run_serve, True)
    names = [pair.partition("=")[0] for pair in shlex.split(service["Environment"])]
    assert {name.removeprefix("IONROUTER_").lower() for name in names} <= Settings.model_fields.keys()
    settings = Settings()
    longest = settings.drain_delay_s + settings.drain_timeout_s + 5 + 3 + 20  # as operations.md adds them up
    assert float(service["TimeoutStopSec"]) > longest


def test_keys_are_made_with_their_budgets(tmp_path: Path) -> None:
    block = next(block for block in _blocks("bash") if "keys create" in block)
    for line in block.splitlines():
        if line.startswith("ionrouter "):
            listed = _ionrouter(tmp_path, *shlex.split(line)[1:])
    assert "$20 monthly" in listed and "$5 daily" in listed


def test_codexs_file_is_toml_and_names_its_provider() -> None:
    config = tomllib.loads(_blocks("toml")[0])
    provider = config["model_providers"][config["model_provider"]]
    assert (provider["wire_api"], provider["base_url"]) == ("responses", "http://127.0.0.1:8080/api/v1")


def test_claude_codes_address_is_one_that_is_served(tmp_path: Path) -> None:
    block = next(block for block in _blocks("bash") if "ANTHROPIC_BASE_URL" in block)
    base = re.search(r"ANTHROPIC_BASE_URL=http://[\d.:]+(\S*)", block)
    assert base is not None
    routes = "providers: { f: { type: fake } }\nmodels: { default: { endpoints: [{ provider: f }] } }"
    with running_server(tmp_path, routes) as server:
        asked = {"model": "default", "max_tokens": 9, "messages": [{"role": "user", "content": "hi"}]}
        assert server.post(f"{base[1]}/v1/messages", asked)[0] == 200


def test_queries_name_metrics_that_are_there() -> None:
    scrape = yaml.safe_load(_blocks("yaml")[1])["scrape_configs"][0]
    assert scrape["static_configs"] == [{"targets": ["127.0.0.1:8080"]}]
    known = set(re.findall(r"# TYPE (\S+)", Metrics().render().decode()))
    asked = re.findall(r"ionrouter_\w+", "".join(_blocks("promql")))
    assert len(asked) >= 5
    assert {name.removesuffix("_bucket") for name in asked} <= known


@pytest.mark.parametrize("page", ["README.md", "docs/operations.md"])
def test_the_recipes_are_found(page: str) -> None:
    assert "recipes.md" in text_of(page)
