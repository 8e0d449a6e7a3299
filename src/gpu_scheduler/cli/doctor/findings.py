"""What the doctor says, and what every check may know of its surroundings."""

from __future__ import annotations

import os
import shutil
import subprocess
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from gpu_scheduler.client.address import SERVER_VARIABLE, Address, candidates
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.settings.file_paths import (
    ROOT_RUNTIME,
    SOCKET_NAME,
    STATE_VARIABLE,
    Paths,
    paths,
)
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.sources import load

OK, WARNING, PROBLEM = STATUSES = ("ok", "warning", "problem")
LONGEST_S = 20.0


@dataclass(frozen=True, slots=True)
class Line:
    """One thing that was looked at."""

    check: str
    status: str
    found: str
    remedy: str = ""

    def document(self) -> dict[str, str]:
        """For JSON."""
        return {
            "check": self.check,
            "status": self.status,
            "found": self.found,
            "remedy": self.remedy,
        }


@dataclass(frozen=True, slots=True, kw_only=True)
class Surroundings:
    """Settings (the defaults, if they cannot be read), paths, variables, and who we are."""

    settings: Settings
    paths: Paths
    file: str | None = None
    notices: tuple[str, ...] = ()
    error: str = ""
    is_named: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    uid: int = field(default_factory=os.geteuid)

    @classmethod
    def of(cls, config: str | None, state_dir: str | None) -> Surroundings:
        """As `tgpu up` would find them."""
        settings, error = Settings(), ""
        file: str | None = None
        notices: tuple[str, ...] = ()
        try:
            loaded = load(config)
        except SchedulerError as refused:
            error = str(refused).replace(":\n  ", ": ").replace("\n  ", "; ")
        else:
            settings, file, notices = loaded.settings, loaded.file, loaded.notices
        where = paths(state_dir or settings.files.state_dir or None)
        return cls(
            settings=settings,
            paths=where,
            file=file,
            notices=notices,
            error=error,
            is_named=bool(state_dir or os.environ.get(STATE_VARIABLE)),
        )

    @property
    def server(self) -> Address:
        """The server that a client would talk to: as named, one's own, else that of the machine."""
        if not self.is_named and self.environ.get(SERVER_VARIABLE):
            return candidates(environ=self.environ)[0]
        own = self.paths.server_socket
        shared = f"{ROOT_RUNTIME}/{SOCKET_NAME}"
        if self.is_named or os.path.exists(own) or not os.path.exists(shared):  # noqa: PTH110
            return Address(path=own)
        return Address(path=shared)

    @property
    def socket(self) -> str:
        """Of that server; empty if it is reached over the network, or its name makes no sense."""
        try:
            return self.server.path
        except SchedulerError:
            return ""

    def program(self, name: str) -> str | None:
        """Where a program is, by our PATH."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))

    def output(self, command: Sequence[str], timeout_s: float = LONGEST_S) -> tuple[int, str]:
        """Exit code and output of a command; 124 if it took too long, 127 if it cannot be run."""
        try:
            ended = subprocess.run(  # noqa: S603 - programs of the system, without a shell
                list(command),
                stdin=subprocess.DEVNULL,
                capture_output=True,
                text=True,
                errors="replace",
                timeout=timeout_s,
                env=dict(self.environ),
                check=False,
            )
        except subprocess.TimeoutExpired:
            return 124, f"no answer within {timeout_s:g} s"
        except OSError as error:
            return 127, error.strerror or str(error)
        return ended.returncode, (ended.stdout + ended.stderr).strip()


def nearest(path: str) -> str:
    """The path, or the first directory above it that exists."""
    while path not in ("", "/") and not os.path.exists(path):  # noqa: PTH110
        path = os.path.dirname(path)  # noqa: PTH120
    return path or "/"
