"""Our own programs as processes beside a control plane: scheduler, webhook, agent."""

import os
import signal
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path

from tests.kubernetes.lab.control_plane import die_with_parent

DEADLINE_S = 120.0


class Component:
    """`python -m gpu_scheduler.kubernetes.NAME` with a kubeconfig and a log."""

    def __init__(
        self,
        name: str,
        kubeconfig: Path,
        log: Path,
        *options: str,
        prefix: Sequence[str] = (),
        environment: dict[str, str] | None = None,
    ) -> None:
        """The prefix comes before the command, such as nsenter and its options."""
        self.log = log
        self._command = [
            *prefix,
            sys.executable,
            "-m",
            f"gpu_scheduler.kubernetes.{name}",
            *options,
        ]
        self._environment = {"KUBECONFIG": str(kubeconfig), **(environment or {})}
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                self._command,
                env=os.environ | self._environment,
                stdout=log,
                stderr=log,
                stdin=subprocess.DEVNULL,
                start_new_session=True,
                preexec_fn=die_with_parent,  # noqa: PLW1509
            )

    def stop(self, number: int = signal.SIGKILL) -> int:
        """The exit code; nothing happens if it has ended before."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.process.wait(DEADLINE_S)

    def text(self) -> str:
        return self.log.read_text(errors="replace") if self.log.exists() else ""


def until(condition: Callable[[], object], logs: Sequence[Component] = ()) -> None:
    """Wait for it; on failure the ends of the logs are shown."""
    end = time.monotonic() + DEADLINE_S
    while not condition():
        if time.monotonic() > end:
            ends = "\n".join(f"--- {one.log.name}\n{one.text()[-3000:]}" for one in logs)
            raise AssertionError(f"still waiting\n{ends}")
        time.sleep(0.2)
