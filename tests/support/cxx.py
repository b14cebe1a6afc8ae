"""Build a folder of C++ tests with CMake, once for all test workers, and run its executables.

Knows no engine: a folder with a CMakeLists.txt goes in, a build folder comes out.
"""

from __future__ import annotations

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
BUILD_LIMIT_S = 1800.0  # a guard: a build on two busy cores


def run(
    *command: str | Path, limit_s: float = 600.0, given: bytes | None = None, **environment: str
) -> bytes:
    """Run a command to its end and return what it printed; what it said is shown if it failed."""
    done = subprocess.run(
        command, input=given, capture_output=True, timeout=limit_s, env=os.environ | environment, check=False
    )
    said = (done.stdout + done.stderr)[-8000:].decode(errors="replace")
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{said}"
    return done.stdout


def tool(name: str) -> str:
    """Find a build tool beside this Python first: a virtual environment need not be activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which(name, path=path)
    assert found, f"{name} is needed to build the engine's tests"
    return found


def built(source: Path, name: str) -> Path:
    """Configure and build `source` into build/NAME under a lock between processes; returns that folder."""
    build, cmake = ROOT / "build" / name, tool("cmake")
    build.parent.mkdir(parents=True, exist_ok=True)
    with build.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        # The generator of a folder is fixed at its first configuration, so it is chosen only then.
        is_new = not (build / "CMakeCache.txt").exists()
        ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"] if is_new else []
        run(cmake, "-S", source, "-B", build, *ninja)
        run(cmake, "--build", build, "--parallel", "2", limit_s=BUILD_LIMIT_S)
    return build
