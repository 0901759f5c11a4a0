"""Structured logs of a process, JSON lines or a console form: ids, counts and codes, never what people wrote (OPS-10)."""

from __future__ import annotations

import logging
import sys
import traceback
from collections.abc import Iterator, MutableMapping
from contextlib import contextmanager
from typing import Any, Final, Literal, TextIO

import structlog
from structlog.contextvars import bind_contextvars, merge_contextvars, reset_contextvars
from structlog.stdlib import ExtraAdder, ProcessorFormatter, add_log_level, add_logger_name
from structlog.typing import EventDict, ExcInfo, Processor

LogFormat = Literal["json", "console"]

#: Fields that hold what people or models wrote, who they are, or a secret: replaced wherever a library adds them.
WITHHELD_FIELDS: Final = frozenset(
    {
        "api_key",
        "arguments",
        "authorization",
        "body",
        "content",
        "cookie",
        "messages",
        "owner",
        "prompt",
        "reply",
        "result",
        "text",
    }
)
WITHHELD: Final = "[withheld]"

#: Loggers that say at "info" what ours say better, or a line a request.
QUIET_LOGGERS: Final = (
    "uvicorn.access",
    "httpx2",
    "httpcore2",
    "asyncio",
    "psycopg.pool",
    "alembic",
    "celery.worker.strategy",
    "celery.app.trace",
)

#: Libraries whose errors repeat what they were given: a row that was refused, a record that does not decode.
REPEATING_LIBRARIES: Final = frozenset({"psycopg", "pydantic", "pydantic_core", "fastapi"})


def configure_logs(log_format: LogFormat, level: str, *, stream: TextIO | None = None) -> None:
    """Send every logger of the process to ``stream`` (stderr by default) in one form, at ``level`` and above.

    Replaces what was configured before. Loggers are the standard library's; ids go into ``extra``.
    """
    renderer: Processor = (
        structlog.processors.JSONRenderer()
        if log_format == "json"
        else structlog.dev.ConsoleRenderer(colors=False)
    )
    handler = logging.StreamHandler(stream if stream is not None else sys.stderr)
    handler.setFormatter(
        ProcessorFormatter(
            foreign_pre_chain=[
                merge_contextvars,
                ExtraAdder(),
                add_log_level,
                add_logger_name,
                structlog.processors.TimeStamper(fmt="iso", utc=True),
            ],
            processors=[
                ProcessorFormatter.remove_processors_meta,
                structlog.processors.ExceptionRenderer(format_exception),
                withhold,
                renderer,
            ],
        )
    )
    root = logging.getLogger()
    for old in root.handlers[:]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(level.upper())
    for name in QUIET_LOGGERS:
        logging.getLogger(name).setLevel(logging.WARNING)
    for name in ("uvicorn", "uvicorn.error", "uvicorn.access"):
        logger = logging.getLogger(name)
        logger.handlers.clear()
        logger.propagate = True


def format_exception(exc_info: ExcInfo) -> str:
    """Return an exception with its causes, oldest first; of one that repeats values, its class and place only."""
    chain: list[BaseException] = []
    error: BaseException | None = exc_info[1]
    while error is not None and not any(error is known for known in chain):
        chain.append(error)
        error = error.__cause__ or (None if error.__suppress_context__ else error.__context__)
    return "\nwhich led to\n".join(_told(one) for one in reversed(chain))


def _told(error: BaseException) -> str:
    kind = type(error)
    message = WITHHELD if kind.__module__.partition(".")[0] in REPEATING_LIBRARIES else str(error)
    place = "".join(traceback.format_tb(error.__traceback__))
    told = f"Traceback (most recent call last):\n{place}{kind.__module__}.{kind.__qualname__}: {message}"
    inner = error.exceptions if isinstance(error, BaseExceptionGroup) else ()
    return "\nwith\n".join([told, *(format_exception((type(one), one, None)) for one in inner)])


def withhold(_logger: Any, _method: str, event: EventDict) -> MutableMapping[str, Any]:
    """Replace the values of ``WITHHELD_FIELDS``; a processor of structlog."""
    for name in WITHHELD_FIELDS & event.keys():
        event[name] = WITHHELD
    event.pop("color_message", None)
    return event


@contextmanager
def log_context(**ids: str) -> Iterator[None]:
    """Add ids (request, session, turn, run, job) to every line that is logged inside the block, in this task."""
    tokens = bind_contextvars(**ids)
    try:
        yield
    finally:
        reset_contextvars(**tokens)
