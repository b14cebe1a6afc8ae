"""Puts the interpreter's heap on huge pages, once it has taken shape. Linux; elsewhere nothing happens.

A request touches some thousand places all over tens of megabytes: more pages of 4 KiB than a processor keeps
addresses of. Most systems give huge pages only to who asks for them (`madvise` in
/sys/kernel/mm/transparent_hugepage/enabled), which no allocator of Python's does.
"""

from __future__ import annotations

import re
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import structlog

_log = structlog.get_logger(__name__)

SMAPS = "/proc/self/smaps"
PAGE_BYTES = 2 << 20
LARGEST_BYTES = 64 << 20  # what is larger is no heap of Python's: weights and KV look after themselves
MIN_RESIDENT = 0.75  # of a mapping: a thread's stack, which is nearly empty, would only grow
AFTER_S = (2.0, 60.0)  # once all that a start imports is there, and once requests have run
_MADV_COLLAPSE = 25  # make huge pages now, whatever the system's habit (Linux 6.1)
_MAPPING = re.compile(r"([0-9a-f]+)-([0-9a-f]+) rw-p [0-9a-f]+ 00:00 0 *(\[heap\])?$")


def adopt_in_a_while() -> None:
    """Do it in a thread of its own; the kernel's copying takes some 20 ms and holds nobody up."""
    threading.Thread(target=_adopt_twice, name="huge-pages", daemon=True).start()


def _adopt_twice() -> None:
    for pause_s in AFTER_S:
        time.sleep(pause_s)
        num_bytes = adopt()
        if num_bytes == 0:
            return
        _log.debug("huge_pages_adopted", num_bytes=num_bytes)


def adopt() -> int:
    """Move what is resident of the heap onto huge pages; returns its bytes, 0 where the system has none."""
    try:
        heap = list(_heap())
    except OSError:
        return 0  # no such file: another system
    import ctypes  # a start needs none of it

    madvise, moved = ctypes.CDLL(None).madvise, 0
    for start, num_bytes in heap:
        place, length = ctypes.c_void_p(start), ctypes.c_size_t(num_bytes)
        if madvise(place, length, ctypes.c_int(_MADV_COLLAPSE)) == 0:
            moved += num_bytes
    return moved


def _heap() -> Iterator[tuple[int, int]]:
    """Address and bytes of the whole huge pages in each mapping that is the heap's."""
    with Path(SMAPS).open(encoding="utf-8", errors="replace") as lines:
        start = end = 0
        for line in lines:
            if (found := _MAPPING.match(line)) is not None:
                start, end = int(found[1], 16), int(found[2], 16)
            elif line.startswith("Rss:"):
                size, resident = end - start, int(line.split()[1]) * 1024
                first, last = -(-start // PAGE_BYTES) * PAGE_BYTES, end // PAGE_BYTES * PAGE_BYTES
                if first < last and size <= LARGEST_BYTES and resident >= MIN_RESIDENT * size:
                    yield first, last - first
                start = end = 0  # other mappings have such lines too
