"""Hub files come through the hub client; its failures come out as ours. Each case in a process of its own,
since the client reads its settings at import."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

from ionrouter.engine.sources import HubFile, LocalPath, WheelMember, parse_source
from ionrouter.errors import ConfigError
from tests.support.file_server import FileServer, Served
from tests.support.server import eventually, running_server

COMMIT = "a" * 40
FILES = {"model.gguf": b"x" * 5000, "config.json": b"{}", "model.safetensors": b"y" * 5000, "notes.pth": b"z"}
SCRIPT = """
import json, sys
from pathlib import Path
from ionrouter.engine.weights import fetch, locate
out = []
for source in sys.argv[2:]:
    source, _, sha256 = source.partition("#")
    try:
        path = fetch(source, sha256 or None, cache=Path(sys.argv[1]), progress=False)
        out.append([str(path), str(locate(source, Path(sys.argv[1])))])
    except Exception as error:
        out.append([type(error).__name__, str(error)])
print(json.dumps(out))
"""


def serve_repository(server: FileServer, files: Mapping[str, bytes]) -> None:
    """Answer as a hub does for one repository: files with commit and ETag, its revision and tree."""
    headers = {"X-Repo-Commit": COMMIT}
    for revision in ("main", COMMIT):
        for i, (name, body) in enumerate(files.items()):
            path = f"/org/repo/resolve/{revision}/{name}"
            server.files[path] = Served(body, etag=f'"{i:064x}"', headers=headers)
    info = {"id": "org/repo", "sha": COMMIT, "siblings": [{"rfilename": name} for name in files]}
    tree = [
        {"type": "file", "path": name, "size": len(body), "oid": f"{i:040x}"}
        for i, (name, body) in enumerate(files.items())
    ]
    server.files["/api/models/org/repo/revision/main"] = Served(json.dumps(info).encode(), "application/json")
    server.files[f"/api/models/org/repo/tree/{COMMIT}"] = Served(
        json.dumps(tree).encode(), "application/json"
    )


def fetched(endpoint: str, cache: Path, *sources: str, **environment: str) -> list[list[str]]:
    """Fetch in a fresh process; for each source [path, located] or [error's name, message]."""
    settings = {"HF_ENDPOINT": endpoint, "HF_HUB_DISABLE_XET": "1", "HF_HOME": str(cache / "home")}
    done = subprocess.run(
        [sys.executable, "-c", SCRIPT, str(cache), *sources],
        env=os.environ | settings | environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=True,
    )
    found: list[list[str]] = json.loads(done.stdout.splitlines()[-1])
    return found


def test_a_file_is_fetched_once_found_again_and_checked(tmp_path: Path) -> None:
    with FileServer() as server:
        serve_repository(server, FILES)
        wrong = "0" * 64
        first, second, bad = fetched(
            server.url,
            tmp_path,
            "hf:org/repo/model.gguf",
            "hf:org/repo/model.gguf",
            f"hf:org/repo/model.gguf#{wrong}",
        )
        gets = server.seen_of("/org/repo/resolve/main/model.gguf")
    assert first == second and first[0] == first[1]
    assert not Path(first[0]).exists(), "a file with the wrong hash is deleted"
    assert bad[0] == "ConfigError" and wrong in bad[1]
    assert len(gets) == 1


def test_a_folder_takes_what_it_needs_and_counts_when_whole(tmp_path: Path) -> None:
    with FileServer() as server:
        serve_repository(server, FILES)
        ((folder, located),) = fetched(server.url, tmp_path, "hf:org/repo")
    assert folder == located
    assert sorted(path.name for path in Path(folder).iterdir()) == ["config.json", "model.safetensors"]
    ((again, _),) = fetched("http://127.0.0.1:9", tmp_path, "hf:org/repo", HF_HUB_OFFLINE="1")
    assert again == folder, "a whole folder needs no hub"


def test_a_hub_out_of_reach_may_be_tried_later(tmp_path: Path) -> None:
    results = fetched(
        "http://127.0.0.1:9", tmp_path, "hf:org/repo/model.gguf", "hf:org/repo", HF_HUB_OFFLINE="1"
    )
    for name, message in results:
        assert name == "SourceUnavailable"
        assert "hf:org/repo" in message and "local copy" in message


def test_what_the_hubs_client_says_is_a_line_of_the_servers_log(tmp_path: Path) -> None:
    routes = "providers: { ion: { type: ion } }\n"
    routes += "models: { m: { endpoints: [{ provider: ion, weights: 'hf:org/repo/model.gguf' }] } }\n"
    hub = {"HF_ENDPOINT": "http://127.0.0.1:9", "HF_HOME": str(tmp_path / "home")}
    with running_server(tmp_path, routes, env=hub, wait_until_ready=False, cache_dir=tmp_path) as server:
        eventually(lambda: "Retrying in" in server.log)
        lines = [line for line in server.log.splitlines() if not line.startswith("ionrouter listens on")]
    said = [
        event for line in lines if (event := json.loads(line)).get("logger", "").startswith("huggingface")
    ]
    assert [event["level"] for event in said] == ["warning"] * len(said) and said


@pytest.mark.parametrize(
    ("code", "status", "message"),
    [
        ("EntryNotFound", 404, "no such file"),
        ("RepoNotFound", 404, "no such repository"),
        ("RevisionNotFound", 404, "no such file or revision"),
        ("GatedRepo", 403, "gated"),
    ],
)
def test_what_the_hub_refuses_is_told_with_what_to_do(
    tmp_path: Path, code: str, status: int, message: str
) -> None:
    with FileServer() as server:
        server.files["/org/repo/resolve/main/model.gguf"] = Served(
            statuses=[status] * 20, headers={"X-Error-Code": code, "X-Repo-Commit": COMMIT}
        )
        ((name, said),) = fetched(server.url, tmp_path, "hf:org/repo/model.gguf")
    assert (name, message in said) == ("ConfigError", True), said


@pytest.mark.parametrize(
    ("text", "source"),
    [
        ("hf:org/repo", HubFile("org/repo")),
        ("hf:org/repo-1.5/sub/model.gguf", HubFile("org/repo-1.5", "sub/model.gguf")),
        ("hf:org/repo@v1.0/model.gguf", HubFile("org/repo", "model.gguf", "v1.0")),
        ("pypi:a-b==1.0.post1/c/d.gguf", WheelMember("a-b", "1.0.post1", "c/d.gguf")),
        ("/srv/model.gguf", LocalPath(Path("/srv/model.gguf"))),
        ("~/model.gguf", LocalPath(Path.home() / "model.gguf")),
        ("models/org", LocalPath(Path("models/org"))),
    ],
)
def test_sources_are_read(text: str, source: object) -> None:
    assert parse_source(text) == source


@pytest.mark.parametrize(
    "text",
    [
        "", " ", "pypi:a", "pypi:a==1", "pypi:a==1/", "pypi:a==1/../b", "pypi:a==1//etc/x", "pypi:a>=1/b",
        "hf:", "hf:a", "hf:a/b/c", "hf:a/b/../c.gguf", "hf:a b/c/d.gguf",
    ],
)  # fmt: skip
def test_a_malformed_source_is_refused_by_name(text: str) -> None:
    with pytest.raises(ConfigError, match="weights: "):
        parse_source(text)
