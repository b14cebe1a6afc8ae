"""Warnings: the file works, but less well than its author may think."""

import os
from pathlib import Path

import pytest

from ionrouter.routing.catalog import check
from tests.routing.build import BASE, BOOK, TODAY, catalog, warnings

KEY = {"ACME_KEY": "k", "K": "k"}
USED = "patterns:\n  'v/*': {provider: vllm}\n  's/*': {provider: script}\n  'a/*': {provider: acme}\n"
LOCAL = "models:\n  m:\n    endpoints:\n      - {provider: local, weights: 'hf:o/r/f'}\n"


def found(text: str, env: dict[str, str] = KEY) -> list[str]:
    shown = warnings(BASE + text, env)
    assert all(problem.severity == "warning" for problem in shown)
    return [str(problem) for problem in shown]


def test_one_warning_a_variable_names_everything_it_disables() -> None:
    offers = "".join(f"  m{n}: {{endpoints: [{{provider: acme, model: big}}]}}\n" for n in range(5))
    assert found(LOCAL + offers + USED, {}) == [
        "line 3: providers.acme.keys[0]: ACME_KEY is unset; disabled: "
        "acme/m0, acme/m1, acme/m2, acme/m3 and 2 more"
    ]


def test_an_empty_variable_is_unset() -> None:
    assert found(LOCAL + USED, {"ACME_KEY": " "})[0].startswith("line 3: providers.acme.keys[0]: ACME_KEY is")
    assert found(LOCAL + USED, {"ACME_KEY": "x"}) == []


@pytest.mark.parametrize(
    ("url", "words"),
    [
        ("https://api.openai.com/v1/chat/completions", "itself; write 'https://api.openai.com/v1'"),
        ("http://127.0.0.1:8000/v1/completions/", "/completions itself; write 'http://127.0.0.1:8000/v1'"),
        ("http://127.0.0.1:8000/v1/embeddings", "adds /embeddings itself"),
        ("http://127.0.0.1:8000/models", "adds /models itself; write 'http://127.0.0.1:8000"),
        ("https://api.openai.com", "the API of api.openai.com is at 'https://api.openai.com/v1'"),
        ("https://openrouter.ai/api/", "the API of openrouter.ai is at 'https://openrouter.ai/api/v1'"),
        ("https://api.fireworks.ai/v1", "is at 'https://api.fireworks.ai/inference/v1'"),
        ("http://localhost:11434", "the API of localhost is at 'http://localhost:11434/v1'"),
        ("http://127.0.0.1:0/v1", "port 0 is no server's"),
    ],
)
def test_an_address_where_the_api_is_not_is_told(url: str, words: str) -> None:
    (told,) = warnings(BASE.replace("http://127.0.0.1:8000/v1", url) + LOCAL + USED, KEY)
    assert str(told).startswith("line 4: providers.vllm.base_url: ") and words in str(told)


@pytest.mark.parametrize(
    "url",
    [
        *("https://api.openai.com/v1", "https://eu.api.openai.com", "https://openrouter.ai/api/v1/"),
        *("http://127.0.0.1:8000", "https://gateway.example/models/openai", "https://api.deepseek.com"),
        *("https://api.fireworks.ai/custom/v1", "https://completions.example:11434/ollama/v1"),
    ],
)
def test_an_address_that_may_be_right_is_not_told(url: str) -> None:
    assert warnings(BASE.replace("http://127.0.0.1:8000/v1", url) + LOCAL + USED, KEY) == []


PROXY = {"HTTPS_PROXY": "http://proxy.example:3128"}


@pytest.mark.parametrize(
    ("env", "is_told"),
    [
        ({**KEY, **PROXY}, True),
        ({**KEY, "all_proxy": "socks5://proxy.example"}, True),
        ({**KEY, **PROXY, "NO_PROXY": "*"}, False),
        ({**KEY, "HTTPS_PROXY": " "}, False),
        (KEY, False),
    ],
)
def test_a_proxy_that_will_not_be_used_is_told(env: dict[str, str], is_told: bool) -> None:
    """Of the first provider that is reached over it elsewhere, and has a key."""
    told = [warning for warning in found(LOCAL + USED, env) if "prox" in warning]
    assert len(told) == is_told
    assert all(
        "but proxies of the environment are ignored: it is reached directly" in warning for warning in told
    )


def test_a_proxy_is_no_matter_where_nothing_hosted_is_used() -> None:
    assert not [warning for warning in found(LOCAL + USED, {**PROXY, "K": "k"}) if "proxies" in warning]


def test_each_of_several_keys_is_warned_of_alone() -> None:
    text = "providers:\n  p:\n    type: fake\n    keys:\n      - K1\n      - K2\n"
    text += "models: {m: {endpoints: [{provider: p}]}}\n"
    shown = [str(problem) for problem in warnings(text, {"K1": "x"})]
    assert shown == ["line 6: providers.p.keys[1]: K2 is unset; disabled: p/m"]


RETIRED = [
    ("old", "has been retired there since 2026-05-31, by litellm's price list; named successor: acme/big"),
    ("soon", "will be retired there on 2026-06-02, by litellm's price list"),
]


@pytest.mark.parametrize(("model", "message"), RETIRED)
def test_a_retired_model_is_told_with_date_and_successor(model: str, message: str) -> None:
    text = LOCAL + f"  n:\n    endpoints:\n      - provider: acme\n        model: {model}\n" + USED
    assert found(text) == [f"line 13: models.n.endpoints[0].model: {message}"]


def test_an_endpoint_without_any_price_says_what_follows() -> None:
    text = LOCAL + "  n:\n    endpoints:\n      - {provider: acme, model: nobody-knows}\n" + USED
    assert found(text) == [
        "line 12: models.n.endpoints[0]: no price here and none in litellm's list: weighed like "
        "the model's dearest, billed as 0; set prices: {prompt, completion}"
    ]


def test_an_explicit_zero_is_a_price() -> None:
    text = (
        LOCAL
        + "  n:\n    endpoints:\n      - {provider: acme, model: x, prices: {prompt: 0, completion: 0}}\n"
    )
    assert found(text + USED) == []


def test_prices_per_token_are_noticed() -> None:
    text = (
        LOCAL
        + "  n: {endpoints: [{provider: acme, model: x, prices: {prompt: 1e-6, completion: 2}}]}\n"
        + USED
    )
    assert found(text) == [
        "line 10: models.n.endpoints[0].prices.prompt: 1e-06 USD per million tokens; prices are per million, "
        "this looks like per token"
    ]


def test_a_provider_that_litellm_does_not_know_gets_the_nearest_name() -> None:
    text = (
        "  p: {type: litellm, litellm_provider: acmee, keys: [K]}\n"
        + LOCAL
        + USED
        + "  'p/*': {provider: p}\n"
    )
    assert found(text) == [
        "line 6: providers.p.litellm_provider: litellm's price list has no provider 'acmee'; did "
        "you mean 'acme'?"
    ]


def test_a_doubled_prefix_is_noticed() -> None:
    text = (
        LOCAL + "  n: {endpoints: [{provider: acme, model: acme/big, prices: {prompt: 1, completion: 1}}]}\n"
    )
    assert found(text + USED) == [
        "line 10: models.n.endpoints[0].model: write 'big': the prefix acme/ is added from litellm_provider"
    ]


def test_weights_that_are_not_there_are_told_by_their_whole_path(tmp_path: Path) -> None:
    text = BASE + "models: {m: {endpoints: [{provider: local, weights: sub/m.gguf}]}}\n" + USED
    shown = [str(p) for p in catalog(text, KEY, tmp_path).warnings]
    assert shown == [f"line 6: models.m.endpoints[0].weights: no file {tmp_path}/sub/m.gguf"]
    (tmp_path / "sub").mkdir()
    (tmp_path / "sub" / "m.gguf").write_bytes(b"GGUF")
    assert catalog(text, KEY, tmp_path).warnings == ()


def test_weights_that_are_neither_file_nor_folder_are_told(tmp_path: Path) -> None:
    text = BASE + "models: {m: {endpoints: [{provider: local, weights: m.gguf}]}}\n" + USED
    os.mkfifo(tmp_path / "m.gguf")
    shown = [str(p) for p in catalog(text, KEY, tmp_path).warnings]
    assert shown == [f"line 6: models.m.endpoints[0].weights: neither a file nor a folder: {tmp_path}/m.gguf"]


def test_providers_that_nothing_uses_are_told() -> None:
    assert found(LOCAL + "patterns: {'a/*': {provider: acme}}\n") == [
        "line 4: providers.vllm: no model and no pattern uses this provider",
        "line 5: providers.script: no model and no pattern uses this provider",
    ]


def test_fallbacks_to_itself_or_twice_are_told() -> None:
    text = (
        LOCAL + "    fallbacks: [me, n, n]\n  n: {endpoints: [{provider: script}]}\naliases: {me: m}\n" + USED
    )
    assert found(text) == [
        "line 10: models.m.fallbacks[0]: a model that falls back to itself; ignored",
        "line 10: models.m.fallbacks[2]: 'n' is listed twice; the first counts",
    ]


def test_vectors_of_several_models_under_one_name_are_told() -> None:
    """A fallback's would be written into the same index, where nothing finds them."""
    makes = "output_modalities: [embeddings], endpoints: [{provider: vllm}]"
    text = (
        f"models:\n  v/one: {{{makes}, fallbacks: [two, v/one, s/chat]}}\n  v/two: {{{makes}}}\n"
        "  s/chat: {endpoints: [{provider: script}], fallbacks: [v/two]}\n"
        "aliases: {two: v/two}\ngroups: {a: [v/one, two, s/chat], b: [v/two, two, s/chat]}\n"
    )
    told = [warning.partition(": ")[2] for warning in found(text + USED) if "vectors" in warning]
    assert told == [
        "models.v/one.fallbacks[0]: "
        "vectors of 'two' cannot be compared with those of 'v/one': an index gets both",
        "groups.a: vectors of v/one, two cannot be compared, and each request gets either's",
    ]


def test_a_name_that_shadows_a_variant_is_told() -> None:
    text = LOCAL + "  m:nitro: {endpoints: [{provider: vllm}]}\n  m:free: {endpoints: [{provider: vllm}]}\n"
    assert found(text + "aliases: {'x:floor': m, 'llama3:8b': m}\n" + USED) == [
        "line 10: models.m:nitro: a name of its own: ':nitro' will not choose endpoints by that rule here",
        "line 12: aliases.x:floor: a name of its own: ':floor' will not choose endpoints by that rule here",
    ]


REDUNDANT = {
    "two keys of two accounts": ("{type: fake, keys: [A, B]}", "", None),
    "two keys of one account": ("{type: fake, keys: [A, B], domain: acct}", "", "all 2 endpoints"),
    "a fallback at the same provider": ("{type: fake}", "    fallbacks: [n]\n", "all 2 endpoints"),
    "a single endpoint": ("{type: fake}", "", None),
}


@pytest.mark.parametrize("case", REDUNDANT)
def test_endpoints_that_fail_together_are_told(case: str) -> None:
    provider, fallbacks, expected = REDUNDANT[case]
    text = f"providers:\n  p: {provider}\nmodels:\n  m:\n    endpoints: [{{provider: p}}]\n{fallbacks}"
    text += "  n: {endpoints: [{provider: p, model: other}]}\n"
    shown = [str(problem) for problem in warnings(text, {"A": "1", "B": "2"}) if problem.path == "models.m"]
    domain = "acct" if "domain" in provider else "p"
    tail = f", fallbacks included, are in failure domain '{domain}': they fail together"
    assert shown == ([f"line 4: models.m: {expected}{tail}"] if expected else [])


def test_two_servers_on_this_machine_are_one_failure_domain() -> None:
    text = LOCAL + "      - {provider: vllm}\n" + USED
    assert found(text) == [
        "line 7: models.m: all 2 endpoints, fallbacks included, are in failure domain 'this-machine': "
        "they fail together"
    ]


def test_a_group_of_nothing_is_told() -> None:
    text = LOCAL + "  a: {fallbacks: [b]}\n  b: {fallbacks: [a]}\n" + USED
    assert [warning.split(": ", 2)[2] for warning in found(text)] == [
        "neither this model nor a fallback has an endpoint"
    ] * 2


def test_discovery_without_a_key_is_told(tmp_path: Path) -> None:
    text = "providers: {p: {type: openai, base_url: 'https://h.example.com', keys: [K], discover: true}}\n"
    assert [str(problem) for problem in warnings(text)] == [
        "line 1: providers.p.keys[0]: K is unset; disabled: discovery at p"
    ]


def test_check_gives_errors_and_with_them_the_warnings_that_hold_anyway(tmp_path: Path) -> None:
    path = tmp_path / "routes.yaml"
    path.write_text(BASE + LOCAL + USED)
    assert [p.severity for p in check(path, {}, BOOK, TODAY)] == ["warning"]
    path.write_text(BASE + LOCAL + USED + "aliases: {a: nobody}\n")
    assert [p.severity for p in check(path, {}, BOOK, TODAY)] == ["error", "warning"]
    path.write_text("models: {m: {endpoints: [{provider: gone}]}}\naliases: {a: a}\n")
    assert [str(p) for p in check(path, {}, BOOK, TODAY)] == [
        "line 1: models.m.endpoints[0].provider: no provider 'gone'",
        "line 2: aliases.a: aliases go round in a circle: a -> a",
    ]
    assert [p.severity for p in check(tmp_path / "none", {}, BOOK, TODAY)] == ["error"]
