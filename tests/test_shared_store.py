"""Whole servers on one PostgreSQL: the same keys, limits and reports; killed, cut off, misled."""

from __future__ import annotations

import contextlib
import json
import signal
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import COST, Bank, bank
from tests.support.databases import PostgresPlace
from tests.support.postgres import Postgres
from tests.support.server import CHAT, GUARD_S, ROOT, environment, eventually, headers

FEW = {"tokens": 5, "gap_s": 0.4}
RESERVED = 0.000286  # 86 prompt tokens at most, 100 completion tokens


@pytest.fixture(scope="module")
def pair(postgres: Postgres, tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Bank, Bank]]:
    """Two servers, each with a state folder of its own."""
    url = postgres.new_database()
    with (
        bank(tmp_path_factory.mktemp("a"), store_url=url, max_wrong_keys=10_000) as a,
        bank(tmp_path_factory.mktemp("b"), store_url=url, max_wrong_keys=10_000) as b,
    ):
        yield a, b


def test_keys_spending_and_reports_are_those_of_all_servers(pair: tuple[Bank, Bank]) -> None:
    a, b = pair
    key, digest = a.make_key(limit=1, creator_user_id="u")
    assert a.chat(key)[0] == 200
    eventually(lambda: b.chat(key)[0] == 200)  # a key made elsewhere is known in a moment
    for one in pair:
        card = one.manage(f"/keys/{digest}")["data"]
        assert (card["usage"], card["limit_remaining"]) == (2 * COST, 1 - 2 * COST)
        assert one.ask("/key", key)["data"]["usage"] == 2 * COST
    _, answer = a.chat(key)
    assert b.generation(answer["id"], key)["usage"] == COST
    status, report = b.server.post(
        "/api/v1/analytics/query",
        {
            "metrics": ["request_count", "total_usage", "p50_latency", "fallback_rate"],
            "dimensions": ["api_key_id"],
            "granularity": "day",
        },
        b.server.management_key(),
    )
    assert status == 200, report
    (row,) = [row for row in report["data"]["data"] if row["api_key_id"] == digest]
    assert (row["request_count"], row["total_usage"]) == (3, pytest.approx(3 * COST))
    assert (row["latency_samples"], row["p50_latency"], row["fallback_rate"]) == (3, None, 0.0)
    assert b.manage("/activity") == {"data": []}  # today is not over
    path = f"{b.server.url}/api/v1/keys/{digest}"
    change = urllib.request.Request(
        path, json.dumps({"disabled": True}).encode(), headers(b.server.management_key()), method="PATCH"
    )
    urllib.request.urlopen(change, timeout=60).close()
    assert b.chat(key)[0] == 401  # at once where it was done
    eventually(lambda: a.chat(key)[0] == 401)


def test_of_twelve_at_once_over_two_servers_a_limit_lets_one_through(pair: tuple[Bank, Bank]) -> None:
    key, digest = pair[0].make_key(limit=0.000305)
    eventually(lambda: pair[1].server.get("/api/v1/key", key)[0] == 200)
    answers: list[tuple[int, Any]] = []
    barrier = threading.Barrier(12)

    def ask(one: Bank) -> None:
        barrier.wait()
        answers.append(one.chat(key, model="acme/slow", max_tokens=100, provider={"options": {"slow": FEW}}))

    threads = [threading.Thread(target=ask, args=(pair[number % 2],)) for number in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(status for status, _ in answers) == [200, *[402] * 11]
    refused = next(body for status, body in answers if status == 402)["error"]
    assert "with $0.000301 held for running requests" in refused["message"]
    for one in pair:  # settled, and the rest of the reservation is free again
        assert one.manage(f"/keys/{digest}")["data"]["usage"] == 0.00002
        assert one.chat(key, model="acme/slow", max_tokens=100)[0] == 402
    assert pair[1].chat(key, max_tokens=50)[0] == 200


def test_kill_9_ends_the_requests_of_that_server_and_books_them(postgres: Postgres, tmp_path: Path) -> None:
    place = PostgresPlace(postgres, postgres.new_database())
    folders = [tmp_path / name for name in "ab"]
    for folder in folders:
        folder.mkdir()
    with bank(folders[1], store_url=place.url) as living, bank(folders[0], store_url=place.url) as killed:
        limited, digest = killed.make_key(limit=1)
        with _streaming(killed, limited) as lost, _streaming(living, living.key) as running:
            eventually(lambda: _states(place, lost, running) == ["started", "started"])
            killed.server.process.send_signal(signal.SIGKILL)
            killed.server.wait()
            with bank(folders[0], store_url=place.url) as again:
                eventually(lambda: _states(place, lost) == ["aborted"])
                assert _states(place, running) == ["started"]  # of a server that lives
                found = again.generation(lost, limited)
                assert (found["usage"], found["is_usage_estimated"]) == (RESERVED, True)
                for one in (again, living):
                    assert one.manage(f"/keys/{digest}")["data"]["usage"] == RESERVED


def test_a_database_that_goes_away_stops_nobody_and_loses_nothing(tmp_path: Path, postgres: Postgres) -> None:
    place = PostgresPlace(postgres, postgres.new_database())
    with bank(tmp_path, store_url=place.url) as opened:
        limited, digest = opened.make_key(limit=1)
        assert opened.chat(limited)[0] == 200
        postgres.stop()
        try:
            answers = [opened.chat() for _ in range(3)]
            assert [status for status, _ in answers] == [200, 200, 200]
            opened.server.wait_for_event("store_failed")
            status, body = opened.chat(limited)
            assert (status, body["error"]["code"]) == (503, 503)
            assert opened.generation(answers[0][1]["id"])["state"] == "finished"  # from memory
            assert opened.server.get("/api/v1/activity", opened.server.management_key())[0] == 503
            made = opened.server.post("/api/v1/keys", {"name": "x"}, opened.server.management_key())
            assert made[0] == 503
            assert 'what="write_failed"' in opened.server.get("/metrics", opened.key)[1]
        finally:
            postgres.start()
        opened.server.wait_for_event("store_recovered")
        assert len(opened.server.events("store_failed")) == 1
        assert _states(place, *(answer["id"] for _, answer in answers)) == ["finished"] * 3
        assert opened.chat(limited)[0] == 200
        assert opened.manage(f"/keys/{digest}")["data"]["usage"] == 2 * COST
        # Each once: three without a limit, two with one and the one that was refused.
        assert place.ask("SELECT sum(num_requests) FROM key_usage") == [(6,)]


def test_a_server_does_not_start_without_the_store_it_was_given(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-m", "ionrouter", "serve", "--port", "0"],
        cwd=ROOT,
        env=environment(tmp_path / "state", store_url="postgresql://u:secret@127.0.0.1:1/x"),
        capture_output=True,
        text=True,
        timeout=GUARD_S,
    )
    said = done.stdout + done.stderr
    assert done.returncode == 1
    assert "IONROUTER_STORE_URL: cannot open postgresql://127.0.0.1:1/x: " in said
    assert "secret" not in said
    assert "Traceback" not in said


def _states(place: PostgresPlace, *names: str) -> list[str]:
    return [
        state
        for name in names
        for (state,) in place.ask("SELECT state FROM generation WHERE id = ?", (name,))
    ]


@contextlib.contextmanager
def _streaming(opened: Bank, key: str) -> Iterator[str]:
    """A stream that lasts; gives its generation's name."""
    body = {**CHAT, "model": "acme/slow", "stream": True, "max_tokens": 100}
    request = urllib.request.Request(
        f"{opened.server.base_url}/chat/completions", json.dumps(body).encode(), headers(key)
    )
    with urllib.request.urlopen(request, timeout=60) as stream:
        yield stream.headers["X-Generation-Id"]
