"""The runner's C++ tests, built once into build/model_tests and run on a tiny random model."""

import fcntl
import os
import shutil
import subprocess
import sys
from pathlib import Path

from gguf import GGMLQuantizationType as TensorType

from tests.support.tiny_llama import TinyLlama, write_gguf

HERE = Path(__file__).parent
BUILD = HERE.parents[2] / "build" / "model_tests"
BUILD_LIMIT_S = 1800.0  # a guard: a build on two busy cores


def run(*command: str | Path, **environment: str) -> None:
    done = subprocess.run(
        command, capture_output=True, timeout=BUILD_LIMIT_S, env=os.environ | environment, check=False
    )
    said = (done.stdout + done.stderr)[-8000:].decode(errors="replace")
    assert done.returncode == 0, f"{command[0]} ended with {done.returncode}:\n{said}"


def tool(name: str) -> str:
    """Find a build tool beside this Python first: a virtual environment need not be activated."""
    path = f"{Path(sys.executable).parent}{os.pathsep}{os.environ.get('PATH', os.defpath)}"
    found = shutil.which(name, path=path)
    assert found, f"{name} is needed to build the engine's tests"
    return found


def build() -> Path:
    BUILD.parent.mkdir(parents=True, exist_ok=True)
    with BUILD.with_suffix(".lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        is_new = not (BUILD / "CMakeCache.txt").exists()
        ninja = ["-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={tool('ninja')}"] if is_new else []
        run(tool("cmake"), "-S", HERE, "-B", BUILD, *ninja)
        run(tool("cmake"), "--build", BUILD, "--parallel", "2")
    return BUILD / "test_cpu_runner"


def test_the_runner_does_what_its_tests_say(tmp_path: Path) -> None:
    shape = TinyLlama(vocab_size=503)
    write_gguf(tmp_path / "x.gguf", shape, shape.weights(1), TensorType.Q8_0)
    run(build(), ION_TEST_MODEL=str(tmp_path / "x.gguf"))
