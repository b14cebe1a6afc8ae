import datetime
import subprocess
import sys
from dataclasses import replace
from pathlib import Path

import pytest

from ionrouter.errors import ConfigError
from ionrouter.routing.prices import PriceBook, find_price_file, read_price_book
from ionrouter.routing.table import PartPrices, Price
from tests.routing.build import BOOK


def test_the_list_in_litellms_wheel_is_read_without_importing_litellm() -> None:
    code = (
        "import sys; from ionrouter.routing.prices import read_price_book; book = read_price_book();"
        "assert book.find('together_ai', 'meta-llama/Llama-3.3-70B-Instruct-Turbo').price.prompt > 0;"
        "assert 'sample_spec' not in book.entries;"
        "assert 'litellm' not in sys.modules"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=120)
    assert done.returncode == 0, done.stderr


def test_a_missing_list_is_an_empty_book() -> None:
    assert PriceBook().find("acme", "big") is None
    assert PriceBook().deprecated_on("acme", "big") is None
    assert PriceBook().upstream_name("acme", "big") is None


def test_an_entry_gives_prices_limits_and_parameters() -> None:
    known = BOOK.find("acme", "big")
    assert known is not None
    assert known.price == Price(2e-06, 4e-06, cache_read=5e-07)
    assert (known.context_length, known.max_completion_tokens) == (1000, 100)
    assert known.supported_parameters >= {"tools", "tool_choice", "temperature", "max_tokens"}


@pytest.mark.parametrize("is_sampled", [True, False])
def test_claude_takes_what_no_flag_tells_and_no_penalties(is_sampled: bool) -> None:
    flags = ("function_calling", "vision", "pdf_input")
    entry = {"litellm_provider": "anthropic", **{f"supports_{flag}": True for flag in flags}}
    if not is_sampled:
        entry["supports_sampling_params"] = False
    known = PriceBook({"claude-big": entry}).find("anthropic", "claude-big")
    assert known is not None
    assert known.input_modalities == {"text", "image", "file"}
    assert known.supported_parameters >= {"tools", "stop", "temperature", "parallel_tool_calls"}
    assert known.supported_parameters.isdisjoint({"frequency_penalty", "presence_penalty"})
    assert is_sampled == ({"top_p", "top_k"} <= known.supported_parameters)


def test_what_an_entry_does_not_say_stays_unknown() -> None:
    known = BOOK.find("acme", "bare-name")
    assert known is not None
    assert known.price is None
    assert known.supported_parameters == frozenset()
    assert known.context_length == 77


def test_an_entry_of_another_provider_is_not_taken() -> None:
    assert BOOK.find("other", "bare-name") is None
    assert BOOK.find("other", "big") is None


def test_dates_of_retirement() -> None:
    assert BOOK.deprecated_on("acme", "old") == datetime.date(2026, 5, 31)
    assert BOOK.successor_of("acme", "old") == "acme/big"
    assert BOOK.deprecated_on("acme", "big") is None


def test_providers_that_the_list_splits_are_one() -> None:
    book = PriceBook({"x/m": {"litellm_provider": "vertex_ai-llama_models"}})
    assert book.is_provider("vertex_ai")
    assert [name for name, _ in book.models_of("vertex_ai")] == ["x/m"]
    assert not book.is_provider("vertex")
    meta = PriceBook({"meta_llama/m": {"litellm_provider": "meta_llama"}})
    assert not meta.is_provider("meta")
    assert PriceBook({"m": {"litellm_provider": "bedrock_converse"}}).is_provider("bedrock")


def test_a_model_is_found_under_the_providers_own_spelling() -> None:
    assert BOOK.upstream_name("acme", "meta-llama/llama-3.3-70b-instruct") == "llama-v3p3-70b-instruct"
    shipped = read_price_book()
    assert (
        shipped.upstream_name("together_ai", "qwen/qwen-2.5-7b-instruct") == "Qwen/Qwen2.5-7B-Instruct-Turbo"
    )
    found = shipped.upstream_name("fireworks_ai", "meta-llama/llama-3.3-70b-instruct")
    assert found == "accounts/fireworks/models/llama-v3p3-70b-instruct"
    assert shipped.upstream_name("together_ai", "nobody/no-such-model") is None


def test_the_list_may_name_a_model_with_its_provider_or_without() -> None:
    """G84. With the prefix in routes.yaml it is another model (of a router behind), and its price unknown."""
    costs = {"litellm_provider": "acme", "input_cost_per_token": 1e-7, "output_cost_per_token": 1e-7}
    book = PriceBook({"acme/small": costs, "large": {**costs, "input_cost_per_token": 5e-6}})
    small, large = book.find("acme", "small"), book.find("acme", "large")
    assert small is not None and small.price is not None and small.price.prompt == 1e-7
    assert large is not None and large.price is not None and large.price.prompt == 5e-6
    assert book.find("acme", "acme/large") is None


def test_what_is_not_charged_by_the_token_is_not_free() -> None:
    free = {"litellm_provider": "acme", "input_cost_per_token": 0.0, "output_cost_per_token": 0}
    book = PriceBook(
        {
            "acme/free": free,
            "acme/ranker": {**free, "input_cost_per_query": 0.002},
            "acme/painter": {**free, "output_cost_per_image": 0.04},
        }
    )
    prices = [known.price for name in ("free", "ranker", "painter") if (known := book.find("acme", name))]
    assert prices == [Price(), Price(request=0.002), None]


def test_long_prompts_have_prices_of_their_own() -> None:
    entry = {
        "litellm_provider": "acme",
        "input_cost_per_token": 1.0,
        "output_cost_per_token": 8.0,
        "cache_read_input_token_cost": 0.5,
        "input_cost_per_token_above_200k_tokens": 2.0,
        "cache_read_input_token_cost_above_200k_tokens": 0.75,
        "input_cost_per_token_above_200k_tokens_priority": 9.0,
        "input_cost_per_token_above_32k_tokens": 1.5,
        "output_cost_per_token_above_32k_tokens": 12.0,
    }
    known = PriceBook({"acme/long": entry}).find("acme", "long")
    assert known is not None and known.price is not None
    found = [known.price.at(length) for length in (32_000, 32_001, 200_001)]
    assert [(p.prompt, p.completion, p.cache_read) for p in found] == [
        (1.0, 8.0, 0.5),
        (1.5, 12.0, 0.5),
        (2.0, 12.0, 0.75),
    ]
    shipped = read_price_book().find("gemini", "gemini-2.5-pro")
    assert shipped is not None and shipped.price is not None
    assert shipped.price.at(200_001).prompt == 2 * shipped.price.at(200_000).prompt


def test_a_damaged_list_is_a_config_error(tmp_path: Path) -> None:
    (tmp_path / "list.json").write_text("{")
    with pytest.raises(ConfigError, match=r"price list .*list\.json is damaged"):
        read_price_book(tmp_path / "list.json")


def test_the_price_file_is_where_litellm_is_installed() -> None:
    path = find_price_file()
    assert path is not None
    assert path.parent.name == "litellm"


WHOLE_ENTRY = {
    "litellm_provider": "acme",
    "input_cost_per_token": 1e-6,
    "output_cost_per_token": 8e-6,
    "cache_read_input_token_cost": 1e-7,
    "cache_creation_input_token_cost": 2e-6,
    "cache_creation_input_token_cost_above_1hr": 4e-6,
    "cache_creation_input_token_cost_above_1hr_above_200k_tokens": 9e-6,
    "input_cost_per_audio_token": 3e-6,
    "output_cost_per_audio_token": 2e-5,
    "output_cost_per_image_token": 3e-5,
    "output_cost_per_reasoning_token": 5e-6,
    "input_cost_per_token_above_200k_tokens": 2e-6,
    "output_cost_per_token_above_200k_tokens": 9e-6,
    "input_cost_per_token_flex": 5e-7,
    "output_cost_per_token_flex": 4e-6,
    "input_cost_per_token_priority": 2e-6,
    "output_cost_per_token_priority": 1.6e-5,
    "cache_read_input_token_cost_priority": 2e-7,
    "input_cost_per_token_above_200k_tokens_priority": 4e-6,
    "output_cost_per_token_above_200k_tokens_priority": 3.2e-5,
    "input_cost_per_token_batches": 1e-7,
    "output_cost_per_token_batches": 1e-7,
}


def test_parts_of_a_usage_and_levels_of_service_are_read() -> None:
    known = PriceBook({"acme/m": WHOLE_ENTRY}).find("acme", "m")
    assert known is not None and known.price is not None
    price = known.price
    assert price.parts == PartPrices(4e-6, 3e-6, None, 2e-5, 3e-5, 5e-6)
    long = price.at(200_001)
    assert (long.prompt, long.completion, long.parts) == (
        2e-6,
        9e-6,
        replace(price.parts, cache_write_1h=9e-6),
    )
    assert [name for name, _ in price.tiers] == ["flex", "priority"]
    flex, priority = price.of_tier("flex"), price.of_tier("priority")
    assert flex is not None and priority is not None
    assert (flex.prompt, flex.completion, flex.cache_read, flex.parts) == (5e-7, 4e-6, 1e-7, price.parts)
    assert (priority.prompt, priority.completion, priority.cache_read) == (2e-6, 1.6e-5, 2e-7)
    assert priority.at(200_001).completion == 3.2e-5
    assert flex.at(200_001).prompt == 2e-6  # the list names none: as usual


def test_a_plain_entry_has_neither() -> None:
    plain = BOOK.find("acme", "big")
    assert plain is not None and plain.price is not None
    assert (plain.price.parts, plain.price.tiers) == (None, ())


def test_the_installed_list_tells_them_of_models_that_have_them() -> None:
    book = read_price_book()
    claude, gpt = book.find("anthropic", "claude-haiku-4-5-20251001"), book.find("openai", "gpt-5")
    assert claude is not None and claude.price is not None and claude.price.parts is not None
    assert claude.price.parts.cache_write_1h == 2 * claude.price.prompt
    assert gpt is not None and gpt.price is not None
    assert {"flex", "priority"} <= {name for name, _ in gpt.price.tiers}
