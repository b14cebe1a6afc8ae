"""Asks a running server over its own HTTP API; the key is IONROUTER_KEY or this machine's state folder's."""

from __future__ import annotations

import contextlib
import json
import os
import urllib.error
import urllib.request
from typing import Any
from urllib.parse import urlsplit

from ionrouter.errors import ConfigError
from ionrouter.settings import Settings, is_loopback

TIMEOUT_S = 30.0


class ServerUnreachable(ConfigError):
    """Nobody listens there."""


def server_url(settings: Settings, url: str | None) -> str:
    """The server meant: the one named, or this machine's by host and port; a wildcard means loopback."""
    if url:
        return url.rstrip("/").removesuffix("/api/v1").removesuffix("/v1")
    host = {"0.0.0.0": "127.0.0.1", "::": "[::1]"}.get(settings.host.strip("[]"), settings.host)
    return f"http://[{host}]:{settings.port}" if ":" in host.strip("[]") else f"http://{host}:{settings.port}"


def ask(settings: Settings, base: str, path: str, body: Any = None) -> Any:
    """GET, or POST with a body; raises ServerUnreachable, or ConfigError with the server's own message."""
    try:
        return json.loads(ask_text(settings, base, path, body))
    except ValueError:
        raise ConfigError(f"{base} is no ionrouter: its answer is not JSON") from None


def ask_text(settings: Settings, base: str, path: str, body: Any = None) -> str:
    """The same, with the answer as it is."""
    request = urllib.request.Request(f"{base}{path}", headers=_headers(settings, base))
    if body is not None:
        request.data = json.dumps(body).encode()
    # No proxy: the server is on this machine or named by the user.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    try:
        with opener.open(request, timeout=TIMEOUT_S) as answer:
            return str(answer.read().decode())
    except urllib.error.HTTPError as error:
        raise ConfigError(f"{base}: {_message(error)}") from None
    except (urllib.error.URLError, OSError) as error:
        reason = getattr(error, "reason", error)
        raise ServerUnreachable(f"no server answers at {base}: {reason}") from None
    except UnicodeDecodeError:
        raise ConfigError(f"{base} is no ionrouter: its answer is no text") from None


def _headers(settings: Settings, base: str) -> dict[str, str]:
    headers = {"Content-Type": "application/json"}
    if key := os.environ.get("IONROUTER_KEY") or _own_key(settings, base):
        headers["Authorization"] = f"Bearer {key}"
    return headers


def _own_key(settings: Settings, base: str) -> str | None:
    """The state folder's management key, for this machine only; absent before a server's first start."""
    if not is_loopback(urlsplit(base).hostname or ""):
        return None
    with contextlib.suppress(OSError):
        return settings.management_key_path.read_text().strip()
    return None


def _message(error: urllib.error.HTTPError) -> str:
    try:
        return str(json.load(error)["error"]["message"])
    except (ValueError, KeyError, TypeError):
        return f"HTTP {error.code}"
