"""A real PostgreSQL server on a free port: its own data folder, its own process, gone at the end."""

from __future__ import annotations

import ctypes
import os
import pwd
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from itertools import count
from pathlib import Path
from typing import Any

import psycopg

GUARD_S = 60.0
AT_ONCE = signal.SIGINT  # PostgreSQL's fast shutdown: connections are cut, what was committed is kept
MISSING = "PostgreSQL is not installed (Debian: apt-get install postgresql)"
# A test's server is never asked to outlive its machine.
OPTIONS = ("fsync=off", "full_page_writes=off", "shared_buffers=16MB", "max_connections=100")


def programs() -> Path | None:
    """The folder of initdb and postgres, of the newest version; None: not installed."""
    found = shutil.which("initdb")
    if found is not None:
        return Path(found).parent
    folders = sorted(Path("/usr/lib/postgresql").glob("*/bin"), key=lambda p: float(p.parent.name))
    return next((folder for folder in reversed(folders) if (folder / "initdb").exists()), None)


@dataclass
class Postgres:
    """A running server with one superuser, `ion`, and as many databases as are asked for."""

    folder: Path
    port: int
    bin: Path
    process: subprocess.Popen[bytes] | None = None
    _numbers: count[int] = field(default_factory=count)

    def url(self, database: str) -> str:
        return f"postgresql://ion@127.0.0.1:{self.port}/{database}"

    def new_database(self) -> str:
        """Make an empty database; returns its URL."""
        name = f"ion{next(self._numbers)}"
        with self.connect("postgres") as connection:
            connection.execute(f"CREATE DATABASE {name}".encode())
        return self.url(name)

    def connect(self, database: str) -> psycopg.Connection[Any]:
        return psycopg.connect(self.url(database), autocommit=True)

    def start(self) -> None:
        options = [part for option in OPTIONS for part in ("-c", option)]
        command = [
            str(self.bin / "postgres"), "-D", str(self.folder / "data"), "-p", str(self.port),
            "-c", "listen_addresses=127.0.0.1", "-c", "unix_socket_directories=", *options,
        ]  # fmt: skip
        with (self.folder / "postgres.log").open("ab") as log:
            self.process = subprocess.Popen(
                command, cwd="/", stdout=log, stderr=log, preexec_fn=_end_with_the_tests, **_as_somebody()
            )
        deadline = time.monotonic() + GUARD_S
        while True:
            try:
                self.connect("postgres").close()
                return
            except psycopg.OperationalError as error:
                if time.monotonic() > deadline or self.process.poll() is not None:
                    log_text = (self.folder / "postgres.log").read_text()
                    raise TimeoutError(f"PostgreSQL did not start: {error}\n{log_text}") from error
                time.sleep(0.05)

    def stop(self) -> None:
        """Cut all connections and end it."""
        if self.process is not None:
            self.process.send_signal(AT_ONCE)
            self.process.wait(GUARD_S)
            self.process = None

    @contextmanager
    def hanging(self) -> Iterator[None]:
        """Let it do nothing and say nothing, its connections open, as on a disk that does not answer."""
        assert self.process is not None
        asked = ["ps", "-o", "pid=", "--ppid", str(self.process.pid)]
        children = subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
        stopped = [self.process.pid, *map(int, children)]
        for pid in stopped:
            os.kill(pid, signal.SIGSTOP)
        try:
            yield
        finally:
            for pid in stopped:
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGCONT)


def _end_with_the_tests() -> None:
    """Ask the kernel to stop the server when the tests die without a chance to do it (Linux)."""
    set_parent_death_signal = 1  # PR_SET_PDEATHSIG, linux/prctl.h
    if sys.platform == "linux":
        ctypes.CDLL(None).prctl(set_parent_death_signal, AT_ONCE)


def _as_somebody() -> dict[str, Any]:
    """PostgreSQL refuses to run as root."""
    if os.geteuid() != 0:
        return {}
    user = pwd.getpwnam("postgres")
    return {"user": user.pw_uid, "group": user.pw_gid, "extra_groups": []}


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


@contextmanager
def running_postgres(bin_folder: Path) -> Iterator[Postgres]:
    """Make and start a server; stop it and delete its files at the end."""
    folder = Path(tempfile.mkdtemp(prefix="ionrouter-postgres-"))
    try:
        if os.geteuid() == 0:
            shutil.chown(folder, "postgres", "postgres")
        command = [
            str(bin_folder / "initdb"), "-D", str(folder / "data"), "-U", "ion", "-A", "trust", "-E", "UTF8",
            "--locale=C", "--no-sync",
        ]  # fmt: skip
        subprocess.run(command, cwd="/", check=True, capture_output=True, timeout=GUARD_S, **_as_somebody())
        server = Postgres(folder, free_port(), bin_folder)
        server.start()
        try:
            yield server
        finally:
            server.stop()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
