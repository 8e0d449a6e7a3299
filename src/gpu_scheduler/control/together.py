"""Submissions that came one by one and are alike are accepted together, as if they were one.

Many callers, or one with many connections, submit the same but for names and commands. What such
jobs have in common is then worked out and written once for all that share a commit.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import TypeVar

from gpu_scheduler.control.messages import Command, Fact, Series
from gpu_scheduler.model.caller import Caller

R = TypeVar("R")
Kind = tuple[Command | Fact, Caller]


def neighbours(requests: Iterable[R], kind_of: Callable[[R], Kind | None]) -> Iterator[list[R]]:
    """Requests in their order: those that can be applied together in one list, others alone.

    `kind_of` says the message of a request and its caller, or None for one that stays alone.
    """
    run: list[R] = []
    before: Kind | None = None
    for request in requests:
        kind = kind_of(request)
        if run and not (before is not None and kind is not None and _alike(before, kind)):
            yield run
            run = []
        run.append(request)
        before = kind
    if run:
        yield run


def joined(all_series: Sequence[Series]) -> Series:
    """One series of all jobs of several that are alike."""
    first = all_series[0]
    return Series(
        first.job,
        first.launch,
        first.environment,
        tuple(name for series in all_series for name in series.names),
        tuple(command for series in all_series for command in series.commands),
    )


def _alike(one: Kind, other: Kind) -> bool:
    first, second = one[0], other[0]
    return (
        isinstance(first, Series)
        and isinstance(second, Series)
        and first.job is second.job
        and first.launch is second.launch
        and one[1] == other[1]
    )
