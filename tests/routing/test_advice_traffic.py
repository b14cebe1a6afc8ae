"""Warnings on hedges, shadows, canaries, splits and probes that do less, or more, than meant."""

from __future__ import annotations

from pathlib import Path

import pytest

from ionrouter.routing import catalog
from ionrouter.routing.prices import PriceBook

PROVIDERS = """
providers:
  a: { type: openai, base_url: "http://127.0.0.1:1/v1" }
  b: { type: openai, base_url: "http://127.0.0.1:2/v1" }
  c: { type: openai, base_url: "http://127.0.0.1:3/v1", keys: [UNSET_KEY] }
  quiet: { type: openai, base_url: "http://127.0.0.1:4/v1", data_collection: deny }
"""
TWO = "[{provider: a}, {provider: b}]"


def warnings(endpoints: str, fields: str) -> list[str]:
    text = f"{PROVIDERS}\nmodels:\n  m:\n    endpoints: {endpoints}\n    {fields}\n"
    found = catalog.loads(text, Path("/x/routes.yaml"), {}, PriceBook()).warnings
    return [f"{w.path}: {w.message}" for w in found if w.path.startswith("models.m")]


@pytest.mark.parametrize(
    ("endpoints", "fields", "expected"),
    [
        (
            "[{provider: a}]",
            "hedge: {}",
            "models.m.hedge: nobody to ask beside: 1 endpoint of this model can",
        ),
        (
            "[{provider: a}, {provider: c, prices: {prompt: 1, completion: 1}}]",
            "hedge: {}",
            "models.m.hedge: nobody to ask beside: 1 endpoint",
        ),
        (TWO, "hedge: {budget: 0}", "models.m.hedge.budget: 0: no second endpoint is ever asked"),
        (
            "[{provider: a, timeouts: {first_token: 2}}, {provider: b}]",
            "hedge: {after: 3}",
            "models.m.hedge: waits 3 s, but an attempt ends after 2 s",
        ),
        (TWO, "shadow: {endpoint: b, share: 0}", "models.m.shadow.share: 0: nothing is copied"),
        (
            "[{provider: a}, {provider: c, prices: {prompt: 1, completion: 1}}]",
            "shadow: {endpoint: c}",
            "models.m.shadow.endpoint: c/m is disabled: UNSET_KEY is unset",
        ),
        (
            "[{provider: quiet}, {provider: b}]",
            "shadow: {endpoint: b}",
            "models.m.shadow.endpoint: copies of prompts go to b/m, whose provider may keep them",
        ),
        (
            "[{provider: a}, {provider: c, prices: {prompt: 1, completion: 1}}]",
            "canary: {endpoint: c, percent: 5}",
            "models.m.canary: 'c' cannot be used now: its 5% go to the others",
        ),
        (
            "[{provider: a}, {provider: b}, {provider: quiet}]",
            "split: {a: 50, b: 50}",
            "models.m.split: in no part, so only a fallback: quiet/m",
        ),
        (
            "[{provider: a, probe: 1}, {provider: b}]",
            "name: M",
            "models.m.endpoints[0].probe: a request every 1 s",
        ),
    ],
)
def test_what_will_not_work_as_meant_is_told(endpoints: str, fields: str, expected: str) -> None:
    told = [w for w in warnings(endpoints, fields) if w.startswith(expected)]
    assert len(told) == 1, warnings(endpoints, fields)


@pytest.mark.parametrize(
    "fields",
    [
        "hedge: {}",
        "hedge: {after: 2}",
        "canary: {endpoint: b, percent: 5}",
        "split: {a: 50, b: 50}",
        "shadow: {endpoint: b}",
    ],
)
def test_what_works_is_not_warned_of(fields: str) -> None:
    domain = "[{provider: a, domain: one}, {provider: b, domain: two}]"
    assert warnings(domain, fields) == []
