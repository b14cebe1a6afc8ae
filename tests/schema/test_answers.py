"""The shape of answers: what the strictest clients require of chunks and whole answers."""

from __future__ import annotations

from ionrouter.schema.answers import AnswerFrame, usage_object
from ionrouter.schema.events import Choice, ChoiceDelta, Chunk, Committed, Complete, Finished
from ionrouter.schema.request import Kind
from ionrouter.schema.usage import CompletionParts, Cost, PromptParts, Usage

COMMITTED = Committed("p/m", "served/m", "Provider", "why", 1)
FINISHED = Finished(Usage(1, 2), Cost(0.1, 0.2), (), None)


def _frame(kind: Kind = "chat", *, hides_reasoning: bool = False) -> AnswerFrame:
    frame = AnswerFrame("gen-1", kind, 1700000000, "asked/m", hides_reasoning=hides_reasoning)
    frame.commit(COMMITTED)
    return frame


def _choice(delta: dict[str, object], index: int = 0) -> Chunk:
    return Chunk((ChoiceDelta(index, delta),))


def test_the_role_comes_with_the_first_chunk_of_each_choice_and_is_never_null() -> None:
    frame = _frame()
    deltas = [
        frame.chunk(chunk)["choices"][0]["delta"]
        for chunk in (
            _choice({"role": None, "content": "a"}),
            _choice({"role": None, "content": "b"}),
            _choice({"content": "c"}, index=1),
        )
    ]
    assert deltas == [
        {"role": "assistant", "content": "a"},
        {"content": "b"},
        {"role": "assistant", "content": "c"},
    ]


def test_a_whole_answer_always_has_the_role_and_keeps_what_the_upstream_said() -> None:
    message = {"role": None, "content": "a", "annotations": [1]}
    body = _frame().whole(Complete((Choice(0, message, "stop"),)), FINISHED)
    assert body["choices"][0]["message"] == {
        "role": "assistant",
        "content": "a",
        "refusal": None,
        "reasoning": None,
        "annotations": [1],
    }
    assert body["choices"][0]["native_finish_reason"] == "stop"


def test_completions_always_have_text() -> None:
    frame = _frame("completions")
    assert frame.chunk(_choice({}))["choices"][0]["text"] == ""
    assert "delta" not in frame.chunk(_choice({"text": "a"}))["choices"][0]
    assert frame.error_chunk({"code": 502})["choices"][0]["text"] == ""


def test_an_error_before_commit_names_the_model_that_was_asked_for() -> None:
    frame = AnswerFrame("gen-1", "chat", 1, "asked/m")
    assert frame.error_chunk({"code": 503})["model"] == "asked/m"
    assert _frame().error_chunk({"code": 503})["model"] == "served/m"


def test_costs_are_free_of_float_noise_and_add_up() -> None:
    usage = usage_object(Usage(10, 4, 3, 2, 1), Cost(0.00001, 0.000008))
    assert usage["cost"] == 0.000018
    details = usage["cost_details"]
    total = details["upstream_inference_prompt_cost"] + details["upstream_inference_completions_cost"]
    assert round(total, 12) == usage["cost"]
    assert usage["total_tokens"] == 14
    assert usage["prompt_tokens_details"]["cached_tokens"] == 3
    assert usage["prompt_tokens_details"]["cache_write_tokens"] == 2
    assert usage["completion_tokens_details"]["reasoning_tokens"] == 1


def test_tokens_are_told_apart_as_the_upstream_counted_them() -> None:
    usage = usage_object(
        Usage(50, 20, prompt_parts=PromptParts(0, 30, 3), completion_parts=CompletionParts(4, 6, 1, 2)),
        Cost(),
    )
    asked, answered = usage["prompt_tokens_details"], usage["completion_tokens_details"]
    assert (asked["audio_tokens"], asked["video_tokens"]) == (30, 3)
    assert answered == {
        "reasoning_tokens": 0,
        "audio_tokens": 4,
        "image_tokens": 6,
        "accepted_prediction_tokens": 1,
        "rejected_prediction_tokens": 2,
    }
    uncounted = usage_object(Usage(50, 20), Cost())["completion_tokens_details"]
    assert uncounted == {"reasoning_tokens": 0, "audio_tokens": 0, "image_tokens": 0}


def test_the_service_tier_is_passed_on_when_there_is_one() -> None:
    assert _frame().chunk(Chunk((), service_tier="flex"))["service_tier"] == "flex"
    assert "service_tier" not in _frame().chunk(Chunk())
