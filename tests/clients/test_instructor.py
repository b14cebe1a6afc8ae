"""The stock instructor package: what python/instructor_journey.py saw, judged."""

from __future__ import annotations

import pytest

from tests.clients.journey import PYTHON, Journey, Seen, environment_python, run
from tests.support.accounts import Bank

pytestmark = pytest.mark.clients


@pytest.fixture(scope="module")
def seen(bank: Bank, poor_key: str) -> dict[str, Seen]:
    return run([environment_python("langchain"), "instructor_journey.py"], PYTHON, bank, poor_key)


class TestInstructor(Journey):
    def test_a_structured_stream_ends_whole(self, seen: dict[str, Seen]) -> None:
        assert seen["structured_streamed"] == {"value": {"city": "Oslo", "degrees": 4}}
