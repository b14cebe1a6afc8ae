"""The stock pydantic-ai package: what python/pydantic_ai_journey.py saw, judged."""

from __future__ import annotations

import pytest

from tests.clients.journey import PYTHON, Journey, Seen, environment_python, run
from tests.support.accounts import Bank

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def seen(bank: Bank, poor_key: str) -> dict[str, Seen]:
    return run([environment_python("openrouter"), "pydantic_ai_journey.py"], PYTHON, bank, poor_key)


class TestPydanticAI(Journey):
    pass
