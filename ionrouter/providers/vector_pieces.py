"""Reads answers with vectors as they come, so that nobody else waits for all of one.

A batch of 2048 vectors is 40 MB of JSON and a third of a second for a parser, which holds the interpreter: a
thread would not help. Vectors are cut out and checked one by one; what is left is parsed as any other answer.
"""

from __future__ import annotations

import re
import secrets
from codecs import BOM_UTF8
from typing import Any, Protocol

from ionrouter.pace import Pace
from ionrouter.schema import json
from ionrouter.schema.vectors import WrittenVector, written

# Where a vector begins. Such bytes are in no string: there, quotes are escaped.
_BEGIN = re.compile(rb'"embedding"\s*:\s*([\["])')
_END = {b"[": b"]", b'"': b'"'}
_NUM_KEPT = 64  # bytes in which such a beginning may itself begin
_MAX_VECTOR = 4 * 1024 * 1024  # bytes; what is longer is none, and not looked at again with each packet
# Stands where a vector was; nobody else knows it, so no upstream can have written it.
_MARK = f"vector {secrets.token_hex(8)} "


class Source(Protocol):
    """Where bytes come from: `readany` waits for some, and gives b"" at the end."""

    async def readany(self) -> bytes: ...


class VectorReader:
    """One answer: its bytes as they are, and the same with marks for its vectors."""

    def __init__(self) -> None:
        self.num_bytes = 0
        self._pieces: list[bytes] = []  # all of it but `_left`
        self._rest: list[bytes] = []
        self._vectors: list[WrittenVector | None] = []  # None: it is none
        self._left = b""
        self._has_given_up = False

    async def read(self, response: Source, max_bytes: int) -> None:
        """Read to the end or to about `max_bytes`; raises what the source raises, HttpFault of an Answer."""
        pace = Pace()
        while self.num_bytes < max_bytes and (data := await response.readany()):
            self.num_bytes += len(data)
            if self._has_given_up:
                self._pieces.append(data)
            else:
                await self._feed(self._left + data, pace)
        self._keep(self._left)

    def payload(self, within: str | None = None) -> Any:
        """Parse it; None where it is not of the plain shape, no JSON even: `body` tells.

        `within`: the field that holds the answer with the vectors, if it is a part of what was read.
        """
        try:
            payload = json.loads(b"".join(self._rest).removeprefix(BOM_UTF8))
        except ValueError:
            return None
        answer = payload.get(within) if within is not None and isinstance(payload, dict) else payload
        return payload if self._vectors and self._put_back(answer) else None

    def rest(self) -> bytes:
        """What is around the vectors, as far as it came."""
        return b"".join((*self._rest, self._left))

    def body(self) -> bytes:
        """All that came."""
        return b"".join(self._pieces)

    async def _feed(self, data: bytes, pace: Pace) -> None:
        begin = 0
        while (found := _BEGIN.search(data, begin)) is not None:
            start = found.start(1)
            end = data.find(_END[found[1]], start + 1) + 1
            if end == 0:
                break
            self._keep(data[begin:start])
            self._take(data[start:end])
            begin = end
            await pace.keep()
        if found is None and begin < len(data) - _NUM_KEPT:
            self._keep(data[begin:-_NUM_KEPT])
            begin = len(data) - _NUM_KEPT
        self._left = data[begin:]
        if len(self._left) > _MAX_VECTOR:
            self._has_given_up = True
            self._pieces.append(self._left)
            self._left = b""

    def _keep(self, data: bytes) -> None:
        self._pieces.append(data)
        self._rest.append(data)

    def _take(self, text: bytes) -> None:
        """Put a mark in a vector's place; text that is no base64 stays, it may have escapes."""
        self._pieces.append(text)
        try:
            vector = written(text)
        except ValueError:
            if text.startswith(b'"'):
                self._rest.append(text)
                return
            vector = None
        self._rest.append(b'"%s%d"' % (_MARK.encode(), len(self._vectors)))
        self._vectors.append(vector)

    def _put_back(self, payload: Any) -> bool:
        """Give each row its vector; False where a mark stands elsewhere."""
        rows = payload.get("data") if isinstance(payload, dict) else None
        num_found = 0
        for row in rows if isinstance(rows, list) else ():
            if isinstance(row, dict) and row.get("embedding") == f"{_MARK}{num_found}":
                row["embedding"] = self._vectors[num_found]
                num_found += 1
        return num_found == len(self._vectors) and not self._has_given_up
