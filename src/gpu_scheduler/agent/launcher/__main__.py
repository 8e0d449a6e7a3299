"""`python -I -m gpu_scheduler.agent.launcher --dir D`: run the launcher of a state directory.

Exit code 0 after an orderly end, 2 for wrong arguments, 3 if another launcher serves the directory.
"""

from __future__ import annotations

import fcntl
import os
import sys
import time

from gpu_scheduler.agent.oom_score import ORDINARY, PROTECTED, set_oom_score
from gpu_scheduler.agent.spawn import fork_server
from gpu_scheduler.agent.spawn.child import ignore_signals

LOCK = "launcher.lock"
LOCK_SECONDS = 5.0
WRONG_ARGUMENTS, ALREADY_RUNNING = 2, 3


def main(arguments: list[str]) -> int:
    if len(arguments) != 2 or arguments[0] != "--dir":
        sys.stderr.write("usage: python -I -m gpu_scheduler.agent.launcher --dir DIRECTORY\n")
        return WRONG_ARGUMENTS
    directory = os.path.abspath(arguments[1])
    os.makedirs(directory, mode=0o700, exist_ok=True)
    if not _lock(os.path.join(directory, LOCK)):
        sys.stderr.write(f"another launcher serves {directory}\n")
        return ALREADY_RUNNING
    os.chdir("/")
    ignore_signals()
    # Forked before anything else is loaded, because the fork server must be small. Jobs, its
    # children, are what the kernel is to kill when memory is short.
    set_oom_score(ORDINARY)
    server = fork_server.start()
    set_oom_score(PROTECTED)
    from gpu_scheduler.agent.launcher.service import serve  # noqa: PLC0415

    serve(directory, server)
    return 0


def _lock(path: str) -> bool:
    """Take the lock of the directory, until this process ends; children do not inherit it."""
    lock = os.open(path, os.O_RDWR | os.O_CREAT, 0o600)
    deadline = time.monotonic() + LOCK_SECONDS
    while True:
        try:
            fcntl.lockf(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            if time.monotonic() > deadline:
                return False
            time.sleep(0.02)
        else:
            os.ftruncate(lock, 0)
            os.write(lock, f"{os.getpid()}\n".encode())
            return True


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
