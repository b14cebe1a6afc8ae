"""Batches: accepted or refused as a whole, run in the background as requests of their key, deleted."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from ionrouter.store.keys import KeyStore
from ionrouter.store.place import database_of
from tests.support.accounts import COST, Bank, bank
from tests.support.batches import (
    PATH,
    asked,
    contents,
    delete,
    ended,
    lines,
    poll,
    submission,
    submit,
)
from tests.support.databases import SqlitePlace
from tests.support.postgres import Postgres
from tests.support.server import eventually, running_server
from tests.support.upstream import Received, Script, Upstream, WaitFor, chat_json, error


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bank]:
    with bank(tmp_path_factory.mktemp("bank"), batch_max_requests=5) as found:
        yield found


def hosted(upstream: Upstream) -> str:
    return f"""
providers:
  up: {{ type: openai, name: Up, base_url: "{upstream.base_url}" }}
models:
  acme/m: {{ endpoints: [{{ provider: up, model: up-m, prices: {{ prompt: 1, completion: 2 }} }}] }}
aliases: {{ m: acme/m }}
"""


def held(gate: threading.Event) -> Callable[[Received], Script]:
    """As `echo`, but not before the gate opens."""
    return lambda request: Script((WaitFor(gate), *echo(request).steps))


def echo(request: Received) -> Script:
    """The request's last text, as an answer."""
    return chat_json(request.json()["messages"][-1]["content"])


def test_a_batch_is_run_and_its_results_are_in_the_order_of_its_requests(shared: Bank) -> None:
    server, key = shared.server, shared.key
    batch_id = submit(server, submission(lines(3)), key)
    batch = ended(server, batch_id, key)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
    assert [r["custom_id"] for r in batch["results"]] == ["r0", "r1", "r2"]
    assert len({r["id"] for r in batch["results"]}) == 3
    for result in batch["results"]:
        assert result["error"] is None
        answer = result["response"]
        assert answer["status_code"] == 200
        assert answer["body"]["object"] == "chat.completion"
        generation = shared.generation(answer["request_id"])
        assert generation["total_cost"] == pytest.approx(answer["body"]["usage"]["cost"])
    assert batch["usage"]["total_tokens"] == sum(
        r["response"]["body"]["usage"]["total_tokens"] for r in batch["results"]
    )
    assert batch["usage"]["cost"] == pytest.approx(
        sum(r["response"]["body"]["usage"]["cost"] for r in batch["results"])
    )
    assert batch["created_at"] + 24 * 3600 == batch["expires_at"]
    assert batch["finalized_at"] >= batch["created_at"]


@pytest.mark.parametrize(
    ("endpoint", "body", "shape"),
    [
        ("/v1/messages", {"max_tokens": 9, "messages": [{"role": "user", "content": "a"}]}, "message"),
        ("/v1/responses", {"input": "a"}, "response"),
        ("/v1/completions", {"prompt": "a"}, "text_completion"),
        ("/v1/embeddings", {"input": ["a", "b"]}, "list"),
    ],
)
def test_every_surface_answers_in_its_own_words(shared: Bank, endpoint: str, body: Any, shape: str) -> None:
    model = "acme/vectors" if "embeddings" in endpoint else "m"
    wanted = submission([{"custom_id": "a", "body": body}], endpoint=endpoint, model=model)
    batch = ended(shared.server, submit(shared.server, wanted, shared.key), shared.key)
    (result,) = batch["results"]
    assert result["error"] is None
    told = result["response"]["body"]
    assert shape in (told.get("object"), told.get("type"))
    assert batch["usage"]["prompt_tokens"] > 0


BODY = {"messages": [{"role": "user", "content": "a"}]}
UNNAMED = [{"custom_id": "a", "body": BODY}, {"custom_id": "", "body": BODY}]
ONLY_A = lines(1, provider={"only": ["a"]})
REFUSED: list[tuple[dict[str, Any], str]] = [
    ({"endpoint": "/v1/audio/speech"}, "endpoint"),
    ({"model": ""}, "model"),
    ({"requests": []}, "requests"),
    ({"requests": lines(6)}, "requests"),
    ({"requests": UNNAMED}, "requests[1].custom_id"),
    ({"requests": [{"custom_id": "a", "body": BODY}] * 2}, "requests[1].custom_id"),
    ({"requests": [{"custom_id": "a"}]}, "requests[0].body"),
    ({"requests": [{"custom_id": "a\0", "body": BODY}]}, "requests[0].custom_id"),
    ({"requests": [{"custom_id": "a", "body": BODY, "url": "/v1"}]}, "requests[0].url"),
    ({"requests": lines(2, model="other")}, "requests[0].body.model"),
    ({"requests": lines(2, stream=True)}, "requests[0].body.stream"),
    ({"requests": ONLY_A, "provider": {"only": ["b"]}}, "requests[0].body.provider.only"),
    ({"provider": {"order": ["a"]}}, "provider.order"),
    ({"completion_window": "1h"}, "completion_window"),
    ({"callback_url": "https://example.com/hook"}, "callback_url"),
    ({"metadata": {}}, "metadata"),
]  # fmt: skip


@pytest.mark.parametrize(("fields", "param"), REFUSED)
def test_what_is_at_fault_is_named_and_nothing_is_run(
    shared: Bank, fields: dict[str, Any], param: str
) -> None:
    status, body = shared.server.post(PATH, submission(**fields), shared.key)
    assert (status, body["error"]["param"]) == (400, param), body


def test_fields_may_come_in_any_order(shared: Bank) -> None:
    wanted = dict(reversed(submission().items()))
    assert (
        ended(shared.server, submit(shared.server, wanted, shared.key), shared.key)["status"] == "completed"
    )


def test_a_batch_has_the_same_paths_under_every_prefix(shared: Bank) -> None:
    batch_id = submit(shared.server, submission(), shared.key)
    ended(shared.server, batch_id, shared.key)
    for prefix in ("/v1", "/api/beta", "/api/v1"):
        status, batch = shared.server.get(f"{prefix}/batches/{batch_id}", shared.key)
        assert (status, batch["id"]) == (200, batch_id)


def test_a_request_that_is_refused_is_an_error_among_answers(shared: Bank) -> None:
    bad = {"custom_id": "bad", "body": {"messages": "none"}}
    batch_id = submit(shared.server, submission([*lines(1), bad]), shared.key)
    batch = ended(shared.server, batch_id, shared.key)
    assert batch["status"] == "completed"
    assert batch["request_counts"] == {"total": 2, "completed": 1, "failed": 1}
    good, refused = batch["results"]
    assert good["error"] is None
    assert refused["response"] is None
    assert (refused["error"]["code"], refused["error"]["param"]) == (400, "messages")


def test_providers_of_the_batch_go_for_each_request(shared: Bank) -> None:
    wanted = submission(lines(1), model="acme/half-priced", provider={"only": ["fake"]})
    batch = ended(shared.server, submit(shared.server, wanted, shared.key), shared.key)
    assert batch["results"][0]["response"]["body"]["provider"] == "Fake"


def test_batches_belong_to_the_key_that_submitted_them(shared: Bank) -> None:
    server = shared.server
    batch_id = submit(server, submission(), shared.key)
    ended(server, batch_id, shared.key)
    other, _ = shared.make_key()
    for path in (f"{PATH}/{batch_id}", f"{PATH}/{batch_id}/results"):
        assert server.get(path, other)[0] == 404
    assert server.post(f"{PATH}/{batch_id}/cancel", {}, other)[0] == 404
    assert delete(server, f"{PATH}/{batch_id}", other)[0] == 404
    assert server.get(f"{PATH}?after={batch_id}", other)[0] == 404
    assert server.get(PATH, other)[1]["data"] == []
    assert server.get(PATH, None)[0] == 401
    assert server.get(PATH, server.management_key())[0] == 403


def test_lists_and_results_come_in_pages(shared: Bank) -> None:
    server, (key, _) = shared.server, shared.make_key()
    made = [submit(server, submission(lines(3)), key) for _ in range(3)]
    for batch_id in made:
        ended(server, batch_id, key)
    _, first = server.get(f"{PATH}?limit=2", key)
    assert [b["id"] for b in first["data"]] == [made[2], made[1]]
    assert (first["has_more"], first["last_id"]) == (True, made[1])
    assert all(b["results"] is None for b in first["data"])
    _, last = server.get(f"{PATH}?limit=2&after={made[1]}", key)
    assert ([b["id"] for b in last["data"]], last["has_more"]) == ([made[0]], False)
    _, page = server.get(f"{PATH}/{made[0]}/results?limit=2", key)
    _, rest = server.get(f"{PATH}/{made[0]}/results?limit=2&cursor={page['next_cursor']}", key)
    assert [r["custom_id"] for r in (*page["data"], *rest["data"])] == ["r0", "r1", "r2"]
    assert rest["next_cursor"] is None
    assert server.get(f"{PATH}?limit=0", key)[0] == 400


def test_a_list_is_of_the_wanted_states_and_times(shared: Bank) -> None:
    server, (key, _) = shared.server, shared.make_key()
    made = submit(server, submission(lines(1)), key)
    created_at = ended(server, made, key)["created_at"]

    def found(query: str) -> list[str]:
        status, body = server.get(f"{PATH}?{query}", key)
        assert status == 200, body
        return [batch["id"] for batch in body["data"]]

    assert found("status=failed&status=completed") == [made]
    assert found("status=in_progress") == found("status=validating") == []
    assert found(f"created_after={created_at - 1}&created_before={created_at + 2}") == [made]
    assert found(f"created_after={created_at + 2}") == found(f"created_before={created_at - 1}") == []
    assert found("created_after=2020-01-01") == found("created_before=2999-01-01T00:00:00Z") == [made]
    for query in ("status=done", "created_after=soon", "created_before=-1"):
        status, body = server.get(f"{PATH}?{query}", key)
        assert (status, body["error"]["param"]) == (400, query.partition("=")[0])


@pytest.mark.parametrize(
    ("endpoint", "body"),
    [("/v1/chat/completions", {}), ("/v1/messages", {"max_tokens": 1}), ("/v1/responses", {})],
)
def test_a_result_says_of_which_class_its_error_is(shared: Bank, endpoint: str, body: dict[str, Any]) -> None:
    line = {"custom_id": "a", "body": {**body, "temperature": "hot"}}
    batch_id = submit(shared.server, submission([line], endpoint=endpoint), shared.key)
    (result,) = ended(shared.server, batch_id, shared.key)["results"]
    assert (result["response"], result["error"]["error_type"]) == (None, "invalid_request")


def test_a_batch_that_is_over_can_be_deleted(shared: Bank) -> None:
    server, key = shared.server, shared.key
    batch_id = submit(server, submission(), key)
    request_id = ended(server, batch_id, key)["results"][0]["response"]["request_id"]
    status, body = delete(server, f"{PATH}/{batch_id}", key)
    assert (status, body["id"], body["deletion"]) == (200, batch_id, {"openrouter": "deleted"})
    assert server.get(f"{PATH}/{batch_id}", key)[0] == 404
    assert shared.generation(request_id)["id"] == request_id


def test_a_budget_that_is_used_up_midway_fails_what_is_left(tmp_path: Path) -> None:
    with bank(tmp_path, batch_concurrency=1) as found:
        key, _ = found.make_key(limit=COST * 50)
        wanted = submission(lines(60, max_tokens=3))
        batch = ended(found.server, submit(found.server, wanted, key), key)
        counts = batch["request_counts"]
        assert counts["completed"] > 0
        assert counts["failed"] > 0
        codes = {r["error"]["code"] for r in batch["results"] if r["error"]}
        assert codes == {402}
        assert found.ask("/key", key)["data"]["usage"] <= COST * 50


def test_a_cancelled_batch_begins_nothing_more_and_keeps_what_it_has(tmp_path: Path) -> None:
    gate = threading.Event()
    with Upstream(held(gate)) as up, running_server(tmp_path, hosted(up), batch_concurrency=2) as server:
        batch_id = submit(server, submission(lines(6)))
        up.wait_for_requests(2)
        assert delete(server, f"{PATH}/{batch_id}")[0] == 409
        assert server.get(f"{PATH}/{batch_id}/results")[0] == 409
        status, batch = server.post(f"{PATH}/{batch_id}/cancel", {})
        assert (status, batch["status"], batch["results"]) == (200, "cancelling", None)
        gate.set()
        batch = ended(server, batch_id)
        assert batch["status"] == "cancelled"
        kinds = [r["error"] and r["error"]["type"] for r in batch["results"]]
        assert kinds.count(None) == len(up.requests) == batch["request_counts"]["completed"]
        assert set(kinds) == {None, "batch_cancelled"}
        assert server.post(f"{PATH}/{batch_id}/cancel", {})[0] == 409


def test_a_provider_that_is_busy_is_asked_again_when_it_says_so(tmp_path: Path) -> None:
    with Upstream(echo) as up, running_server(tmp_path, hosted(up), batch_concurrency=1) as server:
        busy = {"error": {"message": "slow down"}}
        up.enqueue(error(429, busy, headers={"Retry-After": "1"}), error(503, busy))
        batch = ended(server, submit(server, submission(lines(3))))
        assert batch["request_counts"] == {"total": 3, "completed": 3, "failed": 0}
        assert contents(batch) == ["r0", "r1", "r2"]


def test_a_server_that_is_killed_goes_on_with_what_has_no_answer(tmp_path: Path) -> None:
    gate = threading.Event()
    with Upstream(echo) as up:
        up.enqueue(echo, echo)
        routes = hosted(up)
        with running_server(tmp_path, routes, batch_concurrency=1) as server:
            up.default = held(gate)
            batch_id = submit(server, submission(lines(4)))
            up.wait_for_requests(3)
            eventually(
                lambda: poll(server, batch_id)["request_counts"]["completed"], lambda count: count == 2
            )
            server.process.kill()
            server.wait()
        up.default = echo
        with running_server(tmp_path, routes) as server:
            batch = ended(server, batch_id)
            assert contents(batch) == ["r0", "r1", "r2", "r3"]
        assert sorted(asked(up.requests)) == ["r0", "r1", "r2", "r2", "r3"]


def test_a_server_that_stops_ends_its_requests_and_the_next_goes_on(tmp_path: Path) -> None:
    gate = threading.Event()
    with Upstream(held(gate)) as up:
        routes = hosted(up)
        with running_server(tmp_path, routes, batch_concurrency=2) as server:
            batch_id = submit(server, submission(lines(4)))
            up.wait_for_requests(2)
            server.process.terminate()
            server.wait_for_event("drain_started")
            gate.set()
            assert server.wait() == 0
        up.default = echo
        with running_server(tmp_path, routes) as server:
            assert contents(ended(server, batch_id)) == ["r0", "r1", "r2", "r3"]
        assert sorted(asked(up.requests)) == ["r0", "r1", "r2", "r3"]  # none twice


def test_a_request_that_outlasts_the_drain_is_asked_again(tmp_path: Path) -> None:
    with Upstream(Script((WaitFor(threading.Event()),))) as up:
        routes = hosted(up)
        with running_server(tmp_path, routes, drain_timeout_s=0.1) as server:
            batch_id = submit(server, submission(lines(1)))
            up.wait_for_requests(1)
            server.process.terminate()
            assert server.wait() == 0
        up.default = echo
        with running_server(tmp_path, routes) as server:
            assert contents(ended(server, batch_id)) == ["r0"]


def test_other_requests_leave_a_batch_one_at_a_time(tmp_path: Path) -> None:
    gate = threading.Event()
    with Upstream(held(gate)) as up, running_server(tmp_path, hosted(up), batch_concurrency=3) as server:
        others = [threading.Thread(target=server.chat) for _ in range(3)]
        for other in others:
            other.start()
        up.wait_for_requests(3)
        batch_id = submit(server, submission(lines(3)))
        up.wait_for_requests(4)
        in_flight = server.get("/health")[1]["in_flight"]
        assert in_flight == 4
        gate.set()
        for other in others:
            other.join()
        assert ended(server, batch_id)["request_counts"]["completed"] == 3


def test_a_key_that_is_disabled_fails_its_batch(tmp_path: Path) -> None:
    gate = threading.Event()
    with Upstream(held(gate)) as up, bank(tmp_path, hosted(up), batch_concurrency=1) as found:
        batch_id = submit(found.server, submission(lines(3)), found.key)
        up.wait_for_requests(1)
        with closing(KeyStore.open(database_of(None, found.server.state / "ionrouter.db"))) as keys:
            keys.set_disabled("first", True)
            gate.set()
            found.server.wait_for_event("batch_finished")
            keys.set_disabled("first", False)
        batch = eventually(lambda: found.server.get(f"{PATH}/{batch_id}", found.key)[1], lambda b: "id" in b)
        assert (batch["status"], batch["request_counts"]["completed"]) == ("failed", 1)
        assert "disabled" in batch["error"]["message"]
        assert [r["error"] and r["error"]["type"] for r in batch["results"]] == [
            None,
            *["batch_failed"] * 2,
        ]


def test_nothing_of_what_was_asked_stays_when_it_was_answered(shared: Bank) -> None:
    secret = "a word that nobody else says"
    wanted = [{"custom_id": "a", "body": {"messages": [{"role": "user", "content": secret}]}}]
    ended(shared.server, submit(shared.server, submission(wanted), shared.key), shared.key)
    place = SqlitePlace(shared.server.state / "ionrouter.db")
    assert place.ask("SELECT COUNT(*) FROM batch_line WHERE body LIKE ?", (f"%{secret}%",)) == [(0,)]


def test_a_batch_whose_time_is_over_ends_with_what_it_has(tmp_path: Path) -> None:
    with Upstream(held(threading.Event())) as up:
        up.enqueue(echo)
        with running_server(tmp_path, hosted(up), batch_concurrency=1) as server:
            batch_id = submit(server, submission(lines(3)))
            up.wait_for_requests(2)
            server.process.kill()
            server.wait()
        SqlitePlace(tmp_path / "state" / "ionrouter.db").ask("UPDATE batch SET expires_at = 1.0")
        with running_server(tmp_path, hosted(up)) as server:
            batch = ended(server, batch_id)
            assert (batch["status"], batch["request_counts"]["completed"]) == ("expired", 1)
            kinds = [r["error"] and r["error"]["type"] for r in batch["results"]]
            assert kinds == [None, "batch_expired", "batch_expired"]
        assert len(up.requests) == 2


def test_two_servers_of_one_database_run_a_batch_once(tmp_path: Path, postgres: Postgres) -> None:
    url = postgres.new_database()
    (tmp_path / "a").mkdir()
    (tmp_path / "b").mkdir()
    with Upstream(echo) as up:
        routes = hosted(up)
        with (
            running_server(tmp_path / "a", routes, store_url=url) as one,
            running_server(tmp_path / "b", routes, store_url=url) as two,
        ):
            made = [submit(server, submission(lines(20))) for server in (one, two, one)]
            for batch_id in made:
                assert ended(two, batch_id) == ended(one, batch_id)
                assert contents(poll(one, batch_id)) == [f"r{n}" for n in range(20)]
        assert len(up.requests) == 60


def test_no_concurrency_is_no_batch_api(tmp_path: Path) -> None:
    with Upstream(echo) as up, running_server(tmp_path, hosted(up), batch_concurrency=0) as server:
        status, body = server.post(PATH, submission())
        assert (status, body["error"]["metadata"]["error_type"]) == (404, "not_found")
