"""TLS to upstreams: whose certificates count, and why a connection failed, in words without a name."""

from __future__ import annotations

import asyncio
import ssl
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path

import pytest

from ionrouter.errors import UpstreamError
from ionrouter.providers.openai_http import OpenAIProvider
from ionrouter.providers.outgoing import Outgoing
from tests.support.certificate import self_signed
from tests.support.connections import both_loops, quiet_loops
from tests.support.endpoints import collect, make_endpoint, make_request
from tests.support.resolver import fixed
from tests.support.upstream import Upstream, chat_json

pytestmark = quiet_loops
event_loop_policy = both_loops


async def told(address: str) -> tuple[str, str] | None:
    """Ask an upstream; the error's code and message, None when it answered."""
    provider = OpenAIProvider({}, outgoing=Outgoing(fixed("127.0.0.1")))
    try:
        answer = await collect(provider, make_request(make_endpoint(f"https://{address}/v1"), stream=False))
    finally:
        await provider.close()
    error = answer.error
    return None if not isinstance(error, UpstreamError) else (str(error.code), error.message)


@asynccontextmanager
async def greeting(data: bytes) -> AsyncIterator[int]:
    """A server that says the same to everybody, whatever they say; its port."""

    async def greet(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        await reader.read(1)
        writer.write(data)
        await writer.drain()
        writer.close()

    async with await asyncio.start_server(greet, "127.0.0.1", 0) as server:
        yield server.sockets[0].getsockname()[1]


@pytest.fixture
def trusted(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> ssl.SSLContext:
    certificate = tmp_path / "certificate.pem"
    context = self_signed(certificate)
    monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
    return context


@pytest.mark.parametrize("name", ["127.0.0.1", "localhost", "localhost."])
async def test_a_name_of_a_trusted_certificate_is_reached_with_the_roots_dot_too(
    trusted: ssl.SSLContext, name: str
) -> None:
    with Upstream(chat_json("x"), tls=trusted) as up:
        assert await told(f"{name}:{up.port}") is None


@pytest.mark.parametrize("name", ["other.example", "127.0.0.2"])
async def test_a_certificate_of_somebody_else(trusted: ssl.SSLContext, name: str) -> None:
    with Upstream(chat_json("x"), tls=trusted) as up:
        words = "the upstream's certificate is not trusted: it is made out to another name"
        assert await told(f"{name}:{up.port}") == ("tls", words)


async def test_a_certificate_nobody_vouches_for() -> None:
    """Not "Operation not permitted", which is what the operating system calls OpenSSL's number."""
    with Upstream(chat_json("x"), tls=self_signed()) as up:
        words = "the upstream's certificate is not trusted: self-signed certificate"
        assert await told(f"127.0.0.1:{up.port}") == ("tls", words)


async def test_an_upstream_that_wants_a_certificate_of_ours(trusted: ssl.SSLContext) -> None:
    trusted.verify_mode = ssl.CERT_REQUIRED
    with Upstream(chat_json("x"), tls=trusted) as up:
        error = await told(f"localhost:{up.port}")
    assert error is not None
    reason = error[1].removeprefix("the upstream closed without an answer")
    assert reason in (": tlsv13 alert certificate required", "")  # asyncio's own loop does not tell it


async def test_a_port_where_no_tls_is_spoken() -> None:
    async with greeting(b"HTTP/1.1 400 Bad Request\r\nContent-Length: 0\r\n\r\n") as port:
        words = "TLS to the upstream failed: no TLS is spoken there"
        assert await told(f"127.0.0.1:{port}") == ("tls", words)
