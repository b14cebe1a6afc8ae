"""How families of models write tool calls and thoughts in plain text, and grammars that keep them to it.

Knows texts and grammars; knows no requests, no ids and no streams.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from ionrouter.engine.grammar import JSON_OPTIONS, Grammar, compilable, from_lark, lark_text

THINK, END_THINK = "<think>", "</think>"

# Control tokens that mean something to whoever reads the answer: their names are part of its text.
READABLE_TOKENS = frozenset({THINK, END_THINK, "<tool_call>", "</tool_call>", "[TOOL_CALLS]"})

Choice = Literal["auto", "required"]
Thought = Literal["none", "may", "begun"]  # "begun": the prompt has opened it


@dataclass(frozen=True, slots=True)
class ToolFormat:
    """A call is `open NAME middle ARGUMENTS close`; between calls stands `between`, around all begin and end.

    `trigger` is what no ordinary text holds: from there on it is calls. Without one a call is only a call
    at the very beginning of an answer.
    """

    name: str
    open: str
    middle: str
    close: str
    between: str = ""
    begin: str = ""
    end: str = ""
    trigger: str | None = None


# As their templates print them: Qwen2.5, Qwen3 and Hermes; Llama 3.1 and later; Mistral since v3.
HERMES = ToolFormat(
    "hermes",
    '<tool_call>\n{"name": "',
    '", "arguments": ',
    "}\n</tool_call>",
    between="\n",
    trigger="<tool_call>",
)
LLAMA = ToolFormat("llama", '{"name": "', '", "parameters": ', "}", between="; ")
MISTRAL = ToolFormat(
    "mistral",
    '{"name": "',
    '", "arguments": ',
    "}",
    between=", ",
    begin="[TOOL_CALLS][",
    end="]",
    trigger="[TOOL_CALLS]",
)


@dataclass(frozen=True, slots=True)
class Tool:
    """A function that may be called; `schema` is what its arguments must be."""

    name: str
    schema: Mapping[str, Any]


def format_of(template: str) -> ToolFormat:
    """Tell from a chat template how its model calls tools; one that knows no tools learns Hermes' way."""
    if "[TOOL_CALLS]" in template:
        return MISTRAL
    if "<tool_call>" not in template and "tools" in template and '"parameters"' in template:
        return LLAMA
    return HERMES


def tools_grammar(
    form: ToolFormat,
    tools: Sequence[Tool],
    *,
    choice: Choice = "auto",
    parallel: bool = True,
    answer: Mapping[str, Any] | None = None,
    thought: Thought = "none",
) -> Grammar:
    """Allow text or calls (`auto`), or calls alone (`required`). With `answer` the text is JSON by it.

    Raises GrammarRefused.
    """
    rules = [
        "call: " + _joined(lark_text(form.open), "one", lark_text(form.close)),
        "one: " + " | ".join(f"one_{index}" for index in range(len(tools))),
        *(
            f"one_{index}: " + _joined(lark_text(tool.name + form.middle), _json(tool.schema))
            for index, tool in enumerate(tools)
        ),
        "calls: " + _joined(_quoted(form.begin), "call", _more(form) if parallel else "", _quoted(form.end)),
    ]
    if choice == "required":
        rules.append("rest: calls")
    elif answer is not None:
        rules += ["rest: calls | answer", "answer: " + _json(answer)]
    else:
        rules += _free_text(form, parallel)
    return _with_thought(rules, thought)


def answer_grammar(schema: Mapping[str, Any], thought: Thought) -> Grammar:
    """Allow a thought, then JSON by a schema."""
    return _with_thought(["rest: " + _json(schema)], thought)


def _with_thought(rules: list[str], thought: Thought) -> Grammar:
    return from_lark("\n".join([*_STARTS[thought], *rules]))


_GAP = r"gap: /\s{0,4}/"
_STARTS: Mapping[Thought, tuple[str, ...]] = {
    "none": ("start: rest",),
    "may": ("start: thought gap rest | rest", r"thought[lazy]: /\s{0,4}<think>(.|\n)*<\/think>/", _GAP),
    "begun": ("start: thought gap rest", r"thought[lazy]: /(.|\n)*<\/think>/", _GAP),
}


def _free_text(form: ToolFormat, parallel: bool) -> list[str]:
    """Text without a trigger is text to its end; a trigger makes calls of what follows."""
    if form.trigger is None:
        return ["rest: calls | text", r"text: /([^{](.|\n)*)?/"]
    # Whatever of the first call the trigger covers is said already.
    first = (form.begin + form.open).removeprefix(form.trigger)
    more = _more(form) if parallel else ""
    return [
        "rest: plain | head "
        + _joined(_quoted(first), "one", lark_text(form.close), more, _quoted(form.end)),
        f"head[lazy]: /(.|\\n)*{_escaped(form.trigger)}/",
        "plain: PLAIN",
        r"PLAIN: /(?s:.*)/ & ~/(?s:.*)" + _escaped(form.trigger) + "(?s:.*)/",
    ]


def _more(form: ToolFormat) -> str:
    return f"({_joined(_quoted(form.between), 'call')})*"


def _joined(*parts: str) -> str:
    return " ".join(part for part in parts if part)


def _quoted(text: str) -> str:
    return lark_text(text) if text else ""


def _escaped(text: str) -> str:
    return "".join("\\" + c if c in r"\/.^$|?*+()[]{}" else c for c in text)


def _json(schema: Mapping[str, Any]) -> str:
    return "%json " + json.dumps({**compilable(schema), "x-guidance": JSON_OPTIONS}, ensure_ascii=False)
