"""Usage intervals and Hypothesis strategies for the ledger tests."""

from typing import Any

from hypothesis import strategies as st

from gpu_scheduler.ledger.usage import UsageInterval
from gpu_scheduler.model.job import JobState

NOV_15_2025 = 1_763_164_800_000
"""Midnight UTC."""
HOUR = 3_600_000


def an_interval(**changes: Any) -> UsageInterval:
    """One A100 with 4 cores and 8 GiB for one hour, completed."""
    values: dict[str, Any] = {
        "allocation_id": "a1",
        "job_id": "j1",
        "tenant": "vision",
        "user": "ada",
        "attempt": 1,
        "start_ms": NOV_15_2025,
        "end_ms": NOV_15_2025 + HOUR,
        "gpu_milli": 1000,
        "gpu_memory_mb": 81_920,
        "cpu_milli": 4000,
        "memory_mb": 8192,
        "outcome": JobState.COMPLETED,
    }
    values.update(changes)
    values.setdefault("gpu_models", (("A100", values["gpu_milli"]),) if values["gpu_milli"] else ())
    return UsageInterval(**values)


@st.composite
def intervals(draw: st.DrawFn, allocation_id: str = "a1") -> UsageInterval:
    """Any interval of up to 100 days, over a few tenants, users and models."""
    start_ms = draw(st.integers(0, 4 * NOV_15_2025))
    models = draw(st.dictionaries(st.sampled_from("ABC"), st.integers(0, 80_000)))
    return UsageInterval(
        allocation_id=allocation_id,
        job_id=draw(st.sampled_from(["j1", "j2"])),
        tenant=draw(st.sampled_from(["vision", "speech"])),
        user=draw(st.sampled_from(["ada", "bob"])),
        attempt=draw(st.integers(1, 3)),
        start_ms=start_ms,
        end_ms=start_ms + draw(st.integers(0, 100 * 24 * HOUR)),
        gpu_milli=sum(models.values()),
        gpu_memory_mb=draw(st.integers(0, 10**6)),
        cpu_milli=draw(st.integers(0, 10**6)),
        memory_mb=draw(st.integers(0, 10**7)),
        gpu_models=tuple(sorted(models.items())),
        outcome=draw(
            st.sampled_from(
                [
                    JobState.COMPLETED,
                    JobState.FAILED,
                    JobState.CANCELLED,
                    JobState.PREEMPTED,
                    JobState.PENDING,
                ]
            )
        ),
        lost_ms=draw(st.integers(0, 10**9)),
    )


@st.composite
def many_intervals(draw: st.DrawFn) -> list[UsageInterval]:
    """Up to four intervals, each of its own allocation."""
    count = draw(st.integers(0, 4))
    return [draw(intervals(allocation_id=f"a{number}")) for number in range(count)]
