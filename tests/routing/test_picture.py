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
