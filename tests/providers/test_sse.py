"""SSE framing: the same events wherever the bytes are cut, and the leniences real upstreams need."""

from __future__ import annotations

import itertools

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.providers.sse import EventTooLong, SseDecoder, SseEvent

USUAL = b'data: {"a":1}\n\ndata: {"b":2}\n\ndata: [DONE]\n\n'


def decode(*parts: bytes, finish: bool = True) -> list[bytes]:
    decoder = SseDecoder()
    events = [event for part in parts for event in decoder.feed(part)]
    return [event.data for event in (events + decoder.finish() if finish else events)]


@pytest.mark.parametrize("ending", [b"\n", b"\r\n", b"\r"])
def test_every_cut_gives_the_same_events(ending: bytes) -> None:
    """G03, G09: LF, CRLF and CR, cut at every byte, and byte by byte."""
    body = "\ufeff".encode() + 'data: {"t":"你🌍"}\n: note\n\nid: 7\ndata: x\ndata:y\n\n'.encode()
    body = body.replace(b"\n", ending)
    expected = ['{"t":"你🌍"}'.encode(), b"x\ny"]
    assert decode(body) == expected
    for cut in range(len(body) + 1):
        assert decode(body[:cut], body[cut:]) == expected
    assert decode(*(body[i : i + 1] for i in range(len(body)))) == expected


@given(
    st.lists(st.binary(max_size=30).map(lambda b: b.replace(b"\n", b"").replace(b"\r", b"")), max_size=6),
    st.sampled_from([b"\n", b"\r\n", b"\r"]),
    st.lists(st.integers(min_value=0, max_value=400), max_size=8),
)
def test_any_payload_survives_any_cuts(payloads: list[bytes], ending: bytes, cuts: list[int]) -> None:
    payloads = [p for p in payloads if p.strip() != b"[DONE]"]
    body = b"".join(b"data: " + p + ending + ending for p in payloads)
    points = sorted({0, len(body), *(min(c, len(body)) for c in cuts)})
    parts = [body[a:b] for a, b in itertools.pairwise(points)]
    assert decode(*parts) == payloads


def test_a_crlf_event_comes_out_before_the_next_one_arrives() -> None:
    """G03: nothing is held back for lack of LF LF."""
    decoder = SseDecoder()
    assert decoder.feed(b"data: A\r\n\r\n") == [SseEvent(b"A")]
    assert decoder.feed(b"data: B\r") == []
    assert decoder.feed(b"\r") == [SseEvent(b"B")]
    assert decoder.feed(b"\ndata: C\n\n") == [SseEvent(b"C")]


def test_at_most_one_space_after_the_colon_is_taken() -> None:
    """G06."""
    assert decode(b"data:A\n\n", b"data:  B\n\n", b"data:[DONE]\n\n") == [b"A", b" B"]


def test_lines_of_one_event_keep_their_other_spaces() -> None:
    assert decode(b"data:  x \ndata: y\ndata:\tz\n\n") == [b" x \ny\n\tz"]


def test_only_a_leading_byte_order_mark_is_taken() -> None:
    """G07."""
    bom = b"\xef\xbb\xbf"
    for cut in range(4):
        body = bom + b"data: first" + bom + b"\n\n"
        assert decode(body[:cut], body[cut:]) == [b"first" + bom]
    assert decode(bom, b"", b"data: x\n\n") == [b"x"]
    assert decode(b"\xef\xbb") == []


def test_done_ends_the_stream_whatever_follows() -> None:
    """G30: no event, and no wait, after [DONE]."""
    decoder = SseDecoder()
    assert [e.data for e in decoder.feed(USUAL + b"data: late\n\n")] == [b'{"a":1}', b'{"b":2}']
    assert decoder.is_done
    assert decoder.feed(b"data: more\n\n") == []
    assert decoder.finish() == []


@pytest.mark.parametrize(
    "line", [b"data: [DONE]", b"data: [DONE]\n", b"data:[DONE]\r\n", b"\ndata: [DONE] \n"]
)
def test_done_needs_no_blank_line(line: bytes) -> None:
    decoder = SseDecoder()
    assert decoder.feed(line) == []
    assert decoder.is_done


def test_the_last_event_needs_no_blank_line_at_a_clean_end() -> None:
    """G14."""
    assert decode(b"data: A\n\ndata: B") == [b"A", b"B"]
    assert decode(b"data: A\n\ndata: B\n") == [b"A", b"B"]
    assert decode(b"data: A\n\ndata: B", finish=False) == [b"A"]


def test_comments_and_unknown_fields_are_no_events() -> None:
    assert decode(b": OPENROUTER PROCESSING\n\n", b"id: 1\nretry: 5\n\n", b"\n\n\n", b"data: A\n\n") == [b"A"]
    assert decode(b": c\ndata: A\n: d\n\n") == [b"A"]


def test_an_empty_data_line_is_an_event_with_nothing_in_it() -> None:
    assert decode(b"data\n\n", b"data:\n\n") == [b"", b""]


def test_names_and_error_fields_are_kept() -> None:
    decoder = SseDecoder()
    assert decoder.feed(b'event: error\ndata: {"m":1}\n\n') == [SseEvent(b'{"m":1}', "error")]
    assert decoder.feed(b'error: {"code":500}\n\n') == [SseEvent(b'{"code":500}', "error")]
    assert decoder.feed(b'{"error":{"message":"bare"}}\n\n') == [SseEvent(b'{"error":{"message":"bare"}}')]


def test_an_endless_event_is_refused() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    decoder.feed(b"data: " + b"x" * 900)
    with pytest.raises(EventTooLong):
        decoder.feed(b"x" * 200)


def test_a_stream_may_be_longer_than_one_event() -> None:
    decoder = SseDecoder(max_event_bytes=1000)
    events = [e for _ in range(100) for e in decoder.feed(b"data: " + b"x" * 500 + b"\n\n")]
    assert len(events) == 100
