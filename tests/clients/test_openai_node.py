"""The stock openai package for Node, with only baseURL changed: what node/journey.mjs saw, judged here."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from tests.clients.journey import STATUSES, output_of
from tests.support.accounts import Bank
from tests.support.server import eventually

WORDS = " ".join(f"word{i}" for i in range(40))


@pytest.fixture(scope="module")
def seen(bank: Bank, poor_key: str, node: Path) -> Any:
    return json.loads(output_of(["node", "journey.mjs"], node, bank, poor_key))


def test_both_modes_and_the_helper(seen: Any) -> None:
    assert seen["whole"]["text"] == seen["stream"]["text"] == seen["helper"] == "Hello from the router"
    assert seen["whole"]["provider"] == "Fake"
    assert seen["whole"]["cost"] > 0
    assert seen["stream"]["usage"]["completion_tokens"] > 0
    assert len(seen["stream"]["ids"]) == 1


def test_tool_calls_completions_and_models(seen: Any) -> None:
    (call,) = seen["tools"]
    assert (call["id"], call["function"]["name"]) == ("call_1", "weather")
    streamed = seen["toolStream"]
    assert (streamed[0]["id"], streamed[0]["function"]["name"]) == ("call_1", "weather")
    joined = "".join(part["function"].get("arguments", "") for part in streamed)
    assert joined == call["function"]["arguments"] == '{"city":"Oslo"}'
    assert seen["completion"] == "Hello from the router"
    assert "acme/hello" in seen["models"]
    assert seen["model"] == "acme/hello"


def test_embeddings_come_in_the_base64_it_asks_for(seen: Any) -> None:
    """This client returns an empty vector, without an error, when base64 is ignored."""
    assert seen["embeddings"] == [[0, 1], [1, 1]]


def test_responses_in_both_modes(seen: Any) -> None:
    assert seen["response"] == {"text": "Hello from the router", "status": "completed"}
    assert seen["responseStream"] == {"text": "Hello from the router", "last": "response.completed"}


def test_errors_have_their_types(seen: Any) -> None:
    assert (seen["unknown"]["name"], seen["unknown"]["status"]) == ("BadRequestError", 400)
    assert (seen["limited"]["name"], seen["limited"]["status"]) == ("RateLimitError", 429)
    assert (seen["down"]["name"], seen["down"]["status"]) == ("InternalServerError", 503)
    assert "wire cut" in seen["breaks"]["message"]
    assert seen["breaks"]["name"] == "APIError"


def test_structured_output(seen: Any) -> None:
    assert seen["structured"] == {"city": "Oslo", "degrees": 4}


def test_refusals_have_their_status(seen: Any) -> None:
    assert {name: told["status"] for name, told in seen["refused"].items()} == STATUSES
    names = {name: told["name"] for name, told in seen["refused"].items()}
    assert names["unauthorized"] == "AuthenticationError"
    assert names["filtered"] == "NotFoundError"
    assert "this key's limit is" in seen["refused"]["unpaid"]["message"]


def test_many_streams_at_once_and_one_left_early(seen: Any, bank: Bank) -> None:
    assert seen["many"] == [WORDS]
    assert seen["left"] is True
    eventually(lambda: _slow(bank), lambda told: any(record["status"] == 499 for record in told))


def _slow(bank: Bank) -> list[dict[str, Any]]:
    return [record for record in bank.server.events("request_finished") if record["model"] == "acme/slow"]
