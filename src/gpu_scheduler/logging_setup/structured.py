"""Logging with structlog: readable lines on a terminal, JSON lines elsewhere."""

from __future__ import annotations

import faulthandler
import io
import logging
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass
from typing import TextIO

import structlog
from structlog.typing import EventDict, Processor

from gpu_scheduler.logging_setup.rotating_file import BACKUPS, MAX_BYTES, RotatingFile

NOISY = ("uvicorn.access", "uvicorn.error", "grpc", "asyncio")


@dataclass(frozen=True, slots=True, kw_only=True)
class LogConfig:
    """The destination, level and format of log lines. Without a file: standard error."""

    file: str = ""
    level: str = "INFO"
    structured: bool = True
    max_bytes: int = MAX_BYTES
    backups: int = BACKUPS
    take_stderr: bool = False


class FileHandler(logging.Handler):
    """Writes log records to a rotating file."""

    def __init__(self, file: RotatingFile) -> None:
        super().__init__()
        self.file = file

    def emit(self, record: logging.LogRecord) -> None:
        """Write one record; an error in formatting must not reach the caller."""
        try:
            self.file.write(self.format(record))
        except Exception:  # noqa: BLE001 - logging must not fail
            self.handleError(record)


class StreamHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """Writes to standard error; if that is closed or full, the line is lost."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Ignore a broken pipe or a full disk."""
        if not isinstance(sys.exc_info()[1], OSError):
            with suppress(OSError):
                super().handleError(record)


def configure(config: LogConfig) -> RotatingFile | None:
    """Configure logging of this process, including libraries; return the file.

    A crash of the interpreter or of a native library writes a traceback to standard error.
    """
    with suppress(ValueError, OSError):
        # Fails where stderr is not a file, as in a test that captures it.
        faulthandler.enable()
    file = None
    handler: logging.Handler = StreamHandler(_unbuffered_stderr())
    if config.file:
        file = RotatingFile(
            config.file,
            max_bytes=config.max_bytes,
            backups=config.backups,
            take_stderr=config.take_stderr,
        )
        handler = FileHandler(file)
    readable = file is None and (sys.stderr.isatty() or not config.structured)
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(
            fmt="%H:%M:%S" if readable else "iso", utc=not readable, key="timestamp"
        ),
        structlog.processors.format_exc_info,
    ]
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[
                structlog.stdlib.ProcessorFormatter.remove_processors_meta,
                *_renderers(readable=readable),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(config.level)
    for noisy in NOISY:
        logging.getLogger(noisy).setLevel(logging.WARNING)
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            *shared,
            structlog.stdlib.ProcessorFormatter.wrap_for_formatter,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        cache_logger_on_first_use=True,
    )
    return file


def _unbuffered_stderr() -> TextIO:
    """Standard error without a buffer.

    A buffered line that cannot be written would fail again when Python flushes at exit, and turn
    the exit code into 120.
    """
    try:
        file = io.FileIO(sys.stderr.fileno(), "w", closefd=False)
    except (OSError, ValueError):  # replaced by an object without a descriptor
        return sys.stderr
    return io.TextIOWrapper(file, sys.stderr.encoding, "backslashreplace", write_through=True)


def lost_lines() -> int:
    """Number of lines lost since the last successful write."""
    handlers = logging.getLogger().handlers
    return sum(handler.file.lost for handler in handlers if isinstance(handler, FileHandler))


def _renderers(*, readable: bool) -> list[Processor]:
    if readable:
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=28)]
    return [_order_fields, structlog.processors.JSONRenderer(ensure_ascii=False)]


def _order_fields(_: object, __: str, line: EventDict) -> EventDict:
    """Put timestamp, level, logger, thread and message first, as log collectors expect."""
    return {
        "timestamp": line.pop("timestamp", ""),
        "level": str(line.pop("level", "")).upper(),
        "logger": line.pop("logger", ""),
        "thread": threading.current_thread().name,
        "message": line.pop("event", ""),
        **line,
    }
