"""What every client must see, whatever its library: one script a client, one class of tests for all.

The scripts (python/*_journey.py, node/*.mjs) play the steps in the client's own environment and print what
they saw; here it is judged.
"""

from __future__ import annotations

import json
import os
import subprocess
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import pytest

from tests.support.accounts import Bank
from tests.support.server import ROOT

PYTHON = Path(__file__).parent / "python"
ENVIRONMENTS = ROOT / ".venv-clients"
GUARD_S = 300.0  # how long a script may take before the test is wrong; never a bound under test

Seen = Mapping[str, Any]
STATUSES = {"unauthorized": 401, "unpaid": 402, "filtered": 404, "limited": 429, "down": 503}


def environment_python(name: str) -> str:
    """The interpreter of a client environment; skips where `make test-clients` has not built it."""
    stamp = ENVIRONMENTS / name / ".installed"
    if not stamp.exists():
        pytest.skip(f".venv-clients/{name} is not there: `make test-clients` builds it and runs this")
    return str(ENVIRONMENTS / name / "bin" / "python")


def run(command: Sequence[str], folder: Path, bank: Bank, poor_key: str) -> dict[str, Seen]:
    """Run a client's script against a server; returns what each step saw."""
    written = output_of(command, folder, bank, poor_key)
    lines = [json.loads(line) for line in written.splitlines() if line.startswith('{"step"')]
    return {line.pop("step"): line for line in lines}


def output_of(command: Sequence[str], folder: Path, bank: Bank, poor_key: str) -> str:
    """Run a script that is told of a server; returns what it printed."""
    kept = {k: v for k, v in os.environ.items() if not k.startswith(("OPENAI_", "OPENROUTER_", "PYTHON"))}
    told = {
        "IONROUTER_BASE_URL": bank.server.base_url,
        "IONROUTER_KEY": bank.key,
        "IONROUTER_POOR_KEY": poor_key,
        "PYTHONDONTWRITEBYTECODE": "1",
    }
    done = subprocess.run(
        command, cwd=folder, env=kept | told, capture_output=True, text=True, timeout=GUARD_S
    )
    assert done.returncode == 0, done.stdout + done.stderr
    return done.stdout


class Journey:
    """The tests of one client; each subclass has a fixture `seen` and may add what only it can see."""

    def test_a_whole_answer(self, seen: dict[str, Seen]) -> None:
        assert "raised" not in seen["whole"], seen["whole"]
        assert seen["whole"]["text"] == "Hello from the router"
        self.told_alike(seen["whole"])

    def test_a_stream_says_the_same(self, seen: dict[str, Seen]) -> None:
        assert "raised" not in seen["streamed"], seen["streamed"]
        assert seen["streamed"]["text"] == "Hello from the router"
        self.told_alike(seen["streamed"])

    @staticmethod
    def told_alike(answer: Seen) -> None:
        """Judge the extras, as far as a client shows them."""
        expected = {"finish": "stop", "model": "acme/hello", "reasoning": "thinking", "provider": "Fake"}
        shown = {name: answer[name] for name in expected if name in answer}
        assert shown == {name: expected[name] for name in shown}
        assert answer.get("tokens", 14) == 14
        if answer.get("cost") is not None:
            assert answer["cost"] == pytest.approx(0.000018)

    @pytest.mark.parametrize("step", ["tool", "tool_streamed"])
    def test_a_tool_call(self, seen: dict[str, Seen], step: str) -> None:
        call = seen[step]
        assert "raised" not in call, call
        arguments = call["value"] if "value" in call else json.loads(call["arguments"])
        assert arguments == {"city": "Oslo"}
        assert call.get("name", "weather") == "weather"
        assert call.get("id", "call_1") == "call_1"
        assert call.get("num_calls", 1) == 1
        assert call.get("finish", "tool_calls") in ("tool_calls", "tool-calls")

    def test_structured_output(self, seen: dict[str, Seen]) -> None:
        assert seen["structured"].get("value") == {"city": "Oslo", "degrees": 4}, seen["structured"]

    @pytest.mark.parametrize("step", STATUSES)
    def test_a_refusal_has_its_status_and_its_reason(self, seen: dict[str, Seen], step: str) -> None:
        raised = seen[step]["raised"]
        status = STATUSES[step]
        assert raised["status"] == status or f"{status}" in raised["message"], raised
        reasons = {
            "unauthorized": "this API key is not valid",
            "unpaid": "this key's limit is",
            "filtered": "not in provider.only",
        }
        assert reasons.get(step, "") in raised["message"]
        assert "validation" not in raised["message"].lower(), raised

    def test_a_stream_that_breaks_is_no_success(self, seen: dict[str, Seen]) -> None:
        """Some clients raise, some hand the error over: either way its text arrives."""
        told = seen["breaks"]
        message = told["raised"]["message"] if "raised" in told else told["error"]
        assert "wire cut" in message
        assert told.get("text", "word0 word1") == "word0 word1"
        assert told.get("finish", "error") == "error"


class OpenRouterJourney(Journey):
    """What OpenRouter's own packages can see beyond chat."""

    def test_models(self, seen: dict[str, Seen]) -> None:
        assert "acme/hello" in seen["models"]["ids"]
        assert "acme/embed" not in seen["models"]["ids"]  # what writes no text is listed to who asks for it
        assert seen["models"]["total"] == len(seen["models"]["ids"])
        assert seen["model"] == {"id": "acme/hello", "name": "Acme Hello"}

    def test_endpoints_and_providers(self, seen: dict[str, Seen]) -> None:
        assert seen["endpoints"] == {"id": "acme/hello", "provider": "Fake", "price": "0.000001"}
        assert "Fake" in seen["providers"]["names"]

    def test_the_key(self, seen: dict[str, Seen]) -> None:
        assert seen["key"]["label"].startswith("sk-or-v1-")
        assert seen["key"]["usage"] > 0
        assert seen["key"]["management"] is False

    def test_embeddings(self, seen: dict[str, Seen]) -> None:
        """[0.0, 1.0] as little-endian float32 is what the base64 says."""
        assert seen["embeddings"] == {"rows": [[0, 1], [1, 1]], "coded": "AAAAAAAAgD8="}

    def test_rerank(self, seen: dict[str, Seen]) -> None:
        rows = [[0, 1, "a"], [1, 0.5, "b"]]
        assert seen["rerank"] == {"rows": rows, "model": "acme/rank", "provider": "Fake", "units": 1}

    def test_endpoints_that_keep_nothing_and_the_keys_own_models(self, seen: dict[str, Seen]) -> None:
        assert "acme/rank" in seen["zdr"]["models"]
        assert seen["own_models"]["ids"] == seen["models"]["ids"]

    def test_the_generation_agrees_with_the_answer(self, seen: dict[str, Seen]) -> None:
        told = seen["generation"]
        assert told["kept"] == told["asked"] == [10, 4, 0.000018]
        assert (told["attempts"], told["finish"]) == (["Fake"], "stop")

    def test_responses(self, seen: dict[str, Seen]) -> None:
        text = "Hello from the router"
        assert seen["responses"] == {"texts": [text], "status": "completed", "tokens": 14}
        assert seen["responses_streamed"] == {"text": text, "last": "response.completed", "texts": [text]}
        call = {"id": "call_1", "name": "weather", "arguments": '{"city":"Oslo"}', "num_calls": 1}
        assert seen["responses_tool"] == call
