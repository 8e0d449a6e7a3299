"""Numbers that describe a job, for a model of run times: a job and its history in, a row out.

Words (users, programs, values of arguments) become codes by hashing, so the row has a fixed length
whatever the site's jobs look like. The value of each argument also counts as a number, if it has
one: 30 in `--epochs 30`, 7e9 in `--model llama-7b`. What is missing is `MISSING`.
"""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Sequence
from zlib import crc32

from gpu_scheduler.model.job import Job
from gpu_scheduler.predict.likeness import identity_of

MISSING = -1.0
CODES = 1_021
"""Words are hashed to so many codes."""
OPTIONS = 24
"""Options are hashed to so many places of the row, with the value as a number and as a code."""
MOST_ARGUMENTS = 64
HOUR_MS = 3_600_000
DAY_MS = 24 * HOUR_MS

_PLAIN = (
    *("elapsed", "guess", "gpus", "members", "cpus", "memory_mb", "limit", "estimate"),
    *("hour", "weekday", "interactive", "tasks", "arguments"),
)
_WORDS = ("tenant", "user", "name", "program", "gpu_model", "all_arguments")
HISTORY_GROUPS = 5
NAMES: tuple[str, ...] = (
    *_PLAIN,
    *_WORDS,
    *(f"{what}_{place}" for place in range(HISTORY_GROUPS) for what in ("mean", "runs")),
    *(f"{what}_{place}" for place in range(OPTIONS) for what in ("number", "word")),
)
"""What the numbers of a row are."""
ELAPSED, GUESS = NAMES.index("elapsed"), NAMES.index("guess")
CATEGORIES = frozenset(
    place for place, name in enumerate(NAMES) if name in _WORDS or name.startswith("word_")
)
"""The places of codes, which have no order."""

Row = tuple[float, ...]
_NUMBER = re.compile(
    r"(?<!\d)(\d++(?:\.\d++)?(?:e[+-]?\d++)?)([kmbgt]?)(?![a-z0-9])", re.IGNORECASE
)
_UNITS = {"": 1.0, "k": 1e3, "m": 1e6, "b": 1e9, "g": 1e9, "t": 1e12}
_LARGEST = 1e15


def row_of(job: Job, guess_ms: int, groups: Sequence[tuple[float, int]]) -> Row:
    """The row of a job that has not run yet.

    `guess_ms` is what its history expects, and `groups` are means of logarithms and numbers of runs
    of the groups that it belongs to.
    """
    first = job.members[0]
    command = identity_of(job.command)
    arguments = command.arguments.split()[:MOST_ARGUMENTS]
    stats = [value for mean, runs in groups[:HISTORY_GROUPS] for value in (mean, float(runs))]
    stats += [MISSING, 0.0] * (HISTORY_GROUPS - len(groups))
    return (
        0.0,
        math.log(max(1, guess_ms)),
        job.gpu_milli / 1000,
        float(len(job.members)),
        first.cpu_milli / 1000,
        float(first.memory_mb),
        math.log(job.max_runtime_ms) if job.max_runtime_ms else MISSING,
        math.log(job.estimate_ms) if job.estimate_ms else MISSING,
        float(job.submit_ms // HOUR_MS % 24),
        float(job.submit_ms // DAY_MS % 7),
        float(job.interactive),
        float(job.task_count),
        float(len(arguments)),
        _code(job.tenant),
        _code(f"{job.tenant} {job.user}"),
        _code(job.name),
        _code(command.program),
        _code(" ".join(first.gpu_models)),
        _code(command.arguments),
        *stats,
        *_options(arguments),
    )


def after(row: Row, elapsed_ms: int) -> Row:
    """The row of the job when it has run for so long."""
    return (math.log(elapsed_ms), *row[1:]) if elapsed_ms > 1 else row


def _code(word: str) -> float:
    return float(crc32(word.encode()) % CODES) if word else MISSING


def _options(arguments: Sequence[str]) -> list[float]:
    """Numbers and codes of the values of options; of two options in one place the first counts."""
    found = [MISSING] * (2 * OPTIONS)
    for option, value in _pairs(arguments):
        place = 2 * (crc32(option.encode()) % OPTIONS)
        if found[place + 1] == MISSING:
            found[place] = _number(value)
            found[place + 1] = _code(value) if value else 0.0
    return found


def _pairs(arguments: Sequence[str]) -> Iterator[tuple[str, str]]:
    """Options with their values; an argument without an option is named by its position."""
    option, position = "", 0
    for word in arguments:
        if word.startswith("-") and not _NUMBER.fullmatch(word[1:]):
            if option:
                yield option, ""
            option, has_value, value = word.partition("=")
            if has_value:
                yield option.lstrip("-"), value
                option = ""
        elif option:
            yield option.lstrip("-"), word
            option = ""
        elif "=" in word:
            name, _, value = word.partition("=")  # as Hydra writes them: epochs=30
            yield name.lstrip("+"), value
        else:
            yield f"argument {position}", word
            position += 1
    if option:
        yield option.lstrip("-"), ""


def _number(value: str) -> float:
    found = _NUMBER.search(value)
    if found is None:
        return MISSING
    return min(float(found[1]) * _UNITS[found[2].lower()], _LARGEST)
