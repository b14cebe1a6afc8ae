"""A jinja2 sandbox whose templates are bounded: in time, and in what they make and write.

A template comes with the weights, from strangers. The clock is asked at every attribute, call and turn of a
loop; what one operation would make is measured before it is made, since nothing interrupts it. Knows no
messages.
"""

from __future__ import annotations

import re
import threading
from collections.abc import Callable, Iterable, Mapping
from typing import Any

import jinja2
from jinja2 import nodes
from jinja2.ext import Extension
from jinja2.filters import FILTERS, make_attrgetter
from jinja2.parser import Parser
from jinja2.sandbox import ImmutableSandboxedEnvironment
from jinja2.visitor import NodeTransformer

MAX_RENDER_S = 2.0
MAX_PROMPT_CHARACTERS = 32 << 20
_MAX_MADE_CHARACTERS = 8 * MAX_PROMPT_CHARACTERS  # by all operations of one rendering
_MAX_REPEAT = 1 << 16  # largest right side of `*` that a template may use on a string or list
_MAX_WIDTH = 1 << 10  # to which a text or a number is padded
_MAX_ITEMS = 1 << 20  # of lists within lists, where they are written out
_MAX_INTEGER_BITS = 1 << 18
# What no prompt needs and what makes much of little.
_LEFT_OUT = ("center", "wordwrap", "batch", "slice", "urlize", "pprint", "xmlattr", "striptags", "sum")
_PADDING = frozenset({"center", "ljust", "rjust", "zfill", "expandtabs"})
_WIDTH = re.compile(r"\d{4,}|\*|:[^{}]*\{")  # in a format: of four digits, or taken from an argument


class Guard:
    """Time and size limits of one rendering, in the thread that renders."""

    def __init__(self, clock: Callable[[], float]) -> None:
        self._clock = clock
        self._rendering = threading.local()  # long prompts are rendered in worker threads

    def start(self) -> None:
        self._rendering.deadline = self._clock() + MAX_RENDER_S
        self._rendering.left = _MAX_MADE_CHARACTERS

    def check(self, value: Any = None) -> None:
        if self._clock() > self._rendering.deadline:
            raise jinja2.TemplateRuntimeError(f"took longer than {MAX_RENDER_S:g} s")
        if isinstance(value, str | list | tuple) and len(value) > MAX_PROMPT_CHARACTERS:
            raise _too_long()

    def make(self, num_characters: int) -> None:
        """Count what an operation is about to make; raises TemplateRuntimeError where it is too much."""
        rendering = self._rendering
        rendering.left = left = rendering.left - num_characters
        if num_characters > MAX_PROMPT_CHARACTERS or left < 0:
            raise _too_long()


def _too_long() -> jinja2.TemplateRuntimeError:
    return jinja2.TemplateRuntimeError(f"grew beyond {MAX_PROMPT_CHARACTERS} characters")


class GuardedEnvironment(ImmutableSandboxedEnvironment):
    """The sandbox; `Guard.start` comes before each rendering, and before a template is compiled."""

    intercepted_binops = frozenset({"*", "**", "%", "+"})

    def __init__(self, guard: Guard) -> None:
        super().__init__(
            trim_blocks=True,
            lstrip_blocks=True,
            extensions=["jinja2.ext.loopcontrols", _Generation],
            finalize=self._written,
        )
        self._guard = guard
        bounded = {"join": self._join, "replace": self._replace, "indent": self._indent}
        kept = {name: work for name, work in FILTERS.items() if name not in _LEFT_OUT}
        self.filters = kept | bounded | {"format": self._format, "string": self._string}
        del self.globals["lipsum"]

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
        method = getattr(__obj, "__wrapped__", __obj)  # `format` is wrapped by the sandbox
        owner = getattr(method, "__self__", None)
        if isinstance(owner, str):
            self._guard.make(_made_by(owner, method.__name__, args))
        return super().call(__context, __obj, *args, **kwargs)

    def call_binop(self, context: Any, operator: str, left: Any, right: Any) -> Any:
        if operator == "+":
            if not isinstance(left, int | float):
                self._guard.make(_length(left) + _length(right))
        elif operator == "%" and isinstance(left, str):
            self._guard.make(_formatted(left, right))
        elif operator in ("*", "**"):
            self._guard.make(_repeated(operator, left, right))
        return super().call_binop(context, operator, left, right)

    def tick(self) -> None:
        """Ask the clock; each turn of a template's loop calls it."""
        self._guard.check()

    def joined(self, *parts: Any) -> str:
        """Do what `~` does."""
        return self._join(parts)

    def _generate(self, source: nodes.Template, *args: Any, **kwargs: Any) -> str:
        generated: str = super()._generate(_Watched(self).visit(source), *args, **kwargs)
        return generated

    def _written(self, value: Any) -> Any:
        self._guard.make(len(value) if isinstance(value, str) else written_length(value))
        return value

    def _join(self, value: Iterable[Any], d: str = "", attribute: str | int | None = None) -> str:
        if attribute is not None:
            value = map(make_attrgetter(self, attribute), value)
        texts = []
        for item in value:
            self._guard.make(written_length(item) + len(d))
            texts.append(str(item))
        return str(d).join(texts)

    def _replace(self, s: Any, old: Any, new: Any, count: int | None = None) -> str:
        text, found, by = self._string(s), self._string(old), self._string(new)
        self._guard.make(_made_by(text, "replace", (found, by)))
        return text.replace(found, by, -1 if count is None else count)

    def _indent(self, s: Any, width: Any = 4, first: bool = False, blank: bool = False) -> str:
        text = self._string(s)
        size = width if isinstance(width, int) else len(width)
        _require_width(size)
        self._guard.make(len(text) + size * (text.count("\n") + 1))
        indented: str = FILTERS["indent"](text, width, first, blank)
        return indented

    def _format(self, value: Any, *args: Any, **kwargs: Any) -> str:
        text = self._string(value)
        self._guard.make(_formatted(text, args or kwargs))
        return text % (kwargs or args)

    def _string(self, value: Any) -> str:
        self._guard.make(written_length(value))
        return str(value)


class _Watched(NodeTransformer):
    """Puts the guard where generated code would not ask it: into loops and `~`."""

    def __init__(self, environment: GuardedEnvironment) -> None:
        self._environment = environment

    def visit_For(self, node: nodes.For) -> nodes.Node:
        self.generic_visit(node)
        node.body.insert(0, nodes.ExprStmt(self._call("tick", [], node.lineno), lineno=node.lineno))
        return node

    def visit_Concat(self, node: nodes.Concat) -> nodes.Node:
        self.generic_visit(node)
        return self._call("joined", node.nodes, node.lineno)

    def _call(self, name: str, parts: list[nodes.Expr], line: int) -> nodes.Call:
        called = nodes.Call(nodes.EnvironmentAttribute(name, lineno=line), parts, [], None, None, lineno=line)
        return called.set_environment(self._environment)  # type: ignore[return-value]


class _Generation(Extension):
    """`{% generation %}...{% endgeneration %}` marks the answer for training; here it is its content."""

    tags = {"generation"}

    def parse(self, parser: Parser) -> list[nodes.Node]:
        next(parser.stream)
        return parser.parse_statements(("name:endgeneration",), drop_needle=True)


def written_length(value: Any) -> int:
    """Count the characters, roughly, that a value is written out in; raises TemplateRuntimeError beyond
    a million items, each as often as it is met.
    """
    if isinstance(value, str):
        return len(value)
    length, num_items, waiting = 0, 0, [value]
    while waiting:
        item = waiting.pop()
        num_items += 1
        if isinstance(item, Mapping):
            waiting += item.keys()
            waiting += item.values()
        elif isinstance(item, list | tuple | set):
            waiting += item
        length += len(item) if isinstance(item, str) else 8
        if num_items + len(waiting) > _MAX_ITEMS or length > MAX_PROMPT_CHARACTERS:
            raise _too_long()
    return length


def _made_by(text: str, method: str, args: tuple[Any, ...]) -> int:
    if method in _PADDING:
        width = next((arg for arg in args if isinstance(arg, int)), 0)
        _require_width(width)
        return len(text) + width * (text.count("\t") if method == "expandtabs" else 1)
    if method == "replace" and len(args) > 1 and all(isinstance(arg, str) for arg in args[:2]):
        grows = max(len(args[1]) - len(args[0]), 0)
        return len(text) + (text.count(args[0]) * grows if grows else 0)
    if method == "join" and args and isinstance(args[0], list | tuple):
        return sum(_length(item) + len(text) for item in args[0])
    if method == "translate" and args and isinstance(args[0], Mapping):
        return len(text) * max((_length(item) for item in args[0].values()), default=1)
    if method in ("format", "format_map"):
        return _formatted(text, args)
    return len(text)


def _formatted(text: str, given: Any) -> int:
    if _WIDTH.search(text):
        raise jinja2.TemplateRuntimeError("a format with a width of four digits, or one from an argument")
    return len(text) + (text.count("%") + text.count("{")) * (_MAX_WIDTH + written_length(given))


def _repeated(operator: str, left: Any, right: Any) -> int:
    if isinstance(left, int) and isinstance(right, int):
        bits = left.bit_length()
        if (bits * abs(right) if operator == "**" else bits + right.bit_length()) > _MAX_INTEGER_BITS:
            raise jinja2.TemplateRuntimeError(
                f"{operator} makes a number with more than {_MAX_INTEGER_BITS} bits"
            )
        return 0
    times = next((value for value in (right, left) if isinstance(value, int)), 1)
    if abs(times) > _MAX_REPEAT:
        raise jinja2.TemplateRuntimeError(f"{operator} with more than {_MAX_REPEAT}")
    return max(_length(left), _length(right)) * times


def _length(value: Any) -> int:
    return len(value) if isinstance(value, str | list | tuple) else 0


def _require_width(width: int) -> None:
    if width > _MAX_WIDTH:
        raise jinja2.TemplateRuntimeError(f"a width of more than {_MAX_WIDTH}")
