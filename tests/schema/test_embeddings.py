"""Embeddings requests and answers: inputs of every form, and vectors in the form that was asked for."""

from __future__ import annotations

from typing import Any

import pytest

from ionrouter.errors import RequestError
from ionrouter.schema.embeddings import EmbeddingsAnswer, EmbeddingsRequest, num_inputs
from ionrouter.schema.events import Complete, Finished
from ionrouter.schema.usage import Cost, PromptParts, Usage
from ionrouter.schema.validation import validated
from ionrouter.schema.vectors import base64_of
from tests.support.deltas import COMMITTED, FINISHED


def _parsed(**body: Any) -> EmbeddingsRequest:
    return validated(EmbeddingsRequest, {"model": "m", **body})


@pytest.mark.parametrize(
    ("given", "count", "characters", "longest"),
    [
        ("hello", 1, 5, 5),
        (["a", "bcd"], 2, 4, 3),
        ([1, 2, 3], 1, 12, 12),
        ([[1], [2, 3]], 2, 12, 8),
        ([{"content": [{"type": "text", "text": "abcd"}]}], 1, 4, 4),
    ],
)
def test_inputs_of_every_form(given: Any, count: int, characters: int, longest: int) -> None:
    parsed = _parsed(input=given)
    assert (len(parsed.inputs()), parsed.num_characters(), parsed.longest()) == (count, characters, longest)
    assert num_inputs(given) == count


def test_mixed_inputs_need_their_modalities() -> None:
    image = {"type": "image_url", "image_url": {"url": "https://x.example/a.png"}}
    assert _parsed(input=[{"content": [image]}]).input_modalities() == {"image"}
    assert _parsed(input="x").input_modalities() == {"text"}


@pytest.mark.parametrize(
    ("body", "param"),
    [
        ({"input": ""}, "input"),
        ({"input": []}, "input"),
        ({"input": [""]}, "input[0]"),
        ({"input": [[]]}, "input[0]"),
        ({"input": ["a", "", "b"]}, "input[1]"),
        ({"input": ["a", [1]]}, "input[1]"),
        ({"input": [1, "a"]}, "input[1]"),
        ({"input": [[1], [2, -3]]}, "input[1][1]"),
        ({}, "input"),
        ({"input": "x", "encoding_format": "int8"}, "encoding_format"),
        ({"input": "x", "dimensions": 0}, "dimensions"),
        ({"input": "x", "stream": True}, "stream"),
    ],
)
def test_refused_with_the_field(body: Any, param: str | None) -> None:
    with pytest.raises(RequestError) as refused:
        _parsed(**body)
    assert refused.value.param == param


def test_an_empty_text_among_others_is_told_as_what_it_is() -> None:
    with pytest.raises(RequestError, match=r'^input\[1\]: should have at least 1 character, got ""$'):
        _parsed(input=["a", ""])


def _answer(**options: Any) -> EmbeddingsAnswer:
    answer = EmbeddingsAnswer("gen-1", "m", **{"encoding": "float", **options})
    answer.commit(COMMITTED)
    return answer


def _complete(*vectors: Any) -> Complete:
    return Complete(
        data=tuple({"object": "embedding", "index": i, "embedding": v} for i, v in enumerate(vectors))
    )


@pytest.mark.parametrize("sent", [[0.5, -1.0], base64_of([0.5, -1.0])])
def test_the_client_gets_the_form_it_asked_for_whatever_the_upstream_sent(sent: Any) -> None:
    plain = _answer().whole(_complete(sent), FINISHED)
    packed = _answer(encoding="base64").whole(_complete(sent), FINISHED)
    assert plain["data"] == [{"object": "embedding", "index": 0, "embedding": [0.5, -1.0]}]
    assert packed["data"][0]["embedding"] == base64_of([0.5, -1.0])
    assert (plain["model"], plain["provider"], plain["object"]) == ("acme/m", "Prov", "list")
    assert plain["usage"]["prompt_tokens"] == 100
    assert plain["usage"]["cost"] == 0.75


def test_tokens_are_told_by_medium_where_there_are_several() -> None:
    for parts, expected in (
        (PromptParts(image_tokens=258), {"image_tokens": 258, "text_tokens": 8}),
        (PromptParts(image_tokens=266), None),
        (PromptParts(), None),
    ):
        finished = Finished(Usage(266, 0, prompt_parts=parts), Cost(), (), None)
        usage = _answer().whole(_complete([0.5, 1.0]), finished)["usage"]
        assert usage.get("prompt_tokens_details") == expected
