"""Keys in the whole server: their life, and what a limit lets through, alone and twelve at once."""

from __future__ import annotations

import datetime
import json
import threading
import urllib.request
from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.accounts import COST, Bank, bank
from tests.support.server import eventually, headers


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    with bank(tmp_path_factory.mktemp("bank")) as opened:
        yield opened


def test_a_key_lives_from_its_making_to_its_deletion(shared: Bank) -> None:
    key, digest = shared.make_key(name="life", limit=1, limit_reset="weekly", creator_user_id="user_1")
    assert shared.chat(key)[0] == 200
    card = shared.manage(f"/keys/{digest}")["data"]
    assert (card["usage"], card["usage_weekly"], card["limit_remaining"]) == (COST, COST, 1 - COST)
    assert card["last_used_at"] is not None
    assert key not in json.dumps(shared.manage("/keys"))
    assert change(shared, digest, {"limit": None, "name": "renamed"})["data"]["limit"] is None
    changed = change(shared, digest, {"disabled": True})["data"]
    assert (changed["name"], changed["disabled"], changed["limit_reset"]) == ("renamed", True, "weekly")
    assert changed["updated_at"] is not None
    assert shared.chat(key)[0] == 401
    assert digest not in [card["hash"] for card in shared.manage("/keys")["data"]]
    assert digest in [card["hash"] for card in shared.manage("/keys?include_disabled=true")["data"]]
    spent = shared.manage("/credits")["data"]["total_usage"]
    assert change(shared, digest, None) == {"deleted": True}
    assert shared.server.get(f"/api/v1/keys/{digest}", shared.server.management_key())[0] == 404
    assert shared.manage("/credits")["data"]["total_usage"] == spent


def change(shared: Bank, digest: str, body: Any) -> Any:
    """PATCH a key, or DELETE it where there is no body."""
    request = urllib.request.Request(
        f"{shared.server.base_url}/keys/{digest}",
        json.dumps(body).encode() if body is not None else None,
        {"Content-Type": "application/json", "Authorization": f"Bearer {shared.server.management_key()}"},
        method="DELETE" if body is None else "PATCH",
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        return json.load(response)


@pytest.mark.parametrize(
    ("body", "names"),
    [
        ({}, "name"),
        ({"name": ""}, "name"),
        ({"name": "x", "limit": -1}, "limit"),
        ({"name": "x", "limit": "5"}, "limit"),
        ({"name": "x", "limits": 5}, "limits"),
        ({"name": "x", "limit_reset": "yearly"}, "limit_reset"),
        ({"name": "x", "expires_at": "2027-01-01T00:00:00+02:00"}, "expires_at"),
        ({"name": "x", "expires_at": "2027-01-01T00:00:00"}, "expires_at"),
        ({"name": "x", "expires_at": "2020-01-01T00:00:00Z"}, "expires_at"),
        ({"name": "x", "workspace_id": "other"}, "workspace_id"),
    ],
)
def test_a_key_that_cannot_be_meant_is_refused(shared: Bank, body: Any, names: str) -> None:
    status, answer = shared.server.post("/api/v1/keys", body, shared.server.management_key())
    assert status == 400
    assert names in answer["error"]["message"]


def test_an_expired_key_is_refused(shared: Bank) -> None:
    moment = datetime.datetime.now(datetime.UTC) + datetime.timedelta(seconds=2)
    key, digest = shared.make_key(expires_at=moment.strftime("%Y-%m-%dT%H:%M:%SZ"))
    _, body = eventually(lambda: shared.chat(key), lambda told: told[0] == 401)
    assert body["error"]["message"] == "this API key has expired"
    assert shared.manage(f"/keys/{digest}")["data"]["expires_at"] == moment.strftime("%Y-%m-%dT%H:%M:%S.000Z")


def test_of_twelve_at_once_a_limit_lets_as_many_through_as_it_pays_for(shared: Bank) -> None:
    """G119: the very first of a new key.

    101 prompt tokens at most, 15 of them for the options, are 0.000101, 100 completion tokens 0.0002: one
    fits the limit, two do not.
    """
    key, digest = shared.make_key(limit=0.000305)
    answers: list[tuple[int, Any]] = []
    barrier = threading.Barrier(12)

    def ask() -> None:
        barrier.wait()
        answers.append(
            shared.chat(key, model="acme/slow", max_tokens=100, provider={"options": {"slow": FEW}})
        )

    threads = [threading.Thread(target=ask) for _ in range(12)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(status for status, _ in answers) == [200, *[402] * 11]
    refused = next(body for status, body in answers if status == 402)["error"]
    assert refused["metadata"]["error_type"] == "payment_required"
    assert "limit is $0.000305 and $0.000004 is left" in refused["message"]
    assert refused["metadata"]["limit"] == 0.000305
    # Settled: what it did cost, 10 and 5 tokens, is booked, and the rest of the reservation is free again.
    assert shared.manage(f"/keys/{digest}")["data"]["usage"] == 0.00002
    assert shared.chat(key, model="acme/slow", max_tokens=100)[0] == 402
    assert shared.chat(key, max_tokens=50)[0] == 200


FEW = {"tokens": 5, "gap_s": 0.4}


def test_a_used_up_limit_still_allows_what_costs_nothing(shared: Bank) -> None:
    key, _ = shared.make_key(limit=0)
    assert shared.chat(key)[0] == 402
    assert shared.chat(key, model="acme/free")[0] == 200
    own = shared.ask("/key", key)["data"]
    assert (own["limit"], own["limit_remaining"], own["usage"]) == (0, 0, 0)


def test_a_failure_gives_its_reservation_back(shared: Bank) -> None:
    key, _ = shared.make_key(limit=0.0003)
    for _ in range(3):
        assert shared.chat(key, model="acme/broken", max_tokens=100)[0] == 503
    assert shared.chat(key, max_tokens=100)[0] == 200


def test_a_key_with_a_limit_uses_no_endpoint_that_nobody_priced(shared: Bank) -> None:
    """G114: what costs nobody knows how much would never end a budget."""
    key, _ = shared.make_key(limit=5)
    status, body = shared.chat(key, model="acme/unpriced")
    assert status == 402
    assert "far/acme/unpriced" in body["error"]["message"]
    status, answer = shared.chat(key, model="acme/half-priced")
    assert (status, answer["provider"]) == (200, "Fake")
    assert len(shared.generation(answer["id"], key)["provider_responses"]) == 1


SURFACES: dict[str, dict[str, Any]] = {
    "chat/completions": {"messages": [{"role": "user", "content": "hi"}]},
    "completions": {"prompt": "hi"},
    "messages": {"messages": [{"role": "user", "content": "hi"}], "max_tokens": 50},
    "responses": {"input": "hi"},
    "embeddings": {"input": "hi"},
}


@pytest.mark.parametrize("path", sorted(SURFACES))
def test_every_surface_is_written_down_and_limited(shared: Bank, path: str) -> None:
    key, _ = shared.make_key(limit=1e-9)
    body = {"model": "acme/vectors" if path == "embeddings" else "m", **SURFACES[path]}
    request = urllib.request.Request(
        f"{shared.server.base_url}/{path}", json.dumps(body).encode(), headers(shared.key)
    )
    with urllib.request.urlopen(request, timeout=60) as response:
        name = response.headers["X-Generation-Id"]
    found = shared.generation(name)
    assert (found["state"], found["provider_name"]) == ("finished", "Fake")
    assert found["api_type"] == ("embeddings" if path == "embeddings" else "completions")
    assert found["total_cost"] > 0
    status, refused = shared.server.post(f"/api/v1/{path}", body, key)
    assert status == 402
    assert "limit is $" in refused["error"]["message"]
