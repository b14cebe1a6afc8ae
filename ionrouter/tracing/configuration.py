"""Whether traces are wanted, and whether this process can send them: IONROUTER_TRACES and OTEL_* variables.

Everything else that OTEL_* variables say is read by the SDK itself (sdk.py). Imports nothing of it.
"""

from __future__ import annotations

import importlib.util
from collections.abc import Mapping
from typing import Literal
from urllib.parse import unquote

from yarl import URL

from ionrouter.errors import ConfigError, Problem

Mode = Literal["auto", "on", "off"]
ENDPOINTS = ("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT", "OTEL_EXPORTER_OTLP_ENDPOINT")
PROTOCOLS = ("OTEL_EXPORTER_OTLP_TRACES_PROTOCOL", "OTEL_EXPORTER_OTLP_PROTOCOL")
HEADERS = ("OTEL_EXPORTER_OTLP_TRACES_HEADERS", "OTEL_EXPORTER_OTLP_HEADERS")
EXPORTER = "OTEL_TRACES_EXPORTER"
PROTOCOL = "http/protobuf"
DEFAULT_ENDPOINT = "http://localhost:4318"  # of the OTLP specification
PACKAGES = ("opentelemetry.sdk.trace", "opentelemetry.exporter.otlp.proto.http")


def wants_traces(mode: Mode, env: Mapping[str, str]) -> bool:
    """Decide whether to trace; raises ConfigError naming every variable that stands in the way.

    `auto` means: when the environment names a collector. OTEL_SDK_DISABLED and OTEL_TRACES_EXPORTER=none
    switch off, as everywhere.
    """
    if mode == "off" or _value(env, "OTEL_SDK_DISABLED").lower() == "true":
        return False
    exporter = _value(env, EXPORTER).lower()
    if exporter == "none" or (mode == "auto" and _first(env, ENDPOINTS) is None):
        return False
    problems = [*_problems(env, exporter)]
    if not problems and not _has_packages():
        cause = (_first(env, ENDPOINTS) or ("IONROUTER_TRACES", ""))[0]
        text = "traces are configured, but their packages are missing: pip install -e '.[otel]'"
        problems = [Problem(cause, f"{text}, or set IONROUTER_TRACES=off")]
    if problems:
        raise ConfigError(problems)
    return True


def collector(env: Mapping[str, str]) -> str:
    """The collector's address as the variables say it, without user info and query, for the log."""
    _, url = _first(env, ENDPOINTS) or ("", DEFAULT_ENDPOINT)
    return str(URL(url).with_user(None).with_query(None))


def secrets(env: Mapping[str, str]) -> list[str]:
    """Values of the headers that go to the collector, for the redactor: keys are among them."""
    pairs = [pair.partition("=")[2].strip() for name in HEADERS for pair in _value(env, name).split(",")]
    decoded = [form for pair in pairs for form in (pair, unquote(pair))]
    return [form for form in (*decoded, *(text.rpartition(" ")[2] for text in decoded)) if form]


def _problems(env: Mapping[str, str], exporter: str) -> list[Problem]:
    problems = []
    if exporter not in ("", "otlp"):
        problems.append(Problem(EXPORTER, f"only otlp and none are known here, got {exporter!r}"))
    if (named := _first(env, PROTOCOLS)) and named[1].lower() != PROTOCOL:
        problems.append(Problem(named[0], f"only {PROTOCOL} is spoken here, got {named[1]!r}"))
    if named := _first(env, ENDPOINTS):
        url = _url(named[1])
        if url is None or url.scheme not in ("http", "https") or not url.host:
            problems.append(Problem(named[0], f"must be http:// or https:// with a host, got {named[1]!r}"))
    return problems


def _url(text: str) -> URL | None:
    try:
        return URL(text)
    except ValueError:
        return None


def _has_packages() -> bool:
    try:
        return all(importlib.util.find_spec(name) is not None for name in PACKAGES)
    except ModuleNotFoundError:  # of a package above
        return False


def _first(env: Mapping[str, str], names: tuple[str, ...]) -> tuple[str, str] | None:
    """The first variable that says something, and what."""
    return next(((name, value) for name in names if (value := _value(env, name))), None)


def _value(env: Mapping[str, str], name: str) -> str:
    return env.get(name, "").strip()
