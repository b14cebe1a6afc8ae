"""Whatever stands in the file, loading gives a catalog or a ConfigError, and nothing else."""

import io
import random
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from ruamel.yaml import YAML

from ionrouter.errors import ConfigError
from ionrouter.routing.catalog import check, load, loads
from ionrouter.routing.graph import compile_table, mermaid
from tests.routing.build import BASE, BOOK, ROUTES, TODAY

SHIPPED = ROUTES.read_text()
HERE = Path("/etc/ionrouter/routes.yaml")

NAMES = """providers models aliases patterns routing defaults endpoints provider model prices prompt keys
fallbacks timeouts connect type ion litellm openai fake base_url http://h x-a m n a/b * a/* discover"""
ODDITIES = (None, True, 0, -1, 1.5, 10**30, float("nan"), "", " ", "{model}", "${X}")
WORDS = st.sampled_from([*NAMES.split(), *ODDITIES])
TREES = st.recursive(
    WORDS, lambda t: st.lists(t, max_size=3) | st.dictionaries(WORDS, t, max_size=4), max_leaves=20
)
FILES = TREES | st.fixed_dictionaries(
    {},
    optional={name: TREES for name in ("providers", "models", "aliases", "patterns", "routing", "defaults")},
)


def text_of(data: object) -> str:
    stream = io.StringIO()
    yaml = YAML(typ="safe", pure=True)
    yaml.dump(data, stream)
    return stream.getvalue()


def try_all(text: str) -> None:
    """Load, compile and draw, or get a ConfigError whose every problem has a message."""
    try:
        catalog = loads(text, HERE, {}, BOOK, TODAY)
    except ConfigError as error:
        assert error.problems
        assert all(problem.message for problem in error.problems)
        return
    mermaid(compile_table(catalog, {}))


@given(FILES)
@settings(max_examples=300)
def test_any_data_gives_a_catalog_or_a_config_error(data: object) -> None:
    try_all(text_of(data))


@given(st.text(max_size=80))
def test_any_text_gives_a_catalog_or_a_config_error(text: str) -> None:
    try_all(text)


@pytest.mark.parametrize("seed", range(40))
def test_a_damaged_line_of_the_shipped_file_gives_a_catalog_or_a_config_error(seed: int) -> None:
    rng = random.Random(seed)
    lines = SHIPPED.splitlines()
    for _ in range(3):
        number = rng.randrange(len(lines))
        line = lines[number]
        cut = rng.randrange(len(line) + 1)
        lines[number] = rng.choice(
            [line[:cut], line[cut:], line * 2, line[:cut] + "\t" + line[cut:], " " + line, ""]
        )
    try_all("\n".join(lines))


@pytest.mark.parametrize("size", range(0, len(SHIPPED), 257))
def test_a_half_written_file_gives_a_catalog_or_a_config_error(size: int) -> None:
    try_all(SHIPPED[:size])


def test_load_reads_the_file_and_carries_its_warnings(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(BASE + "models: {m: {endpoints: [{provider: acme, model: big}]}}\n")
    loaded = load(path, {}, BOOK, TODAY)
    assert list(loaded.warnings) == check(path, {}, BOOK, TODAY)
    assert [warning.path for warning in loaded.warnings] == [
        "providers.local",
        "providers.acme.keys[0]",
        "providers.vllm",
        "providers.script",
    ]
    assert loaded.folder == tmp_path


def test_sections_may_share_values_through_anchors() -> None:
    text = (
        "x-fast: &fast {first_token: 3}\n"
        + BASE
        + "models:\n  m:\n    endpoints:\n      - {provider: vllm, timeouts: *fast}\n"
        + "      - provider: script\n        timeouts: {<<: *fast, connect: 1}\n"
    )
    table = compile_table(loads(text, HERE, {}, BOOK, TODAY), {})
    first, second = table.models["m"].endpoints
    assert first.timeouts.first_token_s == second.timeouts.first_token_s == 3
    assert second.timeouts.connect_s == 1


def test_a_mistake_in_an_anchor_is_told_at_the_anchor() -> None:
    text = (
        "x-t: &t\n  frist_token: 3\n" + BASE + "models: {m: {endpoints: [{provider: vllm, timeouts: *t}]}}\n"
    )
    with pytest.raises(ConfigError) as caught:
        loads(text, HERE, {}, BOOK, TODAY)
    assert str(caught.value) == (
        "line 2: models.m.endpoints[0].timeouts.frist_token: unknown field; did you mean 'first_token'?"
    )
