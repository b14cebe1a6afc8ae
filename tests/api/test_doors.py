"""Who gets in: Host, Origin, content type, keys. And that every refusal is an envelope."""

from __future__ import annotations

import asyncio
import json
import re
from pathlib import Path

import aiohttp
import pytest
from structlog.testing import capture_logs

from ionrouter.api.doors import asks_for_keys
from ionrouter.errors import ConfigError
from ionrouter.settings import Settings
from tests.support.edge import EdgeServer, edge_server
from tests.support.packed import packed

CHAT = "/api/v1/chat/completions"
BODY = {"model": "m", "messages": [{"role": "user", "content": "hi"}]}


def assert_envelope(status: int, headers: object, body: object, expected: int) -> None:
    """G150: strict envelope, integer code equal to the status, no stringified None."""
    assert status == expected
    assert headers["Content-Type"] == "application/json"  # type: ignore[index]
    error = body["error"]  # type: ignore[index]
    assert type(error["code"]) is int
    assert error["code"] == status
    assert isinstance(error["message"], str)
    assert error["message"]
    assert isinstance(error["type"], str)
    assert error["param"] is None or isinstance(error["param"], str)
    assert "None" not in json.dumps(body)


@pytest.mark.parametrize(
    "host", ["localhost", "LOCALHOST:99", "127.0.0.1", "[::1]", "[::1]:8080", "box.lan:1"]
)
async def test_loopback_names_and_configured_hosts_are_answered(tmp_path: Path, host: str) -> None:
    async with edge_server(tmp_path, allowed_hosts=("box.lan",)) as server:
        assert (await server.post(CHAT, BODY, headers={"Host": host}))[0] == 200


@pytest.mark.parametrize(
    "host", ["evil.example", "evil.example:8080", "127.0.0.1.evil.example", "10.0.0.5", "x"]
)
async def test_a_rebound_dns_name_is_refused_on_every_route(tmp_path: Path, host: str) -> None:
    async with edge_server(tmp_path) as server:
        for path in ("/api/v1/models", "/health", "/metrics", "/nowhere"):
            assert_envelope(*await server.get(path, headers={"Host": host}), 403)
        assert_envelope(*await server.post(CHAT, BODY, headers={"Host": host}), 403)
        assert server.routes.requests == []


@pytest.mark.parametrize("origin", ["https://evil.example", "http://localhost:3000", "null"])
async def test_a_web_page_of_another_origin_is_refused(tmp_path: Path, origin: str) -> None:
    async with edge_server(tmp_path) as server:
        assert_envelope(*await server.post(CHAT, BODY, headers={"Origin": origin}), 403)
        assert_envelope(*await server.get("/api/v1/models", headers={"Origin": origin}), 403)
        assert server.routes.requests == []


async def test_the_servers_own_pages_and_configured_origins_may_call(tmp_path: Path) -> None:
    async with edge_server(tmp_path, cors_origins=("https://app.example",)) as server:
        own, _, _ = await server.post(CHAT, BODY, headers={"Origin": server.base})
        assert own == 200
        status, headers, _ = await server.post(CHAT, BODY, headers={"Origin": "https://app.example"})
        assert status == 200
        assert headers["Access-Control-Allow-Origin"] == "https://app.example"
        streamed = await server.chat(stream=True, headers={"Origin": "https://app.example"})
        assert streamed[1]["Access-Control-Allow-Origin"] == "https://app.example"
        async with server.session.options(
            server.url(CHAT),
            headers={"Origin": "https://app.example", "Access-Control-Request-Method": "POST"},
        ) as preflight:
            assert preflight.status == 204
            assert "POST" in preflight.headers["Access-Control-Allow-Methods"]
        assert_envelope(*await server.post(CHAT, BODY, headers={"Origin": "https://other.example"}), 403)


@pytest.mark.parametrize(
    ("asked", "allowed"),
    [
        ("authorization,content-type,x-stainless-arch, x-stainless-lang",) * 2,
        ("x-openrouter-categories",) * 2,
        ("bad name", None),
        ("a, ", None),
        ("x" * 5000, None),
    ],
)
async def test_an_allowed_page_may_send_the_headers_that_it_asks_for(
    tmp_path: Path, asked: str, allowed: str | None
) -> None:
    async with edge_server(tmp_path, cors_origins=("https://app.example",)) as server:
        for origin, expected in (("https://app.example", allowed), ("http://evil.example", None)):
            sent = {
                "Origin": origin,
                "Access-Control-Request-Method": "POST",
                "Access-Control-Request-Headers": asked,
            }
            async with server.session.options(server.url(CHAT), headers=sent) as preflight:
                assert preflight.headers.get("Access-Control-Allow-Headers") == expected
                assert "Access-Control-Request-Headers" in preflight.headers.get("Vary", "") or origin != (
                    "https://app.example"
                )


async def test_no_cross_origin_header_is_sent_unless_configured(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        _, headers, _ = await server.get("/api/v1/models")
        assert not [name for name in headers if name.startswith("Access-Control")]


@pytest.mark.parametrize(
    "content_type", ["text/plain", "application/x-www-form-urlencoded", "multipart/form-data"]
)
async def test_a_post_that_needs_no_preflight_is_refused(tmp_path: Path, content_type: str) -> None:
    async with (
        edge_server(tmp_path) as server,
        server.session.post(
            server.url(CHAT), data=json.dumps(BODY), headers={"Content-Type": content_type}
        ) as answer,
    ):
        assert_envelope(answer.status, answer.headers, await answer.json(), 415)
        assert server.routes.requests == []


async def test_json_with_a_charset_is_json(tmp_path: Path) -> None:
    async with (
        edge_server(tmp_path) as server,
        server.session.post(
            server.url(CHAT),
            data=json.dumps(BODY),
            headers={"Content-Type": "application/json; charset=utf-8"},
        ) as answer,
    ):
        assert answer.status == 200


async def test_the_frameworks_own_errors_are_envelopes(tmp_path: Path) -> None:
    """G150: 404, 405 as the framework raises them."""
    async with edge_server(tmp_path) as server:
        assert_envelope(*await server.get("/api/v1/nope"), 404)
        assert_envelope(*await server.get("/"), 404)
        status, headers, body = await server.get(CHAT)
        assert_envelope(status, headers, body, 405)
        assert "POST" in headers["Allow"]
        async with server.session.delete(server.url(CHAT)) as answer:
            assert_envelope(answer.status, answer.headers, await answer.json(), 405)


def _post(body: bytes, headers: bytes) -> bytes:
    head = b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    return head + headers + b"Content-Length: %d\r\n\r\n" % len(body) + body


@pytest.mark.parametrize(
    "garbage",
    [
        b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03 this is TLS, not HTTP\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Long: " + b"a" * 20_000 + b"\r\n\r\n",
        b"POST /api/v1/chat/completions HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: x\r\n\r\n",
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nBad Header: 1\r\n\r\n",
        b"GET /health HTTP/1.1\r\n\r\n",  # no Host
        b"GET /health HTTP/1.1\r\nHost: 127.0.0.1\r\nHost: evil.example\r\n\r\n",
        _post(b"hello", b"Content-Encoding: gzip\r\n"),
        _post(b"hello", b"Content-Encoding: br\r\n"),
        _post(packed(b'{"a":"' + b"a" * 80_000_000 + b'"}'), b"Content-Encoding: gzip\r\n"),
        _post(b"{}", b"Expect: teapot\r\nConnection: close\r\n"),
        _post(b"{}", b"Transfer-Encoding: chunked\r\n"),  # and a length
    ],
    ids=lambda garbage: f"{len(garbage)}-bytes",
)
async def test_malformed_http_is_answered_in_the_envelope(tmp_path: Path, garbage: bytes) -> None:
    async with edge_server(tmp_path) as server:
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(garbage)
        head = await asyncio.wait_for(reader.readuntil(b"\r\n\r\n"), 20)
        length = re.search(rb"Content-Length: (\d+)", head)
        assert length is not None
        body = await reader.readexactly(int(length[1]))
        writer.close()
    assert re.match(rb"HTTP/1\.[01] 4\d\d ", head)
    assert b"Content-Type: application/json" in head
    assert b"text/plain" not in head
    assert b"Server: ionrouter\r\n" in head
    assert b"X-Content-Type-Options: nosniff\r\n" in head
    error = json.loads(body)["error"]
    assert error["code"] == int(head.split()[1])


@pytest.mark.parametrize(
    ("garbage", "status", "words"),
    [
        (b"\x16\x03\x01\x02\x00\x01\x00\x01\xfc\x03\x03", 400, "Received HTTPS traffic on an HTTP port"),
        (b"GET /health HTTP/1.1\r\nX-Key: " + b"sk-a" * 5_000, 431, "is longer than 8190 bytes"),
        (b"GET /" + b"a" * 20_000, 431, "the request line or a header is longer than 8190 bytes"),
        (b"GET /health HTTP/1.1\r\n" + b"X-A: 1\r\n" * 300 + b"\r\n", 400, ": Too many headers received"),
        (b"GET /health HTTP/1.1\r\n\r\n", 400, "Missing 'Host' header in request."),
        (b"GET /health HTTP/1.1\r\nHost: a\r\nsk-a b: 1\r\n\r\n", 400, "HTTP request: Invalid header token"),
    ],
    ids=lambda value: str(value)[:20],
)
async def test_what_is_wrong_with_a_request_is_told_without_what_was_sent(
    tmp_path: Path, garbage: bytes, status: int, words: str
) -> None:
    async with edge_server(tmp_path) as server, asyncio.timeout(20.0):
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(garbage)
        answer = await reader.read()
        writer.close()
    assert int(answer.split()[1]) == status
    assert words in json.loads(answer.partition(b"\r\n\r\n")[2])["error"]["message"]
    assert b"sk-a" not in answer


async def _keys(server: EdgeServer) -> tuple[str, str]:
    assert server.edge.keys is not None
    inference, _ = server.edge.keys.create("app", "inference", 1.0)
    management, _ = server.edge.keys.create("ops", "management", 1.0)
    return inference, management


async def test_with_keys_on_a_request_needs_a_right_key_of_the_right_kind(tmp_path: Path) -> None:
    async with edge_server(tmp_path, asks_for_keys=True) as server:
        inference, management = await _keys(server)
        assert_envelope(*await server.chat(), 401)
        assert_envelope(*await server.chat(headers={"Authorization": f"Bearer {management}"}), 403)
        assert (await server.chat(headers={"Authorization": f"Bearer {inference}"}))[0] == 200
        assert (await server.chat(headers={"Authorization": f"bearer {inference}"}))[0] == 200
        assert (await server.chat(headers={"x-api-key": inference}))[0] == 200
        assert server.edge.keys is not None
        server.edge.keys.set_disabled("app", True)
        assert_envelope(*await server.chat(headers={"Authorization": f"Bearer {inference}"}), 401)
        key = server.routes.requests[0].key_id
        assert key == server.edge.keys.resolve("app").hash


@pytest.mark.parametrize(
    "value", ["Bearer other-vendor-SECRET-CCC", "other-vendor-SECRET-CCC", "Basic U0VDUkVU"]
)
async def test_a_wrong_key_is_never_echoed(
    tmp_path: Path, value: str, capsys: pytest.CaptureFixture[str]
) -> None:
    """G123."""
    async with edge_server(tmp_path, asks_for_keys=True) as server:
        status, headers, body = await server.chat(headers={"Authorization": value})
    assert_envelope(status, headers, body, 401)
    printed = "".join(capsys.readouterr())
    for place in (json.dumps(body), str(headers), printed):
        assert "SECRET" not in place
        assert "U0VDUkVU" not in place


async def test_management_routes_need_a_management_key_even_with_keys_off(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        inference, management = await _keys(server)
        assert_envelope(*await server.post("/api/v1/admin/reload", {}), 401)
        wrong = {"Authorization": f"Bearer {inference}"}
        assert_envelope(*await server.post("/api/v1/admin/reload", {}, headers=wrong), 403)
        right = {"Authorization": f"Bearer {management}"}
        assert (await server.post("/v1/admin/reload", {}, headers=right))[0] == 200


async def test_any_key_is_fine_while_keys_are_off(tmp_path: Path) -> None:
    async with edge_server(tmp_path) as server:
        assert (await server.chat(headers={"Authorization": "Bearer unused"}))[0] == 200


async def test_with_keys_on_the_catalogue_is_public_but_a_shown_key_must_be_right(tmp_path: Path) -> None:
    async with edge_server(tmp_path, asks_for_keys=True) as server:
        assert (await server.get("/api/v1/models"))[0] == 200
        assert (await server.get("/health"))[0] == 200
        assert_envelope(*await server.get("/api/v1/models", headers={"Authorization": "Bearer no"}), 401)
        assert_envelope(*await server.get("/metrics"), 401)


async def test_wrong_keys_are_limited_per_address_and_a_right_one_still_works(tmp_path: Path) -> None:
    """G120: a 429 of ours says how long to wait."""
    async with edge_server(tmp_path, asks_for_keys=True, max_wrong_keys=3) as server:
        inference, _ = await _keys(server)
        wrong = {"Authorization": "Bearer sk-or-v1-wrong"}
        assert [(await server.chat(headers=wrong))[0] for _ in range(3)] == [401, 401, 401]
        status, headers, body = await server.chat(headers=wrong)
        assert_envelope(status, headers, body, 429)
        assert 1 <= int(headers["Retry-After"]) <= 60
        assert (await server.chat(headers={"Authorization": f"Bearer {inference}"}))[0] == 200


@pytest.mark.parametrize("trusted", ["", "127.0.0.1", "127.0.0.0/30,::1"])
async def test_behind_a_trusted_proxy_wrong_keys_are_limited_per_caller(tmp_path: Path, trusted: str) -> None:
    """The server's neighbours on 127.0.0.5 are no proxy of its own, and give themselves no other address."""

    async def ask(server: EdgeServer, forwarded: str, own_address: str = "127.0.0.1") -> int:
        connector = aiohttp.TCPConnector(local_addr=(own_address, 0))
        headers = {"Authorization": "Bearer sk-or-v1-wrong", "X-Forwarded-For": forwarded}
        async with (
            aiohttp.ClientSession(connector=connector) as session,
            session.get(server.url("/api/v1/key"), headers=headers) as answer,
        ):
            return answer.status

    with capture_logs() as logs:
        async with edge_server(
            tmp_path, asks_for_keys=True, max_wrong_keys=2, trusted_proxies=trusted
        ) as server:
            callers = ["192.0.2.1", "192.0.2.2", "9.9.9.9, 192.0.2.1", "8.8.8.8, 192.0.2.1", "192.0.2.3:80"]
            found = [await ask(server, caller) for caller in callers]
            neighbours = [await ask(server, f"192.0.2.{number}", "127.0.0.5") for number in (7, 8, 9)]
    assert found == ([401, 401, 401, 429, 401] if trusted else [401, 401, 429, 429, 429])
    assert neighbours == [401, 401, 429]
    addresses = [log["address"] for log in logs if log["event"] == "request_refused"]
    assert addresses == [
        *(
            ["192.0.2.1", "192.0.2.2", "192.0.2.1", "192.0.2.1", "192.0.2.3"]
            if trusted
            else 5 * ["127.0.0.1"]
        ),
        *(3 * ["127.0.0.5"]),
    ]


@pytest.mark.parametrize("host", ["0.0.0.0", "::", "192.168.1.5", "box.lan"])
def test_listening_on_a_network_needs_keys_or_an_explicit_word(tmp_path: Path, host: str) -> None:
    settings = Settings(host=host, state_dir=tmp_path)
    with pytest.raises(ConfigError, match=r"keys create NAME.*--no-auth"):
        asks_for_keys(settings, has_inference_key=False)
    assert asks_for_keys(settings, has_inference_key=True)
    assert not asks_for_keys(Settings(host=host, no_auth=True), has_inference_key=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "127.0.0.53", "::1", "[::1]", "localhost"])
def test_keys_are_off_by_default_on_loopback(host: str) -> None:
    assert not asks_for_keys(Settings(host=host), has_inference_key=True)
    assert asks_for_keys(Settings(host=host, require_keys=True), has_inference_key=True)
    with pytest.raises(ConfigError):
        asks_for_keys(Settings(host=host, require_keys=True), has_inference_key=False)


@pytest.mark.parametrize("host", ["127.0.0.1", "0.0.0.0"])
@pytest.mark.parametrize("requires", [False, True])
def test_who_follows_the_advice_is_not_refused(host: str, requires: bool) -> None:
    settings = Settings(host=host, require_keys=requires)
    if host == "127.0.0.1" and not requires:
        assert not asks_for_keys(settings, has_inference_key=False)
        return
    with pytest.raises(ConfigError) as refused:
        asks_for_keys(settings, has_inference_key=False)
    advice = str(refused.value).partition(", or ")[2]
    leaves_out = "leave out --require-keys" in advice or "instead of --require-keys" in advice
    followed = Settings(
        host=host, require_keys=requires and not leaves_out, no_auth="pass --no-auth" in advice
    )
    assert not asks_for_keys(followed, has_inference_key=False)


async def test_without_auth_on_a_network_numbers_are_fine_and_names_are_not(tmp_path: Path) -> None:
    """A name can be rebound, a number cannot."""
    async with edge_server(tmp_path, host="0.0.0.0", no_auth=True) as server:
        assert (await server.get("/api/v1/models", headers={"Host": "10.0.0.5:8080"}))[0] == 200
        assert_envelope(*await server.get("/api/v1/models", headers={"Host": "evil.example"}), 403)


@pytest.mark.parametrize(
    ("replaced", "status"),
    [
        ({}, b"100"),
        ({"Authorization": "Bearer sk-or-v1-wrong"}, b"401"),
        ({"Content-Type": "text/plain"}, b"415"),
        ({"Content-Length": "2000"}, b"413"),
        ({"Expect": "miracles"}, b"417"),
    ],
)
async def test_nobody_uploads_a_body_for_a_refusal(
    tmp_path: Path, replaced: dict[str, str], status: bytes
) -> None:
    """A client that waits to be asked for its body is not asked for one that nobody will read."""
    async with edge_server(tmp_path, asks_for_keys=True, max_body_bytes=1024) as server:
        inference, _ = await _keys(server)
        body = json.dumps(BODY).encode()
        headers = {
            "Host": "x", "Authorization": f"Bearer {inference}", "Content-Type": "application/json",
            "Content-Length": str(len(body)), "Expect": "100-continue", **replaced,
        }  # fmt: skip
        head = "".join(f"{name}: {value}\r\n" for name, value in headers.items())
        reader, writer = await asyncio.open_connection(server.host, server.port)
        writer.write(f"POST {CHAT} HTTP/1.1\r\n{head}\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 " + status)
        if status == b"100":
            writer.write(body)
            assert (await reader.readuntil(b"\r\n\r\n")).startswith(b"\r\nHTTP/1.1 200")
        elif status != b"417":
            assert b"\r\nConnection: close\r\n" in await reader.readuntil(b"\r\n\r\n")
        writer.close()
