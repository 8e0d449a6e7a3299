"""Doing the same to several jobs: one that is refused does not stop the others."""

from __future__ import annotations

import sys

from gpu_scheduler.model.errors import SchedulerError, UnknownThing

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable, Iterable

    from gpu_scheduler.cli.references import Reference


def for_each(found: Iterable[Reference], deed: Callable[[Reference], None]) -> int:
    """The exit code of the first refusal, or 0. Jobs that are not known are named at the end."""
    exit_code = 0
    unknown: list[Reference] = []
    said = ""
    for reference in found:
        try:
            deed(reference)
        except SchedulerError as error:
            exit_code = exit_code or error.exit_code
            if isinstance(error, UnknownThing) and reference.tasks is None:
                unknown.append(reference)
                said = str(error)
            else:
                _say(str(error))
    if unknown:
        _say(said if len(unknown) == 1 else f"jobs {_numbers(unknown)} are not known")
    return exit_code


def _numbers(unknown: Iterable[Reference]) -> str:
    """Many of them are one range, most often one that was written too long."""
    from gpu_scheduler.model.intervals import IntervalSet

    return str(IntervalSet.of(int(one.job_id.removeprefix("job-")) for one in unknown))


def _say(problem: str) -> None:
    sys.stdout.flush()
    print(f"tgpu: error: {problem}", file=sys.stderr)
