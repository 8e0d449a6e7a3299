"""The command line: arguments in, an exit code out.

A command's module is imported only when that command is asked for, so this module must never
import one, nor anything else that is slow to load.
"""

import errno
import gc
import os
import sys

from gpu_scheduler import __version__

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Sequence
    from types import ModuleType
    from typing import TypeGuard

    from gpu_scheduler.cli.parser import Parser

PROGRAM = "tgpu"

EXIT_CANNOT = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + 2
EXIT_BROKEN_PIPE = 128 + 13
STANDARD_ERROR = 2
FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Command:
    """Where a sub-command lives: its module has ``register(parser)`` and the named function.

    A module with ``TAKES_WORDS`` gets what follows its options as ``args.words``, unread: the
    command line of a job may hold any option.
    """

    __slots__ = ("function", "help", "module")

    def __init__(self, help: str, module: str, function: str = "run") -> None:  # noqa: A002
        self.help = help
        self.module = module
        self.function = function


def _row(name: str, about: str, function: str = "run") -> Command:
    return Command(about, f"gpu_scheduler.cli.{name}", function)


COMMANDS: dict[str, Command] = {
    "up": _row("admin.up", "start the scheduler on this machine"),
    "down": _row("admin.down", "stop it; jobs that run go on"),
    "server": _row("cluster.agent", "serve a cluster, in the foreground", "server"),
    "agent": _row("cluster.agent", "run jobs on this machine for a server elsewhere"),
    "submit": _row("submit.submit", "put a job into the queue"),
    "run": _row("submit.run", "submit a job, show its output and end with its exit code"),
    "shell": _row("interactive.shell", "open an interactive shell with GPUs"),
    "jupyter": _row("interactive.jupyter", "start a notebook server with GPUs"),
    "code": _row("interactive.code", "let VS Code or ssh into a job with GPUs"),
    "top": _row("interactive.top", "show GPUs and queue live, and act on jobs by keys"),
    "list": _row("jobs.list", "list your jobs that wait or run"),
    "show": _row("jobs.show", "show everything about a job"),
    "logs": _row("jobs.logs", "show the output of a job"),
    "sweep": _row("jobs.sweeps", "show sweeps as grids, and retry what failed in them"),
    "cancel": _row("jobs.actions", "stop jobs, or take them from the queue"),
    "hold": _row("jobs.actions", "keep waiting jobs from starting", "hold"),
    "release": _row("jobs.actions", "let held jobs start", "release"),
    "update": _row("jobs.actions", "change a job that waits", "update"),
    "retry": _row("jobs.actions", "put failed or cancelled jobs back into the queue", "retry"),
    "wait": _row("jobs.wait", "wait until jobs have ended"),
    "attach": _row("interactive.attach", "come to the terminal of a job, or enter its session"),
    "snapshots": _row("submit.snapshots", "list or drop the copies of code that jobs run in"),
    "explain": _row("jobs.explain", "say why a job waits, and until when"),
    "history": _row("jobs.history", "list jobs that have ended"),
    "gpus": _row("cluster.gpus", "show the GPUs and who uses them"),
    "pause-gpu": _row("cluster.gpus", "give a GPU no new work", "pause"),
    "resume-gpu": _row("cluster.gpus", "use a paused GPU again", "resume"),
    "nodes": _row("cluster.nodes", "list, cordon, drain, label or remove nodes"),
    "tenants": _row("accounting.tenants", "list, create, show, change or delete tenants"),
    "node": _row("cluster.nodes", "let nodes join with a token, list or revoke their keys", "node"),
    "token": _row("admin.tokens", "make, list or revoke tokens for callers from elsewhere"),
    "whoami": _row("admin.tokens", "say who the server takes you for", "whoami"),
    "audit": _row(
        "admin.tokens", "show who changed what, and what was refused (for admins)", "audit"
    ),
    "service": _row("cluster.services", "keep programs running as online services"),
    "reserve": _row("cluster.reserve", "keep GPUs for a tenant or user for a while"),
    "limits": _row(
        "accounting.usage", "show what you may have, what you hold and what is left", "limits"
    ),
    "usage": _row("accounting.usage", "show who used how much"),
    "report": _row(
        "accounting.report", "report waits, run times, use and cost of a period; invoices"
    ),
    "status": _row("cluster.status", "show queue, GPUs, jobs and health at a glance"),
    "health": _row("cluster.status", "ask whether the server and its parts are well", "health"),
    "notify": _row("admin.notify", "list who can be told what happens, and try one"),
    "metrics": _row("accounting.metrics", "show how jobs and GPUs have fared"),
    "doctor": _row("doctor.command", "look at this machine and say what is wrong and what to do"),
    "config": _row("admin.config", "print, explain and check settings"),
    "db": _row("admin.db", "upgrade, check, back up or copy the database"),
    "estimate": _row("submit.estimate", "say how much GPU memory a language model needs"),
    "simulate": _row("simulate.command", "run a trace through the scheduler on virtual time"),
    "completions": _row("completions", "print a script that completes commands in your shell"),
    "demo": _row("admin.demo", "show all this at work, on declared GPUs, in a minute"),
    "add": _row("submit.add", "submit a script with the columns of jobs.txt"),
    "screens": _row("interactive.attach", "list the sessions that one can attach to", "screens"),
    "config-sample": _row(
        "admin.config", "print a configuration file with every setting", "sample"
    ),
    "test": _row(
        "admin.demo", "check the installation with real jobs on declared GPUs", "self_check"
    ),
}

ALIASES = {"list-jobs": "list", "cancel-job": "cancel", "start": "up", "ls": "list"}
"""Other names of the same commands, which the help does not list."""


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command and return its exit code; wrong usage leaves by SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    gc.disable()  # while modules are loaded, nothing becomes garbage
    _settle_streams()
    try:
        try:
            return _run(arguments)
        finally:
            # Here, not at the end of the process, where a closed pipe could no longer be caught.
            sys.stdout.flush()
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except BrokenPipeError:
        _discard_output()
        return EXIT_BROKEN_PIPE
    except Exception as error:
        from gpu_scheduler.model.errors import SchedulerError

        if _is_full(error):
            _discard_output()
            _complain(f"the output cannot be written: {str(error.strerror).lower()}")
            return EXIT_CANNOT
        if not isinstance(error, SchedulerError):
            raise
        from gpu_scheduler.cli.text.tables import in_local_time

        _complain(in_local_time(str(error)))
        return error.exit_code


def command_named(name: str) -> Command | None:
    """The command of that name or alias."""
    return COMMANDS.get(ALIASES.get(name, name))


def parser_for(name: str, command: Command) -> "tuple[ModuleType, Parser]":
    """The module of a command and its parser, with all options."""
    from gpu_scheduler.cli.parser import Parser

    __import__(command.module)
    module = sys.modules[command.module]
    parser = Parser(prog=f"{PROGRAM} {name}", description=_sentence(command.help))
    register = getattr(module, f"register_{command.function}", None) or module.register
    register(parser)
    return module, parser


def _run(arguments: list[str]) -> int:
    # No option before the command takes a value, so the first other word is the command.
    place = next((i for i, word in enumerate(arguments) if not word.startswith("-")), None)
    before = arguments if place is None else arguments[:place]
    if before:
        _program_parser().read(before)
    if place is None:
        _program_parser().print_help(sys.stderr)
        return EXIT_USAGE
    name = arguments[place]
    if name == "help":
        return _help(arguments[place + 1 :])
    command = command_named(name)
    if command is None:
        _complain(_unknown(name))
        return EXIT_USAGE
    return _run_command(name, command, arguments[place + 1 :])


def _help(names: list[str]) -> int:
    """`tgpu help submit` is `tgpu submit --help`."""
    command = command_named(names[0]) if names else None
    if names and command is None:
        _complain(_unknown(names[0]))
        return EXIT_USAGE
    parser = parser_for(names[0], command)[1] if command else _program_parser()
    parser.print_help()
    return 0


def _run_command(name: str, command: Command, arguments: list[str]) -> int:
    module, parser = parser_for(name, command)
    args = parser.read(arguments, takes_words=getattr(module, "TAKES_WORDS", False))
    gc.enable()
    exit_code: int = getattr(module, command.function)(args)
    return exit_code


def _program_parser() -> "Parser":
    from gpu_scheduler.cli.parser import Parser

    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--help] [--version] <command> ...",
        description="Share GPUs fairly, and know why a job waits.",
        epilog="\n".join(
            ["commands:", *lines, "", f"'{PROGRAM} <command> --help' explains one of them."]
        ),
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, [*COMMANDS, *ALIASES], n=1)
    advice = f"did you mean '{near[0]}'?" if near else f"'{PROGRAM} --help' lists the commands"
    return f"there is no command '{name}'; {advice}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _complain(message: str) -> None:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)


def _settle_streams() -> None:
    """Make them safe to use, whoever started us.

    Where one is closed, nothing else must get its number: a warning would be written into whatever
    file is opened next. A terminal that cannot show a character gets '?', not the end of a command.
    """
    number = os.open(os.devnull, os.O_RDWR)
    while number <= STANDARD_ERROR:
        os.set_inheritable(number, True)
        number = os.open(os.devnull, os.O_RDWR)
    os.close(number)
    for place, (name, mode) in enumerate((("stdin", "r"), ("stdout", "w"), ("stderr", "w"))):
        if getattr(sys, name) is None:
            setattr(sys, name, open(place, mode, encoding="utf-8", closefd=False))  # noqa: SIM115
    if getattr(sys.stdout, "errors", "") == "strict":
        sys.stdout.reconfigure(errors="replace")  # type: ignore[union-attr]


def _is_full(error: Exception) -> "TypeGuard[OSError]":
    """Whether stdout takes no more: other files have names."""
    return isinstance(error, OSError) and error.errno in FULL and error.filename is None


def _discard_output() -> None:
    """Point stdout at nothing, so that Python's own flush at exit cannot fail as well."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
