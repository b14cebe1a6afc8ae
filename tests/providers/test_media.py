"""Images and files by address: what is fetched, what never is, and what becomes of a body."""

from __future__ import annotations

import base64
import ipaddress
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from ionrouter.addresses import is_public
from ionrouter.providers.media import MAX_ADDRESSES, MAX_BYTES, MAX_REDIRECTS, MediaFetcher, MediaRefused
from ionrouter.providers.pool import resolve
from tests.support.certificate import self_signed
from tests.support.file_server import FileServer, Served

PNG = b"\x89PNG\r\n\x1a\n" + bytes(range(256))


def anybody(address: Any) -> bool:
    return True


def data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode()}"


def asking(*parts: Any) -> dict[str, Any]:
    return {
        "messages": [{"role": "system", "content": "Look."}, {"role": "user", "content": list(parts)}],
        "temperature": 0,
    }


def image(url: str) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": url, "detail": "low"}}


@pytest.fixture
def files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[FileServer]:
    certificate = tmp_path / "certificate.pem"
    with FileServer(tls=self_signed(certificate)) as server:
        monkeypatch.setenv("SSL_CERT_FILE", str(certificate))
        yield server


async def refusal(body: dict[str, Any], fetcher: MediaFetcher | None = None) -> MediaRefused:
    fetcher = fetcher or MediaFetcher(may_reach=anybody)
    with pytest.raises(MediaRefused) as refused:
        await fetcher.inlined(body)
    await fetcher.close()
    return refused.value


async def test_every_address_becomes_its_bytes_and_the_rest_stays(files: FileServer) -> None:
    files.files["/a.png"] = Served(PNG, "image/png; charset=binary")
    files.files["/clip"] = Served(b"film", "video/mp4")
    files.files["/paper.pdf"] = Served(b"%PDF-1.7", "application/octet-stream")
    text = {"type": "text", "text": f"see {files.url}/a.png"}
    inline = image("data:image/gif;base64,R0lG")
    body = asking(
        text,
        image(f"{files.url}/a.png"),
        {"type": "image_url", "image_url": f"{files.url}/a.png"},
        {"type": "input_video", "video_url": {"url": f"{files.url}/clip"}},
        {"type": "file", "file": {"filename": "paper.pdf", "file_data": f"{files.url}/paper.pdf?v=2"}},
        inline,
    )
    before = repr(body)
    fetcher = MediaFetcher(may_reach=anybody)
    out = await fetcher.inlined(body)
    await fetcher.close()
    png = data_url("image/png", PNG)
    assert out["messages"][1]["content"] == [
        text,
        image(png),
        {"type": "image_url", "image_url": png},
        {"type": "input_video", "video_url": {"url": data_url("video/mp4", b"film")}},
        {
            "type": "file",
            "file": {"filename": "paper.pdf", "file_data": data_url("application/pdf", b"%PDF-1.7")},
        },
        inline,
    ]
    assert (out["messages"][0], out["temperature"]) == (body["messages"][0], 0)
    assert repr(body) == before  # other endpoints get it as it was
    assert len(files.seen_of("/a.png")) == 1  # each address once
    assert not {"authorization", "cookie", "referer"} & {name.lower() for name in files.seen[0].headers}


async def test_a_body_without_addresses_is_the_same_one() -> None:
    fetcher = MediaFetcher(may_reach=anybody)
    for body in (
        asking({"type": "text", "text": "https://x"}),
        {"messages": "odd"},
        {"prompt": "https://x"},
        {},
    ):
        assert await fetcher.inlined(body) is body


async def test_redirects_are_followed_a_few_times_and_to_https_alone(files: FileServer) -> None:
    files.files["/0"] = Served(PNG, "image/png")
    for number in range(1, MAX_REDIRECTS + 2):
        files.files[f"/{number}"] = Served(redirect=f"/{number - 1}")
    files.files["/down"] = Served(redirect="http://127.0.0.1/0")
    fetcher = MediaFetcher(may_reach=anybody)
    out = await fetcher.inlined(asking(image(f"{files.url}/{MAX_REDIRECTS}")))
    assert out["messages"][1]["content"] == [image(data_url("image/png", PNG))]
    error = await refusal(asking(image(f"{files.url}/{MAX_REDIRECTS + 1}")))
    assert "more than 3 times" in str(error)
    assert "only https://" in str(await refusal(asking(image(f"{files.url}/down"))))


@pytest.mark.parametrize(
    ("served", "words"),
    [
        (Served(b"<p>", "text/html"), "'text/html', no image"),
        (Served(b"?", ""), "'something unknown'"),
        (Served(b"x" * (MAX_BYTES + 1), "image/png"), "more than 20 MB"),
        (Served(PNG, "image/png", claims_bytes=10_000, cuts=[20]), "no connection, or it was cut"),
        (Served(statuses=[404]), "HTTP 404"),
        (Served(PNG, "image/png", headers={"Content-Encoding": "br"}), "cannot be fetched"),
    ],
)
async def test_what_cannot_be_sent_on_is_refused_by_its_place(
    files: FileServer, served: Served, words: str
) -> None:
    files.files["/good"] = Served(PNG, "image/png")
    files.files["/bad"] = served
    error = await refusal(asking(image(f"{files.url}/good"), image(f"{files.url}/bad?token=secret")))
    assert error.path == "messages[1].content[1].image_url.url"
    assert str(error).startswith(f"{error.path}: ") and words in str(error)
    assert "secret" not in str(error)


async def test_an_address_that_does_not_answer_ends_in_time(
    files: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    import threading

    monkeypatch.setattr("ionrouter.providers.media.TIMEOUT_S", 0.3)
    files.files["/slow"] = Served(PNG, "image/png", stall=threading.Event())
    assert "too long" in str(await refusal(asking(image(f"{files.url}/slow"))))


@pytest.mark.parametrize(
    "address",
    [
        *("https://127.0.0.1/", "https://localhost/", "https://2130706433/", "https://0x7f.1/", "https://0/"),
        *(
            "https://[::1]/",
            "https://[::ffff:127.0.0.1]/",
            "https://[::ffff:a9fe:a9fe]/",
            "https://10.1.2.3/",
        ),
        *(
            "https://169.254.169.254/latest/",
            "https://100.64.0.1/",
            "https://[fd00::1]/",
            "https://[fe80::1]/",
        ),
        *("https://[64:ff9b::7f00:1]/", "https://[2002:7f00:1::]/", "https://224.0.0.1/", "https://[::]/"),
        *("http://93.184.215.14/", "https://user:word@93.184.215.14/", "https://", "https://a b/"),
    ],
)
async def test_what_a_caller_must_not_reach_is_refused_before_a_connection(address: str) -> None:
    error = await refusal(asking(image(address)), MediaFetcher())
    words = ("not a public one", "only https://", "not an address that can be fetched", "no connection")
    assert any(word in str(error) for word in words), str(error)


async def test_a_name_is_refused_when_one_of_its_addresses_is_private(files: FileServer) -> None:
    asked: list[str] = []

    async def both(host: str, port: int) -> Any:
        asked.append(host)
        public = (2, 1, 6, "", ("93.184.215.14", port))
        return [public, *await resolve("127.0.0.1", port)]

    error = await refusal(asking(image("https://pictures.example/a.png")), MediaFetcher(both))
    assert "not a public one" in str(error)
    assert asked == ["pictures.example"] and not files.seen


async def test_there_is_an_end_to_how_many_are_fetched() -> None:
    parts = [image(f"https://127.0.0.1:1/{number}") for number in range(MAX_ADDRESSES + 1)]
    error = await refusal(asking(*parts))
    assert f"more than {MAX_ADDRESSES}" in str(error)
    assert error.path == f"messages[1].content[{MAX_ADDRESSES}].image_url.url"


async def test_there_is_an_end_to_how_much_is_fetched_together(
    files: FileServer, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("ionrouter.providers.media.MAX_BYTES_TOGETHER", 3_000_000)
    for number in range(4):
        files.files[f"/{number}"] = Served(b"x" * 1_000_000, "image/png")
    fetcher = MediaFetcher(may_reach=anybody)
    three = asking(*(image(f"{files.url}/{number}") for number in (0, 1, 2, 0)))
    assert len(repr(await fetcher.inlined(three))) > 4_000_000
    four = asking(*(image(f"{files.url}/{number}") for number in range(4)))
    assert "more than 3 MB together" in str(await refusal(four, fetcher))


@pytest.mark.parametrize(
    ("address", "expected"),
    [
        ("93.184.215.14", True),
        ("2606:4700::1111", True),
        ("::ffff:93.184.215.14", True),
        ("64:ff9b::5db8:d70e", True),
        ("64:ff9b::a00:1", False),
        ("::ffff:10.0.0.1", False),
        ("2002:a00:1::", False),
        ("2001:0:a00:1::", False),
        ("198.18.0.1", False),
        ("240.0.0.1", False),
        ("255.255.255.255", False),
        ("ff02::1", False),
    ],
)
def test_public_addresses(address: str, expected: bool) -> None:
    assert is_public(ipaddress.ip_address(address)) is expected
