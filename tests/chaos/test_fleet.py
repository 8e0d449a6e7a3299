"""Three servers, PostgreSQL and agents under random faults; all records are audited.

FLEET_AGENTS, FLEET_FAULTS and CHAOS_SEED make it larger, longer or different: see `make soak`.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

from tests.chaos.audit import read_notes
from tests.chaos.fleet import FleetChaos, a_fleet, can_cut_cables, can_mount

pytestmark = pytest.mark.slow

AGENTS = int(os.environ.get("FLEET_AGENTS", "4"))
FAULTS = int(os.environ.get("FLEET_FAULTS", "5"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


def test_no_job_is_lost_doubled_disturbed_or_misreported_under_fleet_faults() -> None:
    began = time.monotonic()
    cables = min(2, AGENTS) if can_cut_cables() else 0
    disks = min(2, AGENTS // 2) if can_mount() else 0
    with a_fleet(AGENTS, cables, disks) as fleet:
        chaos = FleetChaos(fleet, SEED)
        chaos.run(FAULTS, undisturbed_ms=15_000 if FAULTS <= 20 else 60_000)
        broken_s = time.monotonic() - began
        chaos.drain()
        violations = chaos.violations()
        runs, _ = read_notes(fleet.notes)
    sys.stderr.write(
        f"fleet: seed {SEED}, {AGENTS} agents, {dict(chaos.faults)} in {broken_s:.0f} s, "
        f"{len(chaos.ids)} jobs, {len(runs)} processes, {time.monotonic() - began:.0f} s in all\n"
    )
    assert violations == []
    assert len(chaos.ids) > FAULTS
