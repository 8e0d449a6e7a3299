"""`tgpu doctor`: checks this machine and the server, and prints what to do about each problem.

It works without a server and as any user. The exit code is 1 if there is a problem, and 0 for
warnings.
"""

from __future__ import annotations

import os
import shutil
import subprocess
from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from gpu_scheduler.cli.text.tables import counted, painted, print_json, visible
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
from gpu_scheduler.settings.sources import load as load_settings

OK, WARNING, PROBLEM = STATUSES = ("ok", "warning", "problem")
COMMAND_TIMEOUT_S = 20.0


@dataclass(frozen=True, slots=True)
class Finding:
    """The result of one check."""

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
class Context:
    """What the checks need: settings (defaults if they cannot be read), paths, environment, uid."""

    settings: Settings
    paths: Paths
    file: str | None = None
    notices: tuple[str, ...] = ()
    error: str = ""
    is_named: bool = False
    environ: Mapping[str, str] = field(default_factory=lambda: dict(os.environ))
    uid: int = field(default_factory=os.geteuid)

    @classmethod
    def load(cls, config: str | None, state_dir: str | None) -> Context:
        """The context as `tgpu up` would see it."""
        settings, error = Settings(), ""
        file: str | None = None
        notices: tuple[str, ...] = ()
        try:
            loaded = load_settings(config)
        except SchedulerError as invalid:
            error = str(invalid).replace(":\n  ", ": ").replace("\n  ", "; ")
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
        """The server that a client would use: the named one, one's own, else the machine's."""
        if not self.is_named and self.environ.get(SERVER_VARIABLE):
            return candidates(environ=self.environ)[0]
        own = self.paths.server_socket
        shared = f"{ROOT_RUNTIME}/{SOCKET_NAME}"
        if self.is_named or os.path.exists(own) or not os.path.exists(shared):  # noqa: PTH110
            return Address(path=own)
        return Address(path=shared)

    @property
    def socket(self) -> str:
        """The socket of that server; empty for a network address or an invalid one."""
        try:
            return self.server.path
        except SchedulerError:
            return ""

    def program(self, name: str) -> str | None:
        """The path of a program on the PATH."""
        return shutil.which(name, path=self.environ.get("PATH", os.defpath))

    def output(
        self, command: Sequence[str], timeout_s: float = COMMAND_TIMEOUT_S
    ) -> tuple[int, str]:
        """Exit code and output of a command; 124 if it timed out, 127 if it cannot be run."""
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


def nearest_existing(path: str) -> str:
    """The path, or the first directory above it that exists."""
    while path not in ("", "/") and not os.path.exists(path):  # noqa: PTH110
        path = os.path.dirname(path)  # noqa: PTH120
    return path or "/"


EXIT_PROBLEM = 1
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}

Check = Callable[[Context], Iterator[Finding]]


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--config", metavar="FILE", help="settings of the server, as for 'tgpu up'")
    add("--state-dir", metavar="DIR", help="its state directory, as for 'tgpu up'")
    add("-q", "--quiet", action="store_true", help="show only warnings and problems")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: Namespace) -> int:
    """Run all checks and print the findings."""
    findings = list(run_checks(Context.load(args.config, args.state_dir)))
    counts = {status: sum(one.status == status for one in findings) for status in STATUSES}
    if args.json:
        print_json({"lines": [one.document() for one in findings], **counts})
    else:
        for finding in findings:
            if not args.quiet or finding.status != OK:
                _print(finding)
        totals = (counted(counts[WARNING], WARNING), counted(counts[PROBLEM], PROBLEM))
        print(painted(", ".join((f"{counts[OK]} {OK}", *totals)), "bold"))
    return EXIT_PROBLEM if counts[PROBLEM] else 0


def run_checks(context: Context) -> Iterator[Finding]:
    """Run all checks. A check that raises is a problem, and the others go on."""
    for name, check in all_checks():
        try:
            yield from check(context)
        except Exception as error:  # noqa: BLE001 - one broken check must not stop the others
            found = f"the check failed: {error!r}"
            yield Finding(name, PROBLEM, found, "this is a bug in tgpu doctor; please report it")


def all_checks() -> list[tuple[str, Check]]:
    """Every check, with its name."""
    from gpu_scheduler.cli.admin import doctor_checks as checks

    return [
        ("settings", checks.check_settings),
        ("python", checks.check_python),
        ("user", checks.check_user),
        ("gpus", checks.check_gpus),
        ("cgroups", checks.check_cgroups),
        ("state", checks.check_state_directory),
        ("disk", checks.check_disk),
        ("secrets", checks.check_secrets),
        ("server", checks.check_server),
        ("socket", checks.check_socket),
        ("ports", checks.check_ports),
        ("clock", checks.check_clock),
        ("programs", checks.check_programs),
        ("service", checks.check_service),
        ("limits", checks.check_limits),
    ]


def _print(finding: Finding) -> None:
    status = painted(f"{finding.status:<8}", _COLOURS[finding.status])
    print(f"{status} {finding.check:<9} {visible(finding.found)}")
    if finding.remedy:
        for part in finding.remedy.split("\n"):
            print(f"{'':<18} -> {visible(part)}")
