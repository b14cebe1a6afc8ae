"""The items of a Responses request's input, and the chat turns they mean. What cannot be kept is refused."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, StrictStr, model_validator

from ionrouter.schema.conversation import Conversation, Part, text_part
from ionrouter.schema.images import image_of
from ionrouter.schema.responses_seal import details_of_item, makers_id, unseal
from ionrouter.schema.responses_tools import Toolbox, as_arguments

Fields = Mapping[str, Any]


def _text(part: Fields) -> Part:
    return text_part(part["text"], **_marks(part))


def _image(part: Fields) -> Part:
    detail = {"detail": part["detail"]} if part.get("detail") else {}
    return {"type": "image_url", "image_url": {"url": part["image_url"], **detail}, **_marks(part)}


def _file(part: Fields) -> Part:
    file = {"filename": part.get("filename"), "file_data": part.get("file_data") or part.get("file_url")}
    return {"type": "file", "file": {k: v for k, v in file.items() if v}, **_marks(part)}


def _marks(part: Fields) -> dict[str, Any]:
    return {"cache_control": part["cache_control"]} if part.get("cache_control") else {}


# Part type -> (one of these keys must be there, how chat writes it).
PARTS: dict[str, tuple[tuple[str, ...], Callable[[Fields], Part]]] = {
    "input_text": (("text",), _text),
    "output_text": (("text",), _text),
    "text": (("text",), _text),
    "reasoning_text": (("text",), _text),
    "refusal": (("refusal",), lambda part: {"type": "refusal", "refusal": part["refusal"]}),
    "input_image": (("image_url",), _image),
    "input_file": (("file_data", "file_url"), _file),
    "input_audio": (
        ("input_audio",),
        lambda part: {"type": "input_audio", "input_audio": part["input_audio"]},
    ),
    "input_video": (
        ("video_url",),
        lambda part: {"type": "video_url", "video_url": {"url": part["video_url"]}},
    ),
}
_OBJECTS = frozenset({"input_audio"})  # keys that hold an object; the others hold a string


class ContentPart(BaseModel):
    model_config = ConfigDict(extra="allow")
    type: StrictStr

    @model_validator(mode="after")
    def _payload(self) -> ContentPart:
        if self.type not in PARTS:
            raise ValueError(f"content part type '{self.type}' is not supported; known: {', '.join(PARTS)}")
        fields = self.model_extra or {}
        if fields.get("file_id") is not None:
            raise ValueError("files are not stored here: send the content instead of 'file_id'")
        names, _ = PARTS[self.type]
        if not any(isinstance(fields.get(name), dict if name in _OBJECTS else str) for name in names):
            raise ValueError(f"a part of type '{self.type}' needs {' or '.join(map(repr, names))}")
        return self

    def to_chat(self) -> Part:
        return PARTS[self.type][1](self.model_extra or {})


class Summary(BaseModel):
    model_config = ConfigDict(extra="allow")
    text: StrictStr


Role = Literal["user", "assistant", "system", "developer"]
_NEEDS: dict[str, tuple[str, ...]] = {
    "message": ("role", "content"),
    "function_call": ("call_id", "name", "arguments"),
    "function_call_output": ("call_id", "output"),
    "custom_tool_call": ("call_id", "name", "input"),
    "custom_tool_call_output": ("call_id", "output"),
    "reasoning": (),
    "image_generation_call": (),  # until it is done it has no result
}


class Item(BaseModel):
    """One item of `input`: a message, a call, a call's output, a thought, or an image that was drawn."""

    model_config = ConfigDict(extra="allow")
    type: StrictStr = "message"
    role: Role | None = None
    content: StrictStr | list[ContentPart] | None = None
    call_id: StrictStr | None = None
    name: StrictStr | None = None
    namespace: StrictStr | None = None  # of the tool
    arguments: StrictStr | None = None
    input: StrictStr | None = None
    output: StrictStr | list[ContentPart] | None = None
    summary: list[Summary] | None = None
    encrypted_content: StrictStr | None = None
    result: StrictStr | None = None

    @model_validator(mode="after")
    def _whole(self) -> Item:
        if self.type == "item_reference":
            raise ValueError(
                "items are not stored here: send the item itself, not a reference (store: false)"
            )
        if self.type not in _NEEDS:
            raise ValueError(f"input item type '{self.type}' is not supported; known: {', '.join(_NEEDS)}")
        for name in _NEEDS[self.type]:
            if getattr(self, name) is None:
                raise ValueError(f"an item of type '{self.type}' needs '{name}'")
        if self.type == "reasoning" and self.encrypted_content:
            unseal(self.encrypted_content)
        parts = self.content if isinstance(self.content, list) else ()
        if any((part.type == "reasoning_text") != (self.type == "reasoning") for part in parts):
            raise ValueError(
                "parts of type 'reasoning_text' belong in items of type 'reasoning', others do not"
            )
        return self

    def add_to(self, chat: Conversation, box: Toolbox) -> None:
        """Say it in chat."""
        if self.type in ("function_call", "custom_tool_call"):
            text = self.arguments if self.type == "function_call" else as_arguments(self.input or "")
            chat.call(self.call_id or "", box.name_of(self.name or "", self.namespace), text or "")
        elif self.type in ("function_call_output", "custom_tool_call_output"):
            chat.result(self.call_id or "", _parts(self.output))
        elif self.type == "reasoning":
            for detail in self._details():
                chat.think(detail)
        elif self.type == "image_generation_call":
            if self.result:
                chat.draw(image_of(self.result))
        elif self.role == "assistant":
            chat.answer(_parts(self.content))
        else:
            chat.say(self.role or "user", _parts(self.content))

    def _details(self) -> list[dict[str, Any]]:
        """Reasoning details as chat has them; whose format it is, the item says if it came from here."""
        if self.encrypted_content and (sealed := unseal(self.encrypted_content)) is not None:
            return sealed
        extra = self.model_extra or {}
        shown = {**extra, "encrypted_content": self.encrypted_content}
        texts = [part["text"] for part in _parts(self.content)]
        summaries = [summary.text for summary in self.summary or ()]
        return details_of_item(shown, summaries, texts, makers_id(extra.get("id")))


def _parts(content: str | list[ContentPart] | None) -> list[Part]:
    if isinstance(content, str):
        return [text_part(content)]
    return [part.to_chat() for part in content or ()]
