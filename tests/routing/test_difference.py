from ionrouter.routing.graph import diff
from ionrouter.routing.table import RoutingTable
from tests.routing.build import table

TEXT = """\
routing: {value_of_time: 0.001}
providers:
  p: {type: fake, keys: [A]}
models:
  m: {endpoints: [{provider: p, prices: {prompt: 1, completion: 1}}], fallbacks: [n]}
  n: {endpoints: [{provider: p, model: n}]}
aliases: {al: m}
"""


def changed(old: str, new: str, env: dict[str, str] | None = None) -> list[str]:
    return diff(
        table(TEXT, {"A": "x"}), table(TEXT.replace(old, new), {"A": "x"} if env is None else env)
    ).lines()


def test_the_same_text_differs_in_nothing() -> None:
    same = diff(table(TEXT), table(TEXT + "# a comment\n"))
    assert same.is_empty
    assert same.lines() == []
    assert not same.new_identities
    assert not same.gone_identities


def test_prices_of_parts_and_of_levels_of_service_are_lines_of_their_own() -> None:
    said = "prompt: 3, reasoning: 2, flex: {prompt: 0.5},"
    assert changed("prompt: 1,", said) == [
        "~ p/m.price.parts.reasoning: None -> 2e-06",
        "~ p/m.price.prompt: 1e-06 -> 3e-06",
        "~ p/m.price.tiers.flex.parts.reasoning: None -> 2e-06",
        "~ p/m.price.tiers.flex.prompt: 1e-06 -> 5e-07",
    ]


def test_a_changed_price_is_one_line_and_keeps_the_identity() -> None:
    assert changed("prompt: 1,", "prompt: 3,") == ["~ p/m.price.prompt: 1e-06 -> 3e-06"]
    both = diff(table(TEXT), table(TEXT.replace("prompt: 1,", "prompt: 3,")))
    assert not both.new_identities


def test_settings_and_models_are_compared_field_by_field() -> None:
    assert changed("0.001", "0.002") == ["~ routing.value_of_time: 0.001 -> 0.002"]
    assert changed("n: {end", "n: {name: N, end") == ["~ models.n.name: n -> N"]
    assert changed("n: {end", "n: {strategy: price, end") == ["~ models.n.strategy: None -> price"]
    assert changed("keys: [A]", "keys: [A], zdr: false") == ["~ providers.p.zdr: True -> False"]


def test_edges_that_come_and_go_are_told() -> None:
    assert changed("{al: m}", "{al: n}") == ["+ alias al -> model n", "- alias al -> model m"]
    assert changed(", fallbacks: [n]", "") == [
        "- model m -> model n",
        "~ models.m.fallbacks: ('n',) -> ()",
        "~ models.m.listed_fallbacks: ('n',) -> ()",
    ]


def test_a_new_endpoint_has_a_new_identity() -> None:
    old, new = table(TEXT), table(TEXT.replace("model: n}", "model: other}"))
    both = diff(old, new)
    assert both.new_identities == {new.models["n"].endpoints[0].identity}
    assert both.gone_identities == {old.models["n"].endpoints[0].identity}
    assert both.lines() == ["~ p/n.upstream_model: n -> other"]


def test_a_key_that_went_away_is_told() -> None:
    assert changed("", "", env={}) == [
        "~ p/m.disabled: None -> A is unset",
        "~ p/n.disabled: None -> A is unset",
    ]


def test_a_new_model_is_told_with_all_its_arrows() -> None:
    assert changed("aliases:", "  k: {endpoints: [{provider: p, model: k}]}\naliases:") == [
        "+ model k",
        "+ endpoint p/k",
        "+ model k -> endpoint p/k",
        "+ endpoint p/k -> provider p",
    ]


def test_groups_and_presets_are_compared_entry_by_entry() -> None:
    assert changed("aliases:", "groups: {g: [m]}\naliases:") == ["~ groups.g: None -> ('m',)"]
    assert changed("aliases:", "presets: {p: {seed: 1}}\naliases:") == ["~ presets.p: None -> {'seed': 1}"]


def test_a_patterns_fields_are_compared_like_an_endpoints() -> None:
    pattern = 'patterns: {"z/*": {provider: p, prices: {prompt: %s, completion: 1}}}\naliases:'
    keys = "keys: [A]", "keys: [A, B]"

    def patterned(price: int, *replaced: str) -> RoutingTable:
        text = TEXT.replace("aliases:", pattern % price)
        return table(text.replace(*replaced) if replaced else text, {"A": "x", "B": "y"})

    assert diff(patterned(1), patterned(3)).lines() == ["~ p/z/*.price.prompt: 1e-06 -> 3e-06"]
    assert diff(patterned(1), patterned(1)).is_empty
    both = diff(patterned(1, *keys), patterned(3, *keys)).lines()
    assert both == ["~ p/z/*#2.price.prompt: 1e-06 -> 3e-06", "~ p/z/*.price.prompt: 1e-06 -> 3e-06"]


def test_what_leads_to_a_changed_endpoint_is_not_told_as_changed_to_the_same() -> None:
    shadowed = TEXT.replace("fallbacks: [n]", "shadow: {endpoint: p/n}")
    old, new = table(shadowed), table(shadowed.replace("model: n}", "model: n, weight: 2}"))
    assert diff(old, new).lines() == ["~ p/n.weight: 1.0 -> 2.0"]
    more = table(shadowed.replace("endpoint: p/n", "endpoint: p/n, share: 0.5"))
    assert [line.partition(":")[0] for line in diff(old, more).lines()] == ["~ models.m.shadow"]
