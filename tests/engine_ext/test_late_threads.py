"""What becomes of a thread inside the C++ module when the interpreter has gone meanwhile."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

from tests.support.tiny_llama import TinyLlama

# The thread waits for a reader of the pipe without the interpreter lock and comes back when the interpreter
# finalizes: only then does a global's __del__ read it to its end. 0.5 s for the thread to ask for the lock.
LATE = """
import os, sys, threading, time
from ionrouter.engine import _ion

class Last:
    def __del__(self, open=os.open, flags=os.O_RDONLY, path=sys.argv[1], read=os.read, sleep=time.sleep):
        pipe = open(path, flags)
        while read(pipe, 1 << 16):
            pass
        sleep(0.5)

last = Last()
work = threading.Thread(target=_ion.write_random_model, args=(sys.argv[1], sys.argv[2], 1), daemon=True)
work.start()
"""


def test_a_thread_that_comes_back_after_the_interpreter_ends_nothing(tmp_path: Path) -> None:
    """Python up to 3.13 ends such a thread by unwinding it, which C++ destructors answer with abort."""
    pipe = tmp_path / "pipe.safetensors"
    os.mkfifo(pipe)
    command = [sys.executable, "-c", LATE, str(pipe), TinyLlama().config_json()]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
