"""Messages to the model's prompt text, by the model's own jinja2 template in a sandbox.

The template comes with the weights and the messages from strangers: the sandbox keeps the first from
reaching Python (template_limits.py bounds its time and size), and a mark inside every special token's name
that a message holds keeps the second from speaking in the template's voice. Knows no ids, HTTP or engine.
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2

from ionrouter.engine.template_limits import MAX_PROMPT_CHARACTERS, Guard, GuardedEnvironment, written_length
from ionrouter.engine.tool_format import THINK, format_of
from ionrouter.errors import ConfigError, RequestError

_MAX_INDENT = 64  # of JSON
ROLES = frozenset({"system", "developer", "user", "assistant", "tool", "function"})


@dataclass(frozen=True, slots=True)
class RenderedPrompt:
    """The prompt; `mark` cuts special tokens' names that are only text: drop it after splitting."""

    text: str
    mark: str


class ChatTemplate:
    """One model's template, compiled once."""

    def __init__(
        self,
        source: str,
        *,
        bos_token: str = "",
        eos_token: str = "",
        special_texts: Sequence[str] = (),
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._guard = Guard(clock)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._special_texts = tuple(sorted(special_texts, key=len, reverse=True))
        self._knows_developer = "developer" in source
        self.knows_tools = "tools" in source
        self.tool_format = format_of(source)
        self.thinks = THINK in source
        self._guard.start()  # what is constant in it is computed when it is compiled
        try:
            self._template = _environment(self._guard).from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"chat template: {error}") from error
        except (
            RecursionError,
            SyntaxError,
            MemoryError,
            ValueError,
        ) as error:  # of what it becomes in Python
            raise ConfigError(f"chat template: too deep or too large: {error}") from error

    def check(self, messages: Sequence[Mapping[str, Any]]) -> None:
        """Raise RequestError for the first part that is no text, by its place in `messages`."""
        for index, message in enumerate(messages):
            joined_text(message.get("content"), index)

    def render(
        self,
        messages: Sequence[Mapping[str, Any]],
        *,
        now: datetime,
        tools: Sequence[Mapping[str, Any]] = (),
        thinks: bool | None = None,
    ) -> RenderedPrompt:
        """Render; a trailing assistant message is left open, to be continued.

        `thinks` asks for thoughts or for none; None leaves it to the model.

        Raises RequestError (400) with the template's own message when it refuses the conversation.
        """
        plain = [self._plain(message, index) for index, message in enumerate(messages)]
        mark, end = _unused_characters(json.dumps([plain, list(tools)], ensure_ascii=False), 2)
        is_prefill = bool(plain) and plain[-1]["role"] == "assistant"
        marked = [self._marked(message, mark) | {"role": message["role"]} for message in plain]
        if is_prefill:
            marked[-1]["content"] += end
        marked_tools = [self._marked(tool, mark) for tool in tools] or None
        wishes = {} if thinks is None else {"enable_thinking": thinks}
        text = self._run(marked, add_generation_prompt=not is_prefill, now=now, tools=marked_tools, **wishes)
        return RenderedPrompt(_cut_at(text, end) if is_prefill else text, mark)

    def _plain(self, message: Mapping[str, Any], index: int) -> dict[str, Any]:
        role = message.get("role")
        if role not in ROLES:
            raise _refused(f"messages[{index}].role: unknown role {role!r}", f"messages[{index}].role")
        if role == "developer" and not self._knows_developer:
            role = "system"
        return _with_thoughts(message) | {"role": role, "content": joined_text(message.get("content"), index)}

    def _marked(self, value: Any, mark: str) -> Any:
        """Put the mark into every special token's name, and into a beginning of one at a string's end."""
        if isinstance(value, str):
            return self._marked_text(value, mark)
        if isinstance(value, Mapping):
            return {key: self._marked(item, mark) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._marked(item, mark) for item in value]
        return value

    def _marked_text(self, text: str, mark: str) -> str:
        for special in self._special_texts:
            text = text.replace(special, special[0] + mark + special[1:])
        return _end_marked(text, self._special_texts, mark)

    def _run(self, messages: list[Any], *, now: datetime, **given: Any) -> str:
        def strftime_now(pattern: str) -> str:
            if re.search(r"\d{4,}", pattern):
                raise jinja2.TemplateRuntimeError("strftime_now: a width of four digits")
            return now.strftime(pattern)

        self._guard.start()
        try:
            pieces = self._template.generate(
                messages=messages,
                strftime_now=strftime_now,
                documents=None,  # templates ask for it by name and expect none, not undefined
                **self._tokens,
                **given,
            )
            return _joined(pieces, self._guard)
        except jinja2.TemplateError as error:
            raise _refused(f"chat template: {error.message or error}") from error
        except (RecursionError, MemoryError) as error:
            raise _refused(f"chat template: {type(error).__name__}") from error
        except Exception as error:
            # A template written for other content (null, missing keys) fails inside its own expressions.
            raise _refused(f"chat template: {type(error).__name__}: {error}") from error


def joined_text(content: Any, index: int) -> str:
    """Join content parts of type text; raises RequestError naming the part that is something else."""
    if content is None:
        return ""
    if isinstance(content, str):
        return content
    if not isinstance(content, list | tuple):
        raise _refused(f"messages[{index}].content: expected a string or parts", f"messages[{index}].content")
    texts = []
    for number, part in enumerate(content):
        kind = part.get("type") if isinstance(part, Mapping) else None
        if kind != "text" or not isinstance(part.get("text"), str):
            where = f"messages[{index}].content[{number}]"
            raise _refused(f"{where}: this model reads text only, not a part of type {kind!r}", where)
        texts.append(part["text"])
    return "".join(texts)


def _with_thoughts(message: Mapping[str, Any]) -> dict[str, Any]:
    """Give an earlier answer's thoughts the names that templates read; clients send `reasoning` back."""
    names = ("reasoning_content", "thinking", "reasoning")
    thoughts = next((message[name] for name in names if isinstance(message.get(name), str)), None)
    return (
        dict(message)
        if thoughts is None
        else {"thinking": thoughts, **message, "reasoning_content": thoughts}
    )


def _environment(guard: Guard) -> GuardedEnvironment:
    environment = GuardedEnvironment(guard)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(
    value: Any,
    indent: int | str | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as the templates' authors expect: no HTML escapes, keys in the given order."""
    if (indent if isinstance(indent, int) else len(indent or "")) > _MAX_INDENT:
        raise jinja2.TemplateRuntimeError(f"tojson: an indent of more than {_MAX_INDENT}")
    written_length(value)  # of lists within lists there may be more than memory for
    return json.dumps(
        value, indent=indent, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _joined(pieces: Iterable[str], guard: Guard) -> str:
    out: list[str] = []
    length = 0
    for piece in pieces:
        length += len(piece)
        guard.check()
        if length > MAX_PROMPT_CHARACTERS:
            raise jinja2.TemplateRuntimeError(f"grew beyond {MAX_PROMPT_CHARACTERS} characters")
        out.append(piece)
    return "".join(out)


def _cut_at(text: str, end: str) -> str:
    head, found, _ = text.rpartition(end)
    if not found:
        raise _refused("chat template: it drops the last assistant message, which cannot be continued")
    return head.replace(end, "")


def _end_marked(text: str, specials: Sequence[str], mark: str) -> str:
    """Cut a special token's beginning at the end of a text, where the next string could complete it."""
    body = text.rstrip()
    for special in specials:
        for length in range(min(len(special) - 1, len(body)), 0, -1):
            if body.endswith(special[:length]):
                at = len(body) - length + 1
                return text[:at] + mark + text[at:]
    return text


def _unused_characters(text: str, count: int) -> list[str]:
    """Find private-use characters that the text does not hold."""
    used = set(text)
    unused = (chr(code) for code in range(0xF0000, 0xFFFFE) if chr(code) not in used)
    try:
        return [next(unused) for _ in range(count)]
    except StopIteration:
        raise _refused("messages: every private-use character is in use") from None


def _refused(message: str, param: str = "messages") -> RequestError:
    return RequestError(message, status=400, error_type="invalid_request", param=param)
