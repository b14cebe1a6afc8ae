"""Answers in the shape of OpenAI's Responses: events one after another, and whole ones from the same events.

One machine writes both, so that a stream and its whole twin cannot differ. Items are written one at a time.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ionrouter.schema.answers import cost_fields
from ionrouter.schema.assemble import as_deltas
from ionrouter.schema.errors import ErrorBody
from ionrouter.schema.events import Chunk, Committed, Complete, Finished, SentBody
from ionrouter.schema.responses_output import Output, SseEvent
from ionrouter.schema.responses_tools import Toolbox
from ionrouter.schema.usage import Cost, Usage

# Finish reason -> why a response is incomplete; any other is complete.
_INCOMPLETE = {"length": "max_output_tokens", "content_filter": "content_filter"}
# A failure that only says that the answer became too long ends it like a limit.
_LENGTH_ERRORS = frozenset({"max_tokens_exceeded", "token_limit_exceeded"})


@dataclass(slots=True)
class ResponsesAnswer:
    """One answer being written. `echo` is what it repeats of its request."""

    id: str
    created_at: int
    model: str  # until commit the requested one
    echo: Mapping[str, Any] = field(default_factory=dict)
    hides_reasoning: bool = False
    seals_thoughts: bool = False  # `include` names `reasoning.encrypted_content`
    tools: Toolbox = field(default_factory=Toolbox)
    provider: str = ""
    _output: Output = field(init=False)
    _num_events: int = 0
    _has_begun: bool = False
    _finish_reason: str | None = None
    _tier: str | None = None
    _has_prompt_logprobs: bool = False

    def __post_init__(self) -> None:
        self._output = Output(
            self.id.removeprefix("gen-"),
            hides_reasoning=self.hides_reasoning,
            seals_thoughts=self.seals_thoughts,
            tools=self.tools,
        )

    @property
    def left_out(self) -> frozenset[str]:
        """Parts of the answer that a response has no place for, by chat's names."""
        return self._output.left_out | ({"prompt_logprobs"} if self._has_prompt_logprobs else set())

    def commit(self, committed: Committed) -> None:
        """Note who serves."""
        self.model, self.provider = committed.model_id, committed.provider_name

    def shown(self, sent: Sequence[SentBody]) -> Iterator[SseEvent]:
        """The events of a caller that wants to see what was sent upstream, one an attempt."""
        yield from self._begin()
        yield from self._numbered([{"type": "response.debug", "debug": each.told()} for each in sent])

    def pieces(self, chunk: Chunk) -> Iterator[SseEvent]:
        """Write one chunk."""
        self._tier = chunk.service_tier or self._tier
        for choice in chunk.choices:
            if choice.index == 0:
                yield from self._begin()
                yield from self._numbered(self._output.add(choice.delta, choice.logprobs))
                self._finish_reason = choice.finish_reason or self._finish_reason
                self._has_prompt_logprobs |= choice.prompt_logprobs is not None

    def finish(self, finished: Finished, report: Mapping[str, Any] | None = None) -> Iterator[SseEvent]:
        """Write the end: open items closed, and the whole response."""
        yield from self._begin()
        reason = _INCOMPLETE.get(self._finish_reason or "")
        status = "incomplete" if reason else "completed"
        yield from self._numbered(self._output.close(status))
        details = {"reason": reason} if reason else None
        response = self._response(
            status,
            incomplete_details=details,
            completed_at=self.created_at + int(finished_after_s(finished)),
            usage=responses_usage(finished.usage, finished.cost),
        )
        response |= {} if report is None else {"ionrouter": dict(report)}
        yield from self._numbered([{"type": f"response.{status}", "response": response}])

    def fail(self, error: ErrorBody) -> Iterator[SseEvent]:
        """Write the end of a stream that broke."""
        yield from self._begin()
        is_length = error.error_type in _LENGTH_ERRORS
        status = "incomplete" if is_length else "failed"
        yield from self._numbered(self._output.close("incomplete"))
        response = self._response(
            status,
            error=None if is_length else error.responses_error(),
            incomplete_details={"reason": "max_output_tokens"} if is_length else None,
        )
        response |= {} if is_length else {"error_type": error.error_type}
        yield from self._numbered([{"type": f"response.{status}", "response": response}])

    def whole(self, complete: Complete, finished: Finished) -> dict[str, Any]:
        """Write a whole response."""
        pieces = (event for chunk in as_deltas(complete) for event in self.pieces(chunk))
        events = [*pieces, *self.finish(finished)]
        response: dict[str, Any] = events[-1]["response"]
        return response

    def _begin(self) -> Iterator[SseEvent]:
        if not self._has_begun:
            self._has_begun = True
            for name in ("created", "in_progress"):
                event = {"type": f"response.{name}", "response": self._response("in_progress")}
                yield from self._numbered([event])

    def _numbered(self, events: Iterator[SseEvent] | list[SseEvent]) -> Iterator[SseEvent]:
        for event in events:
            yield {**event, "sequence_number": self._num_events}
            self._num_events += 1

    def _response(self, status: str, **known: Any) -> dict[str, Any]:
        return {
            "id": self.id,
            "object": "response",
            "created_at": self.created_at,
            "completed_at": None,
            "model": self.model,
            "provider": self.provider,
            "status": status,
            "error": None,
            "incomplete_details": None,
            "output": self._output.items(),
            "output_text": self._output.text(),
            "service_tier": self._tier or "default",
            **self.echo,
            **known,
        }


def finished_after_s(finished: Finished) -> float:
    """Seconds that the attempts took together."""
    return sum(attempt.duration_s for attempt in finished.attempts)


def responses_usage(usage: Usage, cost: Cost) -> dict[str, Any]:
    """Usage in the Responses surface's words."""
    return {
        "input_tokens": usage.prompt_tokens,
        "input_tokens_details": {
            "cached_tokens": usage.cached_tokens,
            "cache_write_tokens": usage.cache_write_tokens,
        },
        "output_tokens": usage.completion_tokens,
        "output_tokens_details": {"reasoning_tokens": usage.reasoning_tokens},
        "total_tokens": usage.total_tokens,
        **cost_fields(cost, ins="input", outs="output"),
    }
