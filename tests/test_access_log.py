"""The access log: the same line whichever way it takes, and nothing secret in it."""

from __future__ import annotations

import io
import json
from collections.abc import Iterator
from typing import Any

import pytest
import structlog
from structlog.testing import capture_logs

from ionrouter import log
from ionrouter.access_log import AccessLog
from ionrouter.errors import FailureClass
from ionrouter.redact import Redactor
from ionrouter.schema.events import AttemptRecord, RequestRecord
from ionrouter.schema.usage import Cost, Usage
from tests.support.logs import restored_logs

SECRET = "sk-or-v1-0123456789"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    with restored_logs():
        yield


def _configured(log_format: str = "json", **more: Any) -> io.StringIO:
    stream = io.StringIO()
    log.configure(log_format=log_format, redact=Redactor([SECRET]), stream=stream, cache=False, **more)
    return stream


def _record(**changes: Any) -> RequestRecord:
    attempts = (
        AttemptRecord("a/m", "m", "A", 0.0, False, 0.1, failure=FailureClass.TRANSIENT),
        AttemptRecord("b/m", "m", "B", 0.0, False, 0.1, usage=Usage(3, 2), cost=Cost(1e-6, 2e-6)),
    )
    base: dict[str, Any] = {
        "id": "gen-1-x", "kind": "chat", "requested_model": "m", "stream": False, "started_at": 0.0,
        "duration_s": 0.25, "status": 200, "attempts": attempts, "served_model": "m",
        "served_endpoint": "b/m", "served_provider": "B", "ttft_s": 0.1, "usage": Usage(3, 2, 1),
        "cost": Cost(1e-6, 2e-6), "route": "fallback after a/m: 503",
    }  # fmt: skip
    return RequestRecord(**{**base, **changes})


NOBODY: dict[str, Any] = {
    **dict.fromkeys(("served_model", "served_endpoint", "served_provider", "route", "ttft_s")),
    "attempts": (),
}
ODD = [
    {},
    {**NOBODY, "status": 404, "error": "no model"},
    {"requested_model": SECRET, "error": f"key {SECRET} is wrong" + "x" * 400, "status": 502},
    {"served_model": f"any/{SECRET}", "served_endpoint": f"any/{SECRET}", "route": f"only {SECRET}"},
    {"requested_model": "\ud83d\x1b[31m", "served_model": "", "error": ""},
    {"attempts": (AttemptRecord(f"any/{SECRET}", "m", "A", 0.0, False, 0.1),), "usage": Usage(2**70, 0)},
]


@pytest.mark.parametrize("changes", ODD)
def test_the_line_is_the_one_that_a_logger_writes(changes: dict[str, Any]) -> None:
    early = AccessLog()  # logs were not set up: it has a logger, which reads what is set up later
    stream = _configured()
    for access in (early, AccessLog()):
        access.observe(_record(**changes))
    lines = [list(json.loads(line).items()) for line in stream.getvalue().splitlines()]
    by_logger, by_itself = ([(k, v) for k, v in line if k != "timestamp"] for line in lines)
    assert by_itself == by_logger
    assert [line[-1][0] for line in lines] == ["timestamp", "timestamp"]
    assert SECRET not in stream.getvalue() and "\x1b" not in stream.getvalue()


def test_it_is_on_its_own_way_only_for_json_lines_of_level_info() -> None:
    assert log.clean_log() is None
    for more, has_one in (({}, True), ({"level": "debug"}, True), ({"buffered": True}, True),
                          ({"level": "warning"}, False), ({"log_format": "console"}, False)):  # fmt: skip
        _configured(**more)
        assert (log.clean_log() is not None) is has_one, more


def test_a_console_shows_it_too_without_secrets() -> None:
    stream = _configured("console")
    AccessLog().observe(_record(requested_model=SECRET))
    assert "request_finished" in stream.getvalue() and SECRET not in stream.getvalue()


def test_no_line_leaves_above_level_info() -> None:
    stream = _configured(level="warning")
    AccessLog().observe(_record())
    assert stream.getvalue() == ""


def test_buffered_it_comes_in_order_with_other_events() -> None:
    stream = _configured(buffered=True)
    access = AccessLog()
    structlog.get_logger().info("server_ready")
    access.observe(_record())
    structlog.get_logger().warning("drain_started")  # takes along what waits
    events = [json.loads(line)["event"] for line in stream.getvalue().splitlines()]
    assert events == ["server_ready", "request_finished", "drain_started"]


def test_tests_can_capture_it() -> None:
    with capture_logs() as logs:
        AccessLog().observe(_record())
    assert [(event["event"], event["log_level"]) for event in logs] == [("request_finished", "info")]
