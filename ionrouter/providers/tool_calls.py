"""ToolCalls: one choice's tool calls put in order, whatever the upstream left out. Knows nothing of chunks.

Out: indexes 0, 1, 2 ...; `id`, `type` and `name` on the fragment that opens a call and there only;
`arguments` always a string.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import Any

from ionrouter.providers.indexes import read_index
from ionrouter.schema import json

NOTHING = "{}"  # the arguments of a call that has none


@dataclass(slots=True)
class _Call:
    index: int  # ours, as the next
    id: str
    given_id: str  # the upstream's
    name: str = ""
    arguments: list[str] = field(default_factory=list)  # pieces, none of them empty

    def ends_before(self, fragment: str, name: str) -> bool:
        """Whether a fragment's arguments are another call's, because this one's are whole.

        Gemini's OpenAI shape says index 0 of every parallel call, of the same tool too. Most fragments are
        told by one character. An empty object goes on where no name is said: some send one before the true.
        """
        if not self.arguments or not fragment.lstrip().startswith("{"):
            return False
        if not self.arguments[-1].rstrip().endswith("}"):
            return False
        try:
            value = json.loads("".join(self.arguments))
        except (ValueError, RecursionError):
            return False
        return isinstance(value, dict) and bool(value or name)


class ToolCalls:
    """The calls opened so far. A fragment belongs to a call by index, else by id, else to the last one.

    Unless it says another id, another name, or a second object of arguments: then it opens a call.
    """

    def __init__(self) -> None:
        self._calls: list[_Call] = []
        self._by_index: dict[int, _Call] = {}  # the upstream's index -> the call opened last under it
        self._by_id: dict[str, _Call] = {}  # the upstream's id

    def __bool__(self) -> bool:
        return bool(self._calls)

    def fragments(self, items: Any) -> list[dict[str, Any]]:
        """Normalise the `tool_calls` of one delta."""
        if isinstance(items, dict):
            items = [items]
        if not isinstance(items, list):
            return []
        return [out for item in items if isinstance(item, dict) and (out := self._fragment(item))]

    def legacy(self, function_call: Any) -> list[dict[str, Any]]:
        """Normalise the deprecated `function_call`: a single call without index or id."""
        return self.fragments([{"function": function_call}]) if isinstance(function_call, dict) else []

    def rest(self) -> list[dict[str, Any]]:
        """What is left to say at a finish: a call without arguments has none, which is an empty object.

        Clients parse the arguments, and nothing is not JSON.
        """
        bare = [call for call in self._calls if not call.arguments]
        for call in bare:
            call.arguments.append(NOTHING)
        return [{"index": call.index, "function": {"arguments": NOTHING}} for call in bare]

    def _fragment(self, item: dict[str, Any]) -> dict[str, Any] | None:
        function, call_id = item.get("function"), _string(item.get("id"))
        if not isinstance(function, dict):
            if not call_id:
                return None  # says nothing
            function = {}
        index = read_index(item.get("index"))
        name, arguments = _string(function.get("name")), _arguments(function.get("arguments"))
        call = self._find(index, call_id, name)
        if call is not None and _is_another(call, call_id, name):
            call = None
        if call is not None and arguments and call.ends_before(arguments, name):
            name, call = name or call.name, None
        if call is None:
            return self._open(index, call_id, name, arguments, item)
        return _continue(call, name, arguments)

    def _find(self, index: int | None, call_id: str, name: str) -> _Call | None:
        """Return the call a fragment may continue, None when it opens one."""
        if index is not None and index not in self._by_index:
            # A fresh index with a known id and no name: the upstream counts fragments, not calls.
            return self._by_id.get(call_id) if call_id and not name else None
        if index is not None:
            return self._by_index[index]
        if call_id:
            return self._by_id.get(call_id)
        last = self._calls[-1] if self._calls else None
        return None if last is not None and name and last.name else last

    def _open(
        self, index: int | None, call_id: str, name: str, arguments: str, item: dict[str, Any]
    ) -> dict[str, Any]:
        is_fresh = bool(call_id) and call_id not in self._by_id
        own_id = call_id if is_fresh else f"call_{secrets.token_hex(12)}"
        call = _Call(len(self._calls), own_id, call_id, name)
        if arguments:
            call.arguments.append(arguments)
        self._calls.append(call)
        self._by_index[call.index if index is None else index] = call
        self._by_id[call_id or call.id] = call
        kind = _string(item.get("type")) or "function"
        function = {"name": name, "arguments": arguments} if name else {"arguments": arguments}
        return {"index": call.index, "id": call.id, "type": kind, "function": function}


def _is_another(call: _Call, call_id: str, name: str) -> bool:
    """Some upstreams send every parallel call as index 0; some a new id with every fragment of one call."""
    if not name:
        return False
    if call_id and call.given_id != call_id:
        return True
    return bool(call.arguments) and bool(call.name) and name != call.name


def _continue(call: _Call, name: str, arguments: str) -> dict[str, Any] | None:
    function: dict[str, Any] = {}
    if name and not call.name:
        call.name = name
        function["name"] = name
    if arguments:
        call.arguments.append(arguments)
        function["arguments"] = arguments
    return {"index": call.index, "function": function} if function else None


def whole_calls(items: Any, function_call: Any) -> list[dict[str, Any]]:
    """Normalise a whole message's calls: ids made where missing, arguments a string, no indexes."""
    if not items and not function_call:
        return []
    calls = ToolCalls()
    opened = [call for item in _dicts(items) for call in calls.fragments([item])]
    opened = opened or calls.legacy(function_call)
    for call in opened:
        call.pop("index")
        call["function"].setdefault("name", "")
        call["function"].setdefault("arguments", "")
    return [call for call in opened if "id" in call]


def _dicts(items: Any) -> Iterable[dict[str, Any]]:
    # In a whole message every entry is a call of its own, so its position is its index.
    for position, item in enumerate(items if isinstance(items, list) else [items]):
        if isinstance(item, dict):
            yield {**item, "index": position}


def _string(value: Any) -> str:
    return value if isinstance(value, str) else ""


def _arguments(value: Any) -> str:
    if isinstance(value, str):
        return value
    return "" if value is None else json.dumps(value).decode("utf-8")
