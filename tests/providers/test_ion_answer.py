"""Text alone goes out as runs; they say what chunks would, and what is more than text stays a chunk."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from functools import reduce
from typing import Any

import pytest

from ionrouter.engine.mailbox import PromptToken, TokenEvent, TokenLogprob, merged
from ionrouter.engine.tokenizer import from_gguf
from ionrouter.engine.tool_format import HERMES
from ionrouter.providers.ion_answer import Answer, ChatAnswer, CompletionAnswer
from ionrouter.providers.ion_sections import Sections
from ionrouter.schema.events import Chunk, TextRun
from ionrouter.schema.json import loads
from tests.support.tiny_tokenizer import metadata

TEXTS = ['"quoted" \\', "line\nfeed", "Ä€😀", "<tool", "_call>", " x", "y"]
EVENTS = [*(TokenEvent(text, 1) for text in TEXTS), TokenEvent("", 1), TokenEvent("end", 2, "length")]


class Named:
    """A tokenizer that names every token alike."""

    hidden_ids: frozenset[int] = frozenset()

    def bytes_of(self, token: int) -> bytes:
        return b"x"


def chat(wants_logprobs: bool = False) -> ChatAnswer:
    sections = Sections(None, thinks=False)
    return ChatAnswer(2, Named(), wants_logprobs, sections, "gen-1")  # type: ignore[arg-type]


def completion(wants_logprobs: bool = False) -> CompletionAnswer:
    return CompletionAnswer(2, Named(), wants_logprobs, "")  # type: ignore[arg-type]


def told(answer: Answer, events: list[TokenEvent]) -> list[TextRun | Chunk]:
    out: list[TextRun | Chunk] = []
    for event in events:
        run = answer.run_of(event)
        out += answer.continue_with(event) if run is None else [run]
    return out


@pytest.mark.parametrize(("make", "key"), [(chat, "content"), (completion, "text")])
def test_runs_say_what_chunks_would(make: Callable[[], Answer], key: str) -> None:
    found = told(make(), EVENTS)
    runs = [item for item in found if isinstance(item, TextRun)]
    assert len(runs) >= len(TEXTS) - 1, "the first may still be a tool call"
    assert all(loads(run.literals[0]) == run.texts[0] for run in runs)
    chunks = [c for item in found for c in (item.chunks() if isinstance(item, TextRun) else [item])]
    plain = make()
    assert chunks == [chunk for event in EVENTS for chunk in plain.continue_with(event)]
    said = "".join(choice.delta.get(key, "") for chunk in chunks for choice in chunk.choices)
    assert said == "".join(TEXTS) + "end"


@pytest.mark.parametrize("make", [chat, completion])
@pytest.mark.parametrize(
    "event",
    [
        TokenEvent("x", 1, "stop"),
        TokenEvent("", 1),
        TokenEvent("x", 1, logprobs=(TokenLogprob(1, -0.5),)),
    ],
    ids=["the end", "no text", "logprobs"],
)
def test_what_is_more_or_less_than_text_is_no_run(make: Callable[..., Answer], event: TokenEvent) -> None:
    answer = make(wants_logprobs=True)
    told(answer, [TokenEvent("a", 1)])
    assert answer.run_of(event) is None


def test_before_a_prompts_scores_are_told_nothing_is_a_run() -> None:
    class Scores:
        def told(self, tokens: tuple[PromptToken, ...]) -> Any:
            raise AssertionError("asked too early")

    answer = CompletionAnswer(0, Named(), True, "", Scores())  # type: ignore[arg-type]
    assert answer.run_of(TokenEvent("x", 1)) is None


def test_where_a_call_may_begin_nothing_is_a_run_until_it_cannot() -> None:
    answer = ChatAnswer(0, Named(), False, Sections(HERMES, thinks=False), "gen-1")  # type: ignore[arg-type]
    kinds = [answer.run_of(TokenEvent(text, 1)) is not None for text in ("a",)]
    assert kinds == [False], "it has not begun"
    list(answer.continue_with(TokenEvent("a", 1)))
    assert answer.run_of(TokenEvent("b", 1)) is not None
    assert answer.run_of(TokenEvent("1 < 2", 1)) is None, "the beginning of a marker"
    list(answer.continue_with(TokenEvent("1 <", 1)))
    assert answer.run_of(TokenEvent("c", 1)) is None, "what waits goes first"


@pytest.mark.parametrize("is_begun", [False, True], ids=["opened by the answer", "opened by the prompt"])
def test_tokens_of_a_thought_are_counted_alike_however_events_were_merged(is_begun: bool) -> None:
    tokenizer = from_gguf(metadata())
    text = "<think>"[7 * is_begun :] + "\n1 < 2, so it is.\n</think>\n\nYes, it is so."
    ids = tokenizer.encode_template(text)
    single = [TokenEvent(tokenizer.bytes_of(i).decode(), 1) for i in ids] + [TokenEvent("", 1, "stop")]
    assert len(single) > 20

    def counted(events: list[TokenEvent]) -> int:
        sections = Sections(None, thinks=True, is_thinking=is_begun)
        answer = ChatAnswer(0, tokenizer, False, sections, "gen-1")
        told(answer, events)
        return answer.num_reasoning_tokens

    wanted = counted(single)
    assert 10 < wanted < len(single) - 10
    for first, second in itertools.combinations(range(1, len(single)), 2):
        parts = (single[:first], single[first:second], single[second:])
        assert counted([reduce(merged, part) for part in parts]) == wanted, (first, second)
