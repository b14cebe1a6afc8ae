"""Answers in the shape of OpenAI's Responses: the events' order, and a whole response that says the same."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.schema.errors import ErrorBody, plain_error
from ionrouter.schema.events import ChoiceDelta, Chunk
from ionrouter.schema.responses_answer import ResponsesAnswer
from ionrouter.schema.responses_request import ResponsesRequest
from ionrouter.schema.validation import validated
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

REQUIRED = {
    "id", "object", "created_at", "completed_at", "model", "status", "output", "error", "incomplete_details",
    "instructions", "metadata", "parallel_tool_calls", "temperature", "top_p", "frequency_penalty",
    "presence_penalty", "tool_choice", "tools",
}  # fmt: skip
ECHO = {name: None for name in REQUIRED} | {"tools": [], "tool_choice": "auto", "parallel_tool_calls": True}
ECHO = {k: v for k, v in ECHO.items() if k in {
    "instructions", "metadata", "parallel_tool_calls", "temperature", "top_p", "frequency_penalty",
    "presence_penalty", "tool_choice", "tools"}}  # fmt: skip


def _answer(**options: Any) -> ResponsesAnswer:
    answer = ResponsesAnswer("gen-1-x", 1700000000, "asked/m", ECHO, **options)
    answer.commit(COMMITTED)
    return answer


def _stream(chunks: list[Chunk], **options: Any) -> list[dict[str, Any]]:
    answer = _answer(**options)
    events = [event for one in chunks for event in answer.pieces(one)]
    return [*events, *answer.finish(FINISHED)]


@given(answers())
def test_a_streams_last_event_is_the_whole_response(chunks: list[Chunk]) -> None:
    events = _stream(chunks)
    whole = _answer().whole(complete_of(chunks), FINISHED)
    assert events[-1]["response"] == whole
    assert whole.keys() >= REQUIRED


@given(answers())
def test_events_tell_the_same_as_the_response_at_their_end(chunks: list[Chunk]) -> None:
    """Rebuild the output from the deltas alone, as clients do."""
    events = json.loads(json.dumps(_stream(chunks)))
    assert [e["sequence_number"] for e in events] == list(range(len(events)))
    assert [e["type"] for e in events[:2]] == ["response.created", "response.in_progress"]
    items: list[dict[str, Any]] = []
    open_item = None
    for event in events[2:-1]:
        kind = event["type"].removeprefix("response.")
        if kind == "output_item.added":
            assert open_item is None
            open_item = event["output_index"]
            assert open_item == len(items)
            items.append(event["item"])
        else:
            assert event["output_index"] == open_item
        item = items[-1]
        if kind == "content_part.added":
            item["content"].append(event["part"])
        elif kind == "reasoning_summary_part.added":
            assert event["summary_index"] == len(item["summary"])
            item["summary"].append(event["part"])
        elif kind == "reasoning_summary_text.delta":
            item["summary"][event["summary_index"]]["text"] += event["delta"]
        elif kind == "reasoning_summary_text.done":
            assert item["summary"][event["summary_index"]]["text"] == event["text"]
        elif kind == "reasoning_summary_part.done":
            assert item["summary"][event["summary_index"]] == event["part"]
        elif kind in ("output_text.delta", "reasoning_text.delta"):
            item["content"][event["content_index"]]["text"] += event["delta"]
        elif kind == "output_text.annotation.added":
            cited = item["content"][event["content_index"]]["annotations"]
            assert event["annotation_index"] == len(cited)
            cited.append(event["annotation"])
        elif kind == "image_generation_call.completed":
            assert (event["item_id"], item["result"]) == (item["id"], None)
        elif kind == "function_call_arguments.delta":
            item["arguments"] += event["delta"]
        elif kind == "function_call_arguments.done":
            assert item["arguments"] == event["arguments"]
        elif kind in ("output_text.done", "reasoning_text.done"):
            assert item["content"][event["content_index"]]["text"] == event["text"]
        elif kind == "content_part.done":
            assert item["content"][event["content_index"]] == event["part"]
        elif kind == "output_item.done":
            late = ("status", "result") if item["type"] == "image_generation_call" else ("status",)
            assert item | {name: event["item"][name] for name in late} == event["item"]
            items[-1] = event["item"]
            open_item = None
    assert open_item is None
    assert events[-1]["response"]["output"] == items


@pytest.mark.parametrize(
    ("finish", "status", "details"),
    [
        ("stop", "completed", None),
        ("tool_calls", "completed", None),
        ("length", "incomplete", {"reason": "max_output_tokens"}),
        ("content_filter", "incomplete", {"reason": "content_filter"}),
    ],
)
def test_how_it_ended(finish: Any, status: str, details: Any) -> None:
    last = _stream([chunk({"content": "x"}), chunk({}, finish)])[-1]
    assert last["type"] == f"response.{status}"
    assert (last["response"]["status"], last["response"]["incomplete_details"]) == (status, details)
    assert last["response"]["output"][0]["status"] == status
    assert last["response"]["output_text"] == "x"


def test_usage_has_its_details_and_its_cost() -> None:
    usage = _stream([chunk({"content": "x"}, "stop")])[-1]["response"]["usage"]
    assert usage == {
        "input_tokens": 100,
        "input_tokens_details": {"cached_tokens": 60, "cache_write_tokens": 10},
        "output_tokens": 20,
        "output_tokens_details": {"reasoning_tokens": 5},
        "total_tokens": 120,
        "cost": 0.75,
        "is_byok": False,
        "cost_details": {
            "upstream_inference_cost": None,
            "upstream_inference_input_cost": 0.25,
            "upstream_inference_output_cost": 0.5,
        },
    }


def test_a_refusal_is_a_part_of_its_own() -> None:
    events = _stream([chunk({"content": "Well"}), chunk({"refusal": "no"}), chunk({}, "stop")])
    kinds = [e["type"].removeprefix("response.") for e in events[3:-2]]
    assert kinds == [
        "content_part.added", "output_text.delta", "output_text.done", "content_part.done",
        "content_part.added", "refusal.delta", "refusal.done", "content_part.done",
    ]  # fmt: skip
    parts = events[-1]["response"]["output"][0]["content"]
    assert parts[1] == {"type": "refusal", "refusal": "no"}


def test_logprobs_travel_with_their_text() -> None:
    entry = {"token": "x", "logprob": -0.5, "bytes": [120], "top_logprobs": []}
    told = {"content": [entry], "refusal": None}
    chunks = [Chunk((ChoiceDelta(0, {"content": "x"}, logprobs=told),)), chunk({}, "stop")]
    events = _stream(chunks)
    deltas = [e for e in events if e["type"] == "response.output_text.delta"]
    assert deltas[0]["logprobs"] == [entry]
    assert events[-1]["response"]["output"][0]["content"][0]["logprobs"] == [entry]


def test_sealed_reasoning_can_be_sent_back() -> None:
    details = [
        {"type": "reasoning.text", "text": "hm", "signature": "sig", "format": "anthropic-claude-v1"},
        {"type": "reasoning.encrypted", "data": "sealed", "format": "openai-responses-v1"},
    ]
    chunks = [chunk({"reasoning_details": details}), chunk({"content": "x"}, "stop")]
    first, second, _ = _stream(chunks)[-1]["response"]["output"]
    assert (first["content"][0]["text"], first["signature"]) == ("hm", "sig")
    assert (second["encrypted_content"], second["format"]) == ("sealed", "openai-responses-v1")


_CODEX = ("type", "summary", "content", "encrypted_content")  # all that some clients keep of a thought


@given(st.data())
def test_a_client_that_keeps_no_field_of_ours_sends_all_of_a_sealed_thought_back(data: st.DataObject) -> None:
    details = data.draw(thoughts())
    chunks = [*data.draw(in_pieces(details)), chunk({"content": "x"}, "stop")]
    response = _stream(chunks, seals_thoughts=True)[-1]["response"]
    assert response == _answer(seals_thoughts=True).whole(complete_of(chunks), FINISHED)
    kept = [{name: item[name] for name in _CODEX} for item in response["output"][:-1]]
    body = {"model": "m", "input": [*kept, {"role": "user", "content": "?"}]}
    made = validated(ResponsesRequest, body).to_chat(body)["messages"][0].get("reasoning_details", [])
    for name in ("signature", "data"):
        sealed = [(d[name], d["format"], d.get("id")) for d in _with(made, name)]
        assert sealed == [(d[name], "f", d.get("id")) for d in _with(details, name)]
    for back, was in zip(_with(made, "signature"), _with(details, "signature"), strict=True):
        assert back["text"].endswith(was["text"])


def test_a_thought_that_is_not_sealed_has_nothing_encrypted() -> None:
    chunks = [chunk({"reasoning": "hm"}), chunk({"content": "x"}, "stop")]
    thought, _ = _stream(chunks, seals_thoughts=True)[-1]["response"]["output"]
    assert thought["encrypted_content"] is None


@given(st.data())
def test_thoughts_in_pieces_keep_their_seals(data: st.DataObject) -> None:
    details = data.draw(thoughts())
    chunks = [*data.draw(in_pieces(details)), chunk({"content": "x"}, "stop")]
    response = _stream(chunks)[-1]["response"]
    assert response == _answer().whole(complete_of(chunks), FINISHED)
    items = response["output"][:-1]
    signed = [(item["content"][0]["text"], item["signature"]) for item in items if "signature" in item]
    assert [
        text[-len(d["text"]) :] for (text, _), d in zip(signed, _with(details, "signature"), strict=True)
    ] == [d["text"] for d in _with(details, "signature")]
    assert [signature for _, signature in signed] == [d["signature"] for d in _with(details, "signature")]
    sealed = [item["encrypted_content"] for item in items if item["encrypted_content"] is not None]
    assert sealed == [d["data"] for d in _with(details, "data")]


def test_a_summary_is_a_summary_and_comes_back_as_one() -> None:
    """OpenAI's models show no more of their thoughts: agents read its events, and send the items back."""
    common = {"id": "rs_1", "format": "openai-responses-v1"}
    told: list[dict[str, Any]] = [
        {"type": "reasoning.summary", "summary": "**One** ", "index": 0},
        {"type": "reasoning.summary", "summary": "first", "index": 0},
        {"type": "reasoning.summary", "summary": "**Two**", "index": 1},
        {"type": "reasoning.encrypted", "data": "sealed", "index": 2},
    ]
    chunks = [chunk({"reasoning_details": [{**detail, **common}]}) for detail in told]
    events = _stream([*chunks, chunk({"content": "x"}, "stop")])
    thought, _ = events[-1]["response"]["output"]
    parts = [{"type": "summary_text", "text": text} for text in ("**One** first", "**Two**")]
    assert (thought["summary"], thought["content"]) == (parts, [])
    kinds = [e["type"].removeprefix("response.") for e in events if "summary_index" in e]
    steps = ["part.added", "text.delta", "text.delta", "text.done", "part.done"]
    assert kinds == [f"reasoning_summary_{step}" for step in [*steps, *steps[:1], *steps[2:]]]
    body = {"model": "m", "input": [thought, {"role": "user", "content": "?"}]}
    made = validated(ResponsesRequest, body).to_chat(body)["messages"][0]["reasoning_details"]
    assert [(d["type"], d.get("summary") or d["data"]) for d in made] == [
        ("reasoning.summary", "**One** first"),
        ("reasoning.summary", "**Two**"),
        ("reasoning.encrypted", "sealed"),
    ]


def _with(details: list[dict[str, Any]], key: str) -> list[dict[str, Any]]:
    return [detail for detail in details if key in detail]


def test_a_signature_signs_nothing_but_its_own_block() -> None:
    details = [{"type": "reasoning.text", "text": text, "index": i} for i, text in enumerate("AB")]
    chunks = [chunk({"reasoning_details": [detail]}) for detail in details]
    chunks += [chunk({"reasoning_details": [{**details[1], "text": "", "signature": "S"}]})]
    first, second, _ = _stream([*chunks, chunk({"content": "x"}, "stop")])[-1]["response"]["output"]
    assert (first["content"][0]["text"], first.get("signature")) == ("A", None)
    assert (second["content"][0]["text"], second["signature"]) == ("B", "S")


@pytest.mark.parametrize("said", [{"reasoning": "hm"}, {"content": "hm"}, {"refusal": "hm"}])
def test_what_comes_between_two_calls_is_an_item_between_their_items(said: dict[str, Any]) -> None:
    calls = [
        {"index": i, "id": f"c{i}", "function": {"name": "f", "arguments": f'{{"n": {i}}}'}} for i in (0, 1)
    ]
    chunks = [chunk({"tool_calls": calls[:1]}), chunk(said), chunk({"content": "So"})]
    events = _stream([*chunks, chunk({"tool_calls": calls[1:]}), chunk({}, "tool_calls")])
    items = events[-1]["response"]["output"]
    calls_of = [item for item in items if item["type"] == "function_call"]
    assert [item["arguments"] for item in calls_of] == ['{"n": 0}', '{"n": 1}']
    assert (items[0]["type"], items[-1]["type"]) == ("function_call", "function_call")
    assert all(item["status"] == "completed" for item in items)


def test_a_thought_in_the_middle_of_a_call_tears_nothing_apart() -> None:
    first = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}
    second = {"index": 0, "function": {"arguments": ": 1}"}}
    chunks = [chunk({"tool_calls": [first]}), chunk({"reasoning": "hm"}), chunk({"tool_calls": [second]})]
    call, thought = _stream([*chunks, chunk({}, "tool_calls")])[-1]["response"]["output"]
    assert (call["arguments"], thought["content"][0]["text"]) == ('{"a": 1}', "hm")


def test_text_in_the_middle_of_a_call_tears_nothing_apart() -> None:
    first = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a"'}}
    second = {"index": 0, "function": {"arguments": ": 1}"}}
    chunks = [chunk({"tool_calls": [first]}), chunk({"content": "hm"}), chunk({"tool_calls": [second]})]
    call, message = _stream([*chunks, chunk({}, "tool_calls")])[-1]["response"]["output"]
    assert (call["arguments"], message["content"][0]["text"]) == ('{"a": 1}', "hm")


def test_a_broken_stream_ends_as_failed() -> None:
    answer = _answer()
    list(answer.pieces(chunk({"content": "x"})))
    *closing, last = answer.fail(plain_error(429, "slow down"))
    assert [e["type"] for e in closing][-1] == "response.output_item.done"
    assert (last["type"], last["response"]["status"]) == ("response.failed", "failed")
    assert last["response"]["error"] == {"code": "rate_limit_exceeded", "message": "slow down"}
    assert last["response"]["error_type"] == "rate_limit_exceeded"
    assert last["response"]["output"][0]["content"][0]["text"] == "x"


def test_running_out_of_room_half_way_is_no_failure() -> None:
    answer = _answer()
    list(answer.pieces(chunk({"content": "x"})))
    body = ErrorBody(400, "too long", metadata={"error_type": "max_tokens_exceeded"})
    last = list(answer.fail(body))[-1]
    assert last["type"] == "response.incomplete"
    assert last["response"]["incomplete_details"] == {"reason": "max_output_tokens"}
    assert last["response"]["error"] is None


CITED = {
    "type": "url_citation",
    "url": "https://a.example/0",
    "title": "A",
    "start_index": 2,
    "end_index": 5,
}


def test_citations_come_with_the_text_that_they_belong_to() -> None:
    """Places count from the beginning of the part; they are 0 if none was told, or one before it."""
    cites = [
        url_citation(start_index=5, end_index=8, content="said"),
        {"type": "url_citation", "url_citation": {"url": "https://b.example"}},
        {"type": "url_citation", "url": "https://c.example", "title": "C", "start_index": 1, "end_index": 4},
    ]
    first = [chunk({"content": "One"}), chunk({"reasoning": "hm"}), chunk({"annotations": cites[:1]})]
    rest = [chunk({"content": "two"}), chunk({"annotations": cites[1:]}, "stop")]
    answer, left_out = _left_out([*first, *rest])
    empty = {"start_index": 0, "end_index": 0}
    assert answer["output"][2]["content"][0]["annotations"] == [
        CITED | {"content": "said"},
        {"type": "url_citation", "url": "https://b.example", "title": "", **empty},
        {"type": "url_citation", "url": "https://c.example", "title": "C", "start_index": 0, "end_index": 1},
    ]
    assert answer["output"][0]["content"][0]["annotations"] == []
    assert left_out == set()


def test_a_citation_is_an_event_of_its_part() -> None:
    events = _stream([chunk({"content": "One two"}), chunk({"annotations": [url_citation(5)]}, "stop")])
    (added,) = [event for event in events if event["type"] == "response.output_text.annotation.added"]
    where = {name: added[name] for name in ("output_index", "content_index", "annotation_index")}
    assert where == {"output_index": 0, "content_index": 0, "annotation_index": 0}
    assert added["annotation"] == CITED | {"url": "https://a.example/5", "start_index": 0}
    kinds = [event["type"].removeprefix("response.") for event in events]
    assert kinds.index("output_text.annotation.added") == kinds.index("output_text.done") - 1


def test_an_image_is_an_item_with_its_base64() -> None:
    far = {"image_url": {"url": "https://a.example/b.png"}}
    said = chunk({"content": "Here", "images": [image(1), far]}, "stop")
    items = _left_out([said])[0]["output"]
    assert [item["type"] for item in items] == ["message", "image_generation_call", "image_generation_call"]
    assert [item["result"] for item in items[1:]] == ["iVBORw0K1", "https://a.example/b.png"]
    assert {item["status"] for item in items} == {"completed"}


@pytest.mark.parametrize(
    ("delta", "named"),
    [
        ({"audio": {"data": "x"}}, {"audio"}),
        ({"annotations": [{"type": "file", "file": {"hash": "h"}}]}, {"annotations"}),
        ({"images": [{"type": "image", "data": "x"}]}, {"images"}),
        ({"annotations": 5, "images": "x"}, {"annotations", "images"}),
        ({"annotations": [{"type": "file_path", "file_id": "f", "index": 1}], "images": [image()]}, set()),
    ],
)
def test_what_a_response_cannot_hold_is_named(delta: dict[str, Any], named: set[str]) -> None:
    assert _left_out([chunk({"content": "x"}), chunk(delta, "stop")])[1] == named


def test_citations_without_a_text_are_named() -> None:
    call = {"index": 0, "id": "c", "function": {"name": "f", "arguments": "{}"}}
    calls = [chunk({"tool_calls": [call]}), chunk({"annotations": [url_citation()]})]
    assert _left_out([*calls, chunk({}, "stop")])[1] == {"annotations"}
    assert _left_out([*calls, chunk({"content": "x"}, "stop")])[1] == set()


def test_what_comes_in_the_middle_of_a_call_is_written_after_it() -> None:
    half = {"index": 0, "id": "c", "function": {"name": "f", "arguments": '{"a":'}}
    rest = {"index": 0, "function": {"arguments": "1}"}}
    lost = {"type": "file", "file": {"hash": "h"}}
    between = chunk({"content": "x", "annotations": [url_citation(), lost], "images": [image(), {}]})
    answer, left_out = _left_out([chunk({"tool_calls": [half]}), between, chunk({"tool_calls": [rest]})])
    kinds = [item["type"] for item in answer["output"]]
    assert kinds == ["function_call", "message", "image_generation_call"]
    assert len(answer["output"][1]["content"][0]["annotations"]) == 1
    assert left_out == {"annotations", "images"}


def _left_out(chunks: list[Chunk]) -> tuple[dict[str, Any], frozenset[str]]:
    """The response, and what it leaves out, known before the end is written and still so after it."""
    answer = _answer()
    for one in chunks:
        list(answer.pieces(one))
    known = answer.left_out
    (*_, last) = answer.finish(FINISHED)
    assert answer.left_out == known
    return last["response"], known
