"""The stock litellm package as a client: what python/litellm_journey.py saw, judged."""

from __future__ import annotations

import sys

import pytest

from tests.clients.journey import PYTHON, Journey, Seen, run
from tests.support.accounts import Bank

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def seen(bank: Bank, poor_key: str) -> dict[str, Seen]:
    return run([sys.executable, "litellm_journey.py"], PYTHON, bank, poor_key)


class TestLiteLLM(Journey):
    pass
