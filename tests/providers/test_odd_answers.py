"""Every place of an upstream's answer with something odd in it, from the reader to the bytes for a client."""

from __future__ import annotations

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.errors import UpstreamError
from ionrouter.providers.normalise import StreamNormaliser, complete
from ionrouter.schema import json as wire
from ionrouter.schema.answers import AnswerFrame
from ionrouter.schema.assemble import Assembly
from ionrouter.schema.events import Chunk, Complete
from ionrouter.schema.messages_answer import MessagesAnswer
from ionrouter.schema.responses_answer import ResponsesAnswer
from ionrouter.schema.tally import Tally
from tests.support.deltas import FINISHED
from tests.support.normalised import ERRORS
from tests.support.odd_answers import ODD, OF_CHOICES, OPTIONAL, full, places, put

KINDS: Any = ("chat", "completions")
_WORDS = st.sampled_from(
    ["type", "text", "summary", "data", "signature", "content", "function", "index", "id"]
)
ODD_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(st.characters(codec=None), max_size=4),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(_WORDS | st.text(max_size=2), inner, max_size=4)
    ),
    max_leaves=8,
)


def answers(kind: Any) -> list[Any]:
    """One of each surface that shows this kind."""
    frames: list[Any] = [AnswerFrame("gen-1", kind, 1, "m")]
    return (
        frames
        if kind != "chat"
        else [*frames, MessagesAnswer("gen-1", "m"), ResponsesAnswer("gen-1", 1, "m")]
    )


def show(kind: Any, chunks: list[Chunk], whole: Complete) -> None:
    """Write it as every surface does, streamed and whole."""
    for answer in answers(kind):
        pieces = [piece for chunk in chunks for piece in answer.pieces(chunk)]
        for piece in [*pieces, *answer.finish(FINISHED)]:
            wire.dumps(piece)
    for answer in answers(kind):
        wire.dumps(answer.whole(whole, FINISHED))


def pass_whole(kind: Any, doc: Any) -> None:
    try:
        answer = complete(kind, doc, ERRORS)
    except UpstreamError:
        return
    Tally().add(answer, 0.0)
    show(kind, [], answer)


def pass_streamed(kind: Any, doc: Any) -> None:
    """Twice the same, so that what is joined has to fit; then a sound end."""
    stream, assembly, tally, chunks = StreamNormaliser(kind, ERRORS), Assembly(), Tally(), []
    end = {"choices": [{"index": 0, "delta": {}, "text": "", "finish_reason": "stop"}]}
    try:
        found = [stream.chunk(each) for each in (doc, doc, end)]
        chunks = [chunk for chunk in [*found, *stream.end(is_done=True)] if chunk is not None]
    except UpstreamError:
        return
    for chunk in chunks:
        assembly.add(chunk)
        tally.add(chunk, 0.0)
    show(kind, chunks, assembly.complete())


@pytest.mark.parametrize("stream", [False, True], ids=["whole", "streamed"])
@pytest.mark.parametrize("kind", KINDS)
def test_an_odd_value_anywhere_is_left_out_or_the_upstreams_failure(kind: Any, stream: bool) -> None:
    doc, pass_on = full(kind, stream=stream), pass_streamed if stream else pass_whole
    for place in places(doc):
        for odd in ODD:
            pass_on(kind, wire.loads(json.dumps(put(doc, place, odd))))


@given(st.data(), st.sampled_from(KINDS), st.booleans(), ODD_JSON)
def test_whatever_is_inside_an_optional_field_passes(
    data: st.DataObject, kind: Any, stream: bool, odd: Any
) -> None:
    doc, optional = full(kind, stream=stream), {*OPTIONAL, *OF_CHOICES}
    inside = [place for place in places(doc) if not optional.isdisjoint(place)]
    (pass_streamed if stream else pass_whole)(kind, put(doc, data.draw(st.sampled_from(inside)), odd))
