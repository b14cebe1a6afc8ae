"""The worker's life: started, connected, lost, started again, ended. With a toy in litellm's place."""

from __future__ import annotations

import asyncio
import errno
import os
import signal
import socket
import stat
import sys
import tempfile
import time
from collections.abc import AsyncIterator, Callable
from contextlib import aclosing, suppress
from pathlib import Path
from typing import Any

import pytest

from ionrouter.errors import FailureClass
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.litellm_process import WorkerProcess, remove_left, worker_env
from ionrouter.routing.table import Timeouts
from tests.support.endpoints import PATIENT, Answer, collect, make_endpoint, make_request

Make = Callable[..., LiteLLMProvider]
ROOT = Path(__file__).resolve().parents[2]


@pytest.fixture
async def make(tmp_path: Path) -> AsyncIterator[Make]:
    made: list[LiteLLMProvider] = []

    def start(start: str = "", state_dir: Path | None = tmp_path) -> LiteLLMProvider:
        env = {**os.environ, "AWS_TOY_START": start}
        provider = LiteLLMProvider(env, state_dir)
        provider.worker = WorkerProcess(env, state_dir, module="tests.support.toy_worker")
        made.append(provider)
        return provider

    yield start
    for provider in made:
        await provider.close()


async def ask(
    provider: LiteLLMProvider, what: str = "echo", text: str = "hi", timeouts: Timeouts = PATIENT
) -> Answer:
    endpoint = make_endpoint(
        None, type="litellm", litellm_provider="toy", upstream_model=what, timeouts=timeouts
    )
    return await collect(provider, make_request(endpoint, {"messages": [{"role": "user", "content": text}]}))


async def until(is_so: Callable[[], object]) -> None:
    """Wait for something that has no event; the guard is far above what anything takes."""
    async with asyncio.timeout(30):
        while not is_so():  # noqa: ASYNC110
            await asyncio.sleep(0.01)


def is_gone(pid: int) -> bool:
    """Whether a process has ended; a zombie has."""
    try:
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] == "Z"
    except FileNotFoundError:
        return True


def inside(folder: Path) -> list[Path]:
    return sorted(folder.iterdir())


async def test_the_first_request_starts_the_worker(make: Make) -> None:
    provider = make()
    assert provider.worker.pid is None
    assert (await ask(provider)).text() == "hi"
    assert provider.worker.num_starts == 1


async def test_many_calls_share_one_worker(make: Make) -> None:
    provider = make()
    answers = await asyncio.gather(*(ask(provider, text=str(i)) for i in range(50)))
    assert [a.text() for a in answers] == [str(i) for i in range(50)]
    assert provider.worker.num_starts == 1


async def test_the_socket_is_ours_alone(make: Make, tmp_path: Path) -> None:
    provider = make()
    await provider.wait_ready()
    (folder,) = inside(tmp_path)
    (socket,) = inside(folder)
    assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    assert stat.S_IMODE(socket.stat().st_mode) == 0o600
    await provider.close()
    assert inside(tmp_path) == []


async def test_a_long_state_folder_does_not_make_an_impossible_socket(make: Make, tmp_path: Path) -> None:
    provider = make(state_dir=tmp_path / ("deep" * 30))
    assert (await ask(provider)).text() == "hi"


async def test_without_a_state_folder_the_socket_is_in_one_of_the_systems(make: Make, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    assert (await ask(make(state_dir=tmp_path / "file" / "state"))).text() == "hi"


async def test_a_worker_that_could_not_be_started_is_started_later(
    make: Make, monkeypatch: pytest.MonkeyPatch
) -> None:
    """No descriptors, no room: for as long as that lasts, not for ever."""
    failures = iter([OSError(errno.EMFILE, "Too many open files"), RuntimeError("no thread")])
    made = tempfile.mkdtemp

    def scarce(**options: Any) -> str:
        for failure in failures:
            raise failure
        return made(**options)

    monkeypatch.setattr("ionrouter.providers.litellm_process.tempfile.mkdtemp", scarce)
    assert (await ask(make(state_dir=None))).text() == "hi"


async def test_a_stranger_cannot_take_the_workers_place(make: Make, tmp_path: Path) -> None:
    provider = make("hang")
    await provider.start()
    await until(lambda: inside(tmp_path) and inside(inside(tmp_path)[0]))
    reader, writer = await asyncio.open_unix_connection(inside(inside(tmp_path)[0])[0])
    writer.write(b'\0\0\0\x15{"op":"ready","id":0}')
    with suppress(ConnectionResetError):
        assert await reader.read() == b""
    writer.close()
    with pytest.raises(TimeoutError):
        await provider.wait_ready(0.1)


def leave_folder(parent: Path, name: str, age_s: float = 120.0, *, is_alive: bool = False) -> socket.socket:
    """A folder with a socket as a server makes them; nobody listens unless `is_alive`."""
    folder = parent / name
    folder.mkdir(mode=0o700)
    bound = socket.socket(socket.AF_UNIX)
    bound.bind(str(folder / "s"))
    if is_alive:
        bound.listen()
    else:
        bound.close()
    os.utime(folder, (time.time() - age_s,) * 2)
    return bound


@pytest.mark.parametrize("has_state_folder", [True, False])
async def test_what_killed_servers_left_is_removed_and_nothing_else(
    make: Make, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, has_state_folder: bool
) -> None:
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path))
    leave_folder(tmp_path, "ion-aaaa0000")
    leave_folder(tmp_path, "ion-bbbb0000", age_s=30)  # perhaps about to listen
    leave_folder(tmp_path, "ion-made_by_others")
    leave_folder(tmp_path, "ion-cccc0000")
    (tmp_path / "ion-cccc0000" / "notes").touch()  # whoever put it there wants it
    with leave_folder(tmp_path, "ion-dddd0000", is_alive=True):
        elsewhere = tmp_path / "elsewhere"
        elsewhere.mkdir()
        leave_folder(elsewhere, "ion-eeee0000")
        (tmp_path / "ion-ffff0000").symlink_to(elsewhere / "ion-eeee0000")
        (tmp_path / "ion-gggg0000").mkdir()
        provider = make(state_dir=tmp_path if has_state_folder else None)
        assert (await ask(provider)).text() == "hi"
        assert not (tmp_path / "ion-aaaa0000").exists()
        kept = "ion-bbbb0000", "ion-cccc0000", "ion-dddd0000", "ion-ffff0000", "ion-gggg0000"
        assert {path.name for path in inside(tmp_path)} >= {*kept, "ion-made_by_others"}
        assert (tmp_path / "ion-dddd0000" / "s").exists()
        assert (elsewhere / "ion-eeee0000" / "s").exists()
        assert (tmp_path / "ion-cccc0000" / "notes").exists()


async def test_a_server_that_is_asked_whether_it_lives_hangs_up_and_works_on(
    make: Make, tmp_path: Path
) -> None:
    provider = make()
    assert (await ask(provider)).text() == "hi"
    (folder,) = inside(tmp_path)
    os.utime(folder, (0, 0))
    remove_left(tmp_path)
    assert inside(tmp_path) == [folder]
    reader, writer = await asyncio.open_unix_connection(folder / "s")
    async with asyncio.timeout(10):
        assert await reader.read() == b""  # what stayed open would cost a descriptor each time
    writer.close()
    assert (await ask(provider)).text() == "hi"


async def test_a_crash_fails_the_call_and_the_next_one_works(make: Make) -> None:
    provider = make()
    answer = await ask(provider, "crash")
    assert answer.text() == "one"
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (FailureClass.TRANSIENT, "disconnected")
    assert (await ask(provider)).text() == "hi"
    assert provider.worker.num_starts == 2


async def test_a_crash_fails_every_call_in_flight(make: Make) -> None:
    provider = make()
    endpoint = make_endpoint(None, type="litellm", litellm_provider="toy", upstream_model="flood")
    streams = [provider.stream(make_request(endpoint)) for _ in range(3)]
    for stream in streams:
        await anext(stream)
    assert provider.worker.pid is not None
    os.kill(provider.worker.pid, signal.SIGKILL)
    for stream in streams:
        with pytest.raises(Exception, match="worker ended"):
            async for _ in stream:
                pass


async def test_a_worker_that_cannot_start_says_why_without_secrets(make: Make) -> None:
    provider = make("crash")
    answer = await ask(provider, timeouts=Timeouts(connect_s=1.5))
    assert answer.error is not None
    assert (answer.error.failure, answer.error.code) == (FailureClass.TRANSIENT, "connect_error")
    assert "cannot start" in answer.error.message
    assert "sk-toy" not in answer.error.message
    assert provider.worker.num_starts < 5  # pauses grow: 1, 2, 4 ... seconds


async def test_a_request_waits_for_the_worker_at_most_its_connect_deadline(make: Make) -> None:
    answer = await ask(make("hang"), timeouts=Timeouts(connect_s=0.2))
    assert answer.error is not None
    assert (answer.error.code, answer.error.status) == ("connect_error", 504)


async def test_an_unread_stream_stops_at_its_window_and_others_go_on(make: Make) -> None:
    """G101."""
    provider = make()
    endpoint = make_endpoint(None, type="litellm", litellm_provider="toy", upstream_model="flood")
    async with aclosing(provider.stream(make_request(endpoint))) as slow:
        await anext(slow)
        for i in range(20):
            assert (await ask(provider, text=str(i))).text() == str(i)
        link = await provider.worker.link(1)
        (call,) = link._calls.values()
        assert call._frames.qsize() * 10_000 < 600_000
        count = 1 + len([event async for event in slow])
    assert count == 2001


async def test_closing_while_the_worker_starts_ends_it(make: Make) -> None:
    provider = make("hang")
    await provider.start()
    await until(lambda: provider.worker.pid)
    pid = provider.worker.pid
    assert pid is not None
    await provider.close()
    assert is_gone(pid)


async def test_closing_while_a_worker_that_hung_up_is_waited_for_ends_and_reaps_it(make: Make) -> None:
    provider = make()
    assert (await ask(provider)).text() == "hi"
    pid = provider.worker.pid
    assert (await ask(provider, "leave")).error is not None
    assert pid is not None and not is_gone(pid)
    await asyncio.sleep(0.2)  # its keeper gives it a second
    await provider.close()
    with pytest.raises(ProcessLookupError):
        os.kill(pid, 0)  # not even a zombie is left, which would keep its pipe open


async def test_the_worker_ends_when_the_front_is_killed(tmp_path: Path) -> None:
    front = """
import asyncio, os
from ionrouter.providers.litellm_process import WorkerProcess
async def main():
    worker = WorkerProcess(dict(os.environ), None, module="tests.support.toy_worker")
    await worker.link(60)
    print(worker.pid, flush=True)
    await asyncio.sleep(600)
asyncio.run(main())
"""
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-c", front, stdout=asyncio.subprocess.PIPE, cwd=ROOT
    )
    assert process.stdout is not None
    pid = int(await process.stdout.readline())
    process.kill()
    await process.wait()
    await until(lambda: is_gone(pid))


def test_the_workers_environment_holds_no_api_key() -> None:
    env = {
        "PATH": "/bin", "HOME": "/root", "TOGETHER_API_KEY": "a", "OPENAI_API_KEY": "b", "AZURE_API_KEY": "c",
        "AWS_SECRET_ACCESS_KEY": "d", "HTTPS_PROXY": "http://p", "IONROUTER_KEY": "e", "PYTHONPATH": "/evil",
    }  # fmt: skip
    kept = worker_env(env)
    assert set(kept) == {
        "PATH",
        "HOME",
        "AWS_SECRET_ACCESS_KEY",
        "PYTHONPATH",
        "LITELLM_LOCAL_MODEL_COST_MAP",
    }
    assert kept["PYTHONPATH"] == str(ROOT)
