"""`tgpu doctor`: looks at this machine and says, line by line, what is well and what to do.

It works without a server, and as any user. Exit code 1 when there is a problem; warnings give 0.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Callable, Iterator

from gpu_scheduler.cli.doctor.findings import OK, PROBLEM, STATUSES, WARNING, Line, Surroundings
from gpu_scheduler.cli.text.tables import counted, painted, print_json, visible

EXIT_PROBLEM = 1
_COLOURS = {"ok": "green", "warning": "yellow", "problem": "red"}

Check = Callable[[Surroundings], Iterator[Line]]


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("--config", metavar="FILE", help="the settings of the server, as with 'tgpu up'")
    add("--state-dir", metavar="DIR", help="its state directory, as with 'tgpu up'")
    add("-q", "--quiet", action="store_true", help="show only what is not well")
    add("--json", action="store_true", help="print JSON instead of text")


def run(args: Namespace) -> int:
    """Look at everything."""
    lines = list(look(Surroundings.of(args.config, args.state_dir)))
    counts = {status: sum(line.status == status for line in lines) for status in STATUSES}
    if args.json:
        print_json({"lines": [line.document() for line in lines], **counts})
    else:
        for line in lines:
            if not args.quiet or line.status != "ok":
                _show(line)
        found = (counted(counts[WARNING], WARNING), counted(counts[PROBLEM], PROBLEM))
        told = ", ".join((f"{counts[OK]} {OK}", *found))
        print(painted(told, "bold"))
    return EXIT_PROBLEM if counts[PROBLEM] else 0


def look(around: Surroundings) -> Iterator[Line]:
    """All checks in turn. One that fails itself is a problem, and the others go on."""
    for name, check in checks():
        try:
            yield from check(around)
        except Exception as error:  # noqa: BLE001 - a doctor does not faint
            told = f"could not be looked at: {error!r}"
            yield Line(name, PROBLEM, told, "this is a mistake of tgpu doctor; please report it")


def checks() -> list[tuple[str, Check]]:
    """Every check, with its name."""
    from gpu_scheduler.cli.doctor import host, server

    return [
        ("settings", server.settings),
        ("python", host.python),
        ("user", host.user),
        ("gpus", host.gpus),
        ("cgroups", host.cgroups),
        ("state", server.state),
        ("disk", server.disk),
        ("secrets", server.secrets),
        ("server", server.server),
        ("socket", server.socket_file),
        ("ports", server.ports),
        ("clock", host.clock),
        ("programs", host.programs),
        ("service", server.service),
        ("limits", host.limits),
    ]


def _show(line: Line) -> None:
    status = painted(f"{line.status:<8}", _COLOURS[line.status])
    print(f"{status} {line.check:<9} {visible(line.found)}")
    if line.remedy:
        for part in line.remedy.split("\n"):
            print(f"{'':<18} -> {visible(part)}")
