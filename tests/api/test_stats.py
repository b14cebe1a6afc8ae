"""GET stats/routes over a real socket: what happened, by any group, at any percentile, as JSON and CSV."""

from __future__ import annotations

import csv
import io
import signal
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import COST, ROUTES, Bank, bank
from tests.support.server import eventually
from tests.support.tiny_model import write_tiny_model

NUM_ASKED = 6


@pytest.fixture(scope="module")
def busy(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    groups = "groups: { house/both: [acme/fallback, acme/m] }\n"
    with bank(tmp_path_factory.mktemp("stats"), ROUTES + groups) as asked:
        for i in range(NUM_ASKED):
            assert asked.chat(model="acme/m", stream=i % 2 == 0)[0] == 200
        assert asked.chat(model="acme/fallback")[0] == 200
        assert asked.chat(model="acme/broken")[0] == 503
        yield asked


def rows(asked: Bank, query: str = "", **how: Any) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = asked.ask(f"/stats/routes?window=1h&{query}", **how)["data"]
    return found


def test_an_endpoint_has_counts_tokens_cost_and_percentiles(busy: Bank) -> None:
    (row,) = rows(busy, "endpoint=fake/acme/m&percentiles=50,99.9")
    assert (row["endpoint"], row["requests"], row["errors"]) == ("fake/acme/m", NUM_ASKED + 1, 0)
    assert row["outcomes"] == {"ok": NUM_ASKED + 1}
    assert (row["prompt_tokens"], row["completion_tokens"]) == (10 * 7, 3 * 7)
    assert row["cost"] == pytest.approx(7 * COST)
    assert row["uptime"] == 100.0
    assert set(row["duration_ms"]) == {"n", "p50", "p99.9"}
    assert row["duration_ms"]["n"] == NUM_ASKED + 1
    assert 0 < row["duration_ms"]["p50"] <= row["duration_ms"]["p99.9"]
    assert row["queue_ms"] == {"n": 0, "p50": None, "p99.9": None}


def test_time_in_a_queue_is_told_everywhere(tmp_path: Path) -> None:
    routes = """
providers:
  queued: { type: fake, name: Queued, options: { queue_s: 0.02, text: "one two" } }
models:
  acme/queued: { endpoints: [{ provider: queued, prices: { prompt: 1, completion: 2 } }] }
"""
    with bank(tmp_path, routes) as asked:
        names = [asked.chat(model="acme/queued")[1]["id"] for _ in range(5)]
        (row,) = rows(asked, "percentiles=0,50,100")
        assert row["queue_ms"] == {"n": 5} | {p: pytest.approx(20, rel=0.02) for p in ("p0", "p50", "p100")}
        assert row["duration_ms"]["p0"] >= row["queue_ms"]["p0"]
        assert asked.generation(names[0])["queue_time"] == 20.0
        query = {"metrics": ["avg_queue", "p50_queue", "p50_tpot"], "dimensions": ["endpoint"]}
        path = "/api/v1/analytics/query"
        status, told = asked.server.post(path, query, asked.server.management_key())
        assert status == 200
        assert told["data"]["data"] == [
            {
                "endpoint": "queued/acme/queued", "avg_queue": 20.0, "p50_queue": 20.0, "queue_samples": 5,
                "p50_tpot": None, "tpot_samples": 0,
            }
        ]  # fmt: skip
        metrics = asked.server.get("/metrics", asked.key)[1]
        assert 'ionrouter_queue_seconds_count{endpoint="queued/acme/queued"} 5.0' in metrics
        assert 'ionrouter_queue_seconds_bucket{endpoint="queued/acme/queued",le="0.01"} 0.0' in metrics


def test_the_local_engines_queue_is_told(tmp_path: Path) -> None:
    weights = write_tiny_model(tmp_path / "tiny.gguf")
    endpoint = f"{{ provider: ion, weights: {weights}, max_running: 1 }}"
    routes = f"providers: {{ ion: {{ type: ion }} }}\nmodels: {{ tiny: {{ endpoints: [{endpoint}] }} }}\n"
    with bank(tmp_path / "server", routes) as asked:
        eventually(lambda: asked.server.get("/health")[0] == 200)

        def answer(_: int) -> int:
            return asked.chat(model="tiny", max_tokens=100, stream=True)[0]

        with ThreadPoolExecutor(6) as callers:
            assert set(callers.map(answer, range(6))) == {200}
        (row,) = rows(asked, "percentiles=0,100")
        queue = row["queue_ms"]
        assert queue["n"] == 6
        assert 0 <= queue["p0"] < queue["p100"] < row["duration_ms"]["p100"]


def test_under_five_samples_a_percentile_is_null_and_n_says_why(busy: Bank) -> None:
    streamed = next(
        row for row in rows(busy, "endpoint=fake/acme/m&group_by=stream") if row["stream"] == "true"
    )
    assert streamed["ttft_ms"] == {"n": 3, "p50": None, "p90": None, "p99": None}


def test_groups_merge_and_filters_choose(busy: Bank) -> None:
    by_model = {row["model"]: row["requests"] for row in rows(busy, "group_by=model")}
    assert by_model == {"acme/broken": 1, "acme/fallback": 1, "acme/m": NUM_ASKED + 1}
    by_provider = {row["provider"]: row["errors"] for row in rows(busy, "group_by=provider")}
    assert by_provider == {"Bad": 2, "Fake": 0}
    both = rows(busy, "group_by=provider,class,stream&provider=Fake")
    assert {(row["provider"], row["class"], row["stream"]) for row in both} == {
        ("Fake", "short", "true"),
        ("Fake", "short", "false"),
    }
    assert rows(busy, "model=nobody") == []


def test_by_minute_the_rows_add_up_and_say_when_they_begin(busy: Bank) -> None:
    minutes = rows(busy, "model=acme/m&group_by=model&resolution=minute")
    assert sum(row["requests"] for row in minutes) == NUM_ASKED + 1
    assert all(row["start"] % 60 == 0 for row in minutes)
    whole = busy.ask("/stats/routes?window=31d&resolution=day")
    assert whole["resolution_s"] == 86_400
    assert busy.ask("/stats/routes?window=5m")["resolution_s"] == 60


def test_rows_are_ordered_and_cut(busy: Bank) -> None:
    ordered = rows(busy, "group_by=model&sort=-requests&limit=2")
    assert [row["model"] for row in ordered] == ["acme/m", "acme/broken"]
    by_percentile = rows(busy, "sort=duration_ms.p50")
    assert by_percentile[-1]["duration_ms"]["p50"] is None


def test_csv_has_a_column_for_each_figure(busy: Bank) -> None:
    status, text = busy.server.get("/api/v1/stats/routes?window=1h&format=csv&group_by=model", busy.key)
    assert status == 200
    table = list(csv.DictReader(io.StringIO(text)))
    assert [row["model"] for row in table] == ["acme/broken", "acme/fallback", "acme/m"]
    assert table[2]["duration_ms.n"] == str(NUM_ASKED + 1)
    assert table[0]["outcomes"] == "transient=1"


def test_keys_are_for_management_and_by_the_hour(busy: Bank) -> None:
    status, told = busy.server.get("/api/v1/stats/routes?group_by=key", busy.key)
    assert (status, told["error"]["code"]) == (403, 403)
    (row,) = rows(busy, "group_by=key", key=busy.server.management_key())
    assert row["requests"] == NUM_ASKED + 2
    assert row["outcomes"] == {"503": 1, "ok": NUM_ASKED + 1}
    assert row["uptime"] is None  # it was 100 %, whatever the statuses
    assert len(row["key"]) == 64


@pytest.mark.parametrize("name", ["m", "M", "acme/m:nitro", "ACME/M", "acme/m,acme/gone"])
def test_a_model_may_be_called_as_in_a_request(busy: Bank, name: str) -> None:
    (row,) = rows(busy, f"model={name}&group_by=model")
    assert (row["model"], row["requests"]) == ("acme/m", NUM_ASKED + 1)


@pytest.mark.parametrize("name", ["fake", "FAKE", "Fake", "fake,Gone"])
def test_a_provider_may_be_called_as_in_a_request(busy: Bank, name: str) -> None:
    (row,) = rows(busy, f"provider={name}&group_by=provider")
    assert (row["provider"], row["requests"]) == ("Fake", NUM_ASKED + 1)


def test_a_group_means_each_of_its_models(busy: Bank) -> None:
    for name in ("house/both", "house/both:nitro"):
        by_model = {row["model"]: row["requests"] for row in rows(busy, f"model={name}&group_by=model")}
        assert by_model == {"acme/fallback": 1, "acme/m": NUM_ASKED + 1}


def test_a_key_may_be_called_by_its_name_or_the_begin_of_its_hash(busy: Bank) -> None:
    manager = busy.server.management_key()
    (row,) = rows(busy, "group_by=key", key=manager)
    for name in ("first", row["key"][:12], row["key"]):
        assert rows(busy, f"key={name}", key=manager) == [row]
    assert rows(busy, f"key={'0' * 64}", key=manager) == []
    assert busy.server.get("/api/v1/stats/routes?key=nobody", manager)[0] == 404


@pytest.mark.parametrize(
    ("query", "param"),
    [
        ("class=huge", "class"),
        ("stream=maybe", "stream"),
        ("window=10s", "window"),
        ("window=32d", "window"),
        ("window=soon", "window"),
        ("since=5&until=4", "since"),
        ("since=0", "since"),
        ("group_by=planet", "group_by"),
        ("percentiles=101", "percentiles"),
        ("percentiles=x", "percentiles"),
        ("resolution=week", "resolution"),
        ("window=3d&resolution=minute", "resolution"),
        ("role=spy", "role"),
        ("format=xml", "format"),
        ("sort=beauty", "sort"),
        ("limit=-1", "limit"),
        ("colour=red", "colour"),
    ],
)
def test_a_bad_parameter_is_a_400_that_names_it(busy: Bank, query: str, param: str) -> None:
    status, told = busy.server.get(f"/api/v1/stats/routes?{query}", busy.key)
    assert status == 400
    assert told["error"]["message"].startswith(param)


def test_what_is_kept_no_more_is_no_empty_answer(busy: Bank) -> None:
    day_s = 86_400
    now = int(time.time())
    stretch = f"since={now - 40 * day_s}&until={now - 35 * day_s}"
    manager = busy.server.management_key()
    for query, param in (("resolution=hour", "resolution"), ("group_by=key", "since")):
        status, told = busy.server.get(f"/api/v1/stats/routes?{stretch}&{query}", manager)
        assert (status, told["error"]["param"]) == (400, param)
    status, told = busy.server.get("/api/v1/stats/routes?group_by=key&role=shadow", manager)
    assert (status, told["error"]["param"]) == (400, "role")  # not callers' requests under that name
    status, told = busy.server.get(f"/api/v1/stats/routes?{stretch}&resolution=day", manager)
    assert (status, told["data"], told["resolution_s"]) == (200, [], day_s)
    assert busy.ask("/stats/routes?window=31d&resolution=hour")["resolution_s"] == 3600
    assert busy.ask("/stats/routes?window=31d&group_by=key", key=manager)["data"]


def test_keys_do_not_mix_with_endpoints(busy: Bank) -> None:
    status, told = busy.server.get("/api/v1/stats/routes?group_by=key,model", busy.server.management_key())
    assert (status, told["error"]["message"].partition(":")[0]) == (400, "key")


def test_statistics_are_back_after_a_restart(tmp_path: Path) -> None:
    with bank(tmp_path) as asked:
        for _ in range(5):
            asked.chat(model="acme/m")
        before = rows(asked, "group_by=model")
        asked.server.signal(signal.SIGTERM)
        asked.server.wait()
    with bank(tmp_path) as again:
        after = eventually(lambda: rows(again, "group_by=model"))
        assert after == before
        again.chat(model="acme/m")
        assert rows(again, "group_by=model")[0]["requests"] == 6
        by_key = rows(again, "group_by=key", key=again.server.management_key())
        assert sorted(row["requests"] for row in by_key) == [1, 5]  # the second start made a key of its own
