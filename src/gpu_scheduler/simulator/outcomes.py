"""What came out of a simulation, kept in columns so that a million jobs stay small."""

from __future__ import annotations

from array import array
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any

NO_PROMISE = -1


@dataclass(frozen=True, slots=True, kw_only=True)
class Outcome:
    """How one job (or one task of an array) fared.

    `wait_ms` sums all waits, `lost_ms` all work that had to be done again plus overheads.
    `promised_start_ms` is what the forecast said at submission (`NO_PROMISE` if it said nothing),
    `waited_first_ms` the wait until the first start.
    """

    partition: str
    tenant: str
    user: str
    gpu_milli: int
    submit_ms: int
    first_start_ms: int
    end_ms: int
    wait_ms: int
    run_ms: int
    preemptions: int = 0
    lost_ms: int = 0
    promised_start_ms: int = NO_PROMISE


_NUMBERS = (
    "gpu_milli",
    "submit_ms",
    "first_start_ms",
    "end_ms",
    "wait_ms",
    "run_ms",
    "preemptions",
    "lost_ms",
    "promised_start_ms",
)
_NAMES = ("partition", "tenant", "user")


class Outcomes:
    """Outcomes in columns: integers in arrays, names by number."""

    def __init__(self) -> None:
        """Start empty."""
        self.numbers: dict[str, array[int]] = {name: array("q") for name in _NUMBERS}
        self.names: dict[str, array[int]] = {name: array("l") for name in _NAMES}
        self.known: dict[str, list[str]] = {name: [] for name in _NAMES}
        self._codes: dict[str, dict[str, int]] = {name: {} for name in _NAMES}

    def __len__(self) -> int:
        """How many outcomes there are."""
        return len(self.numbers["end_ms"])

    def add(self, outcome: Outcome) -> None:
        """Keep one outcome."""
        for name in _NUMBERS:
            self.numbers[name].append(getattr(outcome, name))
        for name in _NAMES:
            text = getattr(outcome, name)
            codes = self._codes[name]
            code = codes.get(text)
            if code is None:
                code = codes[text] = len(codes)
                self.known[name].append(text)
            self.names[name].append(code)

    def __iter__(self) -> Iterator[Outcome]:
        """Rebuild the outcomes one by one, in the order in which the jobs ended."""
        for row in range(len(self)):
            values: dict[str, Any] = {name: column[row] for name, column in self.numbers.items()}
            for name, column in self.names.items():
                values[name] = self.known[name][column[row]]
            yield Outcome(**values)


@dataclass(frozen=True, slots=True, kw_only=True)
class Sample:
    """The state of one partition at one moment."""

    at_ms: int
    waiting_jobs: int
    waiting_gpu_milli: int
    running_jobs: int
    allocated_gpu_milli: int
    fragmented_gpu_milli: int


@dataclass(slots=True, kw_only=True)
class Run:
    """One policy on one workload. Samples are per partition and thinned to a bounded number.

    `partition_gpu_milli` divides the capacity among partitions; one partition needs no such entry.
    `dropped_jobs` were refused; `failed_jobs` were stopped at their limit, and have outcomes;
    `never_ran_jobs` ended without a start, as what they depend on ended otherwise or the GPU-hours
    of their tenant were used up.
    """

    policy: str
    workload: str
    capacity_gpu_milli: int
    outcomes: Outcomes = field(default_factory=Outcomes)
    samples: dict[str, list[Sample]] = field(default_factory=dict)
    partition_gpu_milli: dict[str, int] = field(default_factory=dict)
    dropped_jobs: int = 0
    failed_jobs: int = 0
    never_ran_jobs: int = 0
    cycles: int = 0
    wall_seconds: float = 0.0
