"""One URL to one file, whatever the server does in between."""

from __future__ import annotations

import errno
import random
import urllib.request
from pathlib import Path

import pytest

from ionrouter.engine.download import Request, SourceUnavailable, discard, download, part_path
from ionrouter.errors import ConfigError
from tests.support.file_server import FileServer, Served

BODY = random.Random(3).randbytes(1_000_000)
OPENER = urllib.request.build_opener(urllib.request.ProxyHandler({}))


class Positions:
    """A meter that remembers."""

    def __init__(self) -> None:
        self.seen: list[tuple[int, int | None]] = []

    def update(self, done_bytes: int, total_bytes: int | None) -> None:
        self.seen.append((done_bytes, total_bytes))


@pytest.fixture
def server():
    with FileServer() as server:
        server.files["/file"] = Served(BODY)
        yield server


def get(server: FileServer, target: Path, meter: Positions | None = None) -> bool:
    request = Request(f"{server.url}/file", "the source", retry_wait_s=0.01)
    return download(request, target, OPENER, meter or Positions())


def ranges(server: FileServer) -> list[str | None]:
    return [seen.headers.get("Range") for seen in server.seen]


def test_a_download_arrives_by_rename_and_leaves_nothing_else(server: FileServer, tmp_path: Path) -> None:
    meter = Positions()
    assert get(server, tmp_path / "a" / "file", meter) is False
    assert (tmp_path / "a" / "file").read_bytes() == BODY
    assert [path.name for path in (tmp_path / "a").iterdir()] == ["file"]
    assert meter.seen[-1] == (len(BODY), len(BODY))


def test_every_cut_is_continued_where_it_happened(server: FileServer, tmp_path: Path) -> None:
    server.files["/file"].cuts = [100_000, 0, 50_000, 1]
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY
    assert ranges(server) == [None, "bytes=100000-", "bytes=100000-", "bytes=150000-", "bytes=150001-"]
    assert {seen.headers.get("If-Range") for seen in server.seen[1:]} == {'"1"'}


def test_a_file_that_changed_between_tries_is_never_joined(server: FileServer, tmp_path: Path) -> None:
    target = tmp_path / "file"
    server.files["/file"].cuts = [400_000] + [0] * 20
    with pytest.raises(SourceUnavailable):
        get(server, target)
    assert part_path(target).stat().st_size == 400_000
    server.files["/file"] = Served(BODY[::-1], etag='"2"')
    assert get(server, target) is True
    assert target.read_bytes() == BODY[::-1]


def test_a_server_that_ignores_ranges_starts_over(server: FileServer, tmp_path: Path) -> None:
    server.files["/file"].honours_range = False
    server.files["/file"].cuts = [900_000]
    get(server, tmp_path / "file")
    assert (tmp_path / "file").read_bytes() == BODY


def test_a_part_of_another_url_is_not_continued(server: FileServer, tmp_path: Path) -> None:
    target = tmp_path / "file"
    server.files["/other"] = Served(BODY[::-1], cuts=[10_000] + [0] * 20)
    request = Request(f"{server.url}/other", "the source", retry_wait_s=0.001)
    with pytest.raises(SourceUnavailable):
        download(request, target, OPENER, Positions())
    get(server, target)
    assert target.read_bytes() == BODY
    assert server.seen_of("/file")[0].headers.get("Range") is None


def test_a_part_that_is_whole_already_needs_no_bytes(server: FileServer, tmp_path: Path) -> None:
    target = tmp_path / "file"
    server.files["/file"].claims_bytes = len(BODY) + 1  # cut after the last byte, before the end was seen
    get(server, target)
    assert target.read_bytes() == BODY
    assert ranges(server) == [None, f"bytes={len(BODY)}-"]


def test_a_part_longer_than_the_file_is_dropped(server: FileServer, tmp_path: Path) -> None:
    target = tmp_path / "file"
    server.files["/file"].cuts = [500_000] + [0] * 20
    with pytest.raises(SourceUnavailable):
        get(server, target)
    server.files["/file"] = Served(BODY[:1000])
    get(server, target)
    assert target.read_bytes() == BODY[:1000]


def test_a_busy_server_is_asked_again_and_a_refusal_is_final(server: FileServer, tmp_path: Path) -> None:
    server.files["/file"].statuses = [503, 429]
    get(server, tmp_path / "file")
    assert len(server.seen) == 3
    for status in (401, 403, 404, 410):
        server.files["/file"].statuses = [status]
        before = len(server.seen)
        with pytest.raises(ConfigError, match=f"the source: the server refused the download: HTTP {status}"):
            get(server, tmp_path / "again")
        assert len(server.seen) == before + 1


def test_no_server_is_told_as_unavailable(tmp_path: Path) -> None:
    request = Request("http://127.0.0.1:9/file", "the source", retry_wait_s=0.001)
    with pytest.raises(SourceUnavailable, match=r"the source: the download failed: .*refused.*local copy"):
        download(request, tmp_path / "file", OPENER, Positions())


def test_a_file_larger_than_the_disk_is_refused_before_its_bytes(server: FileServer, tmp_path: Path) -> None:
    server.files["/file"].claims_bytes = 10**16
    with pytest.raises(
        ConfigError, match=rf"the disk is full: {10**16} bytes are needed, \d+ bytes are free"
    ):
        get(server, tmp_path / "file")
    assert not (tmp_path / "file").exists()


def test_a_disk_that_fills_up_on_the_way_is_named(server: FileServer, tmp_path: Path) -> None:
    full = Path("/dev/full")
    if not full.exists():
        pytest.skip("this system has no /dev/full")
    target = tmp_path / "file"
    part_path(target).symlink_to(full)
    with pytest.raises(ConfigError, match="the disk is full") as raised:
        get(server, target)
    assert isinstance(raised.value.__cause__, OSError) and raised.value.__cause__.errno == errno.ENOSPC


def test_discard_forgets_the_file_and_its_part(server: FileServer, tmp_path: Path) -> None:
    target = tmp_path / "file"
    get(server, target)
    part_path(target).write_bytes(b"x")
    discard(target)
    discard(target)
    assert list(tmp_path.iterdir()) == []
