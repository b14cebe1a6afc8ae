"""`ionrouter simulate` as its user calls it: scenarios that come along, own ones, and mistakes in them."""

from __future__ import annotations

import json
from pathlib import Path
from xml.etree import ElementTree

import pytest

from ionrouter.balancing.strategies import STRATEGIES
from ionrouter.cli import main

OWN = """\
endpoints:
  near: { prices: { prompt: 1, completion: 3 }, ttft: 0.3 }
  far: { prices: { prompt: 1, completion: 3 }, ttft: 3 }
load: { rate: 5, requests: 60 }
"""
ROUTES = """
providers: { dear: { type: fake, options: { text: hi } }, cheap: { type: fake, options: { text: hi } } }
models:
  acme/m:
    endpoints:
      - { provider: dear, prices: { prompt: 100, completion: 300 } }
      - { provider: cheap, prices: { prompt: 1, completion: 3 } }
"""


@pytest.fixture
def own(tmp_path: Path) -> str:
    path = tmp_path / "own.yaml"
    path.write_text(OWN)
    return str(path)


def figures(capsys: pytest.CaptureFixture[str], *arguments: str) -> dict[str, dict[str, float]]:
    assert main(["simulate", *arguments, "--seeds", "1", "--json"]) == 0
    return {row["strategy"]: row for row in json.loads(capsys.readouterr().out)["rows"]}


@pytest.mark.parametrize("name", ["steady", "outage", "limited", "sessions"])
def test_scenarios_that_come_along_are_played(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    rows = figures(capsys, name, "--strategy", "expected-cost", "--strategy", "round-robin")
    assert list(rows) == ["expected-cost", "round-robin"]
    assert all(row["failed"] == 0 and row["cost"] > row["dollars"] > 0 for row in rows.values())


def test_every_strategy_and_every_form(own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    rows = figures(capsys, own)
    assert set(rows) == set(STRATEGIES)
    assert rows["expected-cost"]["ttft_p50_s"] < rows["round-robin"]["ttft_p50_s"]
    picture = tmp_path / "own.svg"
    assert main(["simulate", own, "--seeds", "1", "--markdown", "--plot", str(picture)]) == 0
    lines = [line for line in capsys.readouterr().out.splitlines() if line.startswith("| ")]
    assert [line.split(" | ")[0].removeprefix("| ") for line in lines[2:]] == list(rows)
    told = {element.text for element in ElementTree.parse(picture).iter() if element.text}
    assert set(STRATEGIES) <= told
    assert main(["simulate", own, "--seeds", "1"]) == 0
    assert "expected-cost" in capsys.readouterr().out


def test_the_same_seed_is_the_same_world(own: str, capsys: pytest.CaptureFixture[str]) -> None:
    assert figures(capsys, own, "--seed", "3") == figures(capsys, own, "--seed", "3")
    assert figures(capsys, own, "--seed", "3") != figures(capsys, own, "--seed", "4")


def test_a_trace_is_replayed(own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    trace = tmp_path / "trace.jsonl"
    ask = {"prompt_tokens": 1000, "completion_tokens": 1000}
    trace.write_text("".join(json.dumps({"at": at, **ask}) + "\n" for at in range(20)))
    row = figures(capsys, own, "--trace", str(trace))["expected-cost"]
    assert row["dollars"] == pytest.approx((1000 * 1 + 1000 * 3) / 1e6)


def test_routes_give_what_the_scenario_leaves_open(
    own: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    routes = tmp_path / "routes.yaml"
    routes.write_text(ROUTES)
    own_endpoints = OWN.replace("near", "dear/acme/m").replace("far", "cheap/acme/m")
    Path(own).write_text(own_endpoints.replace("prices: { prompt: 1, completion: 3 }, ", ""))
    rows = figures(capsys, own, "--routes", str(routes), "--model", "acme/m")
    assert rows["price"]["dollars"] < rows["latency"]["dollars"] / 5
    routes.write_text(ROUTES.replace("  acme/m:\n", "  acme/m:\n    value_of_time: 0\n"))
    rows = figures(capsys, own, "--routes", str(routes), "--model", "acme/m", "--strategy", "price")
    assert rows["price"]["cost"] == pytest.approx(rows["price"]["dollars"])


@pytest.mark.parametrize(
    ("text", "told"),
    [
        (OWN.replace("ttft: 3 ", "ttft: -3 "), ("endpoints.far.ttft", "line 3")),
        (OWN.replace("requests: 60", "request: 60"), ("load.request", "line 4")),
        (OWN + "events: [{ at: 1, endpoint: none }]\n", ("events[0].endpoint", "line 5")),
    ],
)
def test_a_mistake_is_told_with_its_place(
    own: str, text: str, told: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    Path(own).write_text(text)
    assert main(["simulate", own]) != 0
    error = capsys.readouterr().err
    assert all(part in error for part in told), error


@pytest.mark.parametrize(
    ("arguments", "told"),
    [
        (["nothing"], "nothing: no such file; scenarios that come with ionrouter: limited, outage"),
        (["steady", "--seeds", "0"], "--seeds: at least 1"),
        (["steady", "--strategy", "luck"], "luck"),
        (["OWN", "--trace", "/nowhere/x.jsonl"], "/nowhere/x.jsonl"),
        (["OWN", "--seeds", "1", "--plot", "/nowhere/x.svg"], "--plot: "),
    ],
)
def test_what_cannot_be_done_is_one_line(
    own: str, arguments: list[str], told: str, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["simulate", *(own if word == "OWN" else word for word in arguments)]) == 1
    error = capsys.readouterr().err
    assert told in error and error.count("\n") == 1, error
