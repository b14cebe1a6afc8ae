"""MediaFetcher: images and files that a request names by address, as `data:` URLs.

For providers that take the bytes alone. A caller must not reach by us what this machine can and he cannot:
only https:// to public addresses is followed, checked on the address that is connected to. Knows the bodies
of chat requests; knows no provider.
"""

from __future__ import annotations

import asyncio
import base64
import mimetypes
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any
from urllib.parse import urljoin

from yarl import URL

from ionrouter.addresses import is_public
from ionrouter.errors import ConfigError, IonrouterError
from ionrouter.providers.answer import Answer
from ionrouter.providers.http_faults import AddressNotAllowed, HttpFault
from ionrouter.providers.look_ups import LookUps
from ionrouter.providers.outgoing import USER_AGENT, MayReach, Outgoing, reaching_only
from ionrouter.providers.pool import Resolve

MAX_BYTES = 20_000_000  # of one address
MAX_ADDRESSES = 32  # in one request
MAX_BYTES_TOGETHER = 64_000_000  # of them
MAX_AT_ONCE = 8  # in the whole process
MAX_REDIRECTS = 3
TIMEOUT_S = 10.0  # of one address, redirects included
CONNECT_S = 5.0

_FIELDS = ("image_url", "video_url", "file")  # of a part, and of what is there, where an address may be
_KEYS = ("url", "file_data", "file_url")
_MEDIA = ("image/", "audio/", "video/")
_DOCUMENTS = ("application/pdf", "text/plain", "text/markdown", "text/csv", "application/json")
_UNKNOWN = ("", "application/octet-stream", "binary/octet-stream")
# Other people's names are looked up in threads of their own: those may never answer.
_look_ups = LookUps(8, "media-lookup")


class MediaRefused(IonrouterError):
    """An address of a request that is not fetched, or gave nothing to send on. `path` says which."""

    def __init__(self, path: str, why: str) -> None:
        super().__init__(f"{path}: {why}")
        self.path = path


@dataclass(frozen=True, slots=True)
class _Place:
    """An address in a body: the keys that lead to it from `messages`."""

    keys: tuple[str | int, ...]
    address: str

    @property
    def path(self) -> str:
        return "messages" + "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in self.keys)


class MediaFetcher:
    """Fetches over connections of its own, which serve one answer each."""

    def __init__(self, find: Resolve | None = None, may_reach: MayReach = is_public) -> None:
        """`find` looks names up; addresses that it finds and none `may_reach` are refused."""
        find = find or _look_ups
        self._outgoing = Outgoing(reaching_only(find, may_reach, "{host} is not a public address"))
        self._slots = asyncio.Semaphore(MAX_AT_ONCE)

    async def inlined(self, body: Mapping[str, Any]) -> Mapping[str, Any]:
        """Copy a chat body with `data:` URLs for all addresses; the body itself without any.

        Raises MediaRefused for the first that cannot be had.
        """
        places = list(_places(body))
        if not places:
            return body
        if len(places) > MAX_ADDRESSES:
            raise MediaRefused(places[MAX_ADDRESSES].path, f"more than {MAX_ADDRESSES} addresses to fetch")
        fetched = await self._all({place.address: place for place in reversed(places)})  # each address once
        for found in fetched.values():
            if isinstance(found, MediaRefused):
                raise found
        messages = list(body["messages"])
        for place in places:
            number = place.keys[0]
            assert isinstance(number, int)
            messages[number] = _replaced(messages[number], place.keys[1:], fetched[place.address])
        return {**body, "messages": messages}

    async def close(self) -> None:
        """Close every connection."""
        await self._outgoing.close()

    async def _all(self, places: Mapping[str, _Place]) -> Mapping[str, str | MediaRefused]:
        room = _Room(MAX_BYTES_TOGETHER)
        async with asyncio.TaskGroup() as fetches:
            tasks = {
                address: fetches.create_task(self._held(place, room), name="media")
                for address, place in places.items()
            }
        return {address: task.result() for address, task in tasks.items()}

    async def _held(self, place: _Place, room: _Room) -> str | MediaRefused:
        """Fetch one; a refusal is returned, so that the others are not cancelled for it."""
        try:
            async with self._slots, asyncio.timeout(TIMEOUT_S):
                kind, data = await self._fetched(place.address)
            room.take(len(data))
        except _Refused as refused:
            return MediaRefused(place.path, str(refused))
        except TimeoutError:
            return MediaRefused(place.path, "the address took too long to fetch")
        except ConfigError:
            return MediaRefused(place.path, "not an address that can be fetched")
        except AddressNotAllowed:
            return MediaRefused(place.path, "the address is not a public one")
        except (HttpFault, OSError):
            return MediaRefused(place.path, "the address cannot be fetched: no connection, or it was cut")
        return await asyncio.to_thread(_data_url, kind, data)

    async def _fetched(self, address: str) -> tuple[str, bytes]:
        """Media type and bytes; redirects are followed, each as if it were the address."""
        for _ in range(1 + MAX_REDIRECTS):
            if not address.lower().startswith("https://"):
                raise _Refused("only https:// addresses are fetched")
            headers = {"User-Agent": USER_AGENT, "Accept": "*/*", "Connection": "close"}
            answer = await self._outgoing.send(
                "GET", address, headers, None, allow_http=False, connect_s=CONNECT_S
            )
            try:
                if answer.status in (301, 302, 303, 307, 308) and "location" in answer.headers:
                    address = urljoin(address, answer.headers["location"])
                    continue
                return _kind_of(answer, address), await _read(answer)
            finally:
                answer.close()
        raise _Refused(f"the address leads on more than {MAX_REDIRECTS} times")


class _Refused(Exception):
    """Why what an address gave is not sent on."""


@dataclass(slots=True)
class _Room:
    """Bytes that a request's addresses may still give."""

    left: int

    def take(self, num_bytes: int) -> None:
        self.left -= num_bytes
        if self.left < 0:
            raise _Refused(f"the addresses give more than {MAX_BYTES_TOGETHER // 1_000_000} MB together")


def _places(body: Mapping[str, Any]) -> Iterator[_Place]:
    messages = body.get("messages")
    for number, message in enumerate(messages if isinstance(messages, list) else ()):
        content = message.get("content") if isinstance(message, Mapping) else None
        for index, part in enumerate(content if isinstance(content, list) else ()):
            for keys, value in _values(part):
                if isinstance(value, str) and value[:8].lower().startswith(("https://", "http://")):
                    yield _Place((number, "content", index, *keys), value)


def _values(part: Any) -> Iterator[tuple[tuple[str, ...], Any]]:
    """What of a part may be an address, and where: `image_url.url`, `file.file_data` ..."""
    for field in _FIELDS if isinstance(part, Mapping) else ():
        value = part.get(field)
        yield (field,), value
        if isinstance(value, Mapping):
            yield from (((field, key), value.get(key)) for key in _KEYS)


def _replaced(value: Any, keys: Sequence[str | int], new: Any) -> Any:
    """Copy `value` along `keys`, with `new` at their end; what lies beside is shared."""
    if not keys:
        return new
    copy: Any = list(value) if isinstance(value, list) else dict(value)
    copy[keys[0]] = _replaced(value[keys[0]], keys[1:], new)
    return copy


def _kind_of(answer: Answer, address: str) -> str:
    if not 200 <= answer.status < 300:
        raise _Refused(f"the address answers with HTTP {answer.status}")
    kind = answer.content_type
    if kind in _UNKNOWN:
        kind = mimetypes.guess_type(URL(address).path)[0] or ""
    if not kind.startswith(_MEDIA) and kind not in _DOCUMENTS:
        raise _Refused(
            f"the address gives {kind or 'something unknown'!r}, no image, sound, video or document"
        )
    return kind


async def _read(answer: Answer) -> bytes:
    data = await answer.read(MAX_BYTES + 1)
    if len(data) > MAX_BYTES:
        raise _Refused(f"the address gives more than {MAX_BYTES // 1_000_000} MB")
    return data


def _data_url(kind: str, data: bytes) -> str:
    return f"data:{kind};base64,{base64.b64encode(data).decode('ascii')}"
