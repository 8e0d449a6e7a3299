"""Lines of a process with libraries: readable ones on a terminal, JSON elsewhere."""

from __future__ import annotations

import faulthandler
import logging
import sys
import threading
from contextlib import suppress
from dataclasses import dataclass

import structlog
from structlog.typing import EventDict, Processor

from gpu_scheduler.logging_setup.rotating_file import BACKUPS, MOST_BYTES, LineFile

NOISY = ("uvicorn.access", "uvicorn.error", "grpc", "asyncio")


@dataclass(frozen=True, slots=True, kw_only=True)
class Diary:
    """Where lines go, and which. Without a file: to standard error."""

    file: str = ""
    level: str = "INFO"
    structured: bool = True
    max_bytes: int = MOST_BYTES
    backups: int = BACKUPS
    take_stderr: bool = False


class FileHandler(logging.Handler):
    """Hands lines to a file."""

    def __init__(self, file: LineFile) -> None:
        super().__init__()
        self.file = file

    def emit(self, record: logging.LogRecord) -> None:
        """Write one; what cannot be put into words must not stop whoever said it."""
        try:
            self.file.write(self.format(record))
        except Exception:  # noqa: BLE001 - whatever it is, it was only about a line
            self.handleError(record)


class StreamHandler(logging.StreamHandler):  # type: ignore[type-arg]
    """To standard error. Where nobody reads that any more, a line is lost and nothing else."""

    def handleError(self, record: logging.LogRecord) -> None:  # noqa: N802
        """Keep silent about a broken pipe or a full disk."""
        if not isinstance(sys.exc_info()[1], OSError):
            with suppress(OSError):
                super().handleError(record)


def configure(diary: Diary) -> LineFile | None:
    """Send all lines of this process there, also those of libraries; returns the file.

    A crash of the interpreter or of a library below it leaves where it was in stderr.
    """
    with suppress(ValueError, OSError):
        # Not where stderr is no file, as in a test that captures it.
        faulthandler.enable()
    file = None
    handler: logging.Handler = StreamHandler(sys.stderr)
    if diary.file:
        file = LineFile(
            diary.file,
            max_bytes=diary.max_bytes,
            backups=diary.backups,
            take_stderr=diary.take_stderr,
        )
        handler = FileHandler(file)
    readable = file is None and (sys.stderr.isatty() or not diary.structured)
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
                *_rendering(readable=readable),
            ],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(diary.level)
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


def lost_lines() -> int:
    """How many lines could not be written since the last that could."""
    handlers = logging.getLogger().handlers
    return sum(handler.file.lost for handler in handlers if isinstance(handler, FileHandler))


def _rendering(*, readable: bool) -> list[Processor]:
    if readable:
        return [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=28)]
    return [_in_common_words, structlog.processors.JSONRenderer(ensure_ascii=False)]


def _in_common_words(_: object, __: str, line: EventDict) -> EventDict:
    """A line of JSON as log collectors expect it: time, level, logger, thread, message first."""
    return {
        "timestamp": line.pop("timestamp", ""),
        "level": str(line.pop("level", "")).upper(),
        "logger": line.pop("logger", ""),
        "thread": threading.current_thread().name,
        "message": line.pop("event", ""),
        **line,
    }
