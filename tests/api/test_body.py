"""What a request body may be, over a real socket: its size and its JSON."""

from __future__ import annotations

import asyncio
import gzip
import json
import zlib
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from ionrouter.api.body import MAX_DEPTH
from tests.support.edge import EdgeServer, edge_server
from tests.support.packed import packed

CHAT = "/api/v1/chat/completions"
OK: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


async def _raw(server: EdgeServer, data: Any) -> tuple[int, Any]:
    async with server.session.post(
        server.url(CHAT), data=data, headers={"Content-Type": "application/json"}
    ) as answer:
        assert answer.content_type == "application/json"
        return answer.status, await answer.json()


async def test_long_chats_and_images_are_accepted(tmp_path: Path) -> None:
    """G147: over aiohttp's 1 MiB default."""
    image = {"type": "image_url", "image_url": {"url": "data:image/png;base64," + "A" * 5_000_000}}
    message = {"role": "user", "content": [{"type": "text", "text": "a" * 1_500_000}, image]}
    async with edge_server(tmp_path) as server:
        status, _, _ = await server.chat(messages=[message])
        assert status == 200
        (request,) = server.routes.requests
    assert request.input_modalities == {"text", "image"}
    assert request.prompt_tokens == 375_000  # the image's characters are no text


@pytest.mark.parametrize("chunked", [False, True])
async def test_a_body_over_the_limit_is_413_and_reaches_nobody(tmp_path: Path, chunked: bool) -> None:
    """G147: declared or not."""
    data = json.dumps({**OK, "padding": "a" * 300_000}).encode()

    async def pieces() -> Any:
        for start in range(0, len(data), 10_000):
            yield data[start : start + 10_000]

    async with edge_server(tmp_path, max_body_bytes=100_000) as server:
        status, body = await _raw(server, pieces() if chunked else data)
        assert server.routes.requests == []
    assert (status, body["error"]["code"]) == (413, 413)
    assert body["error"]["metadata"]["error_type"] == "payload_too_large"


def _bare(data: bytes) -> bytes:
    packer = zlib.compressobj(wbits=-zlib.MAX_WBITS)
    return packer.compress(data) + packer.flush()


@pytest.mark.parametrize(
    ("coding", "pack"),
    [("gzip", gzip.compress), ("x-gzip", gzip.compress), ("deflate", zlib.compress), ("deflate", _bare),
     ("identity", bytes), ("GZIP", lambda data: packed(data[:9]) + packed(data[9:]))],
)  # fmt: skip
async def test_a_compressed_body_is_read(tmp_path: Path, coding: str, pack: Callable[[bytes], bytes]) -> None:
    async with edge_server(tmp_path) as server:
        assert await _packed(server, pack(json.dumps(OK).encode()), coding) == (200, None)


@pytest.mark.parametrize(
    ("coding", "data", "status", "words"),
    [
        ("gzip", b"hello", 400, "the request body cannot be inflated by its Content-Encoding: not gzip"),
        ("gzip", packed(json.dumps(OK).encode())[:-9], 400, "it ends too early"),
        ("deflate", b"hello", 400, "not deflate"),
        ("br", b"hello", 415, "Content-Encoding 'br' is not read here; send gzip, deflate or none"),
        ("gzip, gzip", b"hello", 415, "'gzip, gzip' is not read here"),
        ("gzip", packed(b" " * 200_000), 413, "larger than 100000 bytes"),
        ("gzip", packed(b" " * 60_000) * 2, 413, "larger than 100000 bytes"),
    ],
)
async def test_a_body_that_cannot_be_inflated_is_refused_with_words(
    tmp_path: Path, coding: str, data: bytes, status: int, words: str
) -> None:
    async with edge_server(tmp_path, max_body_bytes=100_000) as server:
        got, error = await _packed(server, data, coding)
        assert server.routes.requests == []
    assert got == status
    assert words in error["message"]


async def _packed(server: EdgeServer, data: bytes, coding: str) -> tuple[int, Any]:
    headers = {"Content-Type": "application/json", "Content-Encoding": coding}
    async with server.session.post(server.url(CHAT), data=data, headers=headers) as answer:
        return answer.status, (await answer.json()).get("error")


async def test_nobody_inflates_a_body_that_is_refused_unread(tmp_path: Path) -> None:
    """Its rest is read from the connection, which is to be used again; no more than that."""
    head = b"POST /api/v1/nope HTTP/1.1\r\nHost: localhost\r\nContent-Encoding: gzip\r\nContent-Length: 5\r\n"
    async with edge_server(tmp_path) as server, asyncio.timeout(20.0):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(head + b"Content-Type: application/json\r\n\r\n")
        assert b" 404 " in await reader.readuntil(b"\r\n\r\n")
        writer.write(b"helloGET /livez HTTP/1.1\r\nHost: localhost\r\n\r\n")
        assert b"HTTP/1.1 200 " in await reader.readuntil(b"\r\n\r\n")
        writer.close()


async def test_a_declared_giant_is_refused_before_it_is_read(tmp_path: Path) -> None:
    async with edge_server(tmp_path, max_body_bytes=100_000) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(
            b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: localhost\r\n"
            b"Content-Type: application/json\r\nContent-Length: 5000000000\r\n\r\n{"
        )
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 10)
        assert head.startswith(b"HTTP/1.1 413 ")
        writer.close()


@pytest.mark.parametrize(
    ("data", "says"),
    [
        (b"", "empty"),
        (b"{", "not JSON"),
        (b"[]", "must be a JSON object"),
        (b'"x"', "must be a JSON object"),
        (b'{"model":"m","messages":[{"role":"user","content":"hi"}],"temperature":NaN}', "not JSON"),
        (b'{"model":"m","messages":[{"role":"user","content":"\xff"}]}', "not JSON"),
        (b'{"a":' * 100_000, "not JSON"),
        (b'{"model":"m","messages":' + b"[" * 5000 + b"]" * 5000 + b"}", "nested too deeply"),
    ],
)
async def test_what_is_no_json_object_is_a_clear_400(tmp_path: Path, data: bytes, says: str) -> None:
    async with edge_server(tmp_path) as server:
        status, body = await _raw(server, data)
    assert status == 400
    assert says in body["error"]["message"] or "nested too deeply" in body["error"]["message"]


@pytest.mark.parametrize(("levels", "status"), [(MAX_DEPTH - 1, 200), (MAX_DEPTH, 400), (1000, 400)])
@pytest.mark.parametrize("field", ["unknown", "metadata", "prediction"])
async def test_a_body_is_served_or_refused_by_its_depth_and_never_a_500(
    tmp_path: Path, field: str, levels: int, status: int
) -> None:
    """The body's object is a level too. Brackets in texts are no levels."""
    deep = "[" * levels + "]" * levels
    text = '{"model":"m","messages":[{"role":"user","content":"%s"}],"%s":%s}'
    if field == "metadata":
        deep = f'{{"a":{deep[1:-1] or 0}}}'
    async with edge_server(tmp_path) as server:
        found, body = await _raw(server, (text % ("[" * 5000, field, deep)).encode())
    assert found == status, body
    assert status == 200 or "nested too deeply" in body["error"]["message"]


@pytest.mark.parametrize("where", ["content", "tool arguments", "model", "key"])
@pytest.mark.parametrize("stream", ["true", "false"])
async def test_half_a_surrogate_is_no_500(tmp_path: Path, where: str, stream: str) -> None:
    """G143: it becomes U+FFFD, so that nothing behind can fail on it."""
    bodies = {
        "content": r'{"model":"m","stream":S,"messages":[{"role":"user","content":"a\ud83d"}]}',
        "tool arguments": r'{"model":"m","stream":S,"messages":[{"role":"assistant","tool_calls":[{"id":"1",'
        r'"type":"function","function":{"name":"f","arguments":"\ud83d"}}]}]}',
        "model": r'{"model":"m\ud83d","stream":S,"messages":[{"role":"user","content":"a"}]}',
        "key": r'{"model":"m","stream":S,"messages":[{"role":"user","content":"a"}],"x\udfff":1}',
    }
    async with (
        edge_server(tmp_path) as server,
        server.session.post(
            server.url(CHAT),
            data=bodies[where].replace("S", stream).encode(),
            headers={"Content-Type": "application/json"},
        ) as answer,
    ):
        assert answer.status == 200
        await answer.read()
        (request,) = server.routes.requests
    everything = json.dumps([dict(request.body), request.model], ensure_ascii=False)
    assert "\ufffd" in everything
    everything.encode()  # no surrogate is left


async def test_a_whole_surrogate_pair_stays_what_it_is(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        await _raw(server, rb'{"model":"m","messages":[{"role":"user","content":"\ud83d\ude00 \ud83d"}]}')
        (request,) = server.routes.requests
    assert request.body["messages"][0]["content"] == "\U0001f600 \ufffd"
