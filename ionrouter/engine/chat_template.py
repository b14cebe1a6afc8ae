"""Messages to the model's prompt text, by the model's own jinja2 template in a sandbox.

The template comes with the weights and the messages from strangers: the sandbox keeps the first from
reaching Python, a guard bounds its time and size, and a mark inside every special token's name that a
message holds keeps the second from speaking in the template's voice. Knows no ids, HTTP or engine.
"""

from __future__ import annotations

import json
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

import jinja2
from jinja2.ext import Extension
from jinja2.nodes import Node
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment

from ionrouter.engine.tool_format import THINK, format_of
from ionrouter.errors import ConfigError, RequestError

MAX_RENDER_S = 2.0
MAX_PROMPT_CHARACTERS = 32 << 20
_MAX_REPEAT = 1 << 16  # largest right side of `*` that a template may use on a string or list
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
        self._guard = _Guard(clock)
        self._tokens = {"bos_token": bos_token, "eos_token": eos_token}
        self._special_texts = tuple(sorted(special_texts, key=len, reverse=True))
        self._knows_developer = "developer" in source
        self.knows_tools = "tools" in source
        self.tool_format = format_of(source)
        self.thinks = THINK in source
        try:
            self._template = _environment(self._guard).from_string(source)
        except jinja2.TemplateError as error:
            raise ConfigError(f"chat template: {error}") from error

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
        except (TypeError, ValueError, KeyError, AttributeError, IndexError, ArithmeticError) as error:
            # A template written for other content (null, missing keys) fails inside its own expressions.
            raise _refused(f"chat template: {type(error).__name__}: {error}") from error
        except (RecursionError, MemoryError) as error:
            raise _refused(f"chat template: {type(error).__name__}") from error


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


class _Guard:
    """Time and size limits of one rendering; asked at every attribute, call and piece of output."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rendering = threading.local()  # long prompts are rendered in worker threads

    def start(self) -> None:
        self._rendering.deadline = self._clock() + MAX_RENDER_S

    def check(self, value: Any = None) -> None:
        if self._clock() > self._rendering.deadline:
            raise jinja2.TemplateRuntimeError(f"took longer than {MAX_RENDER_S:g} s")
        if isinstance(value, str | list | tuple) and len(value) > MAX_PROMPT_CHARACTERS:
            raise jinja2.TemplateRuntimeError(f"grew beyond {MAX_PROMPT_CHARACTERS} characters")


class _GuardedEnvironment(ImmutableSandboxedEnvironment):
    intercepted_binops = frozenset({"*", "**"})

    def __init__(self, guard: _Guard) -> None:
        super().__init__(
            trim_blocks=True, lstrip_blocks=True, extensions=["jinja2.ext.loopcontrols", _Generation]
        )
        self._guard = guard

    def getattr(self, obj: Any, attribute: str) -> Any:
        value = super().getattr(obj, attribute)
        self._guard.check(value)
        return value

    def getitem(self, obj: Any, argument: Any) -> Any:
        value = super().getitem(obj, argument)
        self._guard.check(value)
        return value

    def call(self, __context: Any, __obj: Any, *args: Any, **kwargs: Any) -> Any:
        self._guard.check()
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        self._guard.check()
        sizes = [value for value in (left, right) if isinstance(value, int)]
        repeats = operator == "**" or len(sizes) < 2
        if repeats and any(abs(size) > _MAX_REPEAT for size in sizes):
            raise jinja2.TemplateRuntimeError(f"{operator} with more than {_MAX_REPEAT}")
        return super().call_binop(context, operator, left, right)


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the answer for training; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def _environment(guard: _Guard) -> _GuardedEnvironment:
    environment = _GuardedEnvironment(guard)
    environment.filters["tojson"] = _tojson
    environment.globals["raise_exception"] = _raise_exception
    return environment


def _tojson(
    value: Any,
    indent: int | None = None,
    ensure_ascii: bool = False,
    separators: tuple[str, str] | None = None,
    sort_keys: bool = False,
) -> str:
    """Plain JSON, as the templates' authors expect: no HTML escapes, keys in the given order."""
    return json.dumps(
        value, indent=indent, ensure_ascii=ensure_ascii, separators=separators, sort_keys=sort_keys
    )


def _raise_exception(message: Any) -> None:
    raise jinja2.TemplateError(str(message))


def _joined(pieces: Iterable[str], guard: _Guard) -> str:
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
