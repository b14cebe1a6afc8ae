"""Traces of the real server: a collector that speaks OTLP on one side, scripted upstreams on the other."""

from __future__ import annotations

import http.client
import json
import signal
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from tests.support.collector import Collector, Span
from tests.support.server import CHAT, ROOT, Server, environment, eventually, running_server
from tests.support.sse import content
from tests.support.two_upstreams import FAKE, KEY, two_upstreams
from tests.support.upstream import (
    Cut,
    Hang,
    Upstream,
    WaitFor,
    chat_json,
    chat_stream,
    chunk,
    chunked,
    error,
    event,
    raw,
    sse,
)

TRACE_ID, SPAN_ID = "4bf92f3577b34da6a3ce929d0e0e4736", "00f067aa0ba902b7"
PARENT = f"00-{TRACE_ID}-{SPAN_ID}-01"
SECRET = "collector-key-9876"


def _env(collector: Collector, **more: str) -> dict[str, str]:
    return {
        "A_KEY": KEY,
        "OTEL_EXPORTER_OTLP_ENDPOINT": collector.url,
        "OTEL_BSP_SCHEDULE_DELAY": "50",
        **more,
    }


@contextmanager
def _traced(
    folder: Path, a: Upstream, b: Upstream, *, routes: Callable[[str], str] = str, **env: str
) -> Iterator[tuple[Server, Collector]]:
    with (
        a,
        b,
        Collector() as collector,
        running_server(folder, routes(two_upstreams(a, b)), env=_env(collector, **env)) as server,
    ):
        server.wait_for_event("traces_started")
        yield server, collector


def _post(
    server: Server, body: dict[str, Any], path: str = "/api/v1/chat/completions", **headers: str
) -> int:
    connection = http.client.HTTPConnection(server.host, server.port, timeout=60)
    connection.request("POST", path, json.dumps(body), {"Content-Type": "application/json", **headers})
    answer = connection.getresponse()
    answer.read()
    connection.close()
    return answer.status


def _servers(spans: list[Span]) -> list[Span]:
    return [span for span in spans if span.kind == "server"]


def _clients(spans: list[Span]) -> list[Span]:
    return sorted((span for span in spans if span.kind == "client"), key=lambda span: span.start_ns)


def _after(collector: Collector, num_requests: int = 1) -> tuple[Span, list[Span]]:
    """The last request's span and its attempts; they end before it does."""
    spans = collector.wait(lambda spans: len(_servers(spans)) >= num_requests)
    request = _servers(spans)[-1]
    return request, [span for span in _clients(spans) if span.parent_id == request.span_id]


def test_a_fallback_is_one_request_and_two_attempts_below_the_callers_span(tmp_path: Path) -> None:
    a, b = Upstream(chat_stream(["from", " a"])), Upstream(chat_stream(["ANSWERWORD", " b"]))
    with _traced(tmp_path, a, b) as (server, collector):
        a.enqueue(error(503, {"error": {"message": "a secret of the upstream"}}))
        body = {
            "model": "m",
            "messages": [{"role": "user", "content": "PROMPTWORD"}],
            **{"stream": True, "max_tokens": 40, "temperature": 0.5, "top_p": 0.9, "seed": 7},
            **{"user": "ann", "session_id": "talk-1", "stop": ["STOPWORD"]},
        }
        assert _post(server, body, traceparent=PARENT, tracestate="vendor=1") == 200
        request, (first, second) = _after(collector)
        assert (request.trace_id, request.parent_id) == (TRACE_ID, SPAN_ID)
        assert {first.trace_id, second.trace_id} == {TRACE_ID}
        assert request.name == "POST /api/v1/chat/completions"
        assert (first.name, second.name) == ("chat up-a", "chat up-b")
        assert [span.status for span in (request, first, second)] == ["unset", "error", "unset"]

        said = request.attributes
        assert said["http.route"] == said["url.path"] == "/api/v1/chat/completions"
        assert (said["http.response.status_code"], said["http.request.method"]) == (200, "POST")
        assert (said["user.id"], said["session.id"]) == ("ann", "talk-1")
        assert (said["ionrouter.endpoint"], said["ionrouter.strategy"]) == ("b/m", "expected-cost")
        assert (said["ionrouter.attempts"], said["ionrouter.requested_model"]) == (2, "m")
        assert "error.type" not in said
        assert not [name for name in said if name.startswith("gen_ai.usage")]  # a sum must count them once

        failed = first.attributes
        assert (failed["error.type"], failed["http.response.status_code"]) == ("transient", 503)
        assert (failed["ionrouter.attempt"], failed["ionrouter.fallback"]) == (1, False)
        assert (failed["server.address"], failed["server.port"]) == ("127.0.0.1", a.port)

        good = second.attributes
        assert (good["ionrouter.attempt"], good["ionrouter.fallback"], good["ionrouter.role"]) == (
            2,
            True,
            "main",
        )
        assert (good["gen_ai.operation.name"], good["gen_ai.provider.name"]) == ("chat", "b")
        assert (good["gen_ai.request.model"], good["gen_ai.request.stream"]) == ("up-b", True)
        assert (good["gen_ai.request.max_tokens"], good["gen_ai.request.temperature"]) == (40, 0.5)
        assert (good["gen_ai.request.top_p"], good["gen_ai.request.seed"]) == (0.9, 7)
        assert good["gen_ai.response.finish_reasons"] == ["stop"]
        assert (good["gen_ai.response.model"], good["gen_ai.response.id"]) == ("up", "c")
        assert good["gen_ai.conversation.id"] == "talk-1"
        assert good["gen_ai.usage.input_tokens"] > 0 and good["gen_ai.usage.output_tokens"] > 0
        assert good["ionrouter.cost_usd"] == pytest.approx(said["ionrouter.cost_usd"])
        assert good["ionrouter.cost_usd"] > 0

        assert request.start_ns <= first.start_ns < first.end_ns <= second.start_ns < second.end_ns
        assert second.end_ns <= request.end_ns
        told = repr(collector.spans)
        for word in ("PROMPTWORD", "ANSWERWORD", "STOPWORD", "a secret of the upstream", KEY):
            assert word not in told, word  # never a prompt, an answer, an upstream's words, a key
        assert {call.headers.get("traceparent") for call in (*a.requests, *b.requests)} == {None}


def test_the_first_token_of_a_stream_is_an_event_and_a_duration(tmp_path: Path) -> None:
    gate = threading.Event()
    start = sse([chunk({"role": "assistant"})], done=False, end=False)
    rest = sse([chunk({"content": "late"}), chunk({}, finish_reason="stop")])
    a = Upstream(start.then(WaitFor(gate), *_body(rest)))
    with _traced(tmp_path, a, Upstream(chat_stream(["b"]))) as (server, collector):
        threading.Timer(0.3, gate.set).start()
        status, stream = server.chat(stream=True)
        assert (status, content(stream)) == (200, "late")
        request, (attempt,) = _after(collector)
        waited_s = attempt.attributes["gen_ai.response.time_to_first_chunk"]
        assert 0.2 < waited_s <= request.attributes["ionrouter.time_to_first_token"]
        at_ns = attempt.events["ionrouter.first_token"]
        assert at_ns - attempt.start_ns == pytest.approx(waited_s * 1e9, abs=1e6)
        assert attempt.start_ns < at_ns <= attempt.end_ns


def _body(script: Any) -> tuple[bytes, ...]:
    """A scripted stream without its head."""
    first, *others = script.steps
    return (first.partition(b"\r\n\r\n")[2], *others)


def test_errors_have_the_status_of_their_side(tmp_path: Path) -> None:
    half = sse([chunk({"content": "Hel"})], done=False, end=False)
    a, b = Upstream(half.then(Cut())), Upstream(error(503))
    with _traced(tmp_path, a, b) as (server, collector):
        assert server.chat(stream=True)[0] == 200  # and broken after it
        request, (attempt,) = _after(collector)
        assert (request.status, attempt.status) == ("error", "error")
        assert request.attributes["http.response.status_code"] == 200
        assert request.attributes["error.type"] == attempt.attributes["error.type"] == "transient"
        assert attempt.attributes["ionrouter.after_commit"] is True
        assert (request.message, attempt.message) == ("", "")

        a.enqueue(error(500))
        assert server.chat()[0] >= 500
        request, attempts = _after(collector, 2)
        assert (request.status, len(attempts)) == ("error", 2)

        assert server.chat(temperature=9)[0] == 400  # never reached the router
        request, attempts = _after(collector, 3)
        assert (request.status, attempts) == ("unset", [])
        assert request.attributes["http.response.status_code"] == 400
        assert request.attributes["ionrouter.request.id"].startswith("gen-")
        assert "error.type" not in request.attributes

        assert server.get("/api/v1/models")[0] == 200
        assert server.post("/api/v1/embeddings", {"model": "none", "input": "x"})[0] >= 400
        request, _ = _after(collector, 4)  # the list of models left none
        assert request.name == "POST /api/v1/embeddings"


def test_a_client_that_leaves_is_no_error(tmp_path: Path) -> None:
    a = Upstream(raw(Hang()))
    with _traced(tmp_path, a, Upstream(chat_stream(["b"]))) as (server, collector):
        data = json.dumps({**CHAT, "stream": True}).encode()
        with socket.create_connection((server.host, server.port)) as client:
            head = f"POST /api/v1/chat/completions HTTP/1.1\r\nHost: {server.host}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            client.sendall(head.encode() + data)
            eventually(lambda: a.requests)
        request, (attempt,) = _after(collector)
        assert (request.status, attempt.status) == ("unset", "unset")
        assert request.attributes["error.type"] == attempt.attributes["error.type"] == "client_left"
        assert "http.response.status_code" not in {**request.attributes, **attempt.attributes}


WORD = chunked([event(chunk({"content": "hi"}))], end=False)


@pytest.mark.parametrize("way", ["silent", "begun", "hedged", "unread"])
def test_attempts_that_the_server_stops_are_stopped(tmp_path: Path, way: str) -> None:
    """A shadow, too: no client was there to leave it."""
    flood = event(chunk({"content": "x" * 60_000}))
    script = {"begun": WORD.then(Hang()), "unread": chunked([flood] * 1000, end=False)}.get(way, raw(Hang()))
    more = "    shadow: { endpoint: b/other, share: 1 }\n"
    more += "    hedge: { after: 0.1, floor: 0.1, budget: 1 }\n" if way == "hedged" else ""
    more += "  other: { endpoints: [ { provider: b, model: up-shadow } ] }\n"
    data = json.dumps({**CHAT, "stream": True}).encode()
    options: dict[str, Any] = {"routes": lambda text: text + more, "IONROUTER_DRAIN_TIMEOUT_S": "0.2"}
    a, b = Upstream(script), Upstream(raw(Hang()))
    with _traced(tmp_path, a, b, **options) as (server, collector):
        with socket.create_connection((server.host, server.port)) as client:
            head = f"POST /api/v1/chat/completions HTTP/1.1\r\nHost: {server.host}\r\n"
            head += f"Content-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
            client.sendall(head.encode() + data)
            num_asked = 3 if way == "hedged" else 2
            eventually(lambda: len(a.requests) + len(b.requests) == num_asked)
            time.sleep(0.5)  # until what is said has come, or the buffers are full
            server.signal(signal.SIGTERM)
            server.wait_for_event("requests_aborted")
            while client.recv(1 << 16):
                pass
            assert server.wait() == 0
        spans = _clients(collector.wait(lambda spans: len(_clients(spans)) == num_asked))
    assert [span.attributes["error.type"] for span in spans] == ["stopped"] * num_asked
    (finished,) = server.events("request_finished")
    assert {failure for _, failure in finished["attempts"]} == {"stopped"}


def test_hedges_and_shadows_say_what_they_are(tmp_path: Path) -> None:
    a, b = Upstream(raw(Hang())), Upstream(chat_stream(["from", " b"]))
    more = """    hedge: { after: 0.1, floor: 0.1, budget: 1 }
    shadow: { endpoint: b/other, share: 1 }
  other: { endpoints: [ { provider: b, model: up-shadow } ] }
"""
    with _traced(tmp_path, a, b, routes=lambda text: text + more) as (server, collector):
        assert content(server.chat(stream=True)[1]) == "from b"
        spans = collector.wait(lambda spans: len(spans) >= 4)
        (request,) = _servers(spans)
        by_role = {span.attributes["ionrouter.role"]: span for span in _clients(spans)}
        assert {span.parent_id for span in by_role.values()} == {request.span_id}
        assert sorted(by_role) == ["hedge", "main", "shadow"]
        assert by_role["main"].attributes["error.type"] == "lost_race"
        assert by_role["main"].status == "unset"
        assert by_role["hedge"].attributes["ionrouter.fallback"] is False
        assert by_role["shadow"].attributes["gen_ai.request.model"] == "up-shadow"
        # What the caller did not pay for is not in its sum.
        assert request.attributes["ionrouter.attempts"] == 2


def test_an_upstream_continues_the_trace_only_where_routes_yaml_says_so(tmp_path: Path) -> None:
    a, b = Upstream(error(503)), Upstream(chat_json("from b"))

    def forwarding(text: str) -> str:
        return text.replace("name: Bee,", "name: Bee, forward_trace: true,")

    with _traced(tmp_path, a, b, routes=forwarding) as (server, collector):
        assert _post(server, CHAT, traceparent=PARENT, tracestate="vendor=secret") == 200
        _, (_, second) = _after(collector)
        (to_a,), (to_b,) = a.requests, b.requests
        assert to_b.headers["traceparent"] == f"00-{TRACE_ID}-{second.span_id}-01"
        assert "traceparent" not in to_a.headers
        assert "tracestate" not in to_a.headers | to_b.headers
        # Unsampled by its caller: nothing is kept, and the upstream is told the same.
        assert _post(server, CHAT, traceparent=f"00-{TRACE_ID}-{SPAN_ID}-00") == 200
        assert b.requests[-1].headers["traceparent"].startswith(f"00-{TRACE_ID}-")
        assert b.requests[-1].headers["traceparent"].endswith("-00")
        assert _post(server, CHAT, traceparent="00-nonsense") == 200  # a trace of its own
        request, _ = _after(collector, 2)
        assert request.trace_id != TRACE_ID and request.parent_id == ""


def test_the_requests_trace_object_names_and_places_its_spans(tmp_path: Path) -> None:
    a, b = Upstream(chat_json("from a")), Upstream(chat_json("from b"))
    with _traced(tmp_path, a, b) as (server, collector):
        trace = {
            "trace_id": TRACE_ID, "parent_span_id": SPAN_ID, "span_name": "Summarise",
            "generation_name": "Draft", "environment": "test", "turn": 3, "tags": ["x"],
        }  # fmt: skip
        assert server.chat(trace=trace)[0] == 200
        request, (attempt,) = _after(collector)
        assert (request.trace_id, request.parent_id) == (TRACE_ID, SPAN_ID)
        assert (request.name, attempt.name) == ("Summarise", "Draft")
        said = request.attributes
        assert (said["trace.metadata.environment"], said["trace.metadata.turn"]) == ("test", 3)
        assert said["trace.metadata.tags"] == '["x"]'

        for number in (2, 3):  # any text is a trace, the same every time
            assert server.chat(trace={"trace_id": "workflow 12"})[0] == 200
            request, _ = _after(collector, number)
            assert request.parent_id == ""
            assert request.attributes["trace.metadata.trace_id"] == "workflow 12"
        assert len({span.trace_id for span in _servers(collector.spans)[1:]}) == 1

        assert _post(server, {**CHAT, "trace": {"trace_id": "1" * 32}}, traceparent=PARENT) == 200
        assert _after(collector, 4)[0].trace_id == TRACE_ID  # the header goes before the body


def test_the_environment_names_sampler_service_and_headers(tmp_path: Path) -> None:
    a, b = Upstream(chat_json("from a")), Upstream(chat_json("from b"))
    env = {
        "OTEL_SERVICE_NAME": "gateway",
        "OTEL_RESOURCE_ATTRIBUTES": "deployment.environment.name=lab",
        "OTEL_EXPORTER_OTLP_HEADERS": f"x-key=Bearer%20{SECRET}",
        "OTEL_EXPORTER_OTLP_COMPRESSION": "gzip",
        "OTEL_TRACES_SAMPLER": "parentbased_always_off",
    }
    with _traced(tmp_path, a, b, **env) as (server, collector):
        assert server.chat()[0] == 200
        assert _post(server, CHAT, traceparent=PARENT) == 200
        request, _ = _after(collector)
        assert request.trace_id == TRACE_ID
        assert {span.trace_id for span in collector.spans} == {TRACE_ID}  # the first was left out
        assert request.resource["service.name"] == "gateway"
        assert request.resource["deployment.environment.name"] == "lab"
        assert request.resource["service.version"]
        assert collector.headers[0]["x-key"] == f"Bearer {SECRET}"
        assert SECRET not in server.log
        assert server.events("traces_started")[0]["collector"] == collector.url


def _counted(server: Server, outcome: str) -> float:
    lines = [
        line for line in server.get("/metrics")[1].splitlines() if line.startswith("ionrouter_spans_total")
    ]
    return sum(float(line.split()[-1]) for line in lines if f'outcome="{outcome}"' in line)


def test_a_collector_that_is_away_costs_spans_and_nothing_else(tmp_path: Path) -> None:
    a, b = Upstream(chat_json("from a")), Upstream(chat_json("from b"))
    small = {"OTEL_BSP_MAX_QUEUE_SIZE": "8", "OTEL_BSP_MAX_EXPORT_BATCH_SIZE": "4"}
    with _traced(tmp_path, a, b, OTEL_EXPORTER_OTLP_TIMEOUT="1", **small) as (server, collector):
        collector.status = 503
        for _ in range(30):
            assert server.chat()[0] == 200
        (failed,) = server.wait_for_event("traces_failed")
        assert "503" in failed["error"] or "Scripted" in failed["error"] or failed["error"]
        eventually(lambda: _counted(server, "failed"))
        assert _counted(server, "dropped") > 0
        collector.status = 200
        eventually(lambda: server.chat()[0] == 200 and server.events("traces_recovered"))
        assert collector.spans and _counted(server, "exported") > 0
        assert len(server.events("traces_failed")) == 1  # not one a batch
        assert not server.events("tracing_crashed")


def test_what_waits_is_sent_before_the_process_ends(tmp_path: Path) -> None:
    a, b = Upstream(chat_json("from a")), Upstream(chat_json("from b"))
    with _traced(tmp_path, a, b, OTEL_BSP_SCHEDULE_DELAY="600000") as (server, collector):
        assert server.chat()[0] == 200
        assert collector.spans == []
        server.signal(signal.SIGTERM)
        assert server.wait() == 0
        assert len(collector.spans) == 2


def test_a_collector_that_hangs_does_not_hold_the_stop_up(tmp_path: Path) -> None:
    a, b = Upstream(chat_json("from a")), Upstream(chat_json("from b"))
    with _traced(tmp_path, a, b, OTEL_EXPORTER_OTLP_TIMEOUT="600") as (server, collector):
        collector.hangs = True
        assert server.chat()[0] == 200
        eventually(lambda: collector.headers)
        assert server.chat()[0] == 200
        server.signal(signal.SIGTERM)
        assert server.process.wait(30) == 0  # the collector says nothing for a minute
        assert server.events("traces_abandoned")


def test_without_a_collector_nothing_is_loaded_and_nothing_sent(tmp_path: Path) -> None:
    routes = FAKE
    for env in (
        {},
        {"OTEL_SERVICE_NAME": "x"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_SDK_DISABLED": "true"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_TRACES_EXPORTER": "none"},
        {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "IONROUTER_TRACES": "off"},
    ):
        with running_server(tmp_path, routes, env=env) as server:
            assert server.chat()[0] == 200
            maps = Path(f"/proc/{server.process.pid}/maps")
            assert not maps.exists() or "google/_upb" not in maps.read_text()  # protobuf's own library
            assert not server.events("traces_started")


WITHOUT_PACKAGES = (
    "import sys; sys.modules['opentelemetry'] = None; from ionrouter.cli import main; sys.exit(main())"
)


def _start(folder: Path, *command: str, **env: str) -> subprocess.CompletedProcess[str]:
    config = folder / "routes.yaml"
    config.write_text(FAKE)
    return subprocess.run(
        [sys.executable, *command, "serve", "--config", str(config), "--port", "0"],
        cwd=ROOT,
        env={**environment(folder / "state"), **env},
        capture_output=True,
        text=True,
        timeout=120,
    )


def test_missing_packages_are_named_with_the_extra_that_brings_them(tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_TRACES_ENDPOINT": "http://127.0.0.1:9/v1/traces"}
    done = _start(tmp_path, "-c", WITHOUT_PACKAGES, **env)
    assert done.returncode == 1
    assert "ionrouter: OTEL_EXPORTER_OTLP_TRACES_ENDPOINT: " in done.stderr
    assert "pip install -e '.[otel]'" in done.stderr
    assert "Traceback" not in done.stderr


@pytest.mark.parametrize(
    ("env", "says"),
    [
        ({"OTEL_EXPORTER_OTLP_ENDPOINT": "collector:4318"}, "OTEL_EXPORTER_OTLP_ENDPOINT: must be http://"),
        (
            {"IONROUTER_TRACES": "on", "OTEL_EXPORTER_OTLP_PROTOCOL": "grpc"},
            "OTEL_EXPORTER_OTLP_PROTOCOL: only",
        ),
        ({"IONROUTER_TRACES": "on", "OTEL_TRACES_EXPORTER": "zipkin"}, "OTEL_TRACES_EXPORTER: only otlp"),
        ({"IONROUTER_TRACES": "maybe"}, "IONROUTER_TRACES: "),
    ],
)
def test_what_cannot_be_traced_stops_the_start(tmp_path: Path, env: dict[str, str], says: str) -> None:
    done = _start(tmp_path, "-m", "ionrouter", **env)
    assert done.returncode == 1
    assert f"ionrouter: {says}" in done.stderr
    assert "Traceback" not in done.stderr
