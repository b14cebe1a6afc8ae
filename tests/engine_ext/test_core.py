"""The C++ tests of engine_ext/core, built once into build/engine_ext_tests and run one executable a test.

Knows no C++: each executable says on its own what failed (tests/engine_ext/check.h).
"""

from pathlib import Path

import pytest

from tests.support.cxx import built, run

HERE = Path(__file__).parent
EXECUTABLES = sorted(source.stem for source in HERE.glob("core/test_*.cpp"))


@pytest.fixture(scope="session")
def build() -> Path:
    return built(HERE, "engine_ext_tests")


@pytest.mark.parametrize("name", EXECUTABLES)
def test_the_core_does_what_its_tests_say(build: Path, name: str) -> None:
    run(build / name)


def test_every_core_test_is_found() -> None:
    assert {"test_detokenizer", "test_stop_matcher", "test_scheduler", "test_engine"} <= set(EXECUTABLES)
