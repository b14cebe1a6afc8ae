"""The log is emptied beside the writer, and what is in it is in the file."""

from __future__ import annotations

import time
from pathlib import Path

from ionrouter.store.checkpointer import EVERY_WRITES, Checkpointer
from ionrouter.store.sqlite_file import open_database

GUARD_S = 60.0


def test_enough_writes_reach_the_file_without_the_writer(tmp_path: Path) -> None:
    path = tmp_path / "state" / "ionrouter.db"
    writer = open_database(path)
    writer.execute("PRAGMA wal_autocheckpoint=0")
    checkpointer = Checkpointer(path, lambda: None)
    checkpointer.start()
    for number in range(EVERY_WRITES):
        writer.execute("INSERT INTO key_usage VALUES (?, 1, 0.5, 1, 2.0)", (f"needle-{number}",))
    assert b"needle-0" not in path.read_bytes()
    checkpointer.note(EVERY_WRITES - 1)
    checkpointer.note(1)
    deadline = time.monotonic() + GUARD_S
    while b"needle-0" not in path.read_bytes():
        assert time.monotonic() < deadline
        time.sleep(0.01)
    checkpointer.close()
    writer.close()


def test_a_fault_is_told_and_the_next_turn_tries_again(tmp_path: Path) -> None:
    blocked = tmp_path / "state"
    blocked.write_text("a file where the folder should be")
    faults: list[int] = []
    checkpointer = Checkpointer(blocked / "ionrouter.db", lambda: faults.append(1))
    checkpointer.start()
    for num_faults in (1, 2):
        checkpointer.note(EVERY_WRITES)
        deadline = time.monotonic() + GUARD_S
        while len(faults) < num_faults:
            assert time.monotonic() < deadline
            time.sleep(0.01)
    checkpointer.close()
