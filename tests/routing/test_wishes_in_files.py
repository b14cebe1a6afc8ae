"""Groups, presets, service tiers and distillation, from routes.yaml to the table."""

from __future__ import annotations

from textwrap import dedent

import pytest

from tests.routing.build import catalog, errors, table

PROVIDER = "providers:\n  f: {type: fake}\n"


def text_of(more: str) -> str:
    return PROVIDER + dedent(more)


def test_the_table_holds_groups_presets_tiers_and_who_allows_distillation() -> None:
    made = table(
        text_of(
            """
            models:
              m:
                distillable: true
                endpoints: [{provider: f}, {provider: f, service_tier: flex}]
              n: {endpoints: [{provider: f}]}
            groups: {openrouter/auto: [m, "n:free"]}
            presets: {terse: {temperature: 0.1, provider: {sort: price}}}
            """
        )
    )
    assert made.groups == {"openrouter/auto": ("m", "n:free")}
    assert made.presets["terse"]["provider"] == {"sort": "price"}
    assert (made.models["m"].is_distillable, made.models["n"].is_distillable) == (True, None)
    usual, flex = made.models["m"].endpoints
    assert (usual.tag, flex.tag, flex.service_tier) == ("f", "f/flex", "flex")
    assert usual.identity != flex.identity


MODELS = "models:\n  m: {endpoints: [{provider: f}]}\naliases: {a: m}\n"


@pytest.mark.parametrize(
    ("more", "message"),
    [
        ("groups: {g: [m, nope]}", "groups.g[1]: no model, alias or pattern is 'nope'"),
        ("groups: {g: ['nope:free']}", "groups.g[0]: no model, alias or pattern is 'nope:free'"),
        ("groups: {M: [m]}", "groups.M: is a model or an alias already"),
        ("groups: {a: [m]}", "groups.a: is a model or an alias already"),
        ("presets: {p: {messages: []}}", "presets.p.messages: belongs to requests, not to presets"),
        ("presets: {p: {cache_enabled: 1}}", "presets.p.cache_enabled: should be true or false"),
        (
            "presets: {p: {cache_ttl_seconds: 90000}}",
            "presets.p.cache_ttl_seconds: should be a whole number of seconds from 1 to 86400",
        ),
        (
            "presets: {p: {cache_ttl_seconds: true}}",
            "presets.p.cache_ttl_seconds: should be a whole number of seconds from 1 to 86400",
        ),
        ("presets: {p: {temperature: 9}}", "presets.p: temperature"),
        ("presets: {p: {provider: {srot: price}}}", "presets.p: provider: Unrecognized key(s)"),
    ],
)
def test_what_could_never_work_is_told_at_load(more: str, message: str) -> None:
    (found,) = errors(PROVIDER + MODELS + more + "\n")
    assert message in found


@pytest.mark.parametrize("more", ["groups: {g: [m, A, 'm:nitro:free']}", "presets: {p: {model: any}}"])
def test_what_may_work_passes(more: str) -> None:
    assert catalog(PROVIDER + MODELS + more + "\n").spec.models.keys() == {"m"}
