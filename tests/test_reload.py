"""Taking over a changed routes.yaml while requests run, in the whole server."""

from __future__ import annotations

import asyncio
import os
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path

from ionrouter.api.server import EnvelopeRunner
from ionrouter.app import build
from ionrouter.redact import Redactor
from ionrouter.settings import Settings
from tests.support.server import GUARD_S, ROOT, environment, eventually, running_server
from tests.support.sse import chunks, content
from tests.support.two_upstreams import FAKE, serving_two
from tests.support.upstream import (
    Received,
    Script,
    Upstream,
    WaitFor,
    chat_stream,
    error,
    json_response,
    raw,
)


def test_the_file_is_taken_over_when_it_changes_and_kept_when_it_is_wrong(tmp_path: Path) -> None:
    with running_server(tmp_path, FAKE) as server:
        server.config.write_text(FAKE.replace("hello there", "second edition"))
        server.wait_for_event("routes_reloaded")
        assert server.chat()[1]["choices"][0]["message"]["content"] == "second edition"
        server.config.write_text(FAKE.replace("provider: fake", "provider: nobody"))
        server.wait_for_event("routes_refused")
        assert "nobody" in server.get("/health")[1]["routes"]["problem"]
        assert server.chat()[0] == 200
        status, answer = server.post("/api/v1/admin/reload", {}, server.management_key())
        assert status == 400
        assert any("nobody" in problem for problem in answer["error"]["metadata"]["problems"])
        server.config.write_text(FAKE.replace("hello there", "third edition"))
        server.signal(signal.SIGHUP)
        server.wait_for_event("routes_reloaded", 2)
        assert server.get("/health")[1]["routes"]["problem"] is None
        assert server.chat()[1]["choices"][0]["message"]["content"] == "third edition"


def test_what_stands_in_the_files_place_is_neither_waited_for_nor_read_whole(tmp_path: Path) -> None:
    """A FIFO held the watcher for ever; of a huge file all was read, every second."""
    good, fifo, huge = tmp_path / "good.yaml", tmp_path / "fifo", tmp_path / "huge"
    good.write_text(FAKE)
    os.mkfifo(fifo)
    with huge.open("wb") as file:
        file.truncate(1 << 40)  # a hole

    def swap(target: Path) -> None:
        link = tmp_path / "link"
        link.symlink_to(target)
        link.replace(tmp_path / "routes.yaml")

    with running_server(tmp_path, FAKE) as server:
        key = server.management_key()
        for target, word in ((fifo, "cannot be read"), (huge, "bytes"), (tmp_path, "cannot be read")):
            swap(target)
            told = eventually(lambda: server.get("/health")[1]["routes"]["problem"])
            assert word in told and server.post("/api/v1/admin/reload", {}, key)[0] == 400
            swap(good)
            eventually(lambda: server.get("/health")[1]["routes"]["problem"], lambda told: told is None)
        assert server.chat()[0] == 200


async def test_a_file_that_changes_while_the_server_starts_is_taken(tmp_path: Path) -> None:
    config = tmp_path / "routes.yaml"
    config.write_text(FAKE)
    settings = Settings(config=config, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache")
    service = build(settings, {}, Redactor())
    before, taken = service.router.table.version, asyncio.Event()
    service.reloader.on_swap = lambda _: taken.set()
    config.write_text(FAKE.replace("hello there", "second edition"))
    runner = EnvelopeRunner(service.application)
    await runner.setup()
    try:
        async with asyncio.timeout(GUARD_S):
            await taken.wait()
        assert service.router.table.version != before
    finally:
        await runner.cleanup()


async def test_a_reload_that_meets_a_fault_of_ours_says_so_until_one_succeeds(tmp_path: Path) -> None:
    class Environment(dict[str, str]):
        is_broken = False

        def get(self, *args: str) -> str | None:  # type: ignore[override]
            if self.is_broken:
                raise KeyError("a fault of ours")
            return super().get(*args)

    config, env = tmp_path / "routes.yaml", Environment(A_KEY="k")
    config.write_text(FAKE.replace("type: fake", "type: fake, keys: A_KEY"))
    settings = Settings(config=config, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache")
    reloader = build(settings, env, Redactor()).reloader
    env.is_broken = True
    await reloader.try_reload()
    assert "KeyError" in (reloader.problem or "")
    env.is_broken = False
    await reloader.try_reload()
    assert reloader.problem is None


async def test_many_who_ask_at_once_are_served_by_two_reloads(tmp_path: Path) -> None:
    config = tmp_path / "routes.yaml"
    config.write_text(FAKE)
    settings = Settings(config=config, state_dir=tmp_path / "state", cache_dir=tmp_path / "cache")
    reloader = build(settings, {}, Redactor()).reloader
    swaps: list[str] = []
    reloader.on_swap = lambda table: swaps.append(table.version)
    asked = [asyncio.create_task(reloader.try_reload()) for _ in range(60)]
    await asyncio.sleep(0)  # the first reads, the second waits for it
    config.write_text(FAKE.replace("hello there", "second edition"))
    await asyncio.gather(*asked)
    assert len(swaps) == 2
    assert "second edition" in str(reloader.router.table)
    await reloader.try_reload()  # and the next is another
    assert len(swaps) == 3


def test_a_hangup_ends_no_server_that_stops(tmp_path: Path) -> None:
    with running_server(tmp_path, FAKE) as server:
        server.signal(signal.SIGINT)
        while server.process.poll() is None:
            server.signal(signal.SIGHUP)
            time.sleep(0.0005)
        assert server.wait() == 0


def test_a_hangup_ends_no_server_that_starts(tmp_path: Path) -> None:
    """The file that holds the routes is a pipe: the server waits in the middle of its start."""
    config = tmp_path / "routes.yaml"
    os.mkfifo(config)
    command = [sys.executable, "-m", "ionrouter", "serve", "--config", str(config), "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(tmp_path / "state"), stderr=subprocess.PIPE
    ) as process:
        with config.open("w"):  # once there is a reader
            process.send_signal(signal.SIGHUP)
            time.sleep(0.1)
            assert process.poll() is None
        process.kill()


def test_a_hangup_ends_no_server_that_imports(tmp_path: Path) -> None:
    command = [sys.executable, "-X", "importtime", "-m", "ionrouter", "serve", "--port", "0"]
    with subprocess.Popen(
        command, cwd=ROOT, env=environment(tmp_path / "state"), stderr=subprocess.PIPE
    ) as process:
        assert process.stderr is not None
        imported = (line.split()[-1] for line in process.stderr)
        assert b"argparse" in imported  # of the first that ionrouter.cli imports
        process.send_signal(signal.SIGHUP)
        assert b"ionrouter.cli" in imported  # all of it
        process.kill()


def test_a_request_keeps_the_routes_it_began_with(tmp_path: Path) -> None:
    """G154: a fails after the reload took it away; b, of the old table, still answers."""
    with serving_two(tmp_path) as (server, a, _):
        gate = threading.Event()
        a.default = raw(WaitFor(gate), *error(500).steps)
        answers: list[tuple[int, str]] = []
        caller = threading.Thread(target=lambda: answers.append(server.chat(stream=True)))
        caller.start()
        a.wait_for_requests(1)
        server.config.write_text(FAKE)
        server.post("/api/v1/admin/reload", {}, server.management_key())
        assert content(server.chat(stream=True)[1]) == "hello there"
        gate.set()
        caller.join(60)
        assert content(answers[0][1]) == "from b"
        assert chunks(answers[0][1])[-1]["usage"]["cost"] > 0


def test_a_file_in_the_middle_of_a_save_changes_nothing(tmp_path: Path) -> None:
    """G156: the half that is there for a moment is valid, and would lose a model."""
    whole = FAKE + "  second: { endpoints: [ { provider: fake } ] }\n"
    with running_server(tmp_path, whole) as server:
        edited = whole.replace("hello there", "edited text")
        half = edited[: edited.index("  second:")]
        statuses: list[int] = []
        for _ in range(4):
            server.config.write_text(half)
            statuses += [server.chat(model="second")[0] for _ in range(3)]
            server.config.write_text(edited)
        server.wait_for_event("routes_reloaded")
        statuses += [server.chat(model="second")[0] for _ in range(3)]
        assert set(statuses) == {200}
        assert server.chat()[1]["choices"][0]["message"]["content"] == "edited text"


def test_a_deleted_file_leaves_the_routes_and_a_new_one_counts(tmp_path: Path) -> None:
    """G156: also the way editors save, by renaming a new file into place."""
    with running_server(tmp_path, FAKE) as server:
        server.config.unlink()
        server.wait_for_event("routes_missing")
        time.sleep(2.5)  # more than two polls
        assert len(server.events("routes_missing")) == 1
        assert "gone" in server.get("/health")[1]["routes"]["problem"]
        assert server.chat()[0] == 200
        fresh = tmp_path / "fresh"
        fresh.write_text(FAKE.replace("hello there", "renamed into place"))
        fresh.rename(server.config)
        server.wait_for_event("routes_reloaded")
        assert server.chat()[1]["choices"][0]["message"]["content"] == "renamed into place"
        assert server.get("/health")[1]["routes"]["problem"] is None


def test_a_file_that_comes_back_as_it_was_is_no_problem_any_more(tmp_path: Path) -> None:
    with running_server(tmp_path, FAKE) as server:
        away = server.config.rename(tmp_path / "away")
        server.wait_for_event("routes_missing")
        away.rename(server.config)
        server.wait_for_event("routes_reloaded")
        assert server.get("/health")[1]["routes"]["problem"] is None


def test_no_request_fails_while_routes_change_under_it(tmp_path: Path) -> None:
    """G154: 50 reloads under load."""
    with running_server(tmp_path, FAKE) as server:
        key, statuses = server.management_key(), list[int]()
        done = threading.Event()

        def ask() -> None:
            while not done.is_set():
                statuses.append(server.chat(stream=True)[0])

        callers = [threading.Thread(target=ask) for _ in range(4)]
        for caller in callers:
            caller.start()
        for number in range(50):
            server.config.write_text(FAKE.replace("hello there", f"edition {number}"))
            assert server.post("/api/v1/admin/reload", {}, key)[0] == 200
        done.set()
        for caller in callers:
            caller.join(60)
        assert set(statuses) == {200}
        assert len(statuses) > 50


def test_an_upstream_that_does_not_list_holds_up_no_change(tmp_path: Path) -> None:
    """Not the watcher's, not one that is asked for, and its models are there once it answers."""
    gate = threading.Event()
    listed = json_response({"object": "list", "data": [{"id": "found/model", "object": "model"}]})

    def answer(request: Received) -> Script:
        return raw(WaitFor(gate), *listed.steps)

    def said() -> str:
        return str(server.chat()[1]["choices"][0]["message"]["content"])

    def models() -> list[str]:
        return [model["id"] for model in server.get("/api/v1/models")[1]["data"]]

    with Upstream(answer) as up:
        listing = f"  up: {{ type: openai, base_url: {up.base_url}, discover: true }}\n"
        routes = FAKE.replace("models:", f"{listing}models:")
        with running_server(tmp_path, routes, cache_dir=tmp_path / "cache") as server:
            up.wait_for_requests(1)  # at the start
            asked = []
            for edition in ("second", "third"):  # the second while the first waits
                server.config.write_text(routes.replace("hello there", edition))
                eventually(said, lambda found, edition=edition: found == edition)  # type: ignore[misc]
            server.config.write_text(routes.replace("hello there", "fourth"))

            def reload() -> None:
                asked.append(server.post("/api/v1/admin/reload", {}, server.management_key()))

            caller = threading.Thread(target=reload)
            caller.start()
            assert eventually(said, lambda found: found == "fourth") and not asked
            assert models() == ["m"]
            gate.set()
            caller.join(60)
            assert asked[0][0] == 200 and "found/model" in models()
            server.config.write_text(routes.replace("hello there", "fifth"))
            eventually(said, lambda found: found == "fifth")
            assert "found/model" in models()  # known before it is asked again


def test_models_that_an_upstream_lists_are_served(tmp_path: Path) -> None:
    """`discover: true`, at the start and from the copy on disk when the upstream is gone."""
    listed = json_response({"object": "list", "data": [{"id": "found/model", "object": "model"}]})

    def answer(request: Received) -> Script:
        return listed if request.path.endswith("/models") else chat_stream(["from", " upstream"])

    with Upstream(answer) as up:
        routes = f"providers: {{ up: {{ type: openai, base_url: {up.base_url}, discover: true }} }}\n"
        with running_server(tmp_path, routes, wait_until_ready=False, cache_dir=tmp_path / "cache") as server:
            server.wait_for_event("routes_reloaded")
            server.wait_for("/health", 200)
            assert [m["id"] for m in server.get("/api/v1/models")[1]["data"]] == ["found/model"]
            assert content(server.chat(model="found/model", stream=True)[1]) == "from upstream"
    with running_server(tmp_path, routes, cache_dir=tmp_path / "cache") as server:
        assert [m["id"] for m in server.get("/api/v1/models")[1]["data"]] == ["found/model"]
        assert server.wait_for_event("models_not_listed")


TWO = """
providers:
  fake: {{ type: fake, options: {{ text: "hello there" }} }}
models:
  m: {{ endpoints: [{offers}] }}
"""
ONE, OTHER = "{ provider: fake, model: one }", "{ provider: fake, model: other }"


def test_figures_stay_with_an_upstream_whose_id_goes_to_another(tmp_path: Path) -> None:
    """Of a provider that offers a model twice, the second in the file is #2."""

    def told() -> dict[str, int]:
        listed = server.get("/api/v1/models/m/endpoints")[1]["data"]["endpoints"]
        work = {row["endpoint_id"]: row["perf_last_30m_by_workload"] for row in listed}
        return {name: each["text_generation"]["request_count"] for name, each in work.items()}

    def by_endpoint() -> dict[str, int]:
        rows = server.get("/api/v1/stats/routes?model=m")[1]["data"]
        return {row["endpoint"]: row["requests"] for row in rows}

    with running_server(tmp_path, TWO.format(offers=ONE)) as server:
        for _ in range(3):
            assert server.chat()[0] == 200
        assert told() == by_endpoint() == {"fake/m": 3}
        server.config.write_text(TWO.format(offers=f"{OTHER}, {ONE}"))
        server.wait_for_event("routes_reloaded")
        assert told() == {"fake/m": 0, "fake/m#2": 3}
        assert by_endpoint() == {"fake/m#2": 3}
        server.config.write_text(TWO.format(offers=OTHER))
        server.wait_for_event("routes_reloaded", 2)
        assert server.chat()[0] == 200
        assert told() == {"fake/m": 1}
        assert by_endpoint() == {"fake/m": 1, "fake/m (former)": 3}
    with running_server(tmp_path, TWO.format(offers=f"{ONE}, {OTHER}")) as server:
        eventually(told, lambda found: found == {"fake/m": 3, "fake/m#2": 1})
        assert by_endpoint() == {"fake/m": 3, "fake/m#2": 1}
