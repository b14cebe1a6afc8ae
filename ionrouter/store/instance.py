"""What this server is called in the store, so that after a crash it knows which requests were its own.

A name lasts as long as the state folder: a random one and a slot, of which every running server locks one.
"""

from __future__ import annotations

import fcntl
import os
import secrets
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

from ionrouter.store.database import write_private

MAX_SLOTS = 64


@dataclass(frozen=True, slots=True)
class Instance:
    """`dead`: names of this folder that no living server has, its own included; requests of theirs ended."""

    name: str
    dead: Sequence[str]
    lock: int | None = None  # a file descriptor, for the life of the process
    living: Sequence[str] = ()  # names that others of this folder had when it began

    def knows(self, name: str) -> bool:
        """Ask whether a name is of this folder, so that a lock says whether its server lives."""
        return name.rpartition("-")[0] == self.name.rpartition("-")[0]

    @contextmanager
    def holding(self, folder: Path, name: str) -> Iterator[bool]:
        """Keep a dead name from a server that starts just now; False: one has it. Its own it has already."""
        lock = None if name == self.name else _lock(folder, int(name.rpartition("-")[2]))
        try:
            yield lock is not None or name == self.name
        finally:
            if lock is not None:
                os.close(lock)

    def close(self) -> None:
        if self.lock is not None:
            os.close(self.lock)


def claim(folder: Path) -> Instance:
    """Take the first free slot of a state folder; raises OSError where the folder cannot be written.

    Of several that start at once one does so after the other.
    """
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
    turn = os.open(folder / "instance.lock", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(turn, fcntl.LOCK_EX)
        return _claimed(folder)
    finally:
        os.close(turn)


def _claimed(folder: Path) -> Instance:
    root = _root(folder)
    used = [slot for slot in range(MAX_SLOTS) if (folder / f"instance.{slot}").exists()]
    unused = next(slot for slot in range(MAX_SLOTS + 1) if slot not in used)
    locks = _locks(folder, used) or _locks(folder, [unused])
    if not locks:
        raise OSError(f"{folder}: another server took the slot {unused} just now")
    mine = min(locks)
    for slot, lock in locks.items():
        if slot != mine:
            os.close(lock)
    living = [f"{root}-{slot}" for slot in used if slot not in locks]
    return Instance(f"{root}-{mine}", [f"{root}-{slot}" for slot in locks], locks[mine], living)


def _locks(folder: Path, slots: Sequence[int]) -> dict[int, int]:
    return {slot: lock for slot in slots if (lock := _lock(folder, slot)) is not None}


def _lock(folder: Path, slot: int) -> int | None:
    descriptor = os.open(folder / f"instance.{slot}", os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX | fcntl.LOCK_NB)
    except BlockingIOError:
        os.close(descriptor)
        return None
    return descriptor


def _root(folder: Path) -> str:
    path = folder / "instance"
    if not path.exists():
        write_private(path, secrets.token_hex(8) + "\n")
    return path.read_text().strip()
