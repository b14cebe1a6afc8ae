"""The stock @openrouter/sdk package for Node: what node/openrouter_sdk.mjs saw, judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.journey import OpenRouterJourney, Seen, run
from tests.support.accounts import Bank

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def seen(bank: Bank, poor_key: str, node: Path) -> dict[str, Seen]:
    return run(["node", "openrouter_sdk.mjs"], node, bank, poor_key)


class TestOpenRouterSDK(OpenRouterJourney):
    pass
