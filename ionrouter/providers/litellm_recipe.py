"""Recipe: how a call becomes the request that litellm would send, without litellm. No sockets, no secrets.

Derived from requests that litellm really built, and good for calls of the same signature only.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

from ionrouter.schema import json

BARE: Literal["bare"] = (
    "bare"  # instead of a recipe: the worker's bare translation is proved, and the answer is translated
)
KEY = "ionrouter-stands-in-for-the-key"  # what a proof's calls carry instead of a key
_CONSTANTS = ("model", "stream", "stream_options")  # fields whose values the call's signature settles
# The transport's own; and identity instead of gzip, which would hold events back until its window fills.
_OURS = frozenset(("host", "content-length", "connection", "accept-encoding", "transfer-encoding"))


@dataclass(frozen=True, slots=True)
class Recipe:
    """`fields` maps a name on the wire to the argument it comes from; `headers` hold KEY for the key."""

    url: str
    headers: tuple[tuple[str, str], ...]
    fields: tuple[tuple[str, str], ...]
    constants: tuple[tuple[str, Any], ...]

    def body(self, call: Mapping[str, Any]) -> dict[str, Any]:
        """Build the JSON body for a call of the signature this recipe was derived for."""
        arguments = call["arguments"]
        body = dict(self.constants)
        body.update((name, arguments[source]) for name, source in self.fields)
        return {**body, **call["extra_body"]}

    def headers_with(self, key: str) -> dict[str, str]:
        """Return the headers with the key where it belongs."""
        return {name: value.replace(KEY, key) for name, value in self.headers}

    def as_json(self) -> dict[str, Any]:
        """Return what `recipe_of` reads."""
        return {
            "url": self.url,
            "headers": dict(self.headers),
            "fields": dict(self.fields),
            "constants": dict(self.constants),
        }


def is_of_transport(header: str) -> bool:
    """Ask whether a header is one that whoever sends a request writes."""
    return header.lower() in _OURS


def recipe_of(told: Any) -> Recipe:
    """Read a recipe from JSON; raises ValueError when it is none."""
    try:
        parts = [tuple((str(k), v) for k, v in told[n].items()) for n in ("headers", "fields", "constants")]
        is_text = all(isinstance(v, str) for pairs in parts[:2] for _, v in pairs)
        if not is_text or not isinstance(told["url"], str):
            raise ValueError("a recipe's url, headers and fields are text")
    except (KeyError, TypeError, AttributeError) as error:
        raise ValueError("not a recipe") from error
    return Recipe(told["url"], *parts)


def derive(call: Mapping[str, Any], sent: Mapping[str, Any]) -> Recipe | str:
    """Find the recipe that makes `sent` (url, headers, body) of `call`, or say in words why there is none."""
    if sent["method"] != "POST" or not sent["url"].split("?")[0].endswith("/chat/completions"):
        return "not a POST to /chat/completions"
    if KEY in sent["url"] or KEY in json.dumps(sent["body"]).decode():
        return "the key is outside the headers"
    arguments, body = call["arguments"], dict(sent["body"])
    for name, value in call["extra_body"].items():
        if not _same(body.pop(name, None), value):
            return f"{name} of the options changes"
    fields: dict[str, str] = {}
    for name, value in body.items():
        source = _source(name, value, arguments)
        if source is not None:
            fields[name] = source
        elif name not in _CONSTANTS:
            return f"{name} is translated"
    if bool(body.get("stream", False)) is not call["stream"]:
        return "streaming is imitated"
    headers = tuple((k, v) for k, v in sent["headers"].items() if k.lower() not in _OURS)
    constants = tuple((k, v) for k, v in body.items() if k not in fields)
    return Recipe(sent["url"], (*headers, ("accept-encoding", "identity")), tuple(fields.items()), constants)


def explains(recipe: Recipe, call: Mapping[str, Any], sent: Mapping[str, Any]) -> bool:
    """Whether the recipe makes exactly what was sent for `call`."""
    headers = {k.lower(): v for k, v in sent["headers"].items() if k.lower() not in _OURS}
    ours = {k.lower(): v for k, v in recipe.headers if k.lower() not in _OURS}
    return sent["url"] == recipe.url and headers == ours and _same(recipe.body(call), sent["body"])


def is_same_request(one: Mapping[str, Any], other: Mapping[str, Any]) -> bool:
    """Whether two captured requests are the same to the byte, but for what belongs to the transport."""
    return bool(_own(one) == _own(other))


def _own(sent: Mapping[str, Any]) -> Any:
    headers = {k.lower(): v for k, v in sent["headers"].items() if k.lower() not in _OURS}
    return sent["method"], sent["url"], headers, sent["text"]


def _source(name: str, value: Any, arguments: Mapping[str, Any]) -> str | None:
    if name in arguments:
        return name if _same(arguments[name], value) else None
    if name in _CONSTANTS:
        return None
    renamed = [n for n, v in arguments.items() if n not in _CONSTANTS and _same(v, value)]
    return renamed[0] if len(renamed) == 1 else None


def _same(one: Any, other: Any) -> bool:
    """Equal as JSON: 1 is not 1.0 and not true."""
    return json.dumps(_sorted(one)) == json.dumps(_sorted(other))


def _sorted(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: _sorted(value[key]) for key in sorted(value)}
    return [_sorted(item) for item in value] if isinstance(value, list) else value
