"""Answers the engine's requests for masks, in a thread of its own, while the model computes.

Owns the matcher of every running sequence that has a grammar. Knows no schema and no request; ends with the
engine.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import structlog

from ionrouter.engine.grammar import MAX_OPTIONAL_PROPERTIES, Grammar, GrammarRefused, with_room_for

if TYPE_CHECKING:
    from ionrouter.engine.tokenizer import Tokenizer

_log = structlog.get_logger(__name__)

CANNOT_GO_ON = "the grammar cannot go on: "  # begins the error of a sequence that its grammar ended
_DEAD_END = "NoExtension"  # llguidance's name of it
# Four items a property that may be left out, all in one row; the items of a step have a bound of their own.
_MAX_ITEMS_IN_ROW = 4 * MAX_OPTIONAL_PROPERTIES + 400
# Of a text that the grammar alone dictates, up to megabytes: its first token is asked for, once a mask.
_MAX_DICTATED_CHARACTERS = 2048
_WAIT_S = 1.0  # a closed engine is noticed at once all the same


@dataclass(slots=True)
class Following:
    """A sequence's place in its grammar."""

    matcher: Any
    _first: bytes | None = None

    def mask(self, token: int) -> bytes:
        """Take a token, none where it is negative, and say what may follow; raises GrammarRefused."""
        if token >= 0:
            self.matcher.consume_token(token)
            _require_sound(self.matcher)
        first, self._first = self._first, None
        return first or _sound_mask(self.matcher)


class GrammarVocabulary:
    """One model's tokens as llguidance reads them; 0.1 s to build for 50,000 tokens, shared by matchers."""

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        from llguidance import LLTokenizer

        self.num_mask_bytes = (vocab_size + 31) // 32 * 4
        words: Any = _Words(tokenizer, vocab_size)  # has what is asked for, if not the type
        self._tokens = LLTokenizer(words, n_vocab=vocab_size, eos_token=list(tokenizer.stop_ids))

    def start(self, grammar: Grammar) -> Following:
        """Start at the beginning of a grammar; raises GrammarRefused where this vocabulary cannot follow it.

        Up to seconds for enormous grammars, without the interpreter's lock. The first mask is computed here,
        since it follows a dictated text to its end, and everybody's step would wait for it.
        """
        from llguidance import LLMatcher, LLParserLimits

        source = grammar.source
        limits = LLParserLimits(
            verbose_errors=False,  # they would repeat the grammar
            max_items_in_row=_MAX_ITEMS_IN_ROW,
        )

        def start() -> Following:
            matcher = LLMatcher(self._tokens, source, log_level=0, limits=limits)
            _require_sound(matcher)
            return Following(matcher, _sound_mask(matcher))

        return with_room_for(source, start)


class GrammarKeeper:
    """The grammars of one engine's running sequences."""

    def __init__(self, engine: Any, vocabulary: GrammarVocabulary) -> None:
        self.vocabulary = vocabulary
        self._engine = engine
        self._followed: dict[int, tuple[Following, Sequence[int]]] = {}  # with the request's own stop ids
        self._lock = threading.Lock()  # guards _followed: a request may come before `submit` has returned
        self._is_closed = False
        self._thread = threading.Thread(target=self._keep, name="ion-grammar", daemon=True)
        self._thread.start()

    def submit(self, prompt_ids: Sequence[int], following: Following, **sampling: Any) -> int:
        """Queue a sequence whose samples follow a grammar; it belongs to the keeper from here on.

        Its own `stop_ids`, too, end it only where the grammar may end: a half object never passes for whole.
        """
        with self._lock:
            sequence: int = self._engine.submit(list(prompt_ids), grammar=True, **sampling)
            self._followed[sequence] = (following, sampling.get("stop_ids", ()))
        return sequence

    def close(self) -> None:
        """Wait for the thread; call it after the engine's own close."""
        self._is_closed = True
        self._thread.join()

    def num_kept(self) -> int:
        """Count the sequences with a grammar that have not ended."""
        with self._lock:
            return len(self._followed)

    def _keep(self) -> None:
        while not self._is_closed:
            masks = []
            for sequence, token, index, has_ended in self._engine.mask_requests(_WAIT_S):
                with self._lock:
                    kept = self._followed.pop(sequence, None) if has_ended else self._followed[sequence]
                if has_ended or kept is None:
                    continue
                try:
                    masks.append((sequence, index, self._mask(*kept, token)))
                except (
                    BaseException
                ) as error:  # one sequence's grammar must not stop everybody's; a panic, too
                    _log.warning("grammar_failed", sequence=sequence, index=index, error=str(error))
                    self._engine.refuse_mask(sequence, index, f"{CANNOT_GO_ON}{error}")
            if masks:
                self._engine.give_masks(masks)

    def _mask(self, following: Following, stop_ids: Sequence[int], token: int) -> bytes:
        mask = following.mask(token)[: self.vocabulary.num_mask_bytes]
        if stop_ids and not following.matcher.is_accepting():
            mask = _without(mask, stop_ids)
            if not any(mask):
                raise GrammarRefused("nothing may follow but stop_token_ids, which would cut it")
        if not any(mask):
            raise GrammarRefused("no token of the vocabulary may follow")
        return mask


def _sound_mask(matcher: Any) -> bytes:
    mask: bytes = matcher.compute_bitmask()
    _require_sound(matcher)  # at a dead end, or where it gave up, the mask lets the answer end
    return mask


def _require_sound(matcher: Any) -> None:
    if matcher.is_error():
        error, _, _ = matcher.get_error().strip().partition("\n<non-verbose/>")
        raise GrammarRefused("no text can follow here" if error.startswith(_DEAD_END) else error)


def _without(mask: bytes, ids: Sequence[int]) -> bytes:
    """Bar ids: as words are little-endian, the bit of an id lies in byte id // 8."""
    out = bytearray(mask)
    for token in ids:
        out[token // 8] &= ~(1 << token % 8) & 0xFF
    return bytes(out)


class _Words:
    """A tokenizer in the shape that llguidance asks for."""

    is_tokenizer_wrapper = True

    def __init__(self, tokenizer: Tokenizer, vocab_size: int) -> None:
        self._encode = tokenizer.encode_continuation
        self.eos_token_id = tokenizer.stop_ids[0] if tokenizer.stop_ids else tokenizer.eos_id
        self.bos_token_id = tokenizer.bos_id
        self.special_token_ids = sorted(tokenizer.hidden_ids)
        # A leading FF says that the token is no text: nothing but its name in a grammar allows it.
        self.tokens = [
            b"\xff" + tokenizer.text_of_special(i).encode() if i in tokenizer.hidden_ids else text
            for i, text in enumerate(tokenizer.token_bytes(vocab_size))
        ]

    def __call__(self, text: str | bytes) -> list[int]:
        whole = text if isinstance(text, str) else text.decode("utf-8", "replace")
        return self._encode(whole[:_MAX_DICTATED_CHARACTERS])
