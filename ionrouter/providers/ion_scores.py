"""What the engine says of a prompt's own tokens, in OpenAI's and in vLLM's shape; and who waits for it.

The first token has nothing before it, so nothing is said of it: null. Knows no sampling and no transport.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from ionrouter.engine.mailbox import PromptToken, TokenEvent
from ionrouter.providers.ion_parameters import Plan
from ionrouter.providers.ion_prompt import Prompt

if TYPE_CHECKING:
    from ionrouter.engine.tokenizer import Tokenizer

# A token that penalties or masks excluded has probability 0; JSON has no infinity. OpenAI's own floor.
LEAST_LOGPROB = -9999.0


def finite(value: float) -> float:
    """A log-probability as JSON can hold it."""
    return max(min(value, 0.0), LEAST_LOGPROB) if value == value else LEAST_LOGPROB


def name_of(raw: bytes) -> str:
    """Name a token in a map: its text, or for a part of a character OpenAI's `bytes:\\xe2\\x80`."""
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError:
        return "bytes:" + "".join(f"\\x{byte:02x}" for byte in raw)


class Names(dict[int, str]):
    """Token id -> its name, each made once: a scored prompt asks for twenty a token."""

    def __init__(self, tokenizer: Tokenizer) -> None:
        self._tokenizer = tokenizer

    def __missing__(self, token: int) -> str:
        name = self[token] = name_of(self._tokenizer.bytes_of(token))
        return name


def top_of(
    names: Mapping[int, str], chosen: tuple[int, float], top: Sequence[tuple[int, float]]
) -> dict[str, float]:
    """Map names to values, the likeliest first; the chosen token is among them.

    Of tokens with one text the likeliest has it for its name, others are `token_id:ID`, as vLLM names ids.
    """
    found: dict[str, float] = {}
    for token, value in dict((*top, chosen)).items():
        name = names[token]
        found[f"token_id:{token}" if name in found else name] = finite(value)
    return found


def pieces_of(tokenizer: Tokenizer, ids: Sequence[int], text: str) -> list[str]:
    """Give each token of a prompt the whole characters it completes; joined they are the prompt's text.

    Where the tokenizer has changed the text (normalised it, put spaces beside special tokens), they are what
    the model read. A BOS that nobody wrote has no text.
    """
    raw = [tokenizer.bytes_of(token) for token in ids]
    bos = tokenizer.bos_id is not None and ids[0] == tokenizer.bos_id
    if bos and not text.startswith(raw[0].decode("utf-8", "replace")):
        raw[0] = b""
    decoder = codecs.getincrementaldecoder("utf-8")("replace")
    pieces = [decoder.decode(each) for each in raw]
    pieces[-1] += decoder.decode(b"", final=True)
    first = next((i for i, piece in enumerate(pieces) if piece), 0)
    if tokenizer.drops_space and "".join(pieces) != text:
        pieces[first] = pieces[first].removeprefix(" ")  # SentencePiece's own
    return pieces


def echoed(
    tokenizer: Tokenizer, pieces: Sequence[str], tokens: Sequence[PromptToken], num_top: int
) -> dict[str, Any]:
    """OpenAI's `logprobs` of an echoed prompt, whose tokens are these pieces."""
    offsets, offset = [], 0
    for piece in pieces:
        offsets.append(offset)
        offset += len(piece)
    names = Names(tokenizer)
    tops = [top_of(names, (token.id, token.logprob), token.top[:num_top]) for token in tokens]
    return {
        "tokens": list(pieces),
        "token_logprobs": [None, *(finite(token.logprob) for token in tokens)],
        "top_logprobs": [None, *tops],
        "text_offset": offsets,
    }


def reported(
    tokenizer: Tokenizer, tokens: Sequence[PromptToken], num_top: int
) -> list[dict[str, Any] | None]:
    """vLLM's `prompt_logprobs`: of each token id -> logprob, rank, text; the prompt's own token first."""
    out: list[dict[str, Any] | None] = [None]
    texts: dict[int, str] = {}
    for token in tokens:
        ranked = [(token.id, token.logprob, token.rank)]
        ranked += [(each, value, rank) for rank, (each, value) in enumerate(token.top[:num_top], start=1)]
        entries: dict[str, Any] = {}
        for each, value, rank in ranked:
            if each not in texts:
                texts[each] = tokenizer.bytes_of(each).decode("utf-8", "replace")
            entries[str(each)] = {"logprob": finite(value), "rank": rank, "decoded_token": texts[each]}
        out.append(entries)
    return out


@dataclass(frozen=True, slots=True)
class Told:
    """What every choice of a scored prompt begins with; the text is empty without `echo`."""

    text: str
    logprobs: dict[str, Any] | None
    prompt_logprobs: list[dict[str, Any] | None] | None


@dataclass(slots=True)
class PromptScores:
    """One prompt's scores as its choices tell them; made once."""

    tokenizer: Tokenizer
    prompt: Prompt
    plan: Plan
    _told: Told | None = None

    def told(self, tokens: Sequence[PromptToken]) -> Told:
        """Put them in the shapes asked for."""
        if self._told is None:
            self._told = self._tell(tokens)
        return self._told

    def _tell(self, tokens: Sequence[PromptToken]) -> Told:
        plan, prompt, scores = self.plan, self.prompt, None
        if plan.prompt_logprobs is not None:
            scores = reported(self.tokenizer, tokens, plan.prompt_logprobs)
        if not (plan.echo and plan.wants_logprobs):
            return Told(prompt.text if plan.echo else "", None, scores)
        pieces = pieces_of(self.tokenizer, prompt.ids, prompt.text)
        logprobs = echoed(self.tokenizer, pieces, tokens, plan.sampling.logprobs)
        return Told("".join(pieces), logprobs, scores)


@dataclass(slots=True)
class Shared:
    """Gives the scores of each prompt, computed once by its first choice, to its other choices.

    Choice i belongs to prompt i // num_choices. Events of the others wait for their prompt's scores.
    """

    num_choices: int
    is_scored_only: bool  # the first choice's end is everybody's
    _held: dict[int, list[TokenEvent]] = field(default_factory=dict)
    _scored: set[int] = field(default_factory=set)

    def release(self, choice: int, event: TokenEvent) -> Iterator[tuple[int, TokenEvent]]:
        """Yield what may be told now that this event has come, by choice."""
        first = choice - choice % self.num_choices
        if first in self._scored:
            yield choice, event
        elif choice != first:
            self._held.setdefault(choice, []).append(event)
        else:
            self._scored.add(first)
            yield choice, event
            told = TokenEvent(prompt_logprobs=event.prompt_logprobs)
            scores = event if self.is_scored_only else told
            for other in range(first + 1, first + self.num_choices):
                yield other, scores
                for late in self._held.pop(other, ()):
                    yield other, late
