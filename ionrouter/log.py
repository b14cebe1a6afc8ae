"""How events leave the process: JSON lines or a console, one redactor over every value.

Only cli calls `configure`; everybody else just gets a logger. Event names are past-tense snake_case.
"""

from __future__ import annotations

import atexit
import json
import logging
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, MutableMapping
from contextlib import suppress
from typing import Any, TextIO, cast

import orjson

if "rich" in sys.modules:
    import structlog
else:
    # structlog loads rich where it finds it, to draw tracebacks. Ours are plain: a start would take 50 ms and
    # 5 MB more for nothing. Whoever wants rich still gets it.
    sys.modules["rich"] = None  # type: ignore[assignment]
    try:
        import structlog
    finally:
        del sys.modules["rich"]

_log = structlog.get_logger(__name__)

Redact = Callable[[str], str]
Write = Callable[[str], None]
EventDict = MutableMapping[str, Any]

FLUSH_EVERY_S = 0.05
PATIENCE_S = 0.25  # with a stream that takes nothing: who logs is the event loop
MAX_LINES = 20_000  # some 12 MB
_BARE = frozenset({int, float, bool, type(None)})
_LEVEL_NAMES = {"warn": "warning", "exception": "error"}  # method -> level, where they differ
LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(
    *,
    log_format: str = "auto",
    level: str = "info",
    redact: Redact = lambda text: text,
    stream: TextIO | None = None,
    cache: bool = True,
    buffered: bool = False,
) -> None:
    """Set up structlog for the process; `redact` sees every string value, nested ones too.

    `buffered`: lines below warning may wait FLUSH_EVERY_S for others to leave with, and nobody who logs waits
    for a stream that takes nothing, such as a terminal that somebody paused.
    """
    out = stream if stream is not None else sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    forgiving = Forgiving(out)
    lines = Lines(Forgiving(_unlocked(out))) if buffered else None
    structlog.configure(
        processors=_console(redact, colors=out.isatty()) if console else [_JsonLine(redact)],
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=cast(TextIO, forgiving))
        if lines is None
        else lambda *_: lines,
        cache_logger_on_first_use=cache,  # cached loggers ignore later configuration: off in tests
    )
    _adopt_standard_logging(level)


def _unlocked(stream: TextIO) -> TextIO | Descriptor:
    """The stream's file, for a thread that may hang in a write: the end would wait for the stream's lock."""
    try:
        return Descriptor(stream.fileno())
    except (OSError, ValueError):  # it has none
        return stream


def _console(redact: Redact, *, colors: bool) -> list[Any]:
    return [
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,  # tracebacks become text before the redactor, without locals
        _Redactor(redact),
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback),
    ]


def _serialise(event: EventDict) -> str:
    try:
        return orjson.dumps(event, default=repr).decode()
    except TypeError:  # no Unicode, or an integer of more than 64 bits
        return json.dumps(event, default=repr)


class Forgiving:
    """A stream for whoever must go on when it cannot be written: a full disk, a closed pipe, a gone terminal.

    What is lost then is lost: there is nowhere to say so.
    """

    def __init__(self, stream: TextIO | Descriptor) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        with suppress(OSError, ValueError):
            self._stream.write(text)
        return len(text)

    def flush(self) -> None:
        with suppress(OSError, ValueError):
            self._stream.flush()


class Descriptor:
    """A file that text goes to as it is. Nothing of it is held, nor locked, when the process ends."""

    def __init__(self, descriptor: int) -> None:
        self._descriptor = descriptor

    def write(self, text: str) -> int:
        data = text.encode("utf-8", "backslashreplace")
        while data:
            data = data[os.write(self._descriptor, data) :]
        return len(text)

    def flush(self) -> None:
        pass


class Lines:
    """Has lines written by a thread, several at a time; what is a warning or worse at once.

    Who logs waits a moment for a warning to be out, and never for a stream that takes nothing: a pipe that
    nobody reads, a paused terminal, a disk that hangs. What comes then waits, up to MAX_LINES; what comes
    beyond is lost, and counted in a line of its own when the stream takes lines again.
    """

    def __init__(self, stream: Forgiving) -> None:
        self._stream = stream
        self._waiting: deque[str] = deque()  # its two ends need no lock
        self._waiters: deque[threading.Event] = deque()
        self._has_some, self._is_urgent = threading.Event(), threading.Event()
        self._is_awaited = True  # by the thread: nothing has come since it looked
        self._is_stuck = False  # somebody has waited in vain, and nothing was written since
        self._num_lost = 0
        threading.Thread(target=self._run, name="log", daemon=True).start()
        atexit.register(self.flush)

    def info(self, line: str) -> None:
        if len(self._waiting) >= MAX_LINES:
            self._num_lost += 1
            return
        self._waiting.append(line)
        if self._is_awaited:
            self._is_awaited = False
            self._has_some.set()

    def warning(self, line: str) -> None:
        self.info(line)
        self.flush()

    msg = debug = info
    error = err = critical = fatal = failure = exception = warn = warning

    def flush(self) -> None:
        """Wait until what waits is written, or the stream has taken nothing for a moment."""
        if self._is_stuck:
            return
        written = threading.Event()
        self._waiters.append(written)
        self._is_urgent.set()
        self._has_some.set()
        if not written.wait(PATIENCE_S):
            self._is_stuck = True

    def _run(self) -> None:
        while True:
            self._has_some.wait()
            self._is_urgent.wait(FLUSH_EVERY_S)
            self._has_some.clear()
            self._is_urgent.clear()
            self._is_awaited = True  # before the look: what comes now is seen, or wakes it again
            self._write()

    def _write(self) -> None:
        waiters = [self._waiters.popleft() for _ in range(len(self._waiters))]
        lines = [self._waiting.popleft() for _ in range(len(self._waiting))]
        if num_lost := self._num_lost:  # after those lines; there is room for one again
            self._num_lost = 0
            _log.info("log_lines_lost", count=num_lost)
        if lines:
            self._stream.write("\n".join((*lines, "")))
            self._stream.flush()
        self._is_stuck = False
        for written in waiters:
            written.set()


class _Redactor:
    """A structlog processor: every string, key text and nested value goes through one function."""

    def __init__(self, redact: Redact) -> None:
        self._redact = redact

    def __call__(self, _logger: Any, _name: str, event: EventDict) -> EventDict:
        return {key: self._clean(value) for key, value in event.items()}

    def _clean(self, value: Any) -> Any:
        if isinstance(value, str):
            return self._redact(value)
        if isinstance(value, dict):
            return {key: self._clean(item) for key, item in value.items()}
        if isinstance(value, list | tuple):
            return [self._clean(item) for item in value]
        return value


class _JsonLine(_Redactor):
    """All processors of the JSON format in one: five in turn cost an access line twice as much."""

    def __init__(self, redact: Redact) -> None:
        super().__init__(redact)
        self._second, self._stamp = -1, ""

    @property
    def redact(self) -> Redact:
        return self._redact

    def __call__(self, logger: Any, name: str, event: EventDict) -> str:  # type: ignore[override]
        if "exc_info" in event:  # tracebacks become text before the redactor, without locals
            event = structlog.processors.format_exc_info(logger, name, event)
        redact, line = self._redact, dict[str, Any]()
        for key, value in event.items():
            kind = value.__class__
            if kind is str:
                line[key] = redact(value)
            else:  # half of an access line are numbers and nothing: asked no further
                line[key] = value if kind in _BARE else self._clean(value)
        return self.of_clean(_LEVEL_NAMES.get(name, name), line)

    def of_clean(self, level: str, event: EventDict) -> str:
        """The line of an event whose strings hold no secret."""
        event["level"] = level
        event["timestamp"] = self._now()
        return _serialise(event)

    def _now(self) -> str:
        """The time in UTC, as in 2026-11-28T04:20:00.123456Z; what is before the point, once a second."""
        now = time.time()
        second = int(now)
        if second != self._second:
            self._stamp = time.strftime("%Y-%m-%dT%H:%M:%S", time.gmtime(second))
            self._second = second
        return f"{self._stamp}.{int((now - second) * 1e6):06d}Z"


class CleanLog:
    """Logs events whose strings hold no secret: who makes them lets `redact` see what came from outside.

    The same lines at the same place as a logger's, for an event that comes with every request: a logger goes
    through every value of it, and through the process's settings.
    """

    def __init__(self, line: _JsonLine, write: Write) -> None:
        self._line, self._write = line, write
        self.redact = line.redact

    def info(self, event: str, **fields: Any) -> None:
        fields["event"] = event
        self._write(self._line.of_clean("info", fields))


def clean_log() -> CleanLog | None:
    """Find how clean events leave as logs are set up now; None: no JSON lines are, or none of level info."""
    config = structlog.get_config()
    line = config["processors"][-1]
    if not isinstance(line, _JsonLine) or not structlog.get_logger().is_enabled_for(logging.INFO):
        return None
    return CleanLog(line, config["logger_factory"]().info)


class _ToStructlog(logging.Handler):
    """Brings what libraries log through the same processors, so that nothing escapes the redactor."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger(record.name)
        logger.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


class _LibraryLogger(logging.Logger):
    """A library's logger: what it says goes where all goes, and nowhere else.

    Some libraries add a handler as they are imported, which writes past the redactor and between the lines.
    """

    def addHandler(self, hdlr: logging.Handler) -> None:
        pass  # the root's is not of this class


def _adopt_standard_logging(level: str) -> None:
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(max(LEVELS[level], logging.WARNING))  # libraries speak only from warning upwards
    logging.setLoggerClass(_LibraryLogger)
    logging.captureWarnings(True)  # Python's own, which would go to stderr as they are
