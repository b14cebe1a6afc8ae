"""WorkerProcess: keeps one litellm worker alive and connected. Knows nothing of requests or answers.

The socket lies in a private folder (0700) and is itself 0600; only the process we started may connect.
A worker that dies is started again, at once the first time, then with a growing pause. Folders that killed
servers left are removed.
"""

from __future__ import annotations

import asyncio
import os
import re
import shutil
import socket
import stat
import struct
import sys
import tempfile
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import structlog

import ionrouter
from ionrouter.providers.frames import read_frame
from ionrouter.providers.litellm_link import Link

_log = structlog.get_logger(__name__)

WORKER_MODULE = "ionrouter.providers.litellm_worker"
MAX_PAUSE_S = 30.0
MAX_PARENT_BYTES = 84  # "/ion-12345678/s" comes after it; the kernel's sun_path holds 108
LEFT_AFTER_S = 60.0  # a younger folder may be one whose server is about to listen
_FOLDER = re.compile(r"ion-[a-z0-9_]{8}")  # as mkdtemp names it
STDERR_BYTES = 8 * 1024
# What a process needs to run, to find certificates and to sign for clouds that use more than one secret.
_ENV_NAMES = frozenset(
    ("PATH", "HOME", "LANG", "LC_ALL", "TZ", "TMPDIR", "VIRTUAL_ENV", "SSL_CERT_FILE", "SSL_CERT_DIR")
)
_ENV_PREFIXES = ("AWS_", "GOOGLE_", "AZURE_", "VERTEXAI_")


class WorkerProcess:
    """Starts on the first `start` or `link`; `close` ends it. State: the current Link or the wait for it."""

    def __init__(
        self, env: Mapping[str, str], parent_dir: Path | None, *, module: str = WORKER_MODULE
    ) -> None:
        self._module = module
        self._env = env
        self._parent_dir = parent_dir
        self._keeper: asyncio.Task[None] | None = None
        self._ready: asyncio.Future[Link] | None = None
        self._stderr = bytearray()
        self.num_starts = 0
        self.pid: int | None = None

    def start(self) -> None:
        """Begin starting the worker; returns at once."""
        if self._keeper is None:
            self._ready = asyncio.get_running_loop().create_future()
            self._keeper = asyncio.create_task(self._keep())

    async def link(self, timeout_s: float) -> Link:
        """Return the connection to a worker that has litellm imported; TimeoutError after `timeout_s`."""
        self.start()
        assert self._ready is not None
        async with asyncio.timeout(timeout_s):
            while True:
                link = await asyncio.shield(self._ready)
                if not link.is_lost:
                    return link
                await asyncio.sleep(0.01)  # the keeper is about to replace it

    def last_words(self) -> str:
        """Return the end of what the worker wrote to stderr; may hold secrets until redacted."""
        return bytes(self._stderr[-STDERR_BYTES:]).decode("utf-8", "replace").strip()

    async def close(self) -> None:
        """End the worker and remove the socket."""
        if self._keeper is not None:
            self._keeper.cancel()
            await asyncio.gather(self._keeper, return_exceptions=True)
            self._keeper = None
        if self._ready is not None and not self._ready.done():
            self._ready.set_exception(ConnectionError("the litellm worker is closed"))
            self._ready.exception()  # nobody may be waiting
        self._ready = None

    async def _keep(self) -> None:
        num_failures = 0
        while True:
            try:
                was_ready = await self._live_once()
            except Exception as error:  # no descriptors, no memory: the next try may have them
                if num_failures == 0:  # once, not once a try
                    _log.warning("litellm_worker_not_started", error=repr(error))
                was_ready = False
            num_failures = 0 if was_ready else num_failures + 1
            await asyncio.sleep(min(0.5 * 2**num_failures, MAX_PAUSE_S) if num_failures else 0)

    async def _live_once(self) -> bool:
        """Run one worker from start to death; True when it got as far as serving."""
        arrived: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]] = asyncio.Queue()
        process: asyncio.subprocess.Process | None = None
        server: asyncio.Server | None = None
        folder = self._make_folder()
        try:
            path = str(folder / "s")
            server = await asyncio.start_unix_server(lambda r, w: arrived.put_nowait((r, w)), path)
            os.chmod(path, 0o600)
            process = await self._spawn(path)
            return await self._serve(process, arrived)
        finally:
            if server is not None:
                server.close()
            shutil.rmtree(folder, ignore_errors=True)
            if process is not None:
                await _end(process)
            self.pid = None

    async def _spawn(self, path: str) -> asyncio.subprocess.Process:
        self.num_starts += 1
        process = await asyncio.create_subprocess_exec(
            sys.executable,
            "-P",  # the working directory must not be able to shadow a module
            "-m",
            self._module,
            path,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.DEVNULL,
            stderr=asyncio.subprocess.PIPE,
            env=worker_env(self._env),
        )
        self.pid = process.pid
        return process

    async def _serve(self, process: asyncio.subprocess.Process, arrived: asyncio.Queue[Any]) -> bool:
        """Wait for the worker to be ready, publish its Link, and return when it is gone."""
        listening = asyncio.create_task(self._collect_stderr(process))
        ended = asyncio.create_task(process.wait())
        connected = asyncio.create_task(_connection(process, arrived))
        tasks: list[asyncio.Task[Any]] = [connected, ended, listening]
        link: Link | None = None
        try:
            await asyncio.wait({connected, ended}, return_when=asyncio.FIRST_COMPLETED)
            if not connected.done() or (streams := connected.result()) is None:
                return False
            link = Link(*streams)
            assert self._ready is not None
            self._ready.set_result(link)
            tasks.append(asyncio.create_task(_turn_away(arrived)))
            await link.run()
            self._ready = asyncio.get_running_loop().create_future()
            return True
        finally:
            if link is not None:
                link.close()
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    async def _collect_stderr(self, process: asyncio.subprocess.Process) -> None:
        assert process.stderr is not None
        while data := await process.stderr.read(4096):
            self._stderr += data
            del self._stderr[:-STDERR_BYTES]

    def _make_folder(self) -> Path:
        """Make the socket's folder, ours alone: in the state folder, else a temporary one."""
        parent = self._parent_dir
        if parent is not None and len(os.fsencode(parent)) <= MAX_PARENT_BYTES:
            with suppress(OSError):  # the state folder cannot be used: a server goes on without one
                parent.mkdir(parents=True, exist_ok=True)
                remove_left(parent)
                return Path(tempfile.mkdtemp(prefix="ion-", dir=parent))
        remove_left(Path(tempfile.gettempdir()))
        return Path(tempfile.mkdtemp(prefix="ion-"))


def remove_left(parent: Path) -> None:
    """Remove the folders of sockets that nobody listens at any more: those of servers that were killed.

    Only what `_make_folder` makes, and the socket in it: whatever else is there stays. What cannot be looked
    at or removed stays, too.
    """
    with suppress(OSError), os.scandir(parent) as entries:
        for entry in entries:
            if _FOLDER.fullmatch(entry.name):
                with suppress(OSError):
                    _remove_if_left(entry)


def _remove_if_left(entry: os.DirEntry[str]) -> None:
    """Remove one folder if its socket refuses a connection; links are not followed. Raises OSError."""
    found, path = entry.stat(follow_symlinks=False), os.path.join(entry.path, "s")
    is_ours = stat.S_ISDIR(found.st_mode) and found.st_uid == os.getuid()
    if (
        not is_ours
        or time.time() - found.st_mtime < LEFT_AFTER_S
        or not stat.S_ISSOCK(os.lstat(path).st_mode)
    ):
        return
    with socket.socket(socket.AF_UNIX) as asking:
        asking.setblocking(False)  # a server that is too busy to answer lives
        try:
            asking.connect(path)
        except ConnectionRefusedError:
            os.unlink(path)
            os.rmdir(entry.path)


async def _connection(
    process: asyncio.subprocess.Process, arrived: asyncio.Queue[Any]
) -> tuple[asyncio.StreamReader, asyncio.StreamWriter] | None:
    """Wait for our own worker to connect and to say `ready`; None when it ends before."""
    while True:
        reader, writer = await arrived.get()
        if _peer_pid(writer) != process.pid:
            writer.close()
            continue
        try:
            read = await read_frame(reader)
        except asyncio.CancelledError:
            writer.close()  # the sign to leave, for a worker in the middle of its import
            raise
        return (reader, writer) if read is not None and read[0]["op"] == "ready" else None


async def _turn_away(arrived: asyncio.Queue[tuple[asyncio.StreamReader, asyncio.StreamWriter]]) -> None:
    """Close what connects beside the worker: another server that looks whether we live."""
    while True:
        _, writer = await arrived.get()
        writer.close()


def _peer_pid(writer: asyncio.StreamWriter) -> int:
    """SO_PEERCRED: struct ucred {pid, uid, gid}."""
    peer = writer.get_extra_info("socket").getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, 12)
    return int(struct.unpack("3i", peer)[0])


async def _end(process: asyncio.subprocess.Process) -> None:
    """The closed socket is the sign to leave; after a moment it is taken by the collar."""
    try:
        with suppress(TimeoutError):
            async with asyncio.timeout(1.0):
                await process.wait()
    finally:  # cancelled, too: an unreaped process keeps its pipe and its place
        if process.returncode is None:
            process.kill()
            await process.wait()


def worker_env(env: Mapping[str, str]) -> dict[str, str]:
    """Return the worker's environment: no provider's API key; those travel with each call."""
    kept = {
        name: value
        for name, value in env.items()
        if name in _ENV_NAMES or (name.startswith(_ENV_PREFIXES) and not name.endswith("_API_KEY"))
    }
    package_root = str(Path(ionrouter.__file__).resolve().parent.parent)
    return {**kept, "PYTHONPATH": package_root, "LITELLM_LOCAL_MODEL_COST_MAP": "True"}
