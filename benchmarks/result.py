"""One result of a measure, as the dictionary that becomes its line of JSON."""

from __future__ import annotations

import os
import platform
from typing import Any

Result = dict[str, Any]
MORE = "at least"
LESS = "at most"


def result(  # noqa: PLR0913 - the fields of a line
    name: str,
    value: float,
    unit: str,
    *,
    floor: float,
    repeats: int,
    target: float | None = None,
    bound: str = MORE,
    also_met: bool = True,
    cpu_value: float | None = None,
    **details: object,
) -> Result:
    """Judge a figure by its target. `also_met` is for conditions beside the figure itself.

    `cpu_value` is the same figure by CPU time. It is judged as well, for machines that others use.
    """

    def judged(figure: float | None) -> bool | None:
        if target is None or figure is None:
            return None
        return also_met and (figure >= target if bound == MORE else figure <= target)

    return {
        "name": name,
        "value": rounded(value),
        "unit": unit,
        "target": target,
        "bound": bound,
        "floor": rounded(floor),
        "ratio_to_floor": rounded(value / floor) if floor else None,
        "met": judged(value),
        "cpu_value": None if cpu_value is None else rounded(cpu_value),
        "met_by_cpu": judged(cpu_value),
        "repeats": repeats,
        "python": platform.python_version(),
        "cpu_count": os.cpu_count(),
        "load_average": rounded(os.getloadavg()[0]),
        **details,
    }


def skipped(name: str, reason: str) -> Result:
    """A measure that cannot be taken here, and why."""
    return {"name": name, "skipped": reason, "met": None, "python": platform.python_version()}


def rounded(value: float) -> float:
    """Three or more digits that mean something, none that do not."""
    if value >= 100:
        return round(value)
    return float(f"{value:.3g}")
