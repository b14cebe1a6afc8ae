"""The stock ai package with @openrouter/ai-sdk-provider for Node: what node/ai_sdk.mjs saw, judged."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.clients.journey import Journey, Seen, run
from tests.support.accounts import Bank

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def seen(bank: Bank, poor_key: str, node: Path) -> dict[str, Seen]:
    return run(["node", "ai_sdk.mjs"], node, bank, poor_key)


class TestAISDK(Journey):
    def test_embeddings(self, seen: dict[str, Seen]) -> None:
        assert seen["embeddings"] == {"rows": [[0, 1], [1, 1]]}
