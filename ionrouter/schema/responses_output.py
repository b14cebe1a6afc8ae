"""The output items of one response as they grow, with the events that tell of it. Knows no envelope.

An item: reasoning, message (parts output_text and refusal), function_call, custom_tool_call or
image_generation_call. One is open at a time.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema.annotations import as_responses_annotation, listed
from ionrouter.schema.images import result_of
from ionrouter.schema.input_text import InputText
from ionrouter.schema.reasoning_details import ENCRYPTED, Block, Detail, details_of
from ionrouter.schema.responses_seal import details_of_item, seal
from ionrouter.schema.responses_tools import Called, Toolbox
from ionrouter.schema.tool_stream import Step, ToolStream

SseEvent = dict[str, Any]


@dataclass(frozen=True, slots=True)
class _PartWords:
    """What a part's type, its text's key and its events are called."""

    part: str
    key: str
    event: str
    part_event: str = "content_part"
    place: str = "content"  # the list of the item that holds the part
    index: str = "content_index"  # what its number there is called


_Logprobs = list[Any]
_TEXT = _PartWords("output_text", "text", "output_text")
_REFUSAL = _PartWords("refusal", "refusal", "refusal")
_EXTRAS = frozenset({"annotations", "images", "audio"})  # of a delta
_THOUGHT = _PartWords("reasoning_text", "text", "reasoning_text")
_SUMMED_UP = _PartWords(
    "summary_text", "text", "reasoning_summary_text", "reasoning_summary_part", "summary", "summary_index"
)


@dataclass(slots=True)
class Output:
    """Items so far; `add` and `close` give events without sequence numbers."""

    seed: str  # ids of items are made of it, and are the same in both modes
    hides_reasoning: bool = False
    seals_thoughts: bool = False  # what the next turn needs of them goes into `encrypted_content`
    tools: Toolbox = field(default_factory=Toolbox)
    _items: list[dict[str, Any]] = field(default_factory=list)
    _is_open: bool = False  # the last item
    _words: _PartWords | None = None  # of the part that is open in it
    _pieces: list[str] = field(default_factory=list)  # of the open part or call, joined when it ends
    _tools: ToolStream = field(default_factory=ToolStream)
    _input: InputText = field(default_factory=InputText)  # of the open custom call
    _late: list[tuple[Mapping[str, Any], Sequence[Detail], _Logprobs]] = field(default_factory=list)
    _thought: Block = field(default_factory=Block)
    _thoughts_id: str | None = None  # what its maker calls the open thought
    _late_images: list[str] = field(default_factory=list)
    _num_characters: int = 0  # of text so far
    _text_begins_at: int = 0  # of these: before the open part
    _annotations: list[Any] = field(default_factory=list)  # that wait for a text
    _left_out: set[str] = field(default_factory=set)

    @property
    def left_out(self) -> frozenset[str]:
        """What no item or part can hold, by chat's names."""
        has_late_text = any(delta.get("content") for delta, *_ in self._late)
        waits_in_vain = {"annotations"} if self._annotations and not has_late_text else set()
        return frozenset(self._left_out | waits_in_vain)

    def items(self) -> list[dict[str, Any]]:
        """A copy, as deep as anything that still grows."""
        return [_whole_copy(item) for item in self._items]

    def text(self) -> str:
        """What the assistant said, all messages joined."""
        parts = [part for item in self._items if item["type"] == "message" for part in item["content"]]
        return "".join(part.get("text", "") for part in parts)

    def add(self, delta: Mapping[str, Any], logprobs: Mapping[str, Any] | None) -> Iterator[SseEvent]:
        """Take in one delta."""
        thoughts = () if self.hides_reasoning else details_of(delta)
        told = list((logprobs or {}).get("content") or ())
        if thoughts or told or delta.get("content") or delta.get("refusal"):
            if self._tools.is_mid_call:
                self._late.append((delta, thoughts, told))  # an item that was left cannot be gone back to
            else:
                yield from self._call(is_over=True)
                yield from self._speak(delta, thoughts, told)
        if not _EXTRAS.isdisjoint(delta):  # hardly ever
            yield from self._add_extras(delta)
        if calls := delta.get("tool_calls"):
            self._tools.add(calls)
            yield from self._call(is_over=False)

    def _add_extras(self, delta: Mapping[str, Any]) -> Iterator[SseEvent]:
        for annotation in listed(delta.get("annotations")):
            if as_responses_annotation(annotation) is None:
                self._left_out.add("annotations")
            else:
                self._annotations.append(annotation)
        yield from self._annotate()
        for image in listed(delta.get("images")):
            if (result := result_of(image)) is None:
                self._left_out.add("images")
            else:
                yield from self._draw(result)
        if delta.get("audio"):
            self._left_out.add("audio")

    def close(self, status: str) -> Iterator[SseEvent]:
        """End the item that is open, with the answer's status."""
        is_last = not self._late and not self._late_images
        yield from self._call(is_over=True, status=status if is_last else "completed")
        for delta, thoughts, logprobs in self._late:
            yield from self._speak(delta, thoughts, logprobs)
        for result in self._late_images:
            yield from self._draw(result)
        yield from self._close_item("completed" if self._is_sealed else status)

    def _speak(
        self, delta: Mapping[str, Any], thoughts: Sequence[Detail], logprobs: _Logprobs
    ) -> Iterator[SseEvent]:
        for position, detail in enumerate(thoughts):
            yield from self._think(detail, is_first=position == 0)
        if (text := delta.get("content")) or logprobs:  # half a character has no text yet, but a logprob
            yield from self._say(_TEXT, text or "", logprobs)
        if refusal := delta.get("refusal"):
            yield from self._say(_REFUSAL, refusal, [])

    def _think(self, detail: Detail, *, is_first: bool) -> Iterator[SseEvent]:
        goes_on = self._thought.takes(detail, is_first=is_first)
        if not goes_on and (self._is_sealed or (self._has_content and self._thought.type != ENCRYPTED)):
            yield from self._close_item("completed")  # a signature must not sign what another item says
        yield from self._item("reasoning", _new_reasoning)
        item = self._items[-1]
        self._thoughts_id = detail.get("id") or self._thoughts_id
        if not goes_on and self._words == _SUMMED_UP:
            yield from self._close_part()  # an item may hold several summaries, each a part
        if text := detail.get("text"):
            yield from self._grow(_THOUGHT, text, [])
        elif text := detail.get("summary"):
            yield from self._grow(_SUMMED_UP, text, [])
        if data := detail.get("data"):  # more of it may follow, so the item stays open
            item["encrypted_content"] = (item["encrypted_content"] or "") + data
            item["format"] = detail.get("format") or "unknown"
        if signature := detail.get("signature"):
            item["signature"] = signature
            item["format"] = detail.get("format") or "unknown"
            yield from self._close_item("completed")  # sealed; the next thought is another item

    @property
    def _has_content(self) -> bool:
        return self._is_open and bool(self._items[-1].get("content"))

    @property
    def _is_sealed(self) -> bool:
        """Whether a thought is open that nothing but the rest of its seal can belong to."""
        return self._is_open and self._items[-1].get("encrypted_content") is not None

    def _say(self, words: _PartWords, text: str, logprobs: _Logprobs) -> Iterator[SseEvent]:
        yield from self._item("message", _new_message)
        yield from self._grow(words, text, logprobs)
        if self._annotations:
            yield from self._annotate()

    def _annotate(self) -> Iterator[SseEvent]:
        """Write the annotations that wait, if the open part is a text."""
        if self._words != _TEXT:
            return
        written = self._items[-1]["content"][-1]["annotations"]
        for annotation in self._annotations:
            told = as_responses_annotation(annotation, self._text_begins_at)
            known = {"annotation_index": len(written), "annotation": told}
            written.append(told)
            yield self._part_event("response.output_text.annotation.added", _TEXT, **known)
        self._annotations = []

    def _draw(self, result: str) -> Iterator[SseEvent]:
        """Write an image, which is an item of its own."""
        if self._tools.is_mid_call:
            self._late_images.append(result)
            return
        yield from self._call(is_over=True)
        yield from self._close_item("completed")
        yield from self._item("image_generation_call", _new_image)
        item = self._items[-1]
        for step in ("in_progress", "completed"):
            kind = f"response.image_generation_call.{step}"
            yield {"type": kind, "item_id": item["id"], "output_index": len(self._items) - 1}
        item["result"] = result
        yield from self._close_item("completed")

    def _grow(self, words: _PartWords, text: str, logprobs: _Logprobs) -> Iterator[SseEvent]:
        """Add to the open part, or open one."""
        parts = self._items[-1][words.place]
        if self._words != words:
            yield from self._close_part()
            self._words, self._text_begins_at = words, self._num_characters
            more: dict[str, Any] = {"annotations": [], "logprobs": []} if words == _TEXT else {}
            parts.append({"type": words.part, words.key: "", **more})
            yield self._part_event(f"response.{words.part_event}.added", words, part=_copy(parts[-1]))
        self._pieces.append(text)
        if words == _TEXT:
            self._num_characters += len(text)
            parts[-1]["logprobs"] += logprobs
        known = {"logprobs": logprobs} if words == _TEXT else {}
        yield self._part_event(f"response.{words.event}.delta", words, delta=text, **known)

    def _call(self, *, is_over: bool, status: str = "completed") -> Iterator[SseEvent]:
        for step in self._tools.take(is_over=is_over):
            yield from self._write_call(step, status)

    def _write_call(self, step: Step, status: str) -> Iterator[SseEvent]:
        if step.opens:
            yield from self._close_item("completed")
            called = self.tools.called(step.name)
            kind = "custom_tool_call" if called.is_custom else "function_call"
            yield from self._item(kind, lambda: _new_call(step.id, called))
        item = self._items[-1]
        where = {"item_id": item["id"], "output_index": len(self._items) - 1}
        if item["type"] == "custom_tool_call":
            yield from self._write_input(step, where, status)
            return
        if step.arguments:
            self._pieces.append(step.arguments)
            kind = "response.function_call_arguments.delta"
            yield {"type": kind, **where, "delta": step.arguments}
        if step.closes:
            item["arguments"], self._pieces = "".join(self._pieces), []
            done = {"name": item["name"], "arguments": item["arguments"]}
            yield {"type": "response.function_call_arguments.done", **where, **done}
            yield from self._close_item(status)

    def _write_input(self, step: Step, where: dict[str, Any], status: str) -> Iterator[SseEvent]:
        text = self._input.add(step.arguments) + (self._input.rest() if step.closes else "")
        if text:
            yield {"type": "response.custom_tool_call_input.delta", **where, "delta": text}
        if step.closes:
            self._items[-1]["input"], self._input = self._input.whole(), InputText()
            yield {
                "type": "response.custom_tool_call_input.done",
                **where,
                "input": self._items[-1]["input"],
            }
            yield from self._close_item(status)

    def _item(self, kind: str, new: Callable[[], dict[str, Any]]) -> Iterator[SseEvent]:
        """Make sure that an item of this type is open."""
        if self._is_open and self._items[-1]["type"] == kind and kind not in _CALLS:
            return
        yield from self._close_item("completed")
        number = len(self._items)
        item = {"id": f"{_PREFIXES[kind]}_{self.seed}-{number}", "status": "in_progress", **new()}
        self._items.append(item)
        self._is_open = True
        yield {"type": "response.output_item.added", "output_index": number, "item": self.items()[-1]}

    def _close_item(self, status: str) -> Iterator[SseEvent]:
        if not self._is_open:
            return
        yield from self._close_part()
        self._is_open = False
        self._items[-1]["status"] = status
        if self._items[-1]["type"] == "reasoning":
            self._close_thought(self._items[-1])
        number = len(self._items) - 1
        yield {"type": "response.output_item.done", "output_index": number, "item": self.items()[-1]}

    def _close_thought(self, item: dict[str, Any]) -> None:
        its_id, self._thoughts_id = self._thoughts_id, None
        if self.seals_thoughts and (item.get("signature") or item["encrypted_content"] is not None):
            summaries, texts = ([part["text"] for part in item[place]] for place in _PLACES)
            item["encrypted_content"] = seal(details_of_item(item, summaries, texts, its_id))

    def _close_part(self) -> Iterator[SseEvent]:
        words, self._words = self._words, None
        if words is None:
            return
        part = self._items[-1][words.place][-1]
        part[words.key], self._pieces = "".join(self._pieces), []
        known = {"logprobs": part["logprobs"]} if words == _TEXT else {}
        told = {words.key: part[words.key], **known}
        yield self._part_event(f"response.{words.event}.done", words, **told)
        yield self._part_event(f"response.{words.part_event}.done", words, part=_copy(part))

    def _part_event(self, kind: str, words: _PartWords, **known: Any) -> SseEvent:
        item = self._items[-1]
        where = {"item_id": item["id"], "output_index": len(self._items) - 1}
        return {"type": kind, **where, words.index: len(item[words.place]) - 1, **known}


_PLACES: tuple[str, ...] = ("summary", "content")  # an item's lists of parts
_PREFIXES = {"reasoning": "rs", "message": "msg", "function_call": "fc", "custom_tool_call": "ctc",
             "image_generation_call": "ig"}  # fmt: skip
_CALLS = frozenset({"function_call", "custom_tool_call"})


def _new_reasoning() -> dict[str, Any]:
    return {"type": "reasoning", "summary": [], "content": [], "encrypted_content": None}


def _new_message() -> dict[str, Any]:
    return {"type": "message", "role": "assistant", "content": []}


def _new_call(call_id: str, called: Called) -> dict[str, Any]:
    space = {} if called.namespace is None else {"namespace": called.namespace}
    common = {"call_id": call_id, "name": called.name, **space}
    if called.is_custom:
        return {"type": "custom_tool_call", **common, "input": ""}
    return {"type": "function_call", **common, "arguments": ""}


def _new_image() -> dict[str, Any]:
    return {"type": "image_generation_call", "result": None}


def _whole_copy(item: dict[str, Any]) -> dict[str, Any]:
    grown = {name: [dict(part) for part in item[name]] for name in _PLACES if name in item}
    return item | grown


def _copy(part: dict[str, Any]) -> dict[str, Any]:
    return {key: list(value) if isinstance(value, list) else value for key, value in part.items()}
