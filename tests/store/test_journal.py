"""The journal: what was added and not released is found by whoever comes next, whole and in order."""

from __future__ import annotations

import os
import random
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from ionrouter.store.journal import START, Journal, rows_left


def test_what_was_added_is_found_until_it_is_released(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    assert rows_left(path) == []
    journal = Journal(path)
    assert [journal.add(row) for row in (b"a", b"", b"c" * 5000)] == [1, 2, 3]
    assert rows_left(path) == [b"a", b"", b"c" * 5000]
    journal.release(2)
    journal.release(1)  # late: nothing comes back
    assert rows_left(path) == [b"c" * 5000]
    journal.release(3)
    assert rows_left(path) == []
    assert path.stat().st_mode & 0o777 == 0o600
    journal.close()
    Journal(path).close()
    assert rows_left(path) == []


def test_a_full_journal_takes_nothing_until_a_whole_segment_is_released(tmp_path: Path) -> None:
    journal = Journal(tmp_path / "journal", segment_bytes=100)
    assert [journal.add(b"x" * 34) for _ in range(5)] == [1, 2, 3, 4, 0]
    journal.release(1)
    assert journal.add(b"x" * 34) == 0
    journal.release(2)
    assert [journal.add(bytes([65 + i]) * 34) for i in range(3)] == [5, 6, 0]
    assert rows_left(tmp_path / "journal") == [b"x" * 34] * 2 + [b"A" * 34, b"B" * 34]
    assert journal.add(b"x" * 101) == 0
    journal.release(6)
    assert journal.add(b"x" * 85) == 0, "longer than a segment has room for"
    assert journal.add(b"x" * 84) == 7


def test_after_any_number_of_turns_exactly_what_is_not_released_is_found(tmp_path: Path) -> None:
    rng, path = random.Random(1), tmp_path / "journal"
    journal, rows, released = Journal(path, segment_bytes=2000), {}, 0
    for _ in range(3000):
        row = rng.randbytes(rng.randrange(200))
        if number := journal.add(row):
            rows[number] = row
        if rng.random() < 0.2 and rows:
            released = rng.randrange(released, max(rows) + 1)
            journal.release(released)
        if rng.random() < 0.05:
            assert rows_left(path) == [rows[n] for n in sorted(rows) if n > released]
    assert max(rows) > 500


@pytest.mark.parametrize("at", [0, 8, 12, 16, 20, 115])
def test_a_row_that_is_damaged_ends_its_segment(tmp_path: Path, at: int) -> None:
    """As a kill in the middle of a copy leaves it; 116 bytes a row."""
    path = tmp_path / "journal"
    journal = Journal(path)
    for letter in (b"a", b"b", b"c"):
        journal.add(letter * 100)
    content = bytearray(path.read_bytes())
    content[START + 116 + at] ^= 0x55
    path.write_bytes(content)
    assert rows_left(path) == [b"a" * 100]
    path.write_bytes(content[: START + 116])  # cut short
    assert rows_left(path) in ([], [b"a" * 100])
    path.write_bytes(b"")
    assert rows_left(path) == []


def test_what_a_killed_process_added_is_found(tmp_path: Path) -> None:
    path = tmp_path / "journal"
    script = (
        "import sys, time; from pathlib import Path; from ionrouter.store.journal import Journal\n"
        "journal = Journal(Path(sys.argv[1]))\n"
        "for number in range(500): journal.add(b'row %d' % number)\n"
        "journal.release(100); print('added', flush=True); time.sleep(60)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, str(path)], stdout=subprocess.PIPE)
    assert process.stdout is not None and process.stdout.readline() == b"added\n"
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert rows_left(path) == [b"row %d" % number for number in range(100, 500)]


def test_a_place_without_room_is_an_error_and_leaves_nothing(tmp_path: Path) -> None:
    with pytest.raises(OSError, match="nowhere"):
        Journal(tmp_path / "nowhere" / "journal")
    script = (
        "import resource, signal, sys; from pathlib import Path\n"
        "from ionrouter.store.journal import Journal\n"
        "signal.signal(signal.SIGXFSZ, signal.SIG_IGN)\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100000, 100000))\n"
        "try: Journal(Path(sys.argv[1]))\n"
        "except OSError as error: print(error)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", script, str(tmp_path / "journal")], capture_output=True, text=True, check=True
    )
    assert "File too large" in done.stdout
    assert not (tmp_path / "journal").exists()
