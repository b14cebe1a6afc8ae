"""Names of servers: kept by the state folder, never held by two, known to be dead when nobody holds them."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from ionrouter.store.instance import Instance, claim


def test_a_name_lasts_as_long_as_the_folder(tmp_path: Path) -> None:
    first = claim(tmp_path / "state")
    assert first.dead == [first.name]
    first.close()
    again = claim(tmp_path / "state")
    assert again.name == first.name
    assert claim(tmp_path / "other").name != again.name
    again.close()


def test_servers_of_one_folder_have_names_of_their_own(tmp_path: Path) -> None:
    first, second = claim(tmp_path), claim(tmp_path)
    assert first.name != second.name
    assert first.name not in second.dead
    first.close()
    third = claim(tmp_path)  # takes the free name, and ends what was left under it
    assert (third.name, third.dead) == (first.name, [first.name])
    second.close()
    third.close()
    last = claim(tmp_path)
    assert sorted(last.dead) == sorted([first.name, second.name])
    last.close()


def test_servers_that_start_at_once_in_a_new_folder_share_it(tmp_path: Path) -> None:
    for attempt in range(20):
        folder, at_once = tmp_path / str(attempt), threading.Barrier(8)

        def start(folder: Path = folder, at_once: threading.Barrier = at_once) -> Instance:
            at_once.wait()
            return claim(folder)

        with ThreadPoolExecutor(8) as pool:
            found = [started.result() for started in [pool.submit(start) for _ in range(8)]]
        root = (folder / "instance").read_text().strip()
        assert sorted(instance.name for instance in found) == [f"{root}-{slot}" for slot in range(8)]
        for instance in found:
            instance.close()


def test_a_dead_name_is_kept_from_others_and_a_living_one_is_not_had(tmp_path: Path) -> None:
    first, second = claim(tmp_path), claim(tmp_path)
    with first.holding(tmp_path, second.name) as is_held:
        assert not is_held
    with first.holding(tmp_path, first.name) as is_held:
        assert is_held
    second.close()
    with first.holding(tmp_path, second.name) as is_held:
        assert is_held
        third = claim(tmp_path)
        assert third.name not in (first.name, second.name)
    fourth = claim(tmp_path)
    assert fourth.name == second.name
    for instance in (first, third, fourth):
        instance.close()


def test_kill_9_frees_the_name(tmp_path: Path) -> None:
    code = (
        "import sys, time; from pathlib import Path; from ionrouter.store.instance import claim; "
        f"i = claim(Path({str(tmp_path)!r})); print(i.name, flush=True); time.sleep(600)"
    )
    with subprocess.Popen([sys.executable, "-c", code], stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        name = process.stdout.readline().strip()
        beside = claim(tmp_path)
        assert name and name not in beside.dead
        beside.close()
        os.kill(process.pid, signal.SIGKILL)
    after = claim(tmp_path)
    assert name in after.dead
    after.close()
