"""The process that answers one question: `python -P -m gpu_scheduler.api.planning.worker SECONDS`.

Standard input has the question, written by `write_question`; standard output gets the answer. The
process has a low priority and a limit on its CPU time, and it is the first that the kernel kills
when memory is short. It keeps no file and no connection, so it can be killed at any time.
"""

from __future__ import annotations

import os
import pickle
import resource
import sys
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any, BinaryIO

from gpu_scheduler.engine.what_if import Answer, Question, answer

PIECE = 100
"""So many jobs or nodes are written at once: pickling holds the interpreter's lock."""
LONG = ("nodes", "running", "waiting")
"""The fields of a snapshot that are written in pieces."""
LOW_PRIORITY = 10
SPARE_CPU_S = 20
OOM_SCORE_FILE = Path("/proc/self/oom_score_adj")
FIRST_VICTIM = "1000"


def write_question(question: Question) -> Iterator[bytes]:
    """Yield a question in pieces, each of which takes a few milliseconds to make."""
    snapshot = question.snapshot
    yield _dump(replace(question, snapshot=replace(snapshot, nodes=(), running=(), waiting=())))
    for name in LONG:
        values = getattr(snapshot, name)
        for start in range(0, len(values), PIECE):
            yield _dump(values[start : start + PIECE])
        yield _dump(())


def read_question(stream: BinaryIO) -> Question:
    """Read what `write_question` wrote."""
    question: Question = pickle.load(stream)  # noqa: S301 - from the server that started us
    found: dict[str, Any] = {}
    for name in LONG:
        values: list[object] = []
        while piece := pickle.load(stream):  # noqa: S301
            values += piece
        found[name] = tuple(values)
    return replace(question, snapshot=replace(question.snapshot, **found))


def read_answer(data: bytes) -> Answer:
    """Read what the process wrote."""
    found: Answer = pickle.loads(data)  # noqa: S301 - from the process that we started
    return found


def _dump(value: object) -> bytes:
    return pickle.dumps(value, protocol=pickle.HIGHEST_PROTOCOL)


def yield_memory() -> None:
    """Let the kernel kill this process first; else it would be protected like the server."""
    with suppress(OSError):
        OOM_SCORE_FILE.write_text(FIRST_VICTIM, encoding="ascii")


def main() -> None:
    """Answer the question on standard input within so many seconds."""
    seconds = float(sys.argv[1])
    os.nice(LOW_PRIORITY)
    yield_memory()
    most_s = round(seconds) + SPARE_CPU_S
    resource.setrlimit(resource.RLIMIT_CPU, (most_s, most_s))
    question = read_question(sys.stdin.buffer)
    began = time.monotonic()
    found = answer(question, lambda part: time.monotonic() - began > part * seconds)
    sys.stdout.buffer.write(_dump(found))


if __name__ == "__main__":
    main()
