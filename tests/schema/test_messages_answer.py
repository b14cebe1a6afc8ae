"""Answers in Anthropic's shape: the stream's order, and a whole message that says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.schema import json as wire
from ionrouter.schema.errors import plain_error
from ionrouter.schema.events import ChoiceDelta, Chunk
from ionrouter.schema.messages_answer import MessagesAnswer, joined_blocks
from ionrouter.schema.usage import Usage
from tests.support.deltas import (
    COMMITTED,
    FINISHED,
    answers,
    chunk,
    complete_of,
    image,
    in_pieces,
    thoughts,
    url_citation,
)


def _answer(**options: Any) -> MessagesAnswer:
    answer = MessagesAnswer("gen-1", "asked/m", **options)
    answer.commit(COMMITTED)
    return answer


def _stream(chunks: list[Chunk], **options: Any) -> list[dict[str, Any]]:
    answer = _answer(**options)
    events = [event for one in chunks for event in answer.pieces(one)]
    return [*events, *answer.finish(FINISHED)]


@given(answers())
def test_a_stream_joined_is_the_whole_message(chunks: list[Chunk]) -> None:
    events = _stream(chunks)
    whole = _answer().whole(complete_of(chunks), FINISHED)
    ending = events[-2]
    assert joined_blocks(events) == whole["content"]
    assert ending["usage"] == whole["usage"]
    assert ending["delta"]["stop_reason"] == whole["stop_reason"]
    started = events[0]["message"]
    assert {k: started[k] for k in ("id", "model", "provider", "role", "type")} == {
        "id": "gen-1", "model": "acme/m", "provider": "Prov", "role": "assistant", "type": "message",
    }  # fmt: skip


HELLO = ChoiceDelta(0, {"content": "hi"})


@pytest.mark.parametrize(
    ("first", "num_in", "cached"),
    [
        (Chunk((HELLO,)), 12, 0),
        (Chunk((HELLO,), Usage(0, 0)), 12, 0),  # some upstreams begin with a count of nothing
        (Chunk((HELLO,), Usage(100, 1, 60)), 40, 60),
    ],
)
def test_the_start_tells_the_input_as_far_as_it_is_known_and_the_end_the_truth(
    first: Chunk, num_in: int, cached: int
) -> None:
    start, *_, ending, _ = _stream([first, chunk({}, "stop")], num_in=12)
    told = start["message"]["usage"]
    assert (told["input_tokens"], told["cache_read_input_tokens"]) == (num_in, cached)
    assert ending["usage"]["input_tokens"] == 100 - 60 - FINISHED.usage.cache_write_tokens
    assert ending["usage"]["output_tokens"] == 20


@given(answers())
def test_blocks_are_opened_filled_and_closed_one_after_another(chunks: list[Chunk]) -> None:
    events = _stream(chunks)
    assert events[0]["type"] == "message_start"
    assert [e["type"] for e in events[-2:]] == ["message_delta", "message_stop"]
    current, expected = None, 0
    for event in events[1:-2]:
        if event["type"] == "content_block_start":
            assert current is None
            assert event["index"] == expected
            current, expected = event["index"], expected + 1
        elif event["type"] == "content_block_delta":
            assert event["index"] == current
        else:
            assert (event["type"], event["index"]) == ("content_block_stop", current)
            current = None
    assert current is None


@given(answers())
def test_all_that_the_upstream_said_is_there(chunks: list[Chunk]) -> None:
    blocks = joined_blocks(_stream(chunks))
    deltas = [one.choices[0].delta for one in chunks]
    said = {"text": "".join(d.get("content") or "" for d in deltas), "thinking": "".join(
        d.get("reasoning") or "" for d in deltas)}  # fmt: skip
    for kind, text in said.items():
        assert "".join(b[kind] for b in blocks if b["type"] == kind) == text
    arguments: dict[int, str] = {}
    for delta in deltas:
        for call in delta.get("tool_calls", ()):
            piece = call["function"].get("arguments", "")
            arguments[call["index"]] = arguments.get(call["index"], "") + piece
    inputs = [json.loads(arguments[index]) for index in sorted(arguments)]
    tools = sorted((b for b in blocks if b["type"] == "tool_use"), key=lambda b: b["name"])
    assert [tool["input"] for tool in tools] == inputs


@pytest.mark.parametrize(
    ("finish", "native", "reason"),
    [
        ("stop", "stop", "end_turn"),
        ("length", "length", "max_tokens"),
        ("tool_calls", "tool_calls", "tool_use"),
        ("content_filter", "content_filter", "refusal"),
        ("stop", "stop_sequence", "stop_sequence"),
        ("stop", "pause_turn", "pause_turn"),
        ("stop", "eos", "end_turn"),
    ],
)
def test_stop_reasons(finish: str, native: str, reason: str) -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    calls = {"tool_calls": [call]} if reason == "tool_use" else {}
    events = _stream([chunk({"content": "x"}), chunk(calls, finish, native)], stop_sequences=("END",))
    assert events[-2]["delta"]["stop_reason"] == reason
    assert events[-2]["delta"]["stop_sequence"] == ("END" if reason == "stop_sequence" else None)


def test_which_of_several_stop_sequences_it_was_is_not_guessed() -> None:
    events = _stream([chunk({"content": "x"}, "stop", "stop_sequence")], stop_sequences=("A", "B"))
    assert events[-2]["delta"]["stop_sequence"] is None


def test_the_stop_sequence_that_an_upstream_names() -> None:
    ending = Chunk((ChoiceDelta(0, {}, "stop", "stop", stop_sequence="B"),))
    chunks = [chunk({"content": "x"}), ending]
    events = _stream(chunks, stop_sequences=("A", "B"))
    assert (events[-2]["delta"]["stop_reason"], events[-2]["delta"]["stop_sequence"]) == (
        "stop_sequence",
        "B",
    )
    whole = _answer(stop_sequences=("A", "B")).whole(complete_of(chunks), FINISHED)
    assert (whole["stop_reason"], whole["stop_sequence"]) == ("stop_sequence", "B")
    assert _stream(chunks)[-2]["delta"]["stop_reason"] == "end_turn"  # nobody asked to stop there


def test_usage_counts_as_anthropic_does() -> None:
    """Input leaves out what came from the cache or went into it: 100 - 60 - 10."""
    usage = _stream([chunk({"content": "x"}, "stop")])[-2]["usage"]
    assert (usage["input_tokens"], usage["output_tokens"]) == (30, 20)
    assert (usage["cache_read_input_tokens"], usage["cache_creation_input_tokens"]) == (60, 10)
    assert usage["output_tokens_details"] == {"thinking_tokens": 5}
    assert (usage["cost"], usage["service_tier"]) == (0.75, "standard")


def test_signed_and_sealed_thoughts_come_back_as_blocks_of_their_own() -> None:
    details = [
        {"type": "reasoning.text", "text": "one"},
        {"type": "reasoning.text", "text": "", "signature": "sig1"},
        {"type": "reasoning.encrypted", "data": "sealed"},
        {"type": "reasoning.text", "text": "two", "signature": "sig2"},
    ]
    chunks = [chunk({"reasoning": "one", "reasoning_details": details[:1]})]
    chunks += [chunk({"reasoning_details": [detail]}) for detail in details[1:]]
    chunks.append(chunk({"content": "x"}, "stop"))
    expected = [
        {"type": "thinking", "thinking": "one", "signature": "sig1"},
        {"type": "redacted_thinking", "data": "sealed"},
        {"type": "thinking", "thinking": "two", "signature": "sig2"},
        {"type": "text", "text": "x", "citations": None},
    ]
    assert joined_blocks(_stream(chunks)) == expected
    assert _answer().whole(complete_of(chunks), FINISHED)["content"] == expected


@given(st.data())
def test_thoughts_in_pieces_are_the_blocks_they_were(data: st.DataObject) -> None:
    details = data.draw(thoughts())
    chunks = [*data.draw(in_pieces(details)), chunk({"content": "x"}, "stop")]
    expected = [
        {"type": "redacted_thinking", "data": detail["data"]}
        if detail["type"] == "reasoning.encrypted"
        else {
            "type": "thinking",
            "thinking": detail.get("text") or detail["summary"],
            "signature": detail.get("signature", ""),
        }
        for detail in details
    ]
    assert joined_blocks(_stream(chunks))[:-1] == expected
    assert _answer().whole(complete_of(chunks), FINISHED)["content"][:-1] == expected


def test_a_thought_between_two_calls_is_a_block_between_their_blocks() -> None:
    calls = [
        {"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": f'{{"n": {i}}}'}} for i in (0, 1)
    ]
    thought = {"reasoning": "hm", "reasoning_details": [{"type": "reasoning.text", "text": "hm"}]}
    chunks = [chunk({"tool_calls": calls[:1]}), chunk(thought), chunk({"content": "So"})]
    events = _stream([*chunks, chunk({"tool_calls": calls[1:]}), chunk({}, "tool_calls")])
    blocks = joined_blocks(events)
    assert [block["type"] for block in blocks] == ["tool_use", "thinking", "text", "tool_use"]
    assert [block["input"] for block in blocks if block["type"] == "tool_use"] == [{"n": 0}, {"n": 1}]


def test_a_thought_in_the_middle_of_a_call_tears_nothing_apart() -> None:
    first = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}
    second = {"index": 0, "function": {"arguments": ": 1}"}}
    chunks = [chunk({"tool_calls": [first]}), chunk({"reasoning": "hm"}), chunk({"tool_calls": [second]})]
    call, thought = joined_blocks(_stream([*chunks, chunk({}, "tool_calls")]))
    assert (call["input"], thought["thinking"]) == ({"a": 1}, "hm")


def test_hidden_reasoning_stays_hidden() -> None:
    chunks = [chunk({"reasoning": "secret"}), chunk({"content": "x"}, "stop")]
    assert "secret" not in json.dumps(_stream(chunks, hides_reasoning=True))


def test_omitted_thoughts_keep_what_the_next_turn_needs() -> None:
    """Without its signed blocks Claude refuses the turn after a tool's result."""
    common = {"type": "reasoning.text", "format": "f"}
    told = [
        [{**common, "text": "sec", "index": 0}],
        [{**common, "text": "ret", "signature": "S", "index": 0}],
        [{"type": "reasoning.encrypted", "data": "D", "index": 1}],
        [{**common, "text": "secret", "index": 2}],  # signed by nobody: nothing is left of it
    ]
    chunks = [*(chunk({"reasoning_details": details}) for details in told), chunk({"content": "x"}, "stop")]
    events = _stream(chunks, omits_thoughts=True)
    assert joined_blocks(events) == [
        {"type": "thinking", "thinking": "", "signature": "S"},
        {"type": "redacted_thinking", "data": "D"},
        {"type": "text", "text": "x", "citations": None},
    ]
    assert "thinking_delta" not in json.dumps(events)


def test_a_finish_for_calls_that_never_came_ends_the_turn() -> None:
    assert _stream([chunk({"content": "x"}, "tool_calls")])[-2]["delta"]["stop_reason"] == "end_turn"
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    assert _stream([chunk({"tool_calls": [call]}, "tool_calls")])[-2]["delta"]["stop_reason"] == "tool_use"


def test_a_call_cut_by_length_shows_what_there_was() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a": "b'}}
    chunks = [chunk({"tool_calls": [call]}), chunk({}, "length")]
    (block,) = _answer().whole(complete_of(chunks), FINISHED)["content"]
    assert block["input"] == {"_raw": '{"a": "b'}


@pytest.mark.parametrize("levels", [300, 600, 5000])
def test_a_calls_arguments_nested_beyond_reason_are_shown_as_they_came(levels: int) -> None:
    arguments = '{"a":' * levels + "1" + "}" * levels
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": arguments}}
    whole = _answer().whole(complete_of([chunk({"tool_calls": [call]})]), FINISHED)
    assert whole["content"][0]["input"] == {"_raw": arguments}
    wire.dumps(whole)


def test_a_calls_numbers_keep_all_their_digits() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"id": 92233720368547758099}'}}
    (block,) = _answer().whole(complete_of([chunk({"tool_calls": [call]})]), FINISHED)["content"]
    assert block["input"] == {"id": 92233720368547758099}
    assert wire.loads_exactly(wire.dumps(block).decode()) == block


def test_text_in_the_middle_of_a_call_tears_nothing_apart() -> None:
    first = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}
    second = {"index": 0, "function": {"arguments": ": 1}"}}
    chunks = [chunk({"tool_calls": [first]}), chunk({"content": "hm"}), chunk({"tool_calls": [second]})]
    call, text = joined_blocks(_stream([*chunks, chunk({}, "tool_calls")]))
    assert (call["input"], text["text"]) == ({"a": 1}, "hm")


def test_a_broken_stream_ends_with_an_error_event() -> None:
    answer = _answer()
    list(answer.pieces(chunk({"content": "x"})))
    (event,) = answer.fail(plain_error(503, "busy"))
    assert event == {
        "type": "error",
        "error": {"type": "overloaded_error", "message": "busy", "error_type": "provider_overloaded"},
        "request_id": "gen-1",
    }


def test_citations_stand_in_the_text_that_they_belong_to() -> None:
    """In the form of Anthropic's web search, the only one that tells an address."""
    cites = [url_citation(content="said"), {"type": "url_citation", "url": "https://b.example"}]
    chunks = [chunk({"annotations": cites[:1]}), chunk({"content": "One"}), chunk({"annotations": cites[1:]})]
    expected = [
        {
            "type": "web_search_result_location",
            "url": "https://a.example/0",
            "title": "A",
            "cited_text": "said",
            "encrypted_index": "",
        },
        {
            "type": "web_search_result_location",
            "url": "https://b.example",
            "title": None,
            "cited_text": "",
            "encrypted_index": "",
        },
    ]
    events = _stream([*chunks, chunk({}, "stop")])
    deltas = [event["delta"] for event in events if event["type"] == "content_block_delta"]
    told = [delta["citation"] for delta in deltas if delta["type"] == "citations_delta"]
    assert told == expected
    (block,) = _answer().whole(complete_of([*chunks, chunk({}, "stop")]), FINISHED)["content"]
    assert block == {"type": "text", "text": "One", "citations": expected}


@pytest.mark.parametrize(
    ("delta", "named"),
    [
        ({"images": [image()]}, {"images"}),
        ({"audio": {"data": "x"}}, {"audio"}),
        ({"annotations": [{"type": "file", "file": {"hash": "h"}}]}, {"annotations"}),
        ({"annotations": 5}, {"annotations"}),
        ({"annotations": [url_citation()]}, set()),
    ],
)
def test_what_a_message_cannot_hold_is_named(delta: dict[str, Any], named: set[str]) -> None:
    assert _left_out([chunk({"content": "x"}), chunk(delta, "stop")]) == named
    late = {"annotations"} if "annotations" in delta else named
    assert _left_out([chunk(delta, "stop")]) == late  # no text to stand in


def test_scores_that_were_asked_for_are_named() -> None:
    scored = ChoiceDelta(0, {"content": "x"}, "stop", logprobs={"content": [{}]}, prompt_logprobs=[None])
    assert _left_out([Chunk((scored,))]) == {"logprobs", "prompt_logprobs"}


def _left_out(chunks: list[Chunk]) -> frozenset[str]:
    """What is left out, known before the end is written and still so after it."""
    answer = _answer()
    for one in chunks:
        list(answer.pieces(one))
    known = answer.left_out
    list(answer.finish(FINISHED))
    assert answer.left_out == known
    return known
