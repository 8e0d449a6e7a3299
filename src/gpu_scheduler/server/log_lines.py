"""What the server says about itself: readable lines on a terminal, JSON elsewhere."""

from __future__ import annotations

import logging
import sys
import threading
from logging.handlers import RotatingFileHandler

import structlog
from structlog.typing import EventDict, Processor

from gpu_scheduler.settings.groups import LoggingSettings


def configure(settings: LoggingSettings, file: str = "") -> None:
    """Send all lines, also those of libraries, to the file or to standard error."""
    handler: logging.Handler = logging.StreamHandler(sys.stderr)
    if file:
        handler = RotatingFileHandler(
            file,
            maxBytes=round(settings.max_log_size_mb * (1 << 20)),
            backupCount=settings.backup_count,
            encoding="utf-8",
        )
    readable = not file and (sys.stderr.isatty() or not settings.structured)
    shared: list[Processor] = [
        structlog.stdlib.add_logger_name,
        structlog.stdlib.add_log_level,
        structlog.processors.TimeStamper(
            fmt="%H:%M:%S" if readable else "iso", utc=not readable, key="timestamp"
        ),
        structlog.processors.format_exc_info,
    ]
    rendering: list[Processor] = (
        [structlog.dev.ConsoleRenderer(colors=sys.stderr.isatty(), pad_event_to=28)]
        if readable
        else [_in_common_words, structlog.processors.JSONRenderer()]
    )
    handler.setFormatter(
        structlog.stdlib.ProcessorFormatter(
            foreign_pre_chain=shared,
            processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, *rendering],
        )
    )
    root = logging.getLogger()
    root.handlers = [handler]
    root.setLevel(settings.level)
    for noisy in ("uvicorn.access", "grpc", "asyncio"):
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
