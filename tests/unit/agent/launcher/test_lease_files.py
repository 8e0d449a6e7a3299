"""Lease files that the watchdog reads, also on a failing disk."""

import errno
import os
from pathlib import Path

import pytest

from gpu_scheduler.agent.launcher import lease_watchdog

KEY = ("job-1.1", 0)
FORM = {"boot": "b", "pid": 2, "ticks": 3, "uid": 4, "groups": (), "kill": ()}


def test_incomplete_write_keeps_former_lease(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    lease_watchdog.write_lease(str(tmp_path), KEY, 100, FORM)
    write = os.write
    with monkeypatch.context() as patch:
        patch.setattr(os, "write", lambda target, data: write(target, data[:30]))
        with pytest.raises(OSError, match="No space"):
            lease_watchdog.write_lease(str(tmp_path), KEY, 200, FORM)
    assert [lease.until_ms for lease in lease_watchdog.read_leases(str(tmp_path))] == [100]


def test_unremovable_lease_file_raises_no_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def refused(path: str) -> None:
        raise OSError(errno.EROFS, os.strerror(errno.EROFS), path)

    lease_watchdog.write_lease(str(tmp_path), KEY, 100, FORM)
    monkeypatch.setattr(os, "unlink", refused)
    lease_watchdog.remove_lease(str(tmp_path), KEY)
