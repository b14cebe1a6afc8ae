"""Where a wheel lies, asked of pip so that the user's index, proxy and certificates hold. Knows no models."""

from __future__ import annotations

import ast
import base64
import json
import netrc
import os
import ssl
import subprocess
import sys
import tempfile
import urllib.parse
import urllib.request
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import certifi

from ionrouter.engine.download import SourceUnavailable
from ionrouter.errors import ConfigError

# What `pip -vv` says of an index that it cannot reach, whatever its last line is then.
_OFFLINE_SIGNS = ("connection error: ", "Retrying (", "confirming the ssl certificate", "timed out")
_USAGE_ERROR = 2
# Settings that guard installations must not forbid to look something up.
_NOTHING_IS_INSTALLED = {"PIP_REQUIRE_VIRTUALENV": "0", "PIP_REQUIRE_HASHES": "0"}


@dataclass(frozen=True, slots=True)
class Wheel:
    """A wheel's address, and its hash if the index states one."""

    url: str
    sha256: str | None


def find_wheel(requirement: str, source: str) -> Wheel:
    """Ask pip for the wheel of `PACKAGE==VERSION`; raises SourceUnavailable or ConfigError.

    `fast-deps` keeps pip from downloading the whole wheel where the index serves no metadata of its own;
    a pip that has dropped the feature calls it a usage error, and is asked again without.
    """
    result, report = _run_pip(requirement, ["--use-feature=fast-deps"])
    if result.returncode == _USAGE_ERROR:
        result, report = _run_pip(requirement, [])
    if report is None:
        raise _failure(requirement, source, result.stdout, result.stderr)
    info = report["install"][0]["download_info"]
    hashes = info.get("archive_info", {}).get("hashes", {})
    return Wheel(info["url"], hashes.get("sha256"))


def _run_pip(
    requirement: str, extra: list[str]
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any] | None]:
    with tempfile.TemporaryDirectory(prefix="ionrouter-") as folder:
        report = Path(folder) / "report.json"
        command = [
            sys.executable,
            "-m",
            "pip",
            "-vv",
            "install",
            "--dry-run",
            "--no-deps",
            "--ignore-installed",
        ]
        command += ["--ignore-requires-python", "--only-binary=:all:", "--no-input", "--report", str(report)]
        command += [*extra, requirement]
        result = subprocess.run(
            command, capture_output=True, text=True, check=False, env=os.environ | _NOTHING_IS_INSTALLED
        )
        is_good = result.returncode == 0 and report.exists()
        return result, json.loads(report.read_text()) if is_good else None


def _failure(requirement: str, source: str, stdout: str, stderr: str) -> ConfigError:
    errors = [
        line.partition("ERROR:")[2].strip() for line in stderr.splitlines() if line.startswith("ERROR:")
    ]
    said = "; ".join(errors) or stderr.strip()[-500:]
    advice = "or set `weights:` to the path of a local copy"
    if any(sign in stdout or sign in stderr for sign in _OFFLINE_SIGNS):
        return SourceUnavailable(
            f"{source}: the package index cannot be reached (offline?): {said}; check the network and "
            f"`pip config list`, {advice}"
        )
    return ConfigError(
        f"{source}: pip finds no wheel of {requirement}: {said}; check the name and `pip config list`, "
        f"{advice}"
    )


def pip_settings() -> dict[str, str]:
    """Read pip's own settings; a later scope wins: files' [global], then [install], then PIP_* variables."""
    command = [sys.executable, "-m", "pip", "config", "list"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False).stdout
    scopes: dict[str, dict[str, str]] = {"global": {}, "install": {}, ":env:": {}}
    for line in listed.splitlines():
        key, equals, quoted = line.partition("=")
        scope, _, name = key.rpartition(".")
        if equals and scope in scopes:
            scopes[scope][name] = str(ast.literal_eval(quoted))
    return scopes["global"] | scopes["install"] | scopes[":env:"]


def opener_for(url: str, settings: Mapping[str, str]) -> urllib.request.OpenerDirector:
    """Build an opener with pip's proxy and certificates for `url`."""
    proxy = settings.get("proxy")
    proxies = None if proxy is None else {"http": proxy, "https": proxy}
    https = urllib.request.HTTPSHandler(context=_ssl_context(url, settings))
    return urllib.request.build_opener(urllib.request.ProxyHandler(proxies), https)


def _ssl_context(url: str, settings: Mapping[str, str]) -> ssl.SSLContext:
    context = ssl.create_default_context(cafile=settings.get("cert"))
    if "cert" not in settings and "SSL_CERT_FILE" not in os.environ:
        context.load_verify_locations(certifi.where())
    if "client-cert" in settings:
        context.load_cert_chain(settings["client-cert"])
    parts = urllib.parse.urlsplit(url)
    hosts = {parts.hostname, parts.netloc.rpartition("@")[2]}
    if hosts & set(settings.get("trusted-host", "").split()):
        context.check_hostname = False
        context.verify_mode = ssl.CERT_NONE
    return context


def authorization_for(url: str, settings: Mapping[str, str]) -> str | None:
    """Find Basic credentials for the URL's host: in pip's index URLs, else in ~/.netrc."""
    host = urllib.parse.urlsplit(url).netloc.rpartition("@")[2]
    for name in ("index-url", "extra-index-url", "find-links"):
        for candidate in settings.get(name, "").split():
            parts = urllib.parse.urlsplit(candidate)
            if parts.username is not None and parts.netloc.rpartition("@")[2] == host:
                return _basic(
                    urllib.parse.unquote(parts.username), urllib.parse.unquote(parts.password or "")
                )
    return _from_netrc(urllib.parse.urlsplit(url).hostname)


def _from_netrc(host: str | None) -> str | None:
    try:
        found = netrc.netrc().authenticators(host or "")
    except (FileNotFoundError, netrc.NetrcParseError):
        return None
    return None if found is None else _basic(found[0], found[2] or "")


def _basic(user: str, password: str) -> str:
    return "Basic " + base64.b64encode(f"{user}:{password}".encode()).decode("ascii")


def file_path(url: str) -> str:
    """Turn a file: URL into a path."""
    return urllib.request.url2pathname(urllib.parse.urlsplit(url).path)
