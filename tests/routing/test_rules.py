"""Errors that need more than one field to see."""

import pytest

from tests.routing.build import BASE, catalog, errors

CASES = {
    "exact numerics on a GPU": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, device: cuda, "
        "numerics: exact}\n",
        ["line 9: models.m.endpoints[0].device: numerics exact is computed on the CPU alone"],
    ),
    "numerics nobody computes": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, numerics: quick}\n",
        ["line 9: models.m.endpoints[0].numerics: must be 'fast', 'deterministic' or 'exact'"],
    ),
    "a second tier in a file beside a GPU": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, device: cuda, "
        "kv_tier: {bytes: 1GiB, path: kv}}\n",
        [
            "line 9: models.m.endpoints[0].device: on a GPU the second KV tier is memory: leave "
            "kv_tier.path out"
        ],
    ),
    "fp8 on the CPU": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, device: cpu, "
        "precision: fp8}\n      - {provider: local, weights: ./m, numerics: exact, precision: fp8}\n",
        [
            f"line {9 + i}: models.m.endpoints[{i}].precision: fp8 is computed on a GPU alone"
            for i in range(2)
        ],
    ),
    "fp8 KV on the CPU": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, device: cpu, "
        "kv_precision: fp8}\n      - {provider: local, weights: ./m, numerics: exact, kv_precision: fp8}\n",
        [
            f"line {9 + i}: models.m.endpoints[{i}].kv_precision: fp8 is computed on a GPU alone"
            for i in range(2)
        ],
    ),
    "a precision nobody keeps KV in": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, kv_precision: auto}\n",
        ["line 9: models.m.endpoints[0].kv_precision: must be 'bf16' or 'fp8'"],
    ),
    "the precision of KV elsewhere": (
        "models:\n  m:\n    endpoints:\n      - {provider: vllm, kv_precision: fp8}\n",
        [
            "line 9: models.m.endpoints[0].kv_precision: only endpoints of type ion have kv_precision; "
            "'vllm' is openai"
        ],
    ),
    "KV in its default precision twice": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m}\n"
        "      - {provider: local, weights: ./m, kv_precision: bf16}\n",
        ["line 10: models.m.endpoints[1]: the same endpoint as endpoints[0]: provider and model are equal"],
    ),
    "an fp8 head on the CPU": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, device: cpu, "
        "head_precision: fp8}\n      - {provider: local, weights: ./m, numerics: exact, "
        "head_precision: fp8}\n",
        [
            f"line {9 + i}: models.m.endpoints[{i}].head_precision: fp8 is computed on a GPU alone"
            for i in range(2)
        ],
    ),
    "a precision no head has": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, head_precision: auto}\n",
        ["line 9: models.m.endpoints[0].head_precision: must be 'bf16' or 'fp8'"],
    ),
    "the precision of a head elsewhere": (
        "models:\n  m:\n    endpoints:\n      - {provider: vllm, head_precision: fp8}\n",
        [
            "line 9: models.m.endpoints[0].head_precision: only endpoints of type ion have head_precision; "
            "'vllm' is openai"
        ],
    ),
    "a head in its default precision twice": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m}\n"
        "      - {provider: local, weights: ./m, head_precision: bf16}\n",
        ["line 10: models.m.endpoints[1]: the same endpoint as endpoints[0]: provider and model are equal"],
    ),
    "a precision nobody computes": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, precision: int4}\n",
        ["line 9: models.m.endpoints[0].precision: must be 'auto', 'bf16' or 'fp8'"],
    ),
    "a device nobody has": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, device: tpu}\n",
        ["line 9: models.m.endpoints[0].device: must be 'auto', 'cpu' or 'cuda'"],
    ),
    "nothing to serve": ("", ["line 1: no models, no patterns and nothing to discover: nothing to serve"]),
    "an openai provider without an address": (
        "  p: {type: openai}\npatterns: {'*': {provider: p}}\n",
        ["line 6: providers.p: a provider of type openai needs base_url"],
    ),
    "a litellm provider without a name": (
        "  p: {type: litellm}\npatterns: {'*': {provider: p}}\n",
        ["line 6: providers.p: a provider of type litellm needs litellm_provider"],
    ),
    "keys for the engine inside": (
        "  p: {type: ion, keys: [A]}\nmodels: {m: {endpoints: [{provider: p, weights: ./m}]}}\n",
        ["line 6: providers.p.keys: a provider of type ion has no keys"],
    ),
    "discovery through litellm": (
        "  p: {type: litellm, litellm_provider: acme, discover: true}\npatterns: {'*': {provider: p}}\n",
        ["line 6: providers.p.discover: a provider of type litellm has no discover"],
    ),
    "keys in clear over the internet": (
        "  p: {type: openai, base_url: 'http://api.example.com'}\npatterns: {'*': {provider: p}}\n",
        [
            "line 6: providers.p.base_url: http:// to a public address sends keys and prompts in clear; "
            "use https://, or set allow_http: true"
        ],
    ),
    "one key twice": (
        "  p: {type: fake, keys: [A, B, A]}\npatterns: {'*': {provider: p}}\n",
        ["line 6: providers.p.keys[2]: A is listed twice"],
    ),
    "a header for the key": (
        "  p:\n    type: fake\n    headers:\n      authorization: x\n      'bad name': y\n"
        "patterns: {'*': {provider: p}}\n",
        [
            "line 9: providers.p.headers.authorization: this header carries a key; name the key's "
            "variable in `keys`",
            "line 10: providers.p.headers.bad name: not a valid header name",
        ],
    ),
    "an ion endpoint without weights": (
        "models:\n  m:\n    endpoints:\n      - provider: local\n",
        ["line 9: models.m.endpoints[0]: an endpoint of type ion needs weights"],
    ),
    "a litellm endpoint without a model": (
        "models:\n  m:\n    endpoints:\n      - provider: acme\n",
        ["line 9: models.m.endpoints[0]: needs model: the name that acme has for it"],
    ),
    "engine settings elsewhere": (
        "models:\n  m:\n    endpoints:\n      - {provider: vllm, threads: 4}\n",
        ["line 9: models.m.endpoints[0].threads: only endpoints of type ion have threads; 'vllm' is openai"],
    ),
    "a pattern into the engine": (
        "patterns: {'*': {provider: local}}\n",
        ["line 6: patterns.*.provider: the engine inside serves listed models only"],
    ),
    "an option nobody reads": (
        "  p: {type: openai, base_url: 'http://h', options: {api_key: x}}\n"
        "models:\n  m: {endpoints: [{provider: local, weights: 'hf:o/r/f', options: {y: 1}}]}\n",
        [
            "line 6: providers.p.options.api_key: unknown option of type openai; "
            "known here: max_tokens_field, reasoning_field",
            "line 8: models.m.endpoints[0].options.y: unknown option of type ion; known here: none",
        ],
    ),
    "options that would fail when a request comes": (
        "  f: {type: fake, options: {txet: hi, tokens: many, failure: F1, scripts: [{}, {stauts: 500}]}}\n"
        "  l: {type: litellm, litellm_provider: groq, options: {carrier: of, max_tokens_field: tokens}}\n"
        "models:\n  m: {endpoints: [{provider: f, options: {status: 1}}, {provider: l, model: x}]}\n",
        [
            "line 6: providers.f.options.tokens: must be a whole number",
            "line 6: providers.f.options.failure: must be one of transient, domain, capacity, request, "
            "endpoint_request, content, own_limit, client_left, stopped, lost_race",
            "line 6: providers.f.options.scripts[1].stauts: unknown option of type fake; "
            "did you mean 'status'?",
            "line 6: providers.f.options.txet: unknown option of type fake; did you mean 'text'?",
            "line 7: providers.l.options.max_tokens_field: must be 'max_tokens' or 'max_completion_tokens'",
            "line 7: providers.l.options.carrier: must be 'auto' or 'off'",
            "line 9: models.m.endpoints[0].options.status: must be at least 100",
        ],
    ),
    "a deadline after the end": (
        "models:\n  m:\n    endpoints:\n      - provider: vllm\n        timeouts: {first_token: 700}\n",
        ["line 10: models.m.endpoints[0].timeouts: first_token (700 s) is longer than total (600 s)"],
    ),
    "one endpoint twice": (
        "models:\n  m:\n    endpoints:\n      - {provider: vllm}\n      - {provider: vllm, model: m}\n",
        ["line 10: models.m.endpoints[1]: the same endpoint as endpoints[0]: provider and model are equal"],
    ),
    "a model that leads nowhere": (
        "models:\n  m: {name: M}\n",
        ["line 7: models.m: needs endpoints, or fallbacks"],
    ),
    "names that differ only in case": (
        "models:\n  a/m: &e {endpoints: [{provider: vllm}]}\n  A/M: *e\naliases: {X: a/m, x: a/m}\n",
        [
            "line 8: models.A/M: differs from 'a/m' only in upper and lower case",
            "line 9: aliases.x: differs from 'X' only in case",
        ],
    ),
    "an alias that is a model": (
        "models:\n  m: {endpoints: [{provider: vllm}]}\naliases:\n  M: m\n",
        ["line 9: aliases.M: 'm' is a model already"],
    ),
    "a pattern without a star": (
        "patterns:\n  gpt: {provider: vllm}\n",
        [
            "line 7: patterns.gpt: a pattern needs a * and no spaces, such as anthropic/*; list other "
            "names under models"
        ],
    ),
    "a placeholder nobody fills": (
        "patterns:\n  'a/*': {provider: vllm, model: 'x-{nme}'}\n",
        ["line 7: patterns.a/*.model: unknown placeholder {nme}; known: {model}, {name}, {author}"],
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_what_cannot_work_is_an_error(case: str) -> None:
    text, expected = CASES[case]
    assert errors(BASE + text) == expected


def test_http_to_the_internet_can_be_allowed_by_name() -> None:
    text = "  p: {type: openai, base_url: 'http://api.example.com', allow_http: true}\n"
    loaded = catalog(BASE + text + "patterns: {'*': {provider: p}}\n")
    assert loaded.spec.providers["p"].allow_http


def test_the_same_weights_may_run_with_all_numerics() -> None:
    text = "models:\n  m:\n    endpoints:\n"
    text += "      - {provider: local, weights: ./m, numerics: fast}\n"
    text += "      - {provider: local, weights: ./m, numerics: exact}\n"
    for device in ("auto", "cpu", "cuda"):
        text += f"      - {{provider: local, weights: ./m, numerics: deterministic, device: {device}}}\n"
    assert len(catalog(BASE + text).spec.models["m"].endpoints) == 5


def test_the_same_weights_may_run_on_both_devices() -> None:
    text = "models:\n  m:\n    endpoints:\n"
    text += "      - {provider: local, weights: ./m, device: cuda}\n"
    text += "      - {provider: local, weights: ./m, device: cpu}\n"
    assert len(catalog(BASE + text).spec.models["m"].endpoints) == 2


def test_the_same_weights_may_run_in_all_precisions() -> None:
    text = "models:\n  m:\n    endpoints:\n"
    text += "      - {provider: local, weights: ./m, device: cuda}\n"
    text += "      - {provider: local, weights: ./m, device: cuda, precision: fp8}\n"
    text += "      - {provider: local, weights: ./m, device: cuda, head_precision: fp8}\n"
    text += "      - {provider: local, weights: ./m, device: cuda, kv_precision: fp8}\n"
    text += "      - {provider: local, weights: ./m, device: cuda, head_precision: fp8, kv_precision: fp8}\n"
    text += "      - {provider: local, weights: ./m, device: cuda, precision: fp8, kv_precision: fp8}\n"
    assert len(catalog(BASE + text).spec.models["m"].endpoints) == 6


def test_a_model_may_be_nothing_but_a_list_of_fallbacks() -> None:
    text = "models:\n  auto: {fallbacks: [m]}\n  m: {endpoints: [{provider: vllm}]}\n"
    assert catalog(BASE + text).spec.models["auto"].endpoints == []


def test_a_file_may_rely_on_discovery_alone() -> None:
    text = "providers:\n  vllm: {type: openai, base_url: 'http://vllm:8000/v1', discover: true}\n"
    assert catalog(text).warnings == ()
