"""Logs: JSON lines or a console, and one redactor over everything, tracebacks and libraries included."""

from __future__ import annotations

import errno
import io
import json
import logging
import os
import pty
import time
import warnings
from collections.abc import Iterator

import pytest
import structlog

from ionrouter import log
from tests.support.logs import restored_logs

SECRET = "sk-or-v1-0123456789"


@pytest.fixture(autouse=True)
def _restored() -> Iterator[None]:
    with restored_logs():
        yield


def _configured(log_format: str, level: str = "info") -> io.StringIO:
    stream = io.StringIO()
    log.configure(
        log_format=log_format,
        level=level,
        redact=lambda text: text.replace(SECRET, "[redacted]"),
        stream=stream,
        cache=False,
    )
    return stream


@pytest.mark.parametrize("log_format", ["json", "console", "auto"])
def test_no_value_escapes_the_redactor(log_format: str) -> None:
    stream = _configured(log_format)
    structlog.get_logger().info("request_finished", a=SECRET, b={"c": [SECRET]}, d=(SECRET,))
    logging.getLogger("some.library").warning("key is %s", SECRET)
    try:
        raise ValueError(SECRET)
    except ValueError:
        structlog.get_logger().exception("request_crashed")
        logging.getLogger("some.library").exception("it broke")
    text = stream.getvalue()
    assert SECRET not in text
    assert text.count("[redacted]") >= 6
    assert "ValueError" in text


def test_a_librarys_own_handler_writes_nothing_past_the_redactor() -> None:
    stream, beside = _configured("json"), io.StringIO()
    library = logging.getLogger(f"{__name__}.imported_late")
    library.addHandler(logging.StreamHandler(beside))
    library.warning("key is %s", SECRET)
    assert beside.getvalue() == ""
    (line,) = stream.getvalue().splitlines()
    assert json.loads(line)["event"] == "key is [redacted]"


def test_pythons_warnings_are_log_lines_too(capfd: pytest.CaptureFixture[str]) -> None:
    with warnings.catch_warnings():  # pytest's own, which records them, is back afterwards
        warnings.resetwarnings()
        logging.captureWarnings(False)
        stream = _configured("json")
        warnings.warn(f"no room for {SECRET}", UserWarning, stacklevel=1)
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert "UserWarning: no room for [redacted]" in event["event"]
    assert (event["logger"], event["level"]) == ("py.warnings", "warning")
    assert capfd.readouterr().err == ""


def test_json_is_one_object_a_line() -> None:
    stream = _configured("json")
    structlog.get_logger().info("server_ready", seconds=1.5)
    (line,) = stream.getvalue().splitlines()
    event = json.loads(line)
    assert (event["event"], event["level"], event["seconds"]) == ("server_ready", "info", 1.5)
    assert event["timestamp"].endswith("Z")


def test_the_level_holds_and_libraries_speak_from_warning_up() -> None:
    stream = _configured("json", "info")
    structlog.get_logger().debug("hidden")
    logging.getLogger("some.library").info("hidden too")
    assert stream.getvalue() == ""


def test_auto_is_json_unless_it_is_a_terminal() -> None:
    stream = _configured("auto")
    structlog.get_logger().info("server_ready")
    assert json.loads(stream.getvalue())["event"] == "server_ready"


def test_buffered_lines_come_in_order_and_warnings_at_once() -> None:
    stream = io.StringIO()
    log.configure(log_format="json", redact=str, stream=stream, cache=False, buffered=True)
    logger = structlog.get_logger()
    for number in range(3):
        logger.info("request_finished", number=number, big=2**70, lone="\ud83d")
    logger.warning("store_failed")  # takes along what waits
    lines = [json.loads(line) for line in stream.getvalue().splitlines()]
    assert [line["event"] for line in lines] == ["request_finished"] * 3 + ["store_failed"]
    assert [line["number"] for line in lines[:3]] == [0, 1, 2]
    assert lines[0]["big"] == 2**70


def test_a_buffered_line_waits_for_no_other() -> None:
    stream = io.StringIO()
    log.configure(log_format="json", redact=str, stream=stream, cache=False, buffered=True)
    structlog.get_logger().info("request_finished")
    deadline = time.monotonic() + 20
    while not stream.getvalue() and time.monotonic() < deadline:
        time.sleep(0.01)
    assert json.loads(stream.getvalue())["event"] == "request_finished"


class Full(io.StringIO):
    """A log on a full disk, or a pipe that nobody reads."""

    is_full = True

    def write(self, text: str) -> int:
        if self.is_full:
            raise OSError(errno.ENOSPC, "No space left on device")
        return super().write(text)

    def flush(self) -> None:
        if self.is_full:
            raise BrokenPipeError


@pytest.mark.parametrize("log_format", ["json", "console"])
@pytest.mark.parametrize("buffered", [True, False])
def test_whoever_logs_goes_on_when_nothing_can_be_written(log_format: str, buffered: bool) -> None:
    stream = Full()
    log.configure(log_format=log_format, stream=stream, cache=False, buffered=buffered)
    for tell in (structlog.get_logger().info, structlog.get_logger().error):
        tell("store_failed")
    logging.getLogger("some.library").error("broken")
    stream.is_full = False
    structlog.get_logger().error("store_recovered")
    assert "store_recovered" in stream.getvalue()


def test_whoever_logs_waits_for_no_pipe_that_nobody_reads(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(log, "MAX_LINES", 300)
    end, start = os.pipe()
    with open(end) as reader, open(start, "w") as writer:
        log.configure(log_format="json", stream=writer, cache=False, buffered=True)
        logger = structlog.get_logger()
        logger.info("request_finished", text="x" * 100_000)  # more than a pipe holds
        began = time.monotonic()
        for number in range(1000):
            logger.warning("store_failed", number=number)
        assert time.monotonic() - began < 20 * log.PATIENCE_S
        lines = (json.loads(line) for line in reader)
        assert next(lines)["event"] == "request_finished"
        numbers, lost = [], None
        while lost is None:
            line = next(lines)
            numbers += [line["number"]] if "number" in line else []
            lost = line.get("count")
        assert numbers == list(range(len(numbers)))
        assert len(numbers) + lost == 1000
        logger.warning("store_recovered")  # is out at once again
        assert next(lines)["event"] == "store_recovered"


def test_whoever_logs_waits_for_no_terminal_that_is_paused() -> None:
    """Ctrl-S in the terminal of a server had stopped its event loop, its health check and its end."""
    theirs, ours = pty.openpty()
    with open(theirs, "rb", buffering=0) as keys, open(ours, "w") as writer:
        log.configure(log_format="auto", stream=writer, cache=False, buffered=True)
        logger = structlog.get_logger()
        began = time.monotonic()
        for number in range(2000):
            logger.info("request_finished", number=number, text="x" * 100)
        logger.warning("store_failed")
        assert time.monotonic() - began < 20
        shown = b""
        while b"store_failed" not in shown:
            shown += keys.read(65_536)
        assert shown.count(b"request_finished") == 2000
