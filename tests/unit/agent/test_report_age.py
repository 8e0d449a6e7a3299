"""How long ago an attempt ended, when the node's wall clock was set meanwhile."""

from typing import Any

import pytest

from gpu_scheduler.agent.launcher_protocol import Over
from gpu_scheduler.agent.server_link import fact_from


class Clocks:
    def wall_ms(self) -> int:
        return 1_000_000

    def boot_ms(self) -> int:
        return 50_000

    def boot_id(self) -> str:
        return "this boot"


@pytest.mark.parametrize(
    ("boot_id", "boot_ms", "wall_ms", "ago_ms"),
    [
        ("this boot", 48_000, 100, 2_000),
        ("this boot", 48_000, 9_000_000, 2_000),
        ("an earlier boot", 48_000, 990_000, 10_000),
        ("", 0, 990_000, 10_000),
        ("", 0, 9_000_000, 0),
    ],
)
def test_age_of_end_is_measured_by_boot_time_clock(
    boot_id: str, boot_ms: int, wall_ms: int, ago_ms: int
) -> None:
    machine: Any = Clocks()
    over = Over(
        allocation_id="a", member=0, ran=True, at_ms=wall_ms, boot_id=boot_id, boot_ms=boot_ms
    )
    assert fact_from(over, machine).over.ago_ms == ago_ms
