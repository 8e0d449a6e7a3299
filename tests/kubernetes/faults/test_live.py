"""Real schedulers, webhook, agents and API server are killed and frozen, stored objects audited.

CHAOS_KILLS and CHAOS_SEED make it longer or different: see `make soak`.
"""

import os
import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from tests.kubernetes.faults.live import Chaos
from tests.kubernetes.lab.build import CONTROL_PLANE
from tests.kubernetes.lab.control_plane import ControlPlane
from tests.kubernetes.lab.fixtures import skip_unless_built

pytestmark = pytest.mark.slow

KILLS = int(os.environ.get("CHAOS_KILLS", "50"))
SEED = int(os.environ.get("CHAOS_SEED", "1"))


@contextmanager
def a_cluster(directory: Path, seed: int) -> Iterator[Chaos]:
    plane = ControlPlane(
        skip_unless_built(*CONTROL_PLANE, "kwok"),
        api_server_flags=["--storage-media-type=application/json"],
    )
    try:
        plane.start()
        plane.start_kwok()
        chaos = Chaos(plane, directory, seed)
        try:
            chaos.build()
            yield chaos
        finally:
            chaos.stop()
    finally:
        plane.stop()


def test_no_gpu_is_given_twice_and_nothing_is_left_over_under_random_kills(tmp_path: Path) -> None:
    began = time.monotonic()
    with a_cluster(tmp_path, SEED) as chaos:
        chaos.disturb(KILLS)
        chaos.settle()
        found = chaos.findings()
        sys.stderr.write(
            f"kubernetes chaos: seed {SEED}, {dict(chaos.counts)}, {chaos.audit.bindings} pods "
            f"bound, {time.monotonic() - began:.0f} s\n"
        )
        assert found == [], chaos.logs()
        assert chaos.audit.bindings > KILLS / 2


def test_the_audit_of_a_real_cluster_catches_a_scheduler_that_binds_before_its_leases(
    tmp_path: Path,
) -> None:
    with a_cluster(tmp_path, SEED) as chaos:
        chaos.variant = "bind-before-the-leases"
        chaos.start("a")
        chaos.apply(chaos.pod("early", gpus=1))
        chaos.until(lambda: chaos.audit.bindings == 1, "the pod is bound")
        assert any("without a lease" in one for one in chaos.findings())
