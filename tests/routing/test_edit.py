import os
import stat
from pathlib import Path
from typing import Any

import pytest

from ionrouter.errors import ConfigError
from ionrouter.routing.catalog import load
from ionrouter.routing.edit import Added, add_model
from ionrouter.routing.prices import PriceBook
from tests.routing.build import BOOK, ROUTES

COMMENTED = """\
# Ours.
providers:
  acme: {type: litellm, litellm_provider: acme, keys: [K]}   # odd   spacing
  vllm:
      type: openai
      base_url: 'http://vllm:8000/v1'

models:

  first:   # the first
    endpoints:
    - provider: vllm
      # a note below
      model: "first"      # quoted
    # belongs to first
  # models we may add one day:
  #   later: {}

# The end.
aliases: { a: first }
"""


def add(path: Path, *args: str, **fields: str) -> Added:
    return add_model(path, *args, prices=BOOK, **fields)


@pytest.fixture
def routes(tmp_path: Path) -> Path:
    path = tmp_path / "routes.yaml"
    path.write_text(COMMENTED)
    return path


def inserted(before: str, after: str) -> str:
    """The lines that were put into a text, which must be its only change."""
    old, new = before.splitlines(keepends=True), after.splitlines(keepends=True)
    start = next(i for i, line in enumerate(new) if i >= len(old) or line != old[i])
    count = len(new) - len(old)
    assert new[:start] + new[start + count :] == old
    return "".join(new[start : start + count])


def test_prices_of_parts_and_of_levels_of_service_are_written_too(routes: Path) -> None:
    entry: dict[str, Any] = {"litellm_provider": "acme", "mode": "chat"}
    entry |= {"input_cost_per_token": 1e-6, "output_cost_per_token": 2e-6}
    entry |= {"output_cost_per_reasoning_token": 3e-6, "input_cost_per_token_flex": 5e-7}
    entry |= {"output_cost_per_token_flex": 2e-6, "input_cost_per_token_ultrafast": 9e-6}
    book = PriceBook({"acme/deep": {**entry, "output_cost_per_token_ultrafast": 9e-6}})
    add_model(routes, "acme/deep", "acme", prices=book)
    assert "prices: { prompt: 1, completion: 2, reasoning: 3, flex: { prompt: 0.5 } } #" in routes.read_text()
    assert load(routes, {"K": "x"}, prices=book)


def test_prices_by_the_query_and_of_long_prompts_are_written_too(routes: Path) -> None:
    entry = {
        "litellm_provider": "acme",
        "mode": "chat",
        "input_cost_per_token": 1e-06,
        "output_cost_per_token": 2e-06,
        "input_cost_per_query": 0.002,
        "input_cost_per_token_above_200k_tokens": 3e-06,
    }
    book = PriceBook({"acme/long": entry})
    add_model(routes, "acme/long", "acme", prices=book)
    line = "prices: { prompt: 1, completion: 2, request: 0.002, long: { above: 200000, prompt: 3 } } #"
    assert line in routes.read_text()
    assert load(routes, {"K": "x"}, prices=book)


def test_a_new_model_is_filled_from_the_price_list_and_nothing_else_changes(routes: Path) -> None:
    added = add(routes, "acme/big", "acme")
    assert added.is_new_model
    assert (
        inserted(COMMENTED, routes.read_text())
        == """\

  acme/big:
    context_length: 1000
    endpoints:
      - provider: acme
        model: big
        prices: { prompt: 2, completion: 4, cache_read: 0.5 } # from litellm's price list
"""
    )
    lines = routes.read_text().splitlines()
    assert lines.index("    # belongs to first") < lines.index("  acme/big:")
    assert lines.index("  acme/big:") < lines.index("  # models we may add one day:")


def test_what_was_added_is_served(routes: Path) -> None:
    add(routes, "acme/big", "acme")
    loaded = load(routes, {}, BOOK)
    assert loaded.spec.models["acme/big"].endpoints[0].provider == "acme"


def test_adding_twice_changes_nothing_the_second_time(routes: Path) -> None:
    add(routes, "acme/big", "acme")
    text = routes.read_text()
    assert add(routes, "acme/big", "acme").is_unchanged
    assert add(routes, "first", "vllm").is_unchanged
    assert routes.read_text() == text


def test_a_model_that_is_retired_there_is_added_with_a_warning(routes: Path) -> None:
    added = add(routes, "acme/old", "acme")
    (warning,) = added.warnings
    assert warning.path == "models.acme/old.endpoints[0].model"
    assert "has been retired there since 2026-05-31" in warning.message
    assert add(routes, "acme/big", "acme").warnings == ()


def test_another_provider_is_added_to_the_entry_that_is_there(routes: Path) -> None:
    added = add(routes, "first", "acme", model="big")
    assert not added.is_new_model
    assert (
        inserted(COMMENTED, routes.read_text())
        == """\
    - provider: acme
      model: big
      prices: { prompt: 2, completion: 4, cache_read: 0.5 } # from litellm's price list
"""
    )


def test_without_a_provider_every_one_that_has_the_model_is_added(routes: Path) -> None:
    added = add(routes, "meta-llama/llama-3.3-70b-instruct")
    assert [(e.provider, e.model) for e in added.endpoints] == [("acme", "llama-v3p3-70b-instruct")]


@pytest.mark.parametrize(
    ("args", "fields", "message"),
    [
        (("m", "acne"), {}, "no provider 'acne' in routes.yaml; did you mean 'acme'?"),
        (("m", "zzz"), {}, "no provider 'zzz' in routes.yaml; known: acme, vllm"),
        (("m/unheard-of", "acme"), {}, "litellm's price list has no 'm/unheard-of' at acme"),
        (("m/unheard-of",), {}, "no provider of the file has 'm/unheard-of'"),
        (("a", "vllm"), {}, "'a' is an alias of 'first'"),
        (
            ("first", "vllm"),
            {"model": "second"},
            "line 12: models.first.endpoints[0] has provider 'vllm' already, as 'first'; edit it there",
        ),
        (("bad name", "vllm"), {}, "a model's name must have no spaces"),
        (("FIRST", "vllm"), {"model": "x"}, "differs from 'first' only in upper and lower case"),
    ],
)
def test_what_cannot_be_added_is_refused_and_the_file_stays(
    routes: Path, args: tuple[str, ...], fields: dict[str, str], message: str
) -> None:
    with pytest.raises(ConfigError) as caught:
        add(routes, *args, **fields)
    assert message in str(caught.value)
    assert routes.read_text() == COMMENTED


def test_a_file_with_errors_is_not_edited(routes: Path) -> None:
    routes.write_text(COMMENTED + "modles: {}\n")
    with pytest.raises(ConfigError, match="did you mean 'models'"):
        add(routes, "acme/big", "acme")


SHAPES = {
    "no models section": ("", "\nmodels:\n  m:\n"),
    "an empty section": ("models:\n", "models:\n  m:\n"),
    "an empty section with a comment": ("models: # none yet\n", "models: # none yet\n  m:\n"),
    "an empty mapping": ("models: {} # none\n", "models: # none\n  m:\n"),
    "a null": ("models: ~\n", "models:\n  m:\n"),
}


@pytest.mark.parametrize("shape", SHAPES)
@pytest.mark.parametrize("tail", ["", "\n", "\n# end"])
def test_a_file_without_models_gets_the_section(tmp_path: Path, shape: str, tail: str) -> None:
    path = tmp_path / "routes.yaml"
    section, expected = SHAPES[shape]
    base = "providers: {v: {type: fake}}\npatterns: {'*': {provider: v}}\n"
    path.write_text((base + section).rstrip("\n") + tail)
    add(path, "m", "v")
    assert expected in path.read_text()
    assert load(path, {}, BOOK).spec.models["m"].endpoints[0].provider == "v"


def test_sections_before_and_after_stay_in_place(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text("models:\nproviders: {v: {type: fake}}\npatterns: {'*': {provider: v}}\n")
    add(path, "llama3:8b", "v")
    assert path.read_text() == (
        'models:\n  "llama3:8b":\n    endpoints:\n      - provider: v\n        model: "llama3:8b"\n'
        "providers: {v: {type: fake}}\npatterns: {'*': {provider: v}}\n"
    )


FOREIGN = {
    "in braces": ("models: {m: {endpoints: [{provider: v}]}}\n", "models is written in braces"),
    "a list in brackets": ("models:\n  n: {endpoints: [{provider: v}]}\n", "endpoints is written in braces"),
    "an anchor": (
        "x-e: &e\n  - {provider: v}\nmodels:\n  n:\n    endpoints: *e\n",
        "models.n.endpoints comes from an anchor; write it out first",
    ),
}


@pytest.mark.parametrize("shape", FOREIGN)
def test_shapes_that_lines_cannot_be_added_to_are_refused(tmp_path: Path, shape: str) -> None:
    path = tmp_path / "routes.yaml"
    section, message = FOREIGN[shape]
    text = "providers: {v: {type: fake}, w: {type: fake}}\n" + section
    path.write_text(text)
    with pytest.raises(ConfigError) as caught:
        add(path, "n" if "n:" in section else "k", "w")
    assert message in str(caught.value)
    assert path.read_text() == text


def test_block_texts_and_anchors_above_are_left_alone(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    text = (
        "x-t: &t\n  first_token: 3\nproviders: {v: {type: fake}}\nmodels:\n  k:\n"
        "    endpoints:\n      - provider: v\n        timeouts: *t\n    description: |+\n      Two lines,\n\n"
        "      kept.\n\naliases: {al: k}\n"
    )
    path.write_text(text)
    add(path, "m", "v")
    assert "  m:\n    endpoints:\n" in inserted(text, path.read_text())


def test_a_block_that_has_an_anchor_grows_at_its_own_column(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    text = (
        "providers: {v: {type: fake}, w: {type: fake}}\nmodels: &all\n    k: &k\n"
        "        endpoints: &list # here\n        -   provider: v\n"
    )
    path.write_text(text)
    add(path, "k", "w")
    middle = path.read_text()
    assert inserted(text, middle) == "        - provider: w\n          model: k\n"
    add(path, "m", "w")
    new = "\n    m:\n      endpoints:\n        - provider: w\n          model: m\n"
    assert inserted(middle, path.read_text()) == new


def test_an_entry_that_another_one_shares_is_not_changed(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    text = (
        "providers: {v: {type: fake}, w: {type: fake}}\nmodels:\n  k: &k\n    endpoints:\n"
        "    - provider: v\n      model: x\n  same: *k\n"
    )
    path.write_text(text)
    with pytest.raises(ConfigError, match="cannot add 'k' without changing other entries"):
        add(path, "k", "w")
    assert path.read_text() == text


def test_windows_line_ends_and_a_byte_order_mark_are_kept(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_bytes(b"\xef\xbb\xbf" + COMMENTED.replace("\n", "\r\n").encode())
    add(path, "acme/big", "acme")
    raw = path.read_bytes()
    assert raw.startswith(b"\xef\xbb\xbf#")
    assert raw.count(b"\n") == raw.count(b"\r\n")
    assert load(path, {}, BOOK).spec.models["acme/big"]


def test_mode_and_link_of_the_file_are_kept(routes: Path, tmp_path: Path) -> None:
    os.chmod(routes, 0o640)
    link = tmp_path / "link.yaml"
    link.symlink_to(routes)
    add(link, "acme/big", "acme")
    assert link.is_symlink()
    assert stat.S_IMODE(routes.stat().st_mode) == 0o640
    assert "acme/big" in routes.read_text()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["link.yaml", "routes.yaml"]


def test_the_shipped_file_takes_a_model_and_keeps_every_comment(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    before = ROUTES.read_text()
    path.write_text(before)
    add_model(path, "deepseek-ai/deepseek-v3.1")
    new = inserted(before, path.read_text())
    assert "- provider: together" in new
    assert "- provider: fireworks" in new
    assert new.count("# from litellm's price list") == 2


def test_a_list_without_a_price_writes_none(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(COMMENTED)
    book = PriceBook({"acme/free": {"litellm_provider": "acme", "mode": "chat"}})
    add_model(path, "x/free", "acme", prices=book)
    assert "prices" not in inserted(COMMENTED, path.read_text())
