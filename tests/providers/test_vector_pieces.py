"""Answers with vectors, cut anywhere: what is read of them is what is read of the whole, bit by bit."""

from __future__ import annotations

import asyncio
import base64
import random
import struct
from typing import Any, cast

import orjson
import pytest

from ionrouter.errors import UpstreamError
from ionrouter.providers.answer import Answer
from ionrouter.providers.normalise import complete
from ionrouter.providers.vector_pieces import VectorReader
from ionrouter.schema import json
from ionrouter.schema.vectors import LARGE, WrittenRows, WrittenVector, rows_in
from tests.support.normalised import ERRORS

USAGE = b'"usage":{"prompt_tokens":3,"total_tokens":3}'
PACKED = base64.b64encode(struct.pack("<2f", 0.1, -2.5))


class Pieces:
    """An upstream's answer in the pieces that were read."""

    def __init__(self, *pieces: bytes) -> None:
        self._pieces = list(pieces)

    async def readany(self) -> bytes:
        return self._pieces.pop(0) if self._pieces else b""


async def read(*pieces: bytes) -> VectorReader:
    reader = VectorReader()
    await reader.read(cast(Answer, Pieces(*pieces)), 1 << 30)
    return reader


def rows(*vectors: bytes) -> bytes:
    listed = b",".join(b'{"index":%d,"embedding":%b}' % (i, vector) for i, vector in enumerate(vectors))
    return b'{"data":[' + listed + b"]," + USAGE + b"}"


def outcome(payload: Any, num_inputs: int) -> Any:
    """What a client would get: the usage and, in both forms, the rows; or the fault."""
    try:
        answer = complete("embeddings", payload, ERRORS, {"input": ["x"] * num_inputs})
    except UpstreamError as fault:
        return fault.code, fault.message
    forms = [rows_in(form, answer.data) for form in ("float", "base64")]
    lists = [
        b"[" + b"".join(f.pieces()) + b"]" if isinstance(f, WrittenRows) else json.dumps(f) for f in forms
    ]
    return answer.usage, answer.upstream_model, [json.loads(written) for written in lists]


PLAIN = {
    "numbers": rows(b"[0.1,-2.5]", b"[1,2e0]"),
    "spaces": rows(b"[ 0.1 ,\n-2.5 ]", b"[\t1, 2.0]").replace(b'"embedding":', b'"embedding" : \n '),
    "digits beyond a double's": rows(b"[0.1000000000000000055511151231257827,1e-400]"),
    "base64": rows(b'"%b"' % PACKED, b'"%b"' % PACKED),
    "both": rows(b'"%b"' % PACKED, b"[0.1,-2.5]"),
    "no number": rows(b"[0.1,-2.5]", b"[0.1,true]"),
    "too large": rows(b"[0.1,1e39]"),
    "not finite": rows(b"[0.1,1e999]"),
    "empty": rows(b"[]"),
    "two sizes": rows(b"[0.1]", b"[0.1,2]"),
    "an error behind them": rows(b"[0.1]")[:-1] + b',"error":{"message":"no","code":503}}',
    "the key in a text": rows(b"[0.1]")[:-1] + b',"model":"\\"embedding\\":[1.0]"}',
}
ODD = {
    "no vectors": b'{"error":{"message":"no","code":429}}',
    "no base64": rows(b'"!"', b"[0.1]"),
    "escapes in base64": rows(b'"AACAPwAA\\u0041AA"', b"[1.0,2.0]"),
    "a list in a list": rows(b"[[0.1]]"),
    "NaN": rows(b"[0.1,NaN]"),
    "twice in a row": rows(b'[0.1],"embedding":[0.2]'),
    "elsewhere too": rows(b"[0.1]")[:-1] + b',"embedding":[0.2]}',
    "not in rows": b'{"data":{"embedding":[0.1]}}',
    "in a key": b'{"data":[{"index":0,"x\\"embedding":[0.1]}]}',
    "no JSON": rows(b"[0.1]")[:-1],
    "a cut vector": b'{"data":[{"embedding":[0.1,',
    "a bare list": b'[{"embedding":[0.1]}]',
    "nothing": b"",
}


@pytest.mark.parametrize("body", [*PLAIN.values(), *ODD.values()], ids=[*PLAIN, *ODD])
async def test_cut_anywhere_it_reads_as_the_whole(body: bytes) -> None:
    for num_inputs in (1, 2):
        try:
            wanted = outcome(json.loads(body), num_inputs)
        except ValueError:
            wanted = None
        for cut in range(len(body) + 1):
            reader = await read(*filter(None, (body[:cut], body[cut : cut + 7], body[cut + 7 :])))
            assert reader.body() == body
            payload = reader.payload()
            if payload is not None:
                assert outcome(payload, num_inputs) == wanted


@pytest.mark.parametrize("body", PLAIN.values(), ids=PLAIN)
async def test_what_is_plain_is_not_parsed_again(body: bytes) -> None:
    assert (await read(body[:20], body[20:])).payload() is not None


async def test_a_mark_of_a_server_before_it_has_no_meaning() -> None:
    body = rows(b'"vector 0123456789abcdef 1"', b"[0.5]")
    assert outcome((await read(body)).payload(), 2)[0] == "malformed"


async def test_a_vector_without_end_is_not_searched_with_each_packet() -> None:
    reader = await read(b'{"data":[{"embedding":[', *[b"1," * 100_000] * 200)
    assert len(reader.body()) == 23 + 200 * 200_000
    assert reader.payload() is None


async def test_others_have_their_turn_meanwhile() -> None:
    rng, turns = random.Random(1), 0
    vectors = [[rng.random() for _ in range(1536)] for _ in range(500)]
    body = orjson.dumps({"data": [{"index": i, "embedding": v} for i, v in enumerate(vectors)]})

    async def count() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    counting = asyncio.create_task(count())
    reader = await read(body)
    counting.cancel()
    assert turns > 10  # of 2 ms and more each; a parser would give none
    data = complete("embeddings", reader.payload(), ERRORS, {"input": ["x"] * 500}).data
    assert all(isinstance(row["embedding"], WrittenVector) for row in data)
    for form in ("float", "base64"):
        large = rows_in(form, data)
        assert isinstance(large, WrittenRows)
        pieces = b"".join(large.pieces())
        assert large.num_bytes() == len(pieces) > LARGE
        read_again = [row["embedding"] for row in orjson.loads(b"[" + pieces + b"]")]
        packed = [struct.pack("<1536f", *vector) for vector in vectors]
        assert read_again == vectors if form == "float" else list(map(base64.b64decode, read_again)) == packed
