"""The heap goes to huge pages: which mappings are its, and that nothing in them changes."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from ionrouter import huge_pages

MIB = 1 << 20
MAPS = f"""\
{2 * MIB:x}-{6 * MIB:x} rw-p 00000000 00:00 0
Size:               4096 kB
Rss:                4096 kB
VmFlags: rd wr mr mw me ac
{10 * MIB - 4096:x}-{15 * MIB:x} rw-p 00000000 00:00 0                          [heap]
Rss:                4000 kB
{20 * MIB:x}-{28 * MIB:x} rw-p 00000000 00:00 0
Rss:                  16 kB
{30 * MIB:x}-{34 * MIB:x} r--p 00000000 00:00 0
Rss:                4096 kB
{40 * MIB:x}-{44 * MIB:x} rw-p 00000000 fe:01 4711                       /usr/lib/libc.so.6
Rss:                4096 kB
{50 * MIB:x}-{50 * MIB + 4096:x} rw-p 00000000 00:00 0
Rss:                   4 kB
{60 * MIB:x}-{160 * MIB:x} rw-p 00000000 00:00 0
Rss:              102400 kB
{200 * MIB:x}-{204 * MIB:x} rw-p 00000000 00:00 0                          [stack]
Rss:                4096 kB
"""

PROGRAM = """\
from ionrouter import huge_pages
def huge():
    with open("/proc/self/smaps_rollup") as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("AnonHugePages"))
kept = [(k, str(k)) for k in range(300_000)]
before, moved = huge(), huge_pages.adopt()
assert kept == [(k, str(k)) for k in range(300_000)]
print(moved, huge() - before)
"""


def test_only_what_is_dense_anonymous_and_writable_is_the_heap(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    maps = tmp_path / "smaps"
    maps.write_text(MAPS)
    monkeypatch.setattr(huge_pages, "SMAPS", str(maps))
    # Not a thread's empty stack, a file, one page, or what an engine holds.
    assert list(huge_pages._heap()) == [(2 * MIB, 4 * MIB), (10 * MIB, 4 * MIB)]


def test_the_heap_is_on_huge_pages_and_unchanged() -> None:
    ran = subprocess.run([sys.executable, "-c", PROGRAM], capture_output=True, text=True, check=False)
    assert ran.returncode == 0, ran.stderr
    moved, grown_kb = map(int, ran.stdout.split())
    if moved == 0:
        pytest.skip("this system makes no huge pages when asked to (Linux 6.1 or newer does)")
    assert grown_kb * 1024 >= moved // 2


def test_where_there_are_none_nothing_happens(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(huge_pages, "SMAPS", "/nowhere/smaps")
    assert huge_pages.adopt() == 0
    monkeypatch.setattr(huge_pages, "AFTER_S", (0.0, 0.0))
    rounds: list[int] = []
    monkeypatch.setattr(huge_pages, "adopt", lambda: rounds.append(1) or len(rounds) % 2)
    huge_pages._adopt_twice()
    assert len(rounds) == 2  # again, once requests have run
    monkeypatch.setattr(huge_pages, "adopt", lambda: rounds.append(1) or 0)
    huge_pages._adopt_twice()
    assert len(rounds) == 3  # nothing to gain here
