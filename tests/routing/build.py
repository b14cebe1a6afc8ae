"""Small routes.yaml texts and what comes out of them, for the tests of routing."""

from __future__ import annotations

import datetime
from collections.abc import Mapping
from pathlib import Path
from textwrap import dedent

from ionrouter.errors import ConfigError, Problem
from ionrouter.routing.catalog import Catalog, loads
from ionrouter.routing.graph import compile_table
from ionrouter.routing.prices import PriceBook
from ionrouter.routing.table import RoutingTable

TODAY = datetime.date(2026, 6, 1)
ROUTES = Path(__file__).parents[2] / "routes.yaml"

# A price list in litellm's shape, with round figures.
BOOK = PriceBook(
    {
        "acme/big": {
            "litellm_provider": "acme",
            "mode": "chat",
            "input_cost_per_token": 2e-06,
            "output_cost_per_token": 4e-06,
            "cache_read_input_token_cost": 5e-07,
            "max_input_tokens": 1000,
            "max_output_tokens": 100,
            "supports_function_calling": True,
        },
        "acme/roomy": {
            "litellm_provider": "acme",
            "mode": "chat",
            "input_cost_per_token": 2e-06,
            "input_cost_per_token_above_200k_tokens": 3e-06,
            "output_cost_per_token": 4e-06,
            "output_cost_per_token_above_200k_tokens": 8e-06,
            "cache_read_input_token_cost": 5e-07,
            "cache_read_input_token_cost_above_200k_tokens": 6e-07,
        },
        "acme/old": {
            "litellm_provider": "acme",
            "mode": "chat",
            "input_cost_per_token": 1e-06,
            "output_cost_per_token": 1e-06,
            "deprecation_date": "2026-05-31",
            "successor_model": "acme/big",
        },
        "acme/soon": {
            "litellm_provider": "acme",
            "mode": "chat",
            "input_cost_per_token": 1e-06,
            "output_cost_per_token": 1e-06,
            "deprecation_date": "2026-06-02",
        },
        "bare-name": {"litellm_provider": "acme", "mode": "chat", "max_tokens": 77},
        "acme/llama-v3p3-70b-instruct": {"litellm_provider": "acme", "mode": "chat"},
    }
)

# One provider of each type, and something to serve.
BASE = """\
providers:
  local: {type: ion}
  acme: {type: litellm, litellm_provider: acme, keys: [ACME_KEY]}
  vllm: {type: openai, base_url: "http://127.0.0.1:8000/v1"}
  script: {type: fake}
"""


def catalog(
    text: str, env: Mapping[str, str] | None = None, folder: Path = Path("/etc/ionrouter")
) -> Catalog:
    """Load a text, with BOOK as the price list."""
    return loads(dedent(text), folder / "routes.yaml", env or {}, BOOK, TODAY)


def table(text: str, env: Mapping[str, str] | None = None) -> RoutingTable:
    """Load and compile a text."""
    return compile_table(catalog(text, env), env or {})


def errors(text: str) -> list[str]:
    """The errors of a text, as people see them; fails if there are none."""
    try:
        catalog(text)
    except ConfigError as error:
        return [str(problem) for problem in error.problems]
    raise AssertionError("the text has no errors")


def warnings(text: str, env: Mapping[str, str] | None = None) -> list[Problem]:
    """The warnings of a text without errors."""
    return list(catalog(text, env).warnings)
