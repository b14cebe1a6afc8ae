"""The C++ tests of engine_ext/core, built once into build/engine_ext_tests and run one executable a test.

Knows no C++: each executable says on its own what failed (tests/engine_ext/check.h).
"""

import fcntl
import os
import shutil
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

HERE = Path(__file__).parent
BUILD = HERE.parent.parent / "build" / "engine_ext_tests"
EXECUTABLES = sorted(source.stem for source in HERE.glob("core/test_*.cpp"))


def run(*command: str | Path, limit_s: float) -> None:
    done = subprocess.run(
        command, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, timeout=limit_s
    )
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{done.stdout[-8000:]}"


def tool(name: str) -> str:
    """Find a build tool beside this Python first: a virtual environment need not be activated."""
    beside = Path(sys.executable).parent
    found = shutil.which(name, path=f"{beside}{os.pathsep}{os.environ.get('PATH', os.defpath)}")
    assert found, f"{name} is needed to build the engine's tests"
    return found


@contextmanager
def exclusive(path: Path) -> Iterator[None]:
    """Hold a lock between processes: parallel test workers share the build folder."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with path.open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield


@pytest.fixture(scope="session")
def build() -> Path:
    cmake = tool("cmake")
    with exclusive(BUILD.with_suffix(".lock")):
        # The generator of a folder is fixed at its first configuration, so it is chosen only then.
        is_new = not (BUILD / "CMakeCache.txt").exists()
        ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"] if is_new else []
        run(cmake, "-S", HERE, "-B", BUILD, *ninja, limit_s=300)
        run(cmake, "--build", BUILD, "--parallel", "2", limit_s=1800)
    return BUILD


@pytest.mark.parametrize("name", EXECUTABLES)
def test_the_core_does_what_its_tests_say(build: Path, name: str) -> None:
    run(build / name, limit_s=600)


def test_every_core_test_is_found() -> None:
    assert {"test_detokenizer", "test_stop_matcher", "test_scheduler", "test_engine"} <= set(EXECUTABLES)
