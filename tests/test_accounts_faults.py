"""The state database under a whole server: killed, locked by somebody else, out of room, deleted."""

from __future__ import annotations

import contextlib
import json
import resource
import signal
import sqlite3
import threading
import urllib.request
from collections.abc import Iterator
from http.client import HTTPException
from pathlib import Path

import pytest

from tests.support.accounts import COST, Bank, bank
from tests.support.server import CHAT, eventually, headers


def test_kill_9_keeps_what_was_answered_and_marks_what_was_not(tmp_path: Path) -> None:
    with bank(tmp_path) as first:
        limited, digest = first.make_key(limit=1)
        _, answer = first.chat(limited)
        request = urllib.request.Request(
            f"{first.server.base_url}/chat/completions",
            _body(model="acme/slow", stream=True),
            headers(first.key),
        )
        with urllib.request.urlopen(request, timeout=60) as stream:
            running = stream.headers["X-Generation-Id"]
            while not _is_written(tmp_path, running):
                stream.readline()
            first.server.process.send_signal(signal.SIGKILL)
            first.server.wait()
    with bank(tmp_path) as second:
        assert second.generation(answer["id"], limited)["state"] == "finished"
        assert second.manage(f"/keys/{digest}")["data"]["usage"] == COST
        lost = second.generation(running, first.key)
        assert (lost["state"], lost["cancelled"], lost["finish_reason"]) == ("aborted", False, None)
        assert lost["error"] == "the server stopped"
        assert second.chat()[0] == 200


def test_kill_9_keeps_an_answer_that_nobody_had_committed(tmp_path: Path) -> None:
    """The file is locked, so that no commit can have kept it: its row lies in the journal."""
    with bank(tmp_path) as first:
        key, digest = first.make_key()
        assert first.chat(key)[0] == 200
        with contextlib.closing(sqlite3.connect(_file(tmp_path), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            status, answer = first.chat(key)
            assert status == 200 and not _is_written(tmp_path, answer["id"])
            first.server.process.send_signal(signal.SIGKILL)
            first.server.wait()
            other.execute("ROLLBACK")
    with bank(tmp_path) as second:
        assert second.server.events("requests_recovered")[0]["count"] in (1, 2)
        assert second.generation(answer["id"], key)["state"] == "finished"
        assert second.manage(f"/keys/{digest}")["data"]["usage"] == 2 * COST
    with bank(tmp_path) as third:  # once
        assert third.server.events("requests_recovered") == []
        assert third.manage(f"/keys/{digest}")["data"]["usage"] == 2 * COST


def test_kill_9_in_the_middle_of_many_keeps_every_answer(tmp_path: Path) -> None:
    answered: list[str] = []

    def ask_on(opened: Bank, key: str) -> None:
        with contextlib.suppress(OSError, HTTPException):  # killed
            while True:
                answered.append(opened.chat(key)[1]["id"])

    with bank(tmp_path) as first:
        key, digest = first.make_key()
        threads = [threading.Thread(target=ask_on, args=(first, key)) for _ in range(24)]
        for thread in threads:
            thread.start()
        eventually(lambda: len(answered) > 300)
        first.server.process.send_signal(signal.SIGKILL)
        first.server.wait()
        for thread in threads:
            thread.join()
    with bank(tmp_path) as second:
        assert second.server.events("requests_recovered")
        with contextlib.closing(sqlite3.connect(_file(tmp_path))) as file:
            booked = {name for (name,) in file.execute("SELECT id FROM generation WHERE state = 'finished'")}
        assert set(answered) <= booked
        assert second.manage(f"/keys/{digest}")["data"]["usage"] == pytest.approx(len(booked) * COST)


def test_a_server_beside_leaves_a_living_ones_journal_alone(tmp_path: Path) -> None:
    with bank(tmp_path) as first:
        (journal,) = tmp_path.glob("**/journal.*")
        before = journal.stat().st_ino
        with bank(tmp_path) as second:
            assert second.chat()[0] == 200
            assert len(list(tmp_path.glob("**/journal.*"))) == 2
        assert journal.stat().st_ino == before
        assert first.chat()[0] == 200


def test_kill_9_books_what_was_reserved_under_a_limit(tmp_path: Path) -> None:
    """What it did cost is lost with the process; the reservation is the most that it can have."""
    with bank(tmp_path) as first:
        limited, digest = first.make_key(limit=0.001)
        with _streaming(first, limited, max_tokens=200) as running:
            eventually(lambda: _is_written(tmp_path, running))
            first.server.process.send_signal(signal.SIGKILL)
            first.server.wait()
    with bank(tmp_path) as second:
        lost = second.generation(running, limited)
        assert (lost["state"], lost["is_usage_estimated"]) == ("aborted", True)
        assert lost["usage"] == RESERVED
        card = second.manage(f"/keys/{digest}")["data"]
        assert (card["usage"], card["limit_remaining"]) == (RESERVED, round(0.001 - RESERVED, 12))
        (lost_event,) = second.server.events("requests_lost")
        assert (lost_event["count"], lost_event["booked"]) == (1, RESERVED)
    with bank(tmp_path) as third:  # once
        assert third.manage(f"/keys/{digest}")["data"]["usage"] == RESERVED


RESERVED = 0.000486  # 86 prompt tokens at most, 200 completion tokens


@contextlib.contextmanager
def _streaming(opened: Bank, key: str, **body: object) -> Iterator[str]:
    """A stream that lasts; gives its generation's name."""
    request = urllib.request.Request(
        f"{opened.server.base_url}/chat/completions",
        _body(model="acme/slow", stream=True, **body),
        headers(key),
    )
    with urllib.request.urlopen(request, timeout=60) as stream:
        yield stream.headers["X-Generation-Id"]


def test_a_locked_file_stops_nobody_but_keys_with_a_limit(tmp_path: Path) -> None:
    with bank(tmp_path) as opened:
        limited, digest = opened.make_key(limit=1)
        assert opened.chat(limited)[0] == 200
        with contextlib.closing(sqlite3.connect(_file(tmp_path), isolation_level=None)) as other:
            other.execute("BEGIN IMMEDIATE")
            answers = [opened.chat() for _ in range(3)]
            assert [status for status, _ in answers] == [200, 200, 200]
            opened.server.wait_for_event("store_failed")
            status, body = opened.chat(limited)
            assert (status, body["error"]["code"]) == (503, 503)
            assert opened.generation(answers[0][1]["id"])["state"] == "finished"  # from memory
            assert opened.manage("/activity") == {"data": []}  # reading needs no lock
            status, _ = opened.server.post("/api/v1/keys", {"name": "x"}, opened.server.management_key())
            assert status == 503
            other.execute("ROLLBACK")
        opened.server.wait_for_event("store_recovered")
        assert len(opened.server.events("store_failed")) == 1
        assert opened.chat(limited)[0] == 200
        assert opened.manage(f"/keys/{digest}")["data"]["usage"] == 2 * COST
        assert (
            'ionrouter_store_faults_total{what="write_failed"}'
            in opened.server.get("/metrics", opened.key)[1]
        )
        assert all(_is_written(tmp_path, answer["id"]) for _, answer in answers)  # nothing was lost


def test_a_full_disk_stops_nobody(tmp_path: Path) -> None:
    """A limit on the size of files is what a full disk looks like to the process: writes fail."""
    with bank(tmp_path) as opened:
        _, before = opened.chat()
        pid, log = opened.server.process.pid, opened.server
        wal = _file(tmp_path).with_name("ionrouter.db-wal").stat().st_size
        assert log.log_path.stat().st_size < wal / 2  # the log is a file too, and has room
        limits = resource.prlimit(pid, resource.RLIMIT_FSIZE, (wal, resource.RLIM_INFINITY))
        _, answer = opened.chat()
        assert answer["usage"]["cost"] == COST
        log.wait_for_event("store_failed")
        assert opened.chat()[0] == 200
        assert opened.generation(before["id"])["state"] == "finished"
        resource.prlimit(pid, resource.RLIMIT_FSIZE, limits)
        log.wait_for_event("store_recovered")
        assert opened.generation(answer["id"])["state"] == "finished"
        assert _is_written(tmp_path, answer["id"])


def test_a_stop_writes_what_waits(tmp_path: Path) -> None:
    with bank(tmp_path) as opened:
        names = [opened.chat()[1]["id"] for _ in range(5)]
        opened.server.signal(signal.SIGTERM)
        assert opened.server.wait() == 0
    assert all(_is_written(tmp_path, name) for name in names)


def _is_written(folder: Path, name: str) -> bool:
    with contextlib.closing(sqlite3.connect(f"file:{_file(folder)}?mode=ro", uri=True)) as connection:
        return connection.execute("SELECT 1 FROM generation WHERE id = ?", (name,)).fetchone() is not None


def _file(folder: Path) -> Path:
    return folder / "state" / "ionrouter.db"


def _body(**changes: object) -> bytes:
    return json.dumps({**CHAT, **changes}).encode()
