import pytest
from hypothesis import given
from hypothesis import strategies as st

from ionrouter.routing.table import Price
from ionrouter.routing.upstream_list import parse_models

OPENROUTER = {
    "data": [
        {
            "id": "acme/big",
            "name": "Acme: Big",
            "created": 1733400000,
            "description": "Large.",
            "context_length": 131072,
            "hugging_face_id": "",
            "architecture": {
                "input_modalities": ["text", "image"],
                "output_modalities": ["text"],
                "tokenizer": "Llama3",
                "instruct_type": None,
            },
            "pricing": {
                "prompt": "0.0000001",
                "completion": "0.0000004",
                "request": "0.001",
                "input_cache_read": "0.00000005",
            },
            "top_provider": {"max_completion_tokens": 4096, "is_moderated": False},
            "supported_parameters": ["temperature", "tools"],
        },
        {"id": "openrouter/auto", "name": "Auto", "pricing": {"prompt": "-1", "completion": "-1"}},
    ],
    "total_count": 2,
    "links": {"next": None},
}


def test_openrouters_answer_is_read_whole() -> None:
    big, auto = parse_models(OPENROUTER).models
    assert (big.id, big.name, big.created, big.description) == ("acme/big", "Acme: Big", 1733400000, "Large.")
    assert big.known.price == Price(1e-7, 4e-7, 0.001, 5e-8)
    assert (big.known.context_length, big.known.max_completion_tokens) == (131072, 4096)
    assert big.known.supported_parameters == {"temperature", "tools"}
    assert big.input_modalities == ("text", "image")
    assert (big.tokenizer, big.instruct_type, big.hugging_face_id) == ("Llama3", None, None)
    assert auto.known.price is None  # varies
    assert big.declares_output and not auto.declares_output


def test_prices_of_long_prompts_are_read_and_those_of_hours_are_not() -> None:
    overrides = [
        {"min_prompt_tokens": 200_000, "prompt": "0.3", "input_cache_read": "-1"},
        {"min_prompt_tokens": 200_000, "utc_start": 100, "prompt": "9"},
        {"min_prompt_tokens": "x", "prompt": "9"},
        {"prompt": "9"},
        7,
    ]
    pricing = {"prompt": "0.1", "completion": "0.2", "overrides": overrides}
    (model,) = parse_models({"data": [{"id": "a/b", "pricing": pricing}]}).models
    assert model.known.price == Price(0.1, 0.2, long=Price(0.3, 0.2), long_above=200_000)
    odd = {"data": [{"id": "a/b", "pricing": {"prompt": "0.1", "overrides": 7}}]}
    assert parse_models(odd).models[0].known.price == Price(0.1, 0.1)


def test_openais_and_vllms_answers_are_read() -> None:
    answer = {
        "object": "list",
        "data": [{"id": "Qwen/Q", "object": "model", "created": 7, "max_model_len": 32768}],
    }
    (model,) = parse_models(answer).models
    assert (model.id, model.name, model.created) == ("Qwen/Q", "Qwen/Q", 7)
    assert model.known.context_length == 32768
    assert model.known.price is None


def test_togethers_bare_list_has_prices_per_million() -> None:
    rows = [{"id": "meta/l", "display_name": "L", "pricing": {"input": 0.88, "output": 0.9, "hourly": 0}}]
    (model,) = parse_models(rows).models
    assert model.name == "L"
    assert model.known.price == Price(0.88e-6, 0.9e-6)


def test_rows_that_are_not_models_are_skipped_and_counted() -> None:
    rows = [{"id": "ok"}, {"id": 5}, "text", None, {"id": "bad name"}, {"id": "ok"}, {"id": "x" * 300}]
    found = parse_models({"data": rows})
    assert [model.id for model in found.models] == ["ok"]
    assert found.num_skipped == 6


@pytest.mark.parametrize("name", ["a\x1b[2J", "a\u009b2J", "a\x7fb", "a\u202eb", "a\u200bb", "\ud800"])
def test_a_name_that_would_steer_a_terminal_is_no_model(name: str) -> None:
    found = parse_models({"data": [{"id": name}, {"id": "d\u00e9j\u00e0/\u6a21"}]})
    assert [model.id for model in found.models] == ["d\u00e9j\u00e0/\u6a21"]


@pytest.mark.parametrize("answer", [None, "html", 5, {}, {"data": {}}, {"error": {"message": "no"}}])
def test_an_answer_without_a_list_is_refused(answer: object) -> None:
    with pytest.raises(ValueError, match="no list of models"):
        parse_models(answer)


@pytest.mark.parametrize("value", [True, "NaN", "inf", "-1", -1, [], {}, None, "free", 10**400])
def test_strange_prices_are_unknown(value: object) -> None:
    (model,) = parse_models([{"id": "m", "pricing": {"prompt": value}}]).models
    assert model.known.price is None


values = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=5),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=6,
)
KEYS = (
    "name",
    "created",
    "context_length",
    "pricing",
    "architecture",
    "top_provider",
    "supported_parameters",
)


@given(st.fixed_dictionaries({}, optional=dict.fromkeys(KEYS, values)))
def test_no_row_makes_reading_fail(row: dict[str, object]) -> None:
    assert parse_models([{"id": "m", **row}]).models[0].id == "m"


def test_what_is_said_beside_a_name_is_bounded_and_shows_nothing_that_steers() -> None:
    """It is published by GET /models: one row made that megabytes, with numbers that no client reads."""
    flood = "x" * 1_000_000
    row = {
        "id": "a",
        "name": f"n\x1b[31m\ud800{flood}",
        "description": f"first\nsecond\x00{flood}",
        "created": 1e300,
        "context_length": 10**30,
        "hugging_face_id": flood,
        "supported_parameters": ["tools", "x\x1b", flood, "", *(f"p{number}" for number in range(10_000))],
        "architecture": {"input_modalities": ["text", flood], "tokenizer": flood, "instruct_type": "\ud800"},
    }
    (model,) = parse_models({"data": [row]}).models
    assert model.name.startswith("n [31m x") and len(model.name) <= 256
    assert model.description.startswith("first\nsecond x") and len(model.description) <= 16_384
    assert (model.created, model.known.context_length, model.instruct_type) == (0, None, None)
    assert len(model.tokenizer) == len(model.hugging_face_id or "") == 256
    assert model.input_modalities == ("text",)
    assert "tools" in model.known.supported_parameters and len(model.known.supported_parameters) <= 256
    assert max(map(len, model.known.supported_parameters)) <= 256
