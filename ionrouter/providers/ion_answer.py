"""The engine's events to chunks of an answer: deltas, log-probabilities in OpenAI's two shapes, the finish.

Knows one choice at a time; knows no sampling and no transport.
"""

from __future__ import annotations

import codecs
import hashlib
from collections.abc import Iterator
from typing import TYPE_CHECKING, Any, Protocol

from ionrouter.engine.mailbox import TokenEvent, TokenLogprob
from ionrouter.providers.ion_scores import Names, PromptScores, finite, top_of
from ionrouter.providers.ion_sections import Section, Sections
from ionrouter.schema.events import ChoiceDelta, Chunk, FinishReason, TextRun
from ionrouter.schema.json import dumps

if TYPE_CHECKING:
    from ionrouter.engine.tokenizer import Tokenizer


class Answer(Protocol):
    """One choice being written."""

    num_reasoning_tokens: int

    def begin(self) -> Iterator[Chunk]: ...

    def continue_with(self, event: TokenEvent) -> Iterator[Chunk]: ...

    def run_of(self, event: TokenEvent) -> TextRun | None:
        """The event as one run, if all that it brings is text; else None, and `continue_with` is to tell it.

        Nearly all events do, and a run costs a fifth of a chunk on its way to the client.
        """
        ...


class ChatAnswer:
    """Chunks of kind chat: role first, then content, then the finish alone."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        wants_logprobs: bool,
        sections: Sections,
        request_id: str,
        scores: PromptScores | None = None,
    ) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._wants_logprobs = wants_logprobs
        self._scores = scores  # not told yet
        self._sections = sections
        self._request_id = request_id
        self._num_calls = 0
        self.num_reasoning_tokens = 0
        self._pattern = Chunk((ChoiceDelta(index, {"content": ""}),))

    def begin(self) -> Iterator[Chunk]:
        yield Chunk((ChoiceDelta(self._index, {"role": "assistant", "content": ""}),))

    def run_of(self, event: TokenEvent) -> TextRun | None:
        if not _is_text_alone(event, self._scores) or not self._sections.passes(event.text):
            return None
        return TextRun(self._pattern, "content", (event.text,), (dumps(event.text),))

    def continue_with(self, event: TokenEvent) -> Iterator[Chunk]:
        if self._scores is not None:
            told, self._scores = self._scores.told(event.prompt_logprobs), None
            yield Chunk((ChoiceDelta(self._index, {}, prompt_logprobs=told.prompt_logprobs),))
        logprobs = None
        if self._wants_logprobs and event.logprobs:
            content = [self._logprob(entry) for entry in event.logprobs]
            logprobs = {"content": content, "refusal": None}
        sections, thought = self._sections.feed_and_mark(event.text)
        if thought is not None:
            self.num_reasoning_tokens += self._num_tokens_of(thought, event)
        if event.finish is not None:
            sections += self._sections.end()
        deltas = [self._delta(section) for section in sections]
        if logprobs and not deltas:
            deltas.append({"content": ""})
        for delta in deltas:
            yield Chunk((ChoiceDelta(self._index, delta, logprobs=logprobs),))
            logprobs = None
        if event.finish is not None:
            yield _finish(self._index, {}, event, has_calls=self._num_calls > 0)

    def _num_tokens_of(self, thought: str, event: TokenEvent) -> int:
        """Count the tokens of an event's thought: by their text where others came with them."""
        if thought == event.text or (thought and event.num_tokens == 1):
            return event.num_tokens
        return min(event.num_tokens, len(self._tokenizer.encode_template(thought)))

    def _delta(self, section: Section) -> dict[str, Any]:
        if section.kind == "content":
            return {"content": section.text}
        if section.kind == "reasoning":
            detail = {"type": "reasoning.text", "text": section.text, "format": "unknown", "index": 0}
            return {"reasoning": section.text, "reasoning_details": [detail]}
        if section.kind == "arguments":
            call: dict[str, Any] = {"index": self._num_calls - 1, "function": {"arguments": section.text}}
            return {"tool_calls": [call]}
        self._num_calls += 1
        function = {"name": section.text, "arguments": ""}
        call = {"index": self._num_calls - 1, "id": self._call_id(), "type": "function", "function": function}
        return {"tool_calls": [call]}

    def _call_id(self) -> str:
        seed = f"{self._request_id}:{self._index}:{self._num_calls}"
        return "call_" + hashlib.sha256(seed.encode()).hexdigest()[:24]

    def _logprob(self, entry: TokenLogprob) -> dict[str, Any]:
        top = [self._token(token, value) for token, value in entry.top]
        return self._token(entry.id, entry.logprob) | {"top_logprobs": top}

    def _token(self, token: int, logprob: float) -> dict[str, Any]:
        raw = self._tokenizer.bytes_of(token)
        return {"token": raw.decode("utf-8", "replace"), "logprob": finite(logprob), "bytes": list(raw)}


class CompletionAnswer:
    """Chunks of kind completions; `echo` is the prompt's text, sent first, with its `scores` if asked."""

    def __init__(
        self,
        index: int,
        tokenizer: Tokenizer,
        wants_logprobs: bool,
        echo: str,
        scores: PromptScores | None = None,
    ) -> None:
        self._index = index
        self._tokenizer = tokenizer
        self._names = Names(tokenizer)
        self._wants_logprobs = wants_logprobs
        self._echo = echo
        self._scores = scores  # not told yet
        self.num_reasoning_tokens = 0
        self._pattern = Chunk((ChoiceDelta(index, {"text": ""}),))
        self._offset = 0  # characters of the answer that earlier tokens account for
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")

    def begin(self) -> Iterator[Chunk]:
        if self._echo and self._scores is None:
            yield Chunk((ChoiceDelta(self._index, {"text": self._echo}),))

    def run_of(self, event: TokenEvent) -> TextRun | None:
        if not _is_text_alone(event, self._scores):
            return None
        return TextRun(self._pattern, "text", (event.text,), (dumps(event.text),))

    def continue_with(self, event: TokenEvent) -> Iterator[Chunk]:
        if self._scores is not None:
            told, self._scores = self._scores.told(event.prompt_logprobs), None
            self._offset = len(told.text)
            delta = {"text": told.text}
            yield Chunk(
                (ChoiceDelta(self._index, delta, None, None, told.logprobs, None, told.prompt_logprobs),)
            )
        logprobs = self._logprobs(event.logprobs) if self._wants_logprobs and event.logprobs else None
        if logprobs is not None and event.finish is not None and not event.stop:
            logprobs["tokens"][-1] += self._decoder.decode(b"", final=True)  # half a character at the end
        if event.text or logprobs:
            yield Chunk((ChoiceDelta(self._index, {"text": event.text}, logprobs=logprobs),))
        if event.finish is not None:
            yield _finish(self._index, {"text": ""}, event)

    def _logprobs(self, entries: tuple[TokenLogprob, ...]) -> dict[str, Any]:
        """Give each token the whole characters it completes, so that text[offset:][:len(token)] == token."""
        tokens, values, tops, offsets = [], [], [], []
        for entry in entries:
            text = self._decoder.decode(self._text_bytes(entry.id))
            tokens.append(text)
            values.append(finite(entry.logprob))
            tops.append(top_of(self._names, (entry.id, entry.logprob), entry.top))
            offsets.append(self._offset)
            self._offset += len(text)
        return {"tokens": tokens, "token_logprobs": values, "top_logprobs": tops, "text_offset": offsets}

    def _text_bytes(self, token: int) -> bytes:
        """Bytes as they stand in the answer, where a special token has none."""
        return b"" if token in self._tokenizer.hidden_ids else self._tokenizer.bytes_of(token)


def _is_text_alone(event: TokenEvent, scores: PromptScores | None) -> bool:
    return bool(event.text) and event.finish is None and not event.logprobs and scores is None


def _finish(index: int, delta: dict[str, Any], event: TokenEvent, *, has_calls: bool = False) -> Chunk:
    reason: FinishReason = "length" if event.finish == "length" else "stop"
    native = "stop_sequence" if event.stop else reason
    if has_calls and reason == "stop":
        reason = "tool_calls"
    return Chunk((ChoiceDelta(index, delta, reason, native, stop_sequence=event.stop or None),))
