"""Answers as they leave: whole responses and stream chunks, in the shape the strictest clients accept.

Integer `created`; `system_fingerprint` null in whole answers and absent from chunks; `finish_reason` on
every chunk; `role` never null; `usage` never null; the model and provider that ran.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema.errors import ErrorBody
from ionrouter.schema.events import Choice, ChoiceDelta, Chunk, Committed, Complete, Finished, SentBody
from ionrouter.schema.request import Kind
from ionrouter.schema.usage import NO_COMPLETION_PARTS, CompletionParts, Cost, Usage

OBJECTS: dict[tuple[Kind, bool], str] = {
    ("chat", False): "chat.completion",
    ("chat", True): "chat.completion.chunk",
    ("completions", False): "text_completion",
    ("completions", True): "text_completion",
}
_REASONING_KEYS = frozenset({"reasoning", "reasoning_details"})


@dataclass(slots=True)
class AnswerFrame:
    """What every object of one answer repeats, and which choices already said their role."""

    id: str
    kind: Kind
    created: int
    model: str  # until commit the requested one
    provider: str = ""
    hides_reasoning: bool = False
    _greeted: set[int] = field(default_factory=set)

    @property
    def left_out(self) -> frozenset[str]:
        """Parts of the answer without a place in it: none, the other surfaces' answers are made of these."""
        return frozenset()

    def commit(self, committed: Committed) -> None:
        self.model, self.provider = committed.model_id, committed.provider_name

    def chunk(self, chunk: Chunk) -> dict[str, Any]:
        """One stream chunk, without usage: that goes in a chunk of its own."""
        body = self._envelope(streaming=True)
        body["choices"] = [self._chunk_choice(choice) for choice in chunk.choices]
        if chunk.service_tier is not None:
            body["service_tier"] = chunk.service_tier
        return body

    def shown(self, sent: Sequence[SentBody]) -> Iterator[dict[str, Any]]:
        """The first chunks of a caller that wants to see what was sent upstream, one an attempt."""
        for each in sent:
            named = {"model": each.model_id, "provider": each.provider_name}
            yield {**self._envelope(streaming=True), **named, "choices": [], "debug": each.told()}

    def pieces(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        """The events of one chunk: none for one that holds usage alone."""
        if chunk.choices:
            yield self.chunk(chunk)

    def finish(self, finished: Finished, report: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        """The last event, with `report` as its `ionrouter` object."""
        yield self.usage_chunk(finished) | ({} if report is None else {"ionrouter": dict(report)})

    def fail(self, error: ErrorBody) -> Iterator[dict[str, Any]]:
        """The last event of a stream that broke."""
        yield self.error_chunk(error.error())

    def usage_chunk(self, finished: Finished) -> dict[str, Any]:
        """The last chunk: no choices, full usage."""
        return {
            **self._envelope(streaming=True),
            "choices": [],
            "usage": usage_object(finished.usage, finished.cost),
        }

    def error_chunk(self, error: Mapping[str, Any]) -> dict[str, Any]:
        """The end of a stream that broke: a full envelope, so that strict clients can parse it."""
        text = {"text": ""} if self.kind == "completions" else {"delta": {"content": ""}}
        choice = {
            "index": 0,
            **text,
            "finish_reason": "error",
            "native_finish_reason": None,
            "logprobs": None,
        }
        return {**self._envelope(streaming=True), "error": dict(error), "choices": [choice]}

    def whole(self, complete: Complete, finished: Finished) -> dict[str, Any]:
        """A whole answer."""
        body = self._envelope(streaming=False)
        body["choices"] = [self._choice(choice) for choice in complete.choices]
        body["system_fingerprint"] = None
        body["usage"] = usage_object(finished.usage, finished.cost)
        if complete.service_tier is not None:
            body["service_tier"] = complete.service_tier
        if self.kind == "chat":  # one prompt, so vLLM says it once
            body.update(next(filter(None, map(_prompt_logprobs, complete.choices)), {}))
        return body

    def _envelope(self, *, streaming: bool) -> dict[str, Any]:
        return {
            "id": self.id,
            "provider": self.provider,
            "model": self.model,
            "object": OBJECTS[self.kind, streaming],
            "created": self.created,
        }

    def _chunk_choice(self, choice: ChoiceDelta) -> dict[str, Any]:
        delta = {k: v for k, v in choice.delta.items() if not (k == "role" and v is None)}
        if self.kind == "completions":
            text = {"index": choice.index, "text": delta.get("text") or ""}
            return {**text, **self._thoughts(delta), **_ending(choice)}
        if choice.index not in self._greeted:
            self._greeted.add(choice.index)
            delta = {"role": "assistant", "content": "", **delta}
        return {"index": choice.index, "delta": self._shown(delta), **_ending(choice)}

    def _choice(self, choice: Choice) -> dict[str, Any]:
        if self.kind == "completions":
            text = {"index": choice.index, "text": choice.message.get("text") or ""}
            thoughts = self._thoughts(choice.message)
            return {**text, **thoughts, **_ending(choice), **_prompt_logprobs(choice)}
        message = {"content": None, "refusal": None, "reasoning": None, **choice.message, "role": "assistant"}
        return {"index": choice.index, **_ending(choice), "message": self._shown(message)}

    def _thoughts(self, said: Mapping[str, Any]) -> dict[str, Any]:
        """Reasoning beside a completion's text, if there is any and the caller wants it."""
        if self.hides_reasoning or _REASONING_KEYS.isdisjoint(said):
            return {}
        return {key: value for key, value in said.items() if key in _REASONING_KEYS and value}

    def _shown(self, part: dict[str, Any]) -> dict[str, Any]:
        if not self.hides_reasoning:
            return part
        return {key: value for key, value in part.items() if key not in _REASONING_KEYS}


class Unstreamed:
    """The half of an answer that kinds without streams never write: asking for it is a fault of ours."""

    __slots__ = ()

    @property
    def left_out(self) -> frozenset[str]:
        return frozenset()

    def shown(self, sent: Sequence[SentBody]) -> Iterator[dict[str, Any]]:
        raise AssertionError(f"{type(self).__name__} is not streamed")

    def pieces(self, chunk: Chunk) -> Iterator[dict[str, Any]]:
        raise AssertionError(f"{type(self).__name__} is not streamed")

    def finish(self, finished: Finished, report: Mapping[str, Any] | None = None) -> Iterator[dict[str, Any]]:
        raise AssertionError(f"{type(self).__name__} is not streamed")

    def fail(self, error: ErrorBody) -> Iterator[dict[str, Any]]:
        raise AssertionError(f"{type(self).__name__} is not streamed")


def _ending(choice: Choice | ChoiceDelta) -> dict[str, Any]:
    return {
        "finish_reason": choice.finish_reason,
        "native_finish_reason": choice.native_finish_reason or choice.finish_reason,
        "logprobs": choice.logprobs,
    }


def _prompt_logprobs(choice: Choice) -> dict[str, Any]:
    return {} if choice.prompt_logprobs is None else {"prompt_logprobs": choice.prompt_logprobs}


def _usd(amount: float) -> float:
    return round(amount, 12)  # 0.000018, not 0.000017999999999999997


def cost_fields(cost: Cost, *, ins: str = "prompt", outs: str = "completions") -> dict[str, Any]:
    """What it cost; `ins` and `outs` are what a surface calls the two sides."""
    return {
        "cost": _usd(cost.total),
        "is_byok": False,
        "cost_details": {
            "upstream_inference_cost": None,
            f"upstream_inference_{ins}_cost": _usd(cost.prompt),
            f"upstream_inference_{outs}_cost": _usd(cost.completion),
        },
    }


def usage_object(usage: Usage, cost: Cost) -> dict[str, Any]:
    """Usage with cost in USD; every sub-object complete, because clients require whole ones."""
    asked, answered = usage.prompt_parts, usage.completion_parts
    return {
        "prompt_tokens": usage.prompt_tokens,
        "completion_tokens": usage.completion_tokens,
        "total_tokens": usage.total_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
            "audio_tokens": asked.audio_tokens,
            "video_tokens": asked.video_tokens,
        },
        "completion_tokens_details": {
            "reasoning_tokens": usage.reasoning_tokens,
            "audio_tokens": answered.audio_tokens,
            "image_tokens": answered.image_tokens,
            **({} if answered is NO_COMPLETION_PARTS else _prediction(answered)),
        },
        **cost_fields(cost),
    }


def _prediction(parts: CompletionParts) -> dict[str, int]:
    """What became of the caller's `prediction`, if the upstream says so."""
    told = {
        "accepted_prediction_tokens": parts.accepted_prediction_tokens,
        "rejected_prediction_tokens": parts.rejected_prediction_tokens,
    }
    return {name: count for name, count in told.items() if count is not None}
