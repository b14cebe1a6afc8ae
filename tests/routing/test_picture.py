import re

from ionrouter.routing.graph import mermaid
from tests.routing.build import catalog, table

TEXT = """\
providers:
  p: {type: fake, keys: [A]}
models:
  m: {endpoints: [{provider: p}], fallbacks: [n]}
  n: {endpoints: [{provider: p, model: "x"}]}
aliases: {al: m}
patterns: {"q/*": {provider: p}}
"""

EXPECTED = """\
flowchart LR
    n0(["al"])
    n1["m"]
    n2("p/m")
    n3[["p"]]
    n4{{"p"}}
    n5["n"]
    n6("p/n")
    n7(["q/*"])
    n0 --> n1
    n1 --> n2
    n2 --> n3
    n3 --> n4
    n1 -. 1 .-> n5
    n5 --> n6
    n6 --> n3
    n7 --> n3
"""


def test_the_picture_shows_every_node_and_arrow_once() -> None:
    assert mermaid(table(TEXT, {"A": "x"})) == EXPECTED


def test_a_catalog_is_drawn_as_if_all_keys_were_set() -> None:
    assert mermaid(catalog(TEXT)) == EXPECTED


def test_disabled_endpoints_are_grey() -> None:
    assert mermaid(table(TEXT)).endswith("    class n2,n6 disabled\n")


def test_listed_fallbacks_are_drawn_not_those_that_follow_from_them() -> None:
    text = "providers: {p: {type: fake}}\nmodels:\n"
    text += "".join(
        f"  {n}: {{endpoints: [{{provider: p}}], fallbacks: [{f}]}}\n" for n, f in ["ab", "bc", "ca"]
    )
    assert mermaid(table(text)).count("-. ") == 3


def test_names_cannot_break_the_picture() -> None:
    text = "providers: {p: {type: fake}}\nmodels: {'a\"];x#1<b>': {endpoints: [{provider: p}]}}\n"
    assert '["a#34;];x#35;1#60;b#62;"]' in mermaid(table(text))


TRAFFIC = """\
providers: {p: {type: fake}, q: {type: fake, keys: [A]}}
models:
  m:
    endpoints: [{provider: p}, {provider: q}, {provider: q, model: "2"}]
    canary: {endpoint: q, percent: 2.5}
    shadow: {endpoint: p/n, share: 0.07}
  n:
    endpoints: [{provider: p}, {provider: q}, {provider: p, model: "3"}]
    split: {p/n: 70, q: 30}
    fallbacks: [q/x]
groups: {g: ["n:free", q/y]}
splits: {s: {m: 90, n: 10}}
presets: {a: {model: s, models: [m]}, b: {seed: 1}}
patterns: {"q/*": {provider: q}}
"""


def _arrows(text: str) -> set[str]:
    """The arrows, with shapes and names where the picture has its numbers."""
    lines = [line.strip() for line in mermaid(table(text)).splitlines()]
    shapes = dict(found.groups() for line in lines if (found := re.fullmatch(r"(n\d+)(\W.*\W)", line)))
    arrows = [found.groups() for line in lines if (found := re.fullmatch(r"(n\d+) (.+) (n\d+)", line))]
    return {f"{shapes[source]} {arrow} {shapes[target]}" for source, arrow, target in arrows}


def test_percentages_shadows_groups_and_presets_are_drawn() -> None:
    assert {
        '["m"] -- "97.5%" --> ("p/m")',
        '["m"] -- "2.5% q" --> ("q/m")',
        '["m"] -- "2.5% q" --> ("q/m#35;2")',
        '["m"] -. "shadow 7%" .-> ("p/n")',
        '["n"] -- "70%" --> ("p/n")',
        '["n"] -- "0%" --> ("p/n#35;2")',
        '[/"s"/] -- "90%" --> ["m"]',
        '[/"s"/] -- "10%" --> ["n"]',
        '[/"g"/] --> ["n"]',
        '>"a"] --> [/"s"/]',
        '>"a"] --> ["m"]',
    } <= _arrows(TRAFFIC)
    assert '>"b"]' in mermaid(table(TRAFFIC))


def test_a_name_that_a_pattern_serves_leads_where_its_requests_go() -> None:
    found = _arrows(TRAFFIC)
    assert {'["n"] -. 1 .-> ["q/x"]', '["q/x"] --> ("q/q/x")', '[/"g"/] --> ["q/y"]'} <= found
    disabled = re.findall(r"n\d+", mermaid(table(TRAFFIC)).splitlines()[-1])
    assert len(disabled) == len(["q/m", "q/m#2", "q/n", "q/q/x", "q/q/y"])
