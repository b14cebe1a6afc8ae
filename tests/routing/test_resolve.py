from hypothesis import given
from hypothesis import strategies as st

from ionrouter.routing.graph import compile_table
from ionrouter.routing.resolve import fill, resolve, serves, split_variant
from ionrouter.routing.table import Price, RoutingTable
from tests.routing.build import catalog

TEXT = """\
providers:
  script: {type: fake}
  acme: {type: litellm, litellm_provider: acme, keys: [A, B]}
  router: {type: openai, base_url: "https://router.example.com/v1", keys: [R], forward_provider: true}
models:
  meta/llama: {endpoints: [{provider: script}]}
  meta/llama:free: {endpoints: [{provider: script, model: free}]}
  llama3:8b: {endpoints: [{provider: script, model: tag}]}
aliases: {Default: meta/llama, big: any/thing, tagged: "llama3:8b"}
patterns:
  "*": {provider: router}
  "acme/*": {provider: acme}
  "acme/exact-*": {provider: acme, model: "x-{author}-{name}", prices: {prompt: 1, completion: 2}}
"""


def make(text: str = TEXT) -> RoutingTable:
    return compile_table(catalog(text), {"A": "1"})


TABLE = make()
NO_ROUTER = make(TEXT.replace('  "*": {provider: router}\n', "").replace(", big: any/thing", ""))


def found(name: str, table: RoutingTable = TABLE) -> str | None:
    route = resolve(table, name)
    return route.endpoints[0].upstream_model if route else None


def test_exact_names_then_aliases_then_either_in_any_case() -> None:
    assert resolve(TABLE, "meta/llama") is TABLE.models["meta/llama"]
    assert resolve(TABLE, "Default") is TABLE.models["meta/llama"]
    assert resolve(TABLE, "META/LLAMA") is TABLE.models["meta/llama"]
    assert resolve(TABLE, "dEFAULT") is TABLE.models["meta/llama"]
    assert resolve(TABLE, "tagged") is TABLE.models["llama3:8b"]


def test_what_a_model_is_for() -> None:
    """A listed model is for text unless it says embeddings; of one behind a pattern nobody knows."""
    table = make(TEXT.replace("models:\n", "models:\n  vec: {output_modalities: [embeddings], endpoints: "
                              "[{provider: script}]}\n"))  # fmt: skip
    vectors, text, unknown = (resolve(table, name) for name in ("vec", "meta/llama", "acme/big"))
    assert vectors is not None and text is not None and unknown is not None
    assert [serves(route, "embeddings") for route in (vectors, text, unknown)] == [True, False, True]
    assert [serves(route, "chat") for route in (vectors, text, unknown)] == [False, True, True]


def test_a_name_that_nothing_fits_has_no_route() -> None:
    assert resolve(NO_ROUTER, "nobody/knows") is None
    assert resolve(NO_ROUTER, "") is None


def test_a_pattern_makes_a_route_with_an_endpoint_for_each_key() -> None:
    route = resolve(TABLE, "acme/big")
    assert route is not None
    assert route.id == "acme/big"
    assert [e.id for e in route.endpoints] == ["acme/acme/big", "acme/acme/big#2"]
    assert [e.key_variable for e in route.endpoints] == ["A", "B"]
    assert [e.disabled for e in route.endpoints] == [None, "B is unset"]
    assert {e.upstream_model for e in route.endpoints} == {"big"}


def test_a_patterns_prices_and_limits_come_from_the_list_for_the_name_asked() -> None:
    route = resolve(TABLE, "acme/big")
    assert route is not None
    assert route.endpoints[0].price == Price(2e-06, 4e-06, cache_read=5e-07)
    assert route.endpoints[0].price_source == "litellm"
    assert route.context_length == 1000
    unknown = resolve(TABLE, "acme/unheard-of")
    assert unknown is not None
    assert unknown.endpoints[0].price_source == "unknown"
    written = resolve(TABLE, "acme/exact-big")
    assert written is not None
    assert written.endpoints[0].price == Price(1e-06, 2e-06)


def test_the_most_precise_pattern_wins_and_explicit_entries_win_over_all() -> None:
    assert found("acme/exact-1") == "x-acme-exact-1"
    assert found("acme/other") == "other"
    assert found("other/thing") == "other/thing"
    assert found("meta/llama") == "meta/llama"


def test_an_alias_may_lead_to_a_pattern() -> None:
    assert found("big") == "any/thing"


def test_the_same_endpoint_has_the_same_identity_listed_or_by_pattern() -> None:
    listed = make(TEXT + "  'zz/*': {provider: script}\n").models["meta/llama"].endpoints[0]
    by_pattern = resolve(make(TEXT + "  'zz/*': {provider: script, model: meta/llama}\n"), "zz/1")
    assert by_pattern is not None
    assert by_pattern.endpoints[0].identity == listed.identity


def test_what_a_pattern_makes_has_an_identity_that_begins_with_the_patterns() -> None:
    route = resolve(TABLE, "acme/big")
    assert route is not None
    patterns = [p.endpoint.identity for p in TABLE.patterns if p.glob == "acme/*"]
    assert [e.identity.partition(":")[0] for e in route.endpoints] == patterns


def test_names_that_are_no_names_have_no_pattern() -> None:
    assert resolve(TABLE, "x" * 257) is None
    assert resolve(TABLE, "a b") is None
    assert resolve(TABLE, "a\r\nb") is None


def test_suffixes_are_variants_unless_the_whole_name_is_configured() -> None:
    assert split_variant("meta/llama:nitro", NO_ROUTER) == ("meta/llama", ("nitro",))
    assert split_variant("Default:Floor:ONLINE", NO_ROUTER) == ("Default", ("floor", "online"))
    assert split_variant("meta/llama:free", NO_ROUTER) == ("meta/llama:free", ())
    assert split_variant("meta/llama:free:nitro", NO_ROUTER) == ("meta/llama:free", ("nitro",))
    assert split_variant("llama3:8b", NO_ROUTER) == ("llama3:8b", ())
    assert split_variant("llama3:8b:nitro", NO_ROUTER) == ("llama3:8b", ("nitro",))
    assert split_variant("llama3:70b", NO_ROUTER) == ("llama3:70b", ())
    assert split_variant("meta/llama", NO_ROUTER) == ("meta/llama", ())
    assert split_variant(":nitro", NO_ROUTER) == (":nitro", ())


def test_another_router_gets_the_suffix_with_the_name() -> None:
    assert split_variant("deepseek/r1:free", TABLE) == ("deepseek/r1:free", ())
    assert found("deepseek/r1:free") == "deepseek/r1:free"
    assert split_variant("acme/x:nitro", TABLE) == ("acme/x", ("nitro",))
    assert split_variant("meta/llama:nitro", TABLE) == ("meta/llama", ("nitro",))


@given(st.text(max_size=30))
def test_splitting_loses_nothing(name: str) -> None:
    for table in (TABLE, NO_ROUTER):
        base, variants = split_variant(name, table)
        assert ":".join([base.lower(), *variants]) == name.lower()


@given(st.text(max_size=30))
def test_resolving_is_pure_and_never_fails(name: str) -> None:
    assert resolve(TABLE, name) == resolve(TABLE, name)


def test_templates_are_filled_once() -> None:
    assert fill("{author}+{name}+{model}", "a/b/c") == "a+b/c+a/b/c"
    assert fill("{name}", "plain") == "plain"
    assert fill("{author}", "plain") == ""
    assert fill("{name}", "a/{model}") == "{model}"


def test_default_templates() -> None:
    text = TEXT + '  "z/*": {provider: router}\n  "y*": {provider: acme}\n'
    table = make(text)
    assert found("z/1", table) == "z/1"  # a router knows the author's names
    assert found("y/1", table) == "y/1"
    assert found("acme/1", table) == "1"
