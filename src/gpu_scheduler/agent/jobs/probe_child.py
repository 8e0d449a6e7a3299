"""Runs the readiness command of a job: joins its control groups, becomes its user, then execs.

A script without imports of this package, so that it starts fast.
"""

from __future__ import annotations

import json
import os
import sys

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

MOUNT = "/sys/fs/cgroup"


def join_groups(pid: int) -> None:
    """Join the control groups of a process, as far as they exist."""
    try:
        with open(f"/proc/{pid}/cgroup", encoding="ascii") as file:  # noqa: PTH123
            lines = file.read().splitlines()
    except OSError:
        return
    for line in lines:
        _, controllers, path = line.split(":", 2)
        for place in (f"{MOUNT}/{controllers}".rstrip("/"), f"{MOUNT}/unified"):
            try:
                with open(f"{place}{path}/cgroup.procs", "w", encoding="ascii") as file:  # noqa: PTH123
                    file.write("0")
                break
            except OSError:
                continue


def drop_privileges(spec: dict[str, Any]) -> None:
    """Become the job's user, and change to its directory."""
    if os.geteuid() == 0:
        try:
            os.initgroups(spec["user"], spec["gid"])
        except (OSError, KeyError):
            os.setgroups([spec["gid"]])
        os.setgid(spec["gid"])
        os.setuid(spec["uid"])
    os.chdir(spec["workdir"])


def main() -> int:
    """Replace this process by the command; exit code 127 if that fails."""
    spec = json.loads(sys.argv[1])
    try:
        if spec["pid"]:
            join_groups(spec["pid"])
        drop_privileges(spec)
        os.execvp(spec["argv"][0], spec["argv"])  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main())
