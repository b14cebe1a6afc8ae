"""Random answers as an upstream may stream them: reasoning, text, citations, images, calls, cut anywhere."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from hypothesis import strategies as st

from ionrouter.schema.assemble import Assembly
from ionrouter.schema.events import ChoiceDelta, Chunk, Committed, Complete, Finished
from ionrouter.schema.reasoning_details import ENCRYPTED, SUMMARY, TEXT, TEXTS
from ionrouter.schema.usage import Cost, Usage

COMMITTED = Committed("p/m", "acme/m", "Prov", "first pick", 1)
FINISHED = Finished(Usage(100, 20, 60, 10, 5), Cost(0.25, 0.5), (), 0.1)

_texts = st.lists(st.text(min_size=1, max_size=5), max_size=4)
_integers = st.integers(-(2**63), 2**63 - 1)  # larger ones are no integers to the parser here
_values = st.dictionaries(st.text(max_size=3), _integers | st.text(max_size=4), max_size=3)
_lists = st.lists(st.integers(0, 9), max_size=2)
REASONS = ("stop", "length", "content_filter")


def chunk(delta: dict[str, Any], finish: Any = None, native: str | None = None) -> Chunk:
    return Chunk((ChoiceDelta(0, delta, finish, native),))


def url_citation(number: int = 0, **more: Any) -> dict[str, Any]:
    told = {"url": f"https://a.example/{number}", "title": "A", "start_index": 0, "end_index": number, **more}
    return {"type": "url_citation", "url_citation": told}


def image(number: int = 0) -> dict[str, Any]:
    return {"type": "image_url", "image_url": {"url": f"data:image/png;base64,iVBORw0K{number}"}}


@st.composite
def _calls(draw: st.DrawFn, *, mixes: bool) -> list[dict[str, Any]]:
    """Fragments of up to three calls; of different calls in any order where `mixes`."""
    queues: list[list[dict[str, Any]]] = []
    for index in range(draw(st.integers(0, 3))):
        arguments = json.dumps(draw(_values))
        cut = draw(st.integers(0, len(arguments)))
        head = {"name": f"tool{index}", "arguments": arguments[:cut]}
        first = {"index": index, "id": f"call_{index}", "type": "function", "function": head}
        queues.append([first, {"index": index, "function": {"arguments": arguments[cut:]}}])
    fragments = []
    num_begun = 0
    while any(queues):
        begun = [i for i, queue in enumerate(queues) if queue and i <= num_begun]  # begun in order, as ever
        index = draw(st.sampled_from(begun)) if mixes else begun[0]
        num_begun = max(num_begun, index + 1)
        fragments.append(queues[index].pop(0))
    return fragments


@st.composite
def answers(draw: st.DrawFn, *, mixes: bool = True) -> list[Chunk]:
    """A whole stream of chunks, ended by its finish reason."""
    calls = draw(_calls(mixes=mixes))
    chunks = [chunk({"role": "assistant", "content": ""})]
    chunks += [chunk({"reasoning": text}) for text in draw(_texts)]
    chunks += [chunk({"content": text}) for text in draw(_texts)]
    chunks += [chunk({"annotations": [url_citation(number)]}) for number in draw(_lists)]
    chunks += [chunk({"images": [image(number)]}) for number in draw(_lists)]
    chunks += [chunk({"tool_calls": [call]}) for call in calls]
    reason = "tool_calls" if calls else draw(st.sampled_from(REASONS))
    return [*chunks, chunk({}, reason, reason)]


@st.composite
def thoughts(draw: st.DrawFn) -> list[dict[str, Any]]:
    """Reasoning details as they are whole, block by block: each has a number, or can do without."""
    is_numbered, blocks = draw(st.booleans()), []
    for index in range(draw(st.integers(0, 4))):
        kind = draw(st.sampled_from([TEXT, SUMMARY, ENCRYPTED]))
        block = {"type": kind, TEXTS[kind]: draw(st.text(min_size=1, max_size=6)), "format": "f"}
        if kind == TEXT and (not is_numbered or draw(st.booleans())):
            block["signature"] = f"signature {index}"
        if is_numbered or kind == SUMMARY:
            block["index"] = index
        if kind == ENCRYPTED and draw(st.booleans()):
            block["id"] = f"id {index}"
        blocks.append(block)
    return blocks


@st.composite
def in_pieces(draw: st.DrawFn, blocks: list[dict[str, Any]]) -> list[Chunk]:
    """The same as a stream of deltas; a signature comes last, alone, as Anthropic sends it."""
    pieces: list[dict[str, Any]] = []
    for block in blocks:
        key = TEXTS[block["type"]]
        is_known = block["type"] != ENCRYPTED or "index" in block or "id" in block
        cut = draw(st.integers(0, len(block[key]))) if is_known else 0
        rest = {name: value for name, value in block.items() if name not in (key, "signature")}
        pieces += [{**rest, key: text} for text in (block[key][:cut], block[key][cut:]) if text]
        if "signature" in block:
            pieces.append({**rest, "signature": block["signature"]})
    said = [piece.get("text") or piece.get("summary") or "" for piece in pieces]
    return [
        chunk({"reasoning_details": [piece], **({"reasoning": text} if text else {})})
        for piece, text in zip(pieces, said, strict=True)
    ]


def complete_of(chunks: Sequence[Chunk]) -> Complete:
    """The same answer from an upstream that did not stream."""
    assembly = Assembly()
    for one in chunks:
        assembly.add(one)
    return assembly.complete()
