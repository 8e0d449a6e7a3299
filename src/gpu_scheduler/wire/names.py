"""How jobs and tasks are named: `12`, `job-12`, and `12_4` for a task of an array."""

from __future__ import annotations

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.intervals import IntervalSet

MOST_DIGITS = 18
MOST_TASKS = 1_000_000
MOST_RANGES = 10_000
MOST_TEXT = 100_000


def read_job_name(text: str) -> tuple[str, int | None]:
    """The job's id and, if one was named, the number of the task."""
    name, underscore, task = text.strip().removeprefix("job-").partition("_")
    if not _is_number(name) or (underscore and not _is_number(task)):
        raise InvalidRequest(
            f"'{text[:80]}' does not name a job; write for example 12, job-12 or 12_4"
        )
    return f"job-{int(name)}", int(task) if underscore else None


def read_tasks(text: str) -> IntervalSet:
    """Read `0-99`, `1,3,5-9` or `0-20:4`, within bounds."""
    check_ranges(text)
    tasks = IntervalSet.parse(text)
    check_task_count(tasks)
    return tasks


def check_ranges(text: str) -> None:
    """Refuse a text that would unfold into more than can be kept, before it does."""
    if len(text) > MOST_TEXT:
        raise InvalidRequest(f"the list of tasks has {len(text)} characters; at most {MOST_TEXT}")
    single = 0
    for part in text.split(","):
        span, colon, step = part.strip().partition(":")
        low, dash, high = span.partition("-")
        numbers = [low, *([high] if dash else []), *([step] if colon else [])]
        if any(number.isdecimal() and len(number) > MOST_DIGITS for number in numbers):
            raise InvalidRequest(f"array '{part[:40]}...': a task number is too large")
        if colon and dash and all(map(_is_number, numbers)):
            single += max(0, int(high) - int(low)) // max(1, int(step))
        single += 1
    if single > MOST_RANGES:
        raise InvalidRequest(
            f"the array has {single} separate ranges; at most {MOST_RANGES} are kept. "
            "Number the tasks without gaps, or submit several arrays"
        )


def check_task_count(tasks: IntervalSet) -> None:
    """Refuse an array that is too large."""
    if len(tasks) > MOST_TASKS:
        raise InvalidRequest(f"the array has {len(tasks)} tasks; at most {MOST_TASKS} are allowed")


def _is_number(text: str) -> bool:
    return text.isascii() and text.isdigit() and len(text) <= MOST_DIGITS
