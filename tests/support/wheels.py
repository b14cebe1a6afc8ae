"""A package index on loopback with one wheel in it, and pip pointed there and nowhere else."""

from __future__ import annotations

import hashlib
import io
import os
import zipfile
from collections.abc import Mapping

import pytest

from tests.support.file_server import FileServer, Served

PACKAGE, VERSION = "tiny-weights", "1.0"
WHEEL_NAME = "tiny_weights-1.0-py3-none-any.whl"
WHEEL_PATH = f"/files/{WHEEL_NAME}"
METADATA = f"Metadata-Version: 2.1\nName: {PACKAGE}\nVersion: {VERSION}\n"


def make_wheel(members: Mapping[str, bytes]) -> bytes:
    """Build a valid wheel that holds these files, stored without compression."""
    info = "tiny_weights-1.0.dist-info"
    wheel = "Wheel-Version: 1.0\nGenerator: test\nRoot-Is-Purelib: true\nTag: py3-none-any\n"
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w") as archive:
        for name, data in members.items():
            archive.writestr(name, data)
        archive.writestr(f"{info}/METADATA", METADATA)
        archive.writestr(f"{info}/WHEEL", wheel)
        archive.writestr(f"{info}/RECORD", "")
    return out.getvalue()


def serve_wheel(
    server: FileServer, wheel: bytes, *, sha256: str | None = None, has_metadata: bool = True
) -> Served:
    """Put the wheel and its index page on the server; `sha256` is what the page claims.

    `has_metadata`: the index serves the wheel's metadata by itself (PEP 658), so that pip leaves the wheel.
    """
    claimed = sha256 or hashlib.sha256(wheel).hexdigest()
    attribute = ' data-dist-info-metadata="true" data-core-metadata="true"' if has_metadata else ""
    page = f'<a href="{WHEEL_PATH}#sha256={claimed}"{attribute}>{WHEEL_NAME}</a>'
    server.files[f"{WHEEL_PATH}.metadata"] = Served(METADATA.encode())
    server.files[f"/simple/{PACKAGE}/"] = Served(page.encode(), "text/html", etag=None)
    server.files[WHEEL_PATH] = Served(wheel)
    return server.files[WHEEL_PATH]


def pip_environment(index_url: str) -> dict[str, str]:
    """Say which variables make pip use this index alone."""
    return {
        "PIP_CONFIG_FILE": os.devnull,
        "PIP_INDEX_URL": index_url,
        "PIP_RETRIES": "0",
        "PIP_NO_CACHE_DIR": "1",
        "PIP_DISABLE_PIP_VERSION_CHECK": "1",
    }


def use_index(monkeypatch: pytest.MonkeyPatch, index_url: str) -> None:
    """Point pip, as this test's processes run it, to one index."""
    for name in [name for name in os.environ if name.startswith("PIP_")]:
        monkeypatch.delenv(name)
    for name, value in pip_environment(index_url).items():
        monkeypatch.setenv(name, value)
    for name in ("http_proxy", "https_proxy", "HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "all_proxy"):
        monkeypatch.delenv(name, raising=False)
