"""Server and agent are killed at random, and the records of the jobs are audited.

CHAOS_KILLS and CHAOS_SEED make it longer or different: see `make soak`.
"""

from __future__ import annotations

import os
import sys
import time

import pytest

from tests.chaos.audit import read_notes
from tests.chaos.random_kills import Chaos
from tests.chaos.single_server import a_single_server

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("CHAOS_KILLS", "20"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))
FAST_RETRIES = {"jobs_assignment_retry_wait_s": "0.2"}


def test_no_job_is_lost_doubled_disturbed_or_misreported_under_random_kills() -> None:
    began = time.monotonic()
    with a_single_server(**FAST_RETRIES) as scheduler:
        chaos = Chaos(scheduler, SEED)
        chaos.run(KILLS, undisturbed_ms=10_000 if KILLS <= 20 else 60_000)
        killed_s = time.monotonic() - began
        chaos.drain()
        violations = chaos.violations()
        runs, _ = read_notes(scheduler.notes)
    sys.stderr.write(
        f"chaos: seed {SEED}, {dict(chaos.kills)} kills in {killed_s:.0f} s, "
        f"{len(chaos.ids)} jobs, {len(runs)} processes, {time.monotonic() - began:.0f} s in all\n"
    )
    assert violations == []
    assert len(chaos.ids) > KILLS
