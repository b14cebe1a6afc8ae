"""Tiny models shared by the engine's tests."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.support.tiny_model import write_tiny_model


@pytest.fixture(scope="session")
def tiny_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "tiny.gguf")


@pytest.fixture(scope="session")
def endless_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A model whose answers can be longer than any test waits: they run until somebody ends them."""
    return write_tiny_model(tmp_path_factory.mktemp("model") / "endless.gguf", context_length=65_536)


@pytest.fixture(scope="session")
def poisoned_model(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_tiny_model(tmp_path_factory.mktemp("model") / "poisoned.gguf", poisoned=True)
