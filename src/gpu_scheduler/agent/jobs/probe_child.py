"""Becomes the readiness command of a job: its groups, its user, its directory, then its program.

A script of its own, run without the project's modules: it must start fast.
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
    """Come into the control groups of a process, as far as they are there."""
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


def become(who: dict[str, Any]) -> None:
    """Have the rights of the job's user, and no more."""
    if os.geteuid() == 0:
        try:
            os.initgroups(who["user"], who["gid"])
        except (OSError, KeyError):
            os.setgroups([who["gid"]])
        os.setgid(who["gid"])
        os.setuid(who["uid"])
    os.chdir(who["workdir"])


def main() -> int:
    """Run the command, or say why not."""
    who = json.loads(sys.argv[1])
    try:
        if who["pid"]:
            join_groups(who["pid"])
        become(who)
        os.execvp(who["argv"][0], who["argv"])  # noqa: S606
    except OSError as error:
        sys.stderr.write(f"{error}\n")
        return 127


if __name__ == "__main__":
    sys.exit(main())
