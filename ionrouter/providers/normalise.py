"""StreamNormaliser and `complete`: an upstream's JSON as Chunk and Complete. No bytes, no sockets.

Every provider that speaks OpenAI's shapes, litellm's worker included, goes through here, so that leniences
are learned once. Errors found in an answer of status 200 are raised as UpstreamError.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from msgspec.structs import replace

from ionrouter.errors import UpstreamError
from ionrouter.providers.base import ToldUsage
from ionrouter.providers.content import read_content
from ionrouter.providers.embeddings_body import read_embeddings
from ionrouter.providers.error_body import find_error
from ionrouter.providers.finish import read_finish
from ionrouter.providers.http_errors import ErrorReader
from ionrouter.providers.indexes import read_index
from ionrouter.providers.plain_answer import read_plain
from ionrouter.providers.rerank_body import read_rerank, read_rerank_usage
from ionrouter.providers.tool_calls import NOTHING, ToolCalls, whole_calls
from ionrouter.providers.usage_body import merge_usage, usage_of
from ionrouter.schema import json
from ionrouter.schema.events import Choice, ChoiceDelta, Chunk, Complete
from ionrouter.schema.fields import TURN_ORDER
from ionrouter.schema.request import Kind
from ionrouter.schema.turn_order import order_of

TOO_DEEP = "the upstream's JSON is nested beyond reason"
_GARBLED = "the upstream answered with tool calls that are none"
_TOKEN_LISTS = ("content", "refusal")  # of a chat's logprobs; those of /completions hold values


@dataclass(slots=True)
class _ChoiceState:
    calls: ToolCalls = field(default_factory=ToolCalls)
    is_finished: bool = False
    has_content: bool = False
    is_garbled: bool = False  # there were tool calls, and none of them could be read


class StreamNormaliser:
    """One stream's memory: open tool calls, finished choices, usage.

    That is given out once, at the end; `told` has it as soon as it comes.
    """

    def __init__(
        self, kind: Kind, errors: ErrorReader, num_choices: int = 1, told: ToldUsage | None = None
    ) -> None:
        self._kind = kind
        self._errors = errors
        self._num_choices, self._num_finished = num_choices, 0
        self._choices: dict[int, _ChoiceState] = {}
        self._told = told or ToldUsage()
        self._upstream_id: str | None = None
        self._service_tier: str | None = None
        self._model: str | None = None

    @property
    def is_finished(self) -> bool:
        """Whether every choice asked for has its finish reason: only usage and the end may follow."""
        return self._num_finished >= max(self._num_choices, len(self._choices))

    def chunk(self, payload: Any) -> Chunk | None:
        """Normalise one event's JSON; None when nothing is left of it. Raises UpstreamError."""
        try:
            return self._chunk(payload)
        except RecursionError as error:
            raise self._errors.fault("malformed", TOO_DEEP) from error

    def _chunk(self, payload: Any) -> Chunk | None:
        if not isinstance(payload, dict):
            raise self._errors.fault(
                "malformed", f"an event is not an object: {self._errors.redact(str(payload))[:80]}"
            )
        if (usage := usage_of(payload)) is not None:
            self._told.usage = merge_usage(self._told.usage, usage)
        if (error := find_error(payload)) is not None:
            raise self._errors.payload(error)
        self._upstream_id = self._upstream_id or self._errors.name(payload.get("id"))
        self._service_tier = self._errors.name(payload.get("service_tier")) or self._service_tier
        self._model = self._model or self._errors.name(payload.get("model"))
        read = [self._delta(choice, position) for position, choice in _choices(payload)]
        deltas = tuple([delta for delta in read if delta is not None])
        return self._with_ids(Chunk(choices=deltas)) if deltas else None

    def end(self, *, is_done: bool) -> Iterator[Chunk]:
        """Yield what a stream's clean end leaves to say; raises UpstreamError when it ended too soon.

        `is_done`: the end was announced by [DONE]. Then text without a finish reason counts as whole.
        """
        if not any(state.is_finished or state.has_content for state in self._choices.values()):
            raise self._errors.fault("empty", "the upstream ended the stream without an answer")
        open_ones = [i for i, state in self._choices.items() if not state.is_finished]
        if open_ones and not is_done:
            raise self._errors.fault("cut", "the upstream ended the stream before a finish reason")
        if open_ones:
            finishes = tuple(self._missing_finish(i) for i in sorted(open_ones))
            yield self._with_ids(Chunk(choices=finishes))
        if self._told.usage is not None:
            yield self._with_ids(Chunk(usage=self._told.usage))

    def _missing_finish(self, index: int) -> ChoiceDelta:
        calls = self._choices[index].calls
        rest = calls.rest()
        return ChoiceDelta(index, {"tool_calls": rest} if rest else {}, "tool_calls" if calls else "stop")

    def _with_ids(self, chunk: Chunk) -> Chunk:
        return Chunk(chunk.choices, chunk.usage, self._upstream_id, self._service_tier, self._model)

    def _delta(self, choice: dict[str, Any], position: int) -> ChoiceDelta | None:
        index = _index(choice.get("index"), position)
        state = self._choices.setdefault(index, _ChoiceState())
        if error := choice.get("error"):
            raise self._errors.payload(error)
        is_text = self._kind == "completions"
        delta = _read_text(choice, self._errors) if is_text else self._read_delta(choice, state)
        reason, native = read_finish(
            choice.get("finish_reason"), self._errors.redact, has_tool_calls=bool(state.calls)
        )
        if reason == "error":
            raise self._errors.fault("finish_error", f"the upstream finished with {native!r}")
        if state.is_finished:
            # Some servers repeat it on the usage chunk, or say nothing again: a choice ends with its finish.
            # Words that come all the same are part of the answer.
            late = ChoiceDelta(index, delta, None, None, _logprobs(choice), _stop_sequence(choice))
            says = late.logprobs or late.stop_sequence or Chunk(choices=(late,)).commits
            return late if says else None
        if reason is not None:
            state.is_finished = True
            self._num_finished += 1
            if reason == "tool_calls" and (rest := state.calls.rest()):
                delta["tool_calls"] = [*delta.get("tool_calls", ()), *rest]
        if not state.has_content:
            state.has_content = Chunk(choices=(ChoiceDelta(index, delta),)).commits
        if reason is not None and state.is_garbled and not state.has_content:
            raise self._errors.fault("malformed", _GARBLED)
        return ChoiceDelta(index, delta, reason, native, _logprobs(choice), _stop_sequence(choice))

    def _read_delta(self, choice: dict[str, Any], state: _ChoiceState) -> dict[str, Any]:
        source = _said(choice, ("delta", "message"), self._errors)
        if source is None:
            return {"content": choice["text"]} if isinstance(choice.get("text"), str) else {}
        out: dict[str, Any] = {"role": "assistant"} if source.get("role") else {}
        out.update(read_content(source))
        fragments = state.calls.fragments(source.get("tool_calls")) or state.calls.legacy(
            source.get("function_call")
        )
        if fragments:
            out["tool_calls"] = fragments
        elif not state.calls and (source.get("tool_calls") or source.get("function_call")):
            state.is_garbled = True
        return out


def complete(
    kind: Kind,
    payload: Any,
    errors: ErrorReader,
    body: Mapping[str, Any] | None = None,
    told: ToldUsage | None = None,
) -> Complete:
    """Normalise a whole answer to `body`; raises UpstreamError for errors in it and for an empty one.

    `told` gets the usage of an answer that is none.
    """
    if kind == "chat" and (plain := read_plain(payload, errors)) is not None:
        return plain
    try:
        return complete_any(kind, payload, errors, body)
    except (UpstreamError, RecursionError) as error:
        if told is not None and isinstance(payload, dict):
            is_ranking = kind == "rerank"
            told.usage = read_rerank_usage(payload) if is_ranking else usage_of(payload)
        if isinstance(error, UpstreamError):
            raise
        raise errors.fault("malformed", TOO_DEEP) from error


def complete_any(
    kind: Kind, payload: Any, errors: ErrorReader, body: Mapping[str, Any] | None = None
) -> Complete:
    """The same for every shape that is known."""
    if kind == "rerank" and isinstance(payload, list):
        payload = {"results": payload}  # text-embeddings-inference sends the bare list
    if not isinstance(payload, dict):
        raise errors.fault("malformed", f"the answer is not an object: {errors.redact(str(payload))[:80]}")
    if (error := find_error(payload)) is not None:
        raise errors.payload(error)
    usage, upstream_id = usage_of(payload), errors.name(payload.get("id"))
    tier, model = errors.name(payload.get("service_tier")), errors.name(payload.get("model"))
    if kind == "rerank":
        ranked = read_rerank(payload, body or {}, errors)
        return replace(ranked, upstream_id=upstream_id, upstream_model=model)
    if kind == "embeddings":
        data = read_embeddings(payload.get("data"), body or {}, errors)
        return Complete((), usage, upstream_id, tier, data, upstream_model=model)
    choices = tuple(_choice(kind, choice, position, errors) for position, choice in _choices(payload))
    if choices and (scores := _prompt_logprobs(payload)) is not None:  # vLLM, of a chat's one prompt
        choices = (replace(choices[0], prompt_logprobs=scores), *choices[1:])
    if not choices:
        raise errors.fault("empty", "the upstream answered without any choice")
    return Complete(choices, usage, upstream_id, tier, upstream_model=model)


def as_chunks(answer: Complete) -> Iterator[Chunk]:
    """Split a whole answer into chunks, for an upstream that was asked to stream and did not."""
    ids = (answer.upstream_id, answer.service_tier, answer.upstream_model)
    for choice in answer.choices:
        delta = {key: value for key, value in choice.message.items() if value is not None}
        if calls := delta.get("tool_calls"):
            delta["tool_calls"] = [{"index": i, **call} for i, call in enumerate(calls)]
        only = ChoiceDelta(
            choice.index,
            delta,
            choice.finish_reason,
            choice.native_finish_reason,
            choice.logprobs,
            choice.stop_sequence,
            choice.prompt_logprobs,
        )
        yield Chunk((only,), None, *ids)
    if answer.usage is not None:
        yield Chunk((), answer.usage, *ids)


def _choice(kind: Kind, choice: dict[str, Any], position: int, errors: ErrorReader) -> Choice:
    if error := choice.get("error"):
        raise errors.payload(error)
    message = _read_text(choice, errors) if kind == "completions" else _read_message(choice, errors)
    has_tool_calls = bool(message.get("tool_calls"))
    reason, native = read_finish(choice.get("finish_reason"), errors.redact, has_tool_calls=has_tool_calls)
    if reason == "error":
        raise errors.fault("finish_error", f"the upstream finished with {native!r}")
    index = _index(choice.get("index"), position)
    if reason is None:
        if not Chunk(choices=(ChoiceDelta(index, message),)).commits:
            raise errors.fault("empty", "the upstream answered without text and without a finish reason")
        reason = "tool_calls" if message.get("tool_calls") else "stop"
    if reason == "tool_calls":  # cut by length, one may have been about to say more
        for call in message.get("tool_calls", ()):
            call["function"]["arguments"] = call["function"]["arguments"] or NOTHING
    scores, order = _prompt_logprobs(choice), order_of(choice.get(TURN_ORDER), message)
    return Choice(index, message, reason, native, _logprobs(choice), _stop_sequence(choice), scores, order)


def _said(choice: dict[str, Any], keys: tuple[str, str], errors: ErrorReader) -> dict[str, Any] | None:
    """Return the object that holds what a choice says; None: there is none. PHP writes an empty one as []."""
    for key in keys:
        if isinstance(value := choice.get(key), dict):
            return value
    if choice.get("delta") or choice.get("message"):
        raise errors.fault("malformed", f"the {keys[0]} of a choice is not an object")
    return None


def _read_message(choice: dict[str, Any], errors: ErrorReader) -> dict[str, Any]:
    source = _said(choice, ("message", "delta"), errors) or {}
    message: dict[str, Any] = {"role": "assistant", "content": None, **read_content(source)}
    if "message" not in choice and isinstance(choice.get("text"), str):
        message["content"] = choice["text"]
    if calls := whole_calls(source.get("tool_calls"), source.get("function_call")):
        message["tool_calls"] = calls
    elif (source.get("tool_calls") or source.get("function_call")) and not _says(message):
        raise errors.fault("malformed", _GARBLED)
    return message


def _says(message: dict[str, Any]) -> bool:
    """Whether it is an answer without tool calls, too."""
    return bool(message["content"] or message.get("refusal"))


def _read_text(choice: dict[str, Any], errors: ErrorReader) -> dict[str, Any]:
    """For kind "completions": {"text": ...} and reasoning, also from a chat-like delta or message."""
    source = _said(choice, ("delta", "message"), errors) or {}
    said, text = read_content({**choice, **source}), choice.get("text")
    if not isinstance(text, str):
        text = read_content({"content": text}).get("content") or said.get("content") or ""
    return {"text": text} | {key: said[key] for key in ("reasoning", "reasoning_details") if key in said}


def _choices(payload: dict[str, Any]) -> Iterator[tuple[int, dict[str, Any]]]:
    choices = payload.get("choices")
    if isinstance(choices, dict):
        choices = [choices]
    for position, choice in enumerate(choices if isinstance(choices, list) else ()):
        if isinstance(choice, dict):
            yield position, choice


def _logprobs(choice: dict[str, Any]) -> dict[str, Any] | None:
    told = choice.get("logprobs")
    if not isinstance(told, dict) or not told:
        return None
    lists = {key: value for key, value in told.items() if isinstance(value, list | None)}
    for key in _TOKEN_LISTS:
        if entries := lists.get(key):
            lists[key] = [entry for entry in entries if isinstance(entry, dict)]
    return json.finite(lists) or None


def _prompt_logprobs(told: dict[str, Any]) -> list[Any] | None:
    scores = told.get("prompt_logprobs")
    return json.finite(scores) if isinstance(scores, list) and scores else None


def _stop_sequence(choice: dict[str, Any]) -> str | None:
    """The stop string that matched: vLLM's `stop_reason`, SGLang's `matched_stop`; no token ids."""
    return _name(choice.get("stop_reason")) or _name(choice.get("matched_stop"))


def _index(value: Any, position: int) -> int:
    index = read_index(value)
    return position if index is None else index


def _name(value: Any) -> str | None:
    return value if isinstance(value, str) and value else None
