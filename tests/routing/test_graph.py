from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from ionrouter.routing.graph import compile_table, fallback_order, resolve_aliases
from tests.routing.build import BASE, catalog, errors, table

NAMES = st.sampled_from("abcdefgh")
FALLBACKS = st.dictionaries(NAMES, st.lists(NAMES, max_size=4).map(tuple))


def test_nested_fallbacks_are_ordered_by_their_places_in_the_lists() -> None:
    listed = {"m": ("a", "b"), "a": ("c", "m"), "b": ("d",), "c": (), "d": ()}
    order = fallback_order(listed, "m")
    assert order.names == ("a", "b", "c", "d")
    assert order.paths is not None
    assert order.paths["c"] == ("m", "a", "c")
    assert order.paths["d"] == ("m", "b", "d")


def test_two_models_may_back_each_other_up() -> None:
    listed = {"a": ("b",), "b": ("a",)}
    assert fallback_order(listed, "a").names == ("b",)
    assert fallback_order(listed, "b").names == ("a",)


def test_a_long_list_is_kept_whole_and_far_chains_are_cut() -> None:
    own = tuple(f"f{n}" for n in range(20))
    assert fallback_order({"m": own}, "m").names == own
    chain = {f"c{n}": (f"c{n + 1}",) for n in range(30)}
    assert len(fallback_order(chain, "c0").names) == 8


@given(FALLBACKS, NAMES)
def test_an_order_has_each_reachable_model_once_and_never_the_model_itself(
    listed: dict[str, tuple[str, ...]], model: str
) -> None:
    listed = {name: () for name in "abcdefgh"} | listed
    names = fallback_order(listed, model).names
    assert model not in names
    assert len(set(names)) == len(names)
    assert set(names) >= set(listed[model]) - {model}
    assert set(names) <= _reachable(listed, model)


@given(FALLBACKS, NAMES)
def test_paths_follow_the_lists_and_grow_along_the_order(
    listed: dict[str, tuple[str, ...]], model: str
) -> None:
    listed = {name: () for name in "abcdefgh"} | listed
    order = fallback_order(listed, model)
    lengths = []
    for name in order.names:
        assert order.paths is not None
        path = order.paths[name]
        assert (path[0], path[-1]) == (model, name)
        lengths.append(sum(listed[a].index(b) + 1 for a, b in pairwise(path)))
    assert lengths == sorted(lengths)


def _reachable(listed: dict[str, tuple[str, ...]], start: str) -> set[str]:
    seen, todo = set[str](), [start]
    while todo:
        for name in listed[todo.pop()]:
            if name not in seen:
                seen.add(name)
                todo.append(name)
    return seen


@given(st.dictionaries(NAMES, NAMES))
def test_aliases_end_at_a_model_or_their_circle_is_printed(aliases: dict[str, str]) -> None:
    """Aliases a..h over models A..H: every chain either ends or is reported, and never both."""
    text = BASE + "models:\n" + "".join(f"  m-{n}: {{endpoints: [{{provider: vllm}}]}}\n" for n in "abcdefgh")
    lines = [f"  {alias}: {name if name in aliases else f'm-{name}'}" for alias, name in aliases.items()]
    text += "\n".join(["aliases:", *lines]) + "\n"
    circles = _circles(aliases)
    if not circles:
        final = table(text).aliases
        assert set(final) == set(aliases)
        assert all(name.startswith("m-") for name in final.values())
        return
    found = errors(text)
    assert len(found) == len(circles)
    for problem in found:
        names = problem.split("circle: ")[1].split(" -> ")
        assert names[0] == names[-1]
        assert frozenset(names) in circles
        assert all(aliases[a] == b for a, b in pairwise(names))


def _circles(aliases: dict[str, str]) -> set[frozenset[str]]:
    circles = set()
    for start in aliases:
        seen, name = list[str](), start
        while name in aliases and name not in seen:
            seen.append(name)
            name = aliases[name]
        if name in seen:
            circles.add(frozenset(seen[seen.index(name) :]))
    return circles


def test_alias_chains_are_followed_to_their_end() -> None:
    assert resolve_aliases({"a": "b", "b": "c", "c": "m", "x": "m"}) == dict.fromkeys("abcx", "m")


def test_an_alias_of_itself_is_a_circle() -> None:
    text = BASE + "models: {m: {endpoints: [{provider: vllm}]}}\naliases:\n  a: a\n"
    assert errors(text) == ["line 8: aliases.a: aliases go round in a circle: a -> a"]


def test_unknown_names_come_with_the_nearest_known_one_of_their_kind() -> None:
    text = (
        BASE
        + """\
models:
  acme/large:
    endpoints: [{provider: vlm}, {provider: zzz}]
    fallbacks: [acme/lrge, big]
aliases:
  big: acme/larg
  far: q
patterns:
  "x/*": {provider: scrip}
"""
    )
    assert errors(text) == [
        "line 8: models.acme/large.endpoints[0].provider: no provider 'vlm'; did you mean 'vllm'?",
        "line 8: models.acme/large.endpoints[1].provider: no provider 'zzz'",
        "line 9: models.acme/large.fallbacks[0]: no model 'acme/lrge'; did you mean 'acme/large'?",
        "line 11: aliases.big: no model 'acme/larg'; did you mean 'acme/large'?",
        "line 12: aliases.far: no model 'q'",
        "line 14: patterns.x/*.provider: no provider 'scrip'; did you mean 'script'?",
    ]


def test_names_that_a_pattern_serves_are_known() -> None:
    text = (
        BASE
        + """\
models:
  m: {endpoints: [{provider: vllm}], fallbacks: [x/any, alias]}
aliases: {alias: x/other}
patterns: {"x/*": {provider: script}}
"""
    )
    compiled = table(text)
    assert compiled.models["m"].fallbacks == ("x/any", "x/other")
    assert compiled.aliases == {"alias": "x/other"}


def test_fallbacks_through_aliases_reach_the_model_once() -> None:
    text = (
        BASE
        + """\
models:
  m: {endpoints: [{provider: vllm}], fallbacks: [n, other]}
  n: {endpoints: [{provider: script}], fallbacks: [me]}
aliases: {other: n, me: m}
"""
    )
    models = table(text).models
    assert models["m"].fallbacks == ("n",)
    assert models["n"].fallbacks == ("m",)
    assert models["m"].listed_fallbacks == ("n", "other")


def test_the_table_says_which_text_it_was_made_of() -> None:
    text = BASE + "models: {m: {endpoints: [{provider: vllm}]}}\n"
    loaded = catalog(text)
    assert compile_table(loaded, {}).version == loaded.source.version
    assert catalog(text + "\n").version != loaded.version
