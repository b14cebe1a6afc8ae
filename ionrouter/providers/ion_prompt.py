"""What a request asks the model to continue, as token ids. Knows bodies, templates and tokenizers only."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from ionrouter.engine.ion import LocalEngine
from ionrouter.engine.tool_format import THINK
from ionrouter.errors import FailureClass, RequestError, UpstreamError
from ionrouter.providers.ion_parameters import MAX_CHOICES, check_token_ids, invalid, unsupported
from ionrouter.providers.ion_tools import ToolWish, may_think, messages_for, tools_of
from ionrouter.schema.request import Kind


@dataclass(frozen=True, slots=True)
class Prompt:
    """Ids to continue, and their text for `echo`; of a chat the tools that may be called."""

    ids: list[int]
    text: str = ""
    is_thinking: bool = False  # the prompt ends within a thought
    tools: ToolWish | None = None
    drops_space: bool = False  # the answer begins a text, whose first space the tokenizer made up


def prompts_of(body: Mapping[str, Any], kind: Kind, engine: LocalEngine, now: datetime) -> list[Prompt]:
    """Render or tokenize; raises UpstreamError (400) naming the field."""
    if kind == "chat":
        return [_chat_prompt(body, engine, now)]
    return [_completion_prompt(value, engine) for value in _prompt_values(body.get("prompt"))]


def _chat_prompt(body: Mapping[str, Any], engine: LocalEngine, now: datetime) -> Prompt:
    messages = body.get("messages")
    if not isinstance(messages, list | tuple) or not messages:
        raise invalid("messages", "expected at least one message")
    if not all(isinstance(message, Mapping) for message in messages):
        raise invalid("messages", "expected objects")
    if engine.template is None:
        raise unsupported(
            "messages", "chat with this model: its weights hold no chat template; use /completions"
        )
    try:
        template, wish = engine.template, tools_of(body)
        template.check(messages)  # before others come between them
        told = messages_for(messages, template.tool_format, wish, knows_tools=template.knows_tools)
        given = wish.given if wish is not None and template.knows_tools else ()
        rendered = template.render(told, now=now, tools=given, thinks=may_think(body))
    except RequestError as error:
        raise UpstreamError(
            FailureClass.ENDPOINT_REQUEST,
            error.message,
            status=error.status,
            error_type=error.error_type,
            param=error.param,
        ) from error
    _require_text(rendered.text, "messages")
    ids = engine.tokenizer.encode_template(rendered.text, rendered.mark)
    is_thinking = rendered.text.rstrip().endswith(THINK)
    # Where a text is continued (an assistant's last message, a raw prompt) that space parts two words.
    begins = engine.tokenizer.drops_space and messages[-1].get("role") != "assistant"
    return Prompt(_not_empty(ids, "messages"), is_thinking=is_thinking, tools=wish, drops_space=begins)


def _prompt_values(value: Any) -> list[Any]:
    """Split `prompt`: a string, token ids, or a list of either."""
    if isinstance(value, str):
        return [value]
    if not isinstance(value, list | tuple) or not value:
        raise invalid("prompt", "expected a string, token ids, or a list of them; not empty")
    if not isinstance(value[0], str | list | tuple):
        return [value]
    if len(value) > MAX_CHOICES:
        raise invalid("prompt", f"{len(value)} prompts are more than {MAX_CHOICES}")
    return list(value)


def _completion_prompt(value: Any, engine: LocalEngine) -> Prompt:
    """Tokenize one raw prompt. Its author writes all of it, so special tokens' names mean the tokens."""
    if isinstance(value, str):
        _require_text(value, "prompt")
        ids = engine.tokenizer.encode_template(value, add_bos=True)
        return Prompt(_not_empty(ids, "prompt"), value)
    ids = check_token_ids(value, "prompt", engine.vocab_size)
    return Prompt(_not_empty(ids, "prompt"), engine.tokenizer.text_of(ids))


def _not_empty(ids: list[int], param: str) -> list[int]:
    if not ids:
        raise invalid(param, "has no tokens")
    return ids


def _require_text(text: str, param: str) -> None:
    try:
        text.encode("utf-8")
    except UnicodeEncodeError:
        raise invalid(param, "holds a lone surrogate, which is no text") from None
