"""Users and jobs on a host without control groups: its mounts are removed for these processes."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

from tests.linux_accounts import CAN_MAKE, WHY_NOT

pytestmark = [pytest.mark.slow, pytest.mark.skipif(not CAN_MAKE, reason=WHY_NOT)]
WITHOUT = (
    "mount --make-rprivate / && umount --recursive --lazy /sys/fs/cgroup && "
    'mount -t tmpfs none /sys/fs/cgroup && exec "$@"'
)
ROOT = Path(__file__).parents[2]
ATTACKS = ("tests/acceptance/test_hostile_jobs.py", "tests/acceptance/test_shared_node_limits.py")


def in_host_without_control_groups(*command: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        ["unshare", "--mount", "sh", "-c", WITHOUT, "sh", *command],
        capture_output=True,
        text=True,
        check=False,
        cwd=ROOT,
    )


def test_users_harm_no_other_on_host_without_control_groups() -> None:
    if not Path("/sys/fs/cgroup").is_dir() or in_host_without_control_groups("true").returncode:
        pytest.skip("mounts cannot be removed here")
    options = ("-q", "-rs", "-p", "no:cacheprovider", "-p", "no:xdist")
    tried = in_host_without_control_groups(
        *(sys.executable, "-m", "pytest", *options, *ATTACKS), f"--rootdir={os.fspath(ROOT)}"
    )
    assert tried.returncode == 0, tried.stdout
    assert "this machine has no memory control group" in tried.stdout
    assert " passed" in tried.stdout
