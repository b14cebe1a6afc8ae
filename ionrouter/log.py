"""How events leave the process: JSON lines or a console, one redactor over every value.

Only cli calls `configure`; everybody else just gets a logger. Event names are past-tense snake_case.
"""

from __future__ import annotations

import logging
import sys
from collections.abc import Callable, MutableMapping
from typing import Any, TextIO

import structlog

Redact = Callable[[str], str]
EventDict = MutableMapping[str, Any]

LEVELS = {"debug": logging.DEBUG, "info": logging.INFO, "warning": logging.WARNING, "error": logging.ERROR}


def configure(
    *,
    log_format: str = "auto",
    level: str = "info",
    redact: Redact = lambda text: text,
    stream: TextIO | None = None,
    cache: bool = True,
) -> None:
    """Set up structlog for the process; `redact` sees every string value, nested ones too."""
    out = stream if stream is not None else sys.stderr
    console = log_format == "console" or (log_format == "auto" and out.isatty())
    structlog.configure(
        processors=_processors(redact, console=console, colors=console and out.isatty()),
        wrapper_class=structlog.make_filtering_bound_logger(LEVELS[level]),
        logger_factory=structlog.PrintLoggerFactory(file=out),
        cache_logger_on_first_use=cache,  # cached loggers ignore later configuration: off in tests
    )
    _adopt_standard_logging(level)


def _processors(redact: Redact, *, console: bool, colors: bool) -> list[Any]:
    render = (
        structlog.dev.ConsoleRenderer(colors=colors, exception_formatter=structlog.dev.plain_traceback)
        if console
        else structlog.processors.JSONRenderer()
    )
    return [
        structlog.contextvars.merge_contextvars,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,  # tracebacks become text before the redactor, without locals
        _Redactor(redact),
        render,
    ]


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


class _ToStructlog(logging.Handler):
    """Brings what libraries log through the same processors, so that nothing escapes the redactor."""

    def emit(self, record: logging.LogRecord) -> None:
        logger = structlog.get_logger(record.name)
        logger.log(record.levelno, record.getMessage(), logger=record.name, exc_info=record.exc_info)


def _adopt_standard_logging(level: str) -> None:
    root = logging.getLogger()
    root.handlers = [_ToStructlog()]
    root.setLevel(max(LEVELS[level], logging.WARNING))  # libraries speak only from warning upwards
