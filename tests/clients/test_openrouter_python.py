"""The stock openrouter package for Python: what python/openrouter_journey.py saw, judged."""

from __future__ import annotations

import pytest

from tests.clients.journey import PYTHON, OpenRouterJourney, Seen, environment_python, run
from tests.support.accounts import Bank

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def seen(bank: Bank, poor_key: str) -> dict[str, Seen]:
    return run([environment_python("openrouter"), "openrouter_journey.py"], PYTHON, bank, poor_key)


class TestOpenRouter(OpenRouterJourney):
    pass
