"""The stock langchain-openrouter package: what python/langchain_openrouter_journey.py saw, judged."""

from __future__ import annotations

import pytest

from tests.clients.journey import PYTHON, Journey, Seen, environment_python, run
from tests.support.accounts import Bank

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def seen(bank: Bank, poor_key: str) -> dict[str, Seen]:
    return run([environment_python("langchain"), "langchain_openrouter_journey.py"], PYTHON, bank, poor_key)


class TestLangChainOpenRouter(Journey):
    def test_a_stream_that_breaks_is_no_success(self, seen: dict[str, Seen]) -> None:
        """This client drops the error of a chunk: the finish reason is all that its caller gets."""
        assert seen["breaks"] == {"text": "word0 word1", "finish": ["error"]}
