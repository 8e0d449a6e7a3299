"""How well promised starts were kept: rows of promises and starts in, a judgement out.

A promise is the first start that a job was told when it began to wait. It is kept if the job starts
within a tenth of the promised wait or within ten minutes of it, whichever is more.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass

LEAST_TOLERANCE_MS = 600_000
TOLERANCE_PERCENT = 10

Promise = tuple[str, int, int, int]
"""How it was found, when it was made, the promised start and the real one."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """Counts and errors; errors are in milliseconds, later than promised is positive."""

    basis: str
    judged: int = 0
    kept: int = 0
    late: int = 0
    early: int = 0
    median_error_ms: int = 0
    p90_error_ms: int = 0

    @property
    def kept_percent(self) -> float | None:
        """Of a hundred promises so many were kept; None if there were none."""
        return round(100 * self.kept / self.judged, 1) if self.judged else None


def tolerance_ms(made_ms: int, promised_ms: int) -> int:
    """How far off a kept promise may be."""
    return max(LEAST_TOLERANCE_MS, (promised_ms - made_ms) * TOLERANCE_PERCENT // 100)


def judge(promises: Iterable[Promise]) -> list[Judgement]:
    """All together, and then by how they were found."""
    by_basis: dict[str, list[Promise]] = {}
    everything: list[Promise] = []
    for promise in promises:
        everything.append(promise)
        by_basis.setdefault(promise[0], []).append(promise)
    return [_judged("all", everything), *(_judged(b, p) for b, p in sorted(by_basis.items()))]


def _judged(basis: str, promises: list[Promise]) -> Judgement:
    kept = late = early = 0
    errors = sorted(abs(start_ms - promised_ms) for _, _, promised_ms, start_ms in promises)
    for _, made_ms, promised_ms, start_ms in promises:
        error = start_ms - promised_ms
        if abs(error) <= tolerance_ms(made_ms, promised_ms):
            kept += 1
        elif error > 0:
            late += 1
        else:
            early += 1
    return Judgement(
        basis=basis,
        judged=len(promises),
        kept=kept,
        late=late,
        early=early,
        median_error_ms=errors[len(errors) // 2] if errors else 0,
        p90_error_ms=errors[len(errors) * 9 // 10] if errors else 0,
    )
