"""Which details of a streamed thought are pieces of one block: a client must send each block back as it was.

Upstreams cut a block anywhere and sign it at its end; most number their blocks, some number nothing. Knows
no surface and no wire.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from ionrouter.schema.pieces import Pieces

Detail = Mapping[str, Any]
TEXT, SUMMARY, ENCRYPTED = "reasoning.text", "reasoning.summary", "reasoning.encrypted"
UNKNOWN = "unknown"  # a format
# A detail's type -> its field that is cut into pieces. Details of other types come whole.
TEXTS = {TEXT: "text", SUMMARY: "summary", ENCRYPTED: "data"}
TOLD_IN = ("reasoning_content", "reasoning")  # fields of a message that hold plain thoughts
_KEYS = frozenset(TEXTS.values())
_SAYING = (*TEXTS.values(), "signature")


class Block:
    """What is known of the block that is open. At first there is none, and nothing goes on with it."""

    __slots__ = ("_id", "_index", "_is_signed", "_last", "type")

    def __init__(self) -> None:
        self.type: str | None = None
        self._id: Any = None
        self._index: Any = None
        self._is_signed = False
        self._last: tuple[Any, Any, Any] | None = None  # what the last detail said of itself, unsigned

    def takes(self, detail: Detail, *, is_first: bool) -> bool:
        """Take a detail in, and tell whether it goes on with the block; else it begins the next one.

        `is_first`: of its delta. Two details that stand in one delta without an index are two blocks.
        """
        get = detail.get
        its_type, its_id, its_index, signature = get("type"), get("id"), get("index"), get("signature")
        said = (its_type, its_id, its_index)
        if said == self._last and its_index is not None and not signature:
            return True  # nearly always
        goes_on = self._goes_on(its_type, its_id or None, its_index, is_first=is_first)
        if not goes_on:
            self.type, self._id, self._index = its_type, None, None
        self._id = its_id or self._id
        self._index = self._index if its_index is None else its_index
        self._is_signed = bool(signature)
        self._last = None if signature or its_type not in TEXTS else said
        return goes_on

    def _goes_on(self, its_type: Any, its_id: Any, its_index: Any, *, is_first: bool) -> bool:
        if self._is_signed or its_type != self.type or its_type not in TEXTS:
            return False
        is_same_id = its_id is not None and its_id == self._id
        is_same_index = its_index is not None and its_index == self._index
        is_other_id = not is_same_id and None not in (its_id, self._id)
        if is_other_id or (not is_same_index and None not in (its_index, self._index)):
            return False
        # Text behind text is one thought; what is encrypted has nothing but its name to go by.
        return is_same_id or is_same_index or (is_first and its_type != ENCRYPTED)


class ReasoningDetails:
    """The details of a stream, put together."""

    __slots__ = ("_block", "_items")

    def __init__(self) -> None:
        self._block = Block()
        self._items: list[Pieces] = []

    def add(self, details: Sequence[Detail]) -> None:
        """Take in those of a delta."""
        for position, detail in enumerate(details):
            if not self._block.takes(detail, is_first=position == 0):
                self._items.append(Pieces(_KEYS))
            elif detail.get("format") == UNKNOWN:
                detail = {**detail, "format": None}  # says nothing: the block's own stands
            self._items[-1].add(detail)

    def joined(self) -> list[dict[str, Any]]:
        """One item a block."""
        return [item.joined() for item in self._items]


def details_of(delta: Mapping[str, Any]) -> Sequence[Detail]:
    """Give those of a delta that say something; plain `reasoning` is one where no other has its text."""
    plain, details = delta.get("reasoning"), delta.get("reasoning_details")
    if not details:
        return [{"type": TEXT, "text": plain}] if plain else ()
    if len(details) == 1 and details[0].get("text"):
        return details  # type: ignore[no-any-return]  # nearly always
    told = [detail for detail in details if any(detail.get(key) for key in _SAYING)]
    if not plain or any(detail.get("text") or detail.get("summary") for detail in told):
        return told
    if told and told[0].get("type") == TEXT:
        return [{**told[0], "text": plain}, *told[1:]]
    return [{"type": TEXT, "text": plain}, *told]


def thoughts_of(message: Mapping[str, Any]) -> str:
    """Give the text of what an answer thought, wherever its client kept it; nothing was checked."""
    for name in TOLD_IN:
        if isinstance(said := message.get(name), str) and said:
            return said
    details = message.get("reasoning_details")
    told = [detail for detail in details if isinstance(detail, Mapping)] if isinstance(details, list) else []
    texts = (detail.get("text") or detail.get("summary") for detail in told)
    return "".join(text for text in texts if isinstance(text, str))
