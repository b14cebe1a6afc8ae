"""Pictures by address at providers that take bytes: fetched by us, or refused; never by litellm."""

from __future__ import annotations

import base64
import json
import os
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import pytest
import pytest_asyncio

from ionrouter.errors import FailureClass, UpstreamError
from ionrouter.providers.litellm import LiteLLMProvider
from ionrouter.providers.media import MediaFetcher
from tests.support.certificate import self_signed
from tests.support.endpoints import collect
from tests.support.file_server import FileServer, Served
from tests.support.hosted import KEY
from tests.support.litellm_matrix import asking, plain_answer
from tests.support.upstream import Upstream

pytestmark = pytest.mark.asyncio(loop_scope="session")
PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(64))


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    certificate = tmp_path / "certificate.pem"
    with FileServer(tls=self_signed(certificate)) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        server.files["/picture"] = Served(PNG, "image/png")
        yield server


@pytest_asyncio.fixture(loop_scope="session")
async def fetching(litellm: LiteLLMProvider) -> AsyncIterator[LiteLLMProvider]:
    """A front on the session's worker that fetches, from this machine too."""
    media = MediaFetcher(may_reach=lambda _: True)
    client = LiteLLMProvider({**os.environ, "UP_KEY": KEY}, media=media)
    client.worker = litellm.worker
    yield client
    await media.close()


def look(address: str) -> dict[str, Any]:
    parts = [{"type": "text", "text": "What is it?"}, {"type": "image_url", "image_url": {"url": address}}]
    return {"messages": [{"role": "user", "content": parts}]}


@pytest.mark.parametrize("stream", [False, True])
async def test_gemini_gets_the_bytes_of_an_address(
    fetching: LiteLLMProvider, files: FileServer, stream: bool
) -> None:
    with Upstream(plain_answer) as up:
        answer = await collect(fetching, asking(up, "gemini", look(f"{files.url}/picture"), stream=stream))
        assert answer.error is None
        (request,) = up.requests
    sent = json.dumps(request.json())
    assert base64.b64encode(PNG).decode() in sent and files.netloc not in sent
    assert [seen.method for seen in files.seen] == ["GET"]  # by us, once


async def test_an_address_that_gives_nothing_is_the_request_s_fault_by_its_place(
    fetching: LiteLLMProvider, files: FileServer
) -> None:
    with Upstream(plain_answer) as up:
        answer = await collect(fetching, asking(up, "gemini", look(f"{files.url}/missing")))
    assert isinstance(answer.error, UpstreamError) and not up.requests
    assert (answer.error.failure, answer.error.status) == (FailureClass.ENDPOINT_REQUEST, 400)
    assert answer.error.error_type == "image_download_failed"
    assert answer.error.param == "messages[0].content[1].image_url.url"
    assert "HTTP 404" in answer.error.message


async def test_without_a_fetcher_an_address_is_refused_and_nobody_is_asked(
    litellm: LiteLLMProvider, files: FileServer
) -> None:
    with Upstream(plain_answer) as up:
        answer = await collect(litellm, asking(up, "gemini", look(f"{files.url}/picture")))
    assert answer.error is not None and answer.error.error_type == "image_download_failed"
    assert not up.requests and not files.seen
