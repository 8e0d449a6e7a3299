"""The command line: arguments in, an exit code out.

The module of a command is imported only when that command runs, so this module must never import
one, nor anything else that is slow to load.
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

EXIT_FAILED = 1
EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + 2
EXIT_BROKEN_PIPE = 128 + 13
STANDARD_ERROR = 2
DISK_FULL = (errno.ENOSPC, errno.EDQUOT, errno.EFBIG, errno.EIO)


class Command:
    """One line of help, and the module with the two functions of a command.

    `register_NAME(parser)` adds the options, `run_NAME(args)` does the work and returns the exit
    code; a module with a single command calls them `register` and `run`. With `takes_words`, the
    words after the options go to `args.words` unparsed: a job's command line may hold any option.
    """

    __slots__ = ("help", "module", "register", "run", "takes_words")

    def __init__(
        self,
        help: str,  # noqa: A002
        module: str,
        name: str = "",
        *,
        takes_words: bool = False,
    ) -> None:
        self.help = help
        self.module = f"gpu_scheduler.cli.{module}"
        self.register = f"register_{name}" if name else "register"
        self.run = f"run_{name}" if name else "run"
        self.takes_words = takes_words


COMMANDS: dict[str, Command] = {
    "up": Command("start the scheduler on this machine", "admin.start", "up"),
    "down": Command("stop the scheduler; running jobs go on", "admin.down"),
    "server": Command("run the server of a cluster in the foreground", "admin.start", "server"),
    "agent": Command("run jobs on this machine for a server elsewhere", "admin.start", "agent"),
    "submit": Command("submit a job to the queue", "submit.submit", "submit", takes_words=True),
    "run": Command(
        "submit a job, show its output and exit with its exit code", "submit.run", takes_words=True
    ),
    "shell": Command(
        "open an interactive shell with GPUs", "interactive.shell", "shell", takes_words=True
    ),
    "jupyter": Command(
        "start a notebook server with GPUs", "interactive.editors", "jupyter", takes_words=True
    ),
    "code": Command(
        "connect VS Code or ssh to a job with GPUs", "interactive.editors", "code", takes_words=True
    ),
    "top": Command("show GPUs and the queue live, and act on jobs with keys", "interactive.top"),
    "dashboard": Command(
        "open the dashboard in a browser, or print how to reach it", "interactive.dashboard"
    ),
    "list": Command("list your pending and running jobs", "jobs.list", "list"),
    "show": Command("show everything about a job", "jobs.show", "show"),
    "logs": Command("show the output of a job", "jobs.follow", "logs"),
    "sweep": Command("show sweeps as grids, and retry their failed jobs", "jobs.sweeps"),
    "cancel": Command("cancel pending or running jobs", "jobs.actions", "cancel"),
    "hold": Command("keep pending jobs from starting", "jobs.actions", "hold"),
    "release": Command("let held jobs start", "jobs.actions", "release"),
    "update": Command("change a pending job", "jobs.actions", "update"),
    "resubmit": Command("submit jobs that have ended again", "jobs.actions", "resubmit"),
    "retry": Command("put failed or cancelled jobs back into the queue", "jobs.actions", "retry"),
    "wait": Command("wait until jobs have ended", "jobs.follow", "wait"),
    "attach": Command("attach to the terminal or session of a job", "interactive.shell", "attach"),
    "snapshots": Command(
        "list or delete the copies of code that jobs run in", "submit.snapshot_command"
    ),
    "explain": Command(
        "explain why a job is pending, and when it should start", "jobs.show", "explain"
    ),
    "history": Command("list jobs that have ended", "jobs.list", "history"),
    "gpus": Command("show the GPUs and which jobs use them", "cluster.gpus", "gpus"),
    "pause-gpu": Command("give a GPU no new work", "cluster.gpus", "pause"),
    "resume-gpu": Command("use a paused GPU again", "cluster.gpus", "resume"),
    "nodes": Command("list, cordon, drain, label or remove nodes", "cluster.nodes", "nodes"),
    "tenants": Command("list, create, show, update or delete tenants", "accounting.tenants"),
    "node": Command(
        "create join tokens for nodes, list or revoke their keys", "cluster.nodes", "node"
    ),
    "token": Command("create, list or revoke tokens for remote access", "admin.tokens", "token"),
    "whoami": Command("show which user the server takes you for", "admin.tokens", "whoami"),
    "audit": Command(
        "show the audit log: changes and rejected requests (for admins)", "admin.tokens", "audit"
    ),
    "service": Command(
        "keep programs running as online services", "cluster.services", takes_words=True
    ),
    "reserve": Command("reserve GPUs for a tenant or user for a period", "cluster.reserve"),
    "quota": Command(
        "show the quota tree: used, guaranteed, borrowed and lent GPUs", "accounting.usage", "quota"
    ),
    "limits": Command(
        "show your limits, what you use of them and what is left", "accounting.usage", "limits"
    ),
    "usage": Command("show how much each tenant and user has used", "accounting.usage", "usage"),
    "correct-usage": Command(
        "charge an ended attempt for another run time (for admins)",
        "accounting.usage",
        "correct_usage",
    ),
    "report": Command(
        "report waits, run times, use and cost of a period; invoices", "accounting.report"
    ),
    "status": Command("show queue, GPUs, jobs and health at a glance", "cluster.status", "status"),
    "health": Command(
        "check the health of the server and its components", "cluster.status", "health"
    ),
    "notify": Command("list notification targets, and test one", "admin.notify"),
    "metrics": Command("show statistics of jobs and GPUs", "accounting.usage", "metrics"),
    "doctor": Command("check this machine and say how to fix problems", "admin.doctor"),
    "config": Command("print, explain and check settings", "admin.config", "config"),
    "db": Command("upgrade, check, back up or copy the database", "admin.db"),
    "estimate": Command(
        "estimate the GPU memory that a language model needs", "submit.llm", "estimate"
    ),
    "simulate": Command("run a trace through the scheduler on virtual time", "simulate.command"),
    "completions": Command(
        "print a script that completes commands in your shell", "reference", "completions"
    ),
    "demo": Command(
        "show the scheduler at work on declared GPUs, in a minute", "admin.demo", "demo"
    ),
    "add": Command("submit a script with the columns of jobs.txt", "submit.submit", "add"),
    "screens": Command("list the sessions that you can attach to", "interactive.shell", "screens"),
    "config-sample": Command(
        "print a configuration file with every setting", "admin.config", "sample"
    ),
    "test": Command(
        "check the installation with real jobs on declared GPUs", "admin.demo", "self_check"
    ),
}

GROUPS = {
    "jobs": "submit run list show logs explain wait cancel hold release update retry resubmit "
    "history",
    "interactive work": "shell jupyter code attach top dashboard",
    "sweeps and code": "sweep snapshots estimate",
    "GPUs and nodes": "gpus pause-gpu resume-gpu nodes node status",
    "sharing": "tenants quota limits reserve usage report correct-usage",
    "services": "service",
    "administration": "up down server agent config db doctor health token whoami audit notify "
    "metrics",
    "more": "simulate demo completions",
}
"""The commands that the help shows, by group."""
COMPATIBLE = ("add", "screens", "config-sample", "test")
"""Commands under the names of earlier tools, which the help leaves out."""
ALIASES = {"list-jobs": "list", "cancel-job": "cancel", "start": "up", "ls": "list"}
"""Other names of commands, which the help does not list."""


def main(argv: "Sequence[str] | None" = None) -> int:
    """Run one command and return its exit code; wrong usage raises SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
    gc.disable()  # loading modules makes no garbage
    _prepare_streams()
    try:
        try:
            return _run(arguments)
        finally:
            # Not at the end of the process, where a closed pipe can no longer be handled.
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
            _print_error(f"the output cannot be written: {str(error.strerror).lower()}")
            return EXIT_FAILED
        if not isinstance(error, SchedulerError):
            raise
        from gpu_scheduler.cli.text.tables import in_local_time

        _print_error(in_local_time(str(error)))
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
    getattr(module, command.register)(parser)
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
        _print_error(_unknown(name, arguments[place + 1 :]))
        return EXIT_USAGE
    return _run_command(name, command, arguments[place + 1 :])


def _help(names: list[str]) -> int:
    """`tgpu help submit` is `tgpu submit --help`."""
    command = command_named(names[0]) if names else None
    if names and command is None:
        _print_error(_unknown(names[0]))
        return EXIT_USAGE
    parser = parser_for(names[0], command)[1] if command else _program_parser()
    parser.print_help()
    return 0


def _run_command(name: str, command: Command, arguments: list[str]) -> int:
    module, parser = parser_for(name, command)
    args = parser.read(arguments, takes_words=command.takes_words)
    gc.enable()
    if hasattr(args, "tabs"):
        from gpu_scheduler.cli.text.tables import use_tabs

        use_tabs(args.tabs)
    exit_code: int = getattr(module, command.run)(args)
    return exit_code


def _program_parser() -> "Parser":
    from gpu_scheduler.cli.parser import Parser

    width = max(map(len, COMMANDS))
    lines = []
    for title, names in GROUPS.items():
        lines += ["", f"{title}:"]
        lines += [f"  {name:<{width}}  {COMMANDS[name].help}" for name in names.split()]
    parser = Parser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--help] [--version] <command> ...",
        description="A GPU scheduler: share GPUs fairly, and see why a job waits.",
        epilog="\n".join(
            [*lines[1:], "", f"'{PROGRAM} <command> --help' shows the options of one."]
        ),
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


MEANT = {
    **dict.fromkeys(("stop", "kill", "scancel", "delete", "rm", "remove", "abort"), "cancel"),
    **dict.fromkeys(("ps", "queue", "squeue", "jobs", "gqueue", "qstat", "bjobs"), "list"),
    **dict.fromkeys(("sbatch", "gbatch", "qsub", "bsub", "batch"), "submit"),
    **dict.fromkeys(("tail", "log", "output", "cat"), "logs"),
    **dict.fromkeys(("srun", "exec", "execute"), "run"),
    "sattach": "attach",
    **dict.fromkeys(("salloc", "ssh", "bash", "sh", "login", "interactive"), "shell"),
    **dict.fromkeys(("info", "describe", "inspect", "get", "seff"), "show"),
    **dict.fromkeys(("why", "reason", "sprio"), "explain"),
    **dict.fromkeys(("requeue", "restart"), "retry"),
    **dict.fromkeys(("rerun", "redo"), "resubmit"),
    **dict.fromkeys(("sacct", "past", "finished"), "history"),
    **dict.fromkeys(("sinfo", "hosts", "drain", "cordon", "uncordon"), "nodes"),
    **dict.fromkeys(("gpu", "nvidia-smi", "smi", "gpustat", "ginfo"), "gpus"),
    **dict.fromkeys(("watch", "htop", "nvtop", "monitor", "sstat", "smap"), "top"),
    **dict.fromkeys(("scontrol", "edit", "modify", "set", "change"), "update"),
    **dict.fromkeys(("notebook", "lab"), "jupyter"),
    **dict.fromkeys(("vscode", "ide"), "code"),
    **dict.fromkeys(("reservation", "reservations", "book"), "reserve"),
    **dict.fromkeys(("sreport", "bill", "invoice"), "report"),
    **dict.fromkeys(("sshare", "fairshare", "sacctmgr"), "tenants"),
    **dict.fromkeys(("unpause", "unpause-gpu"), "resume-gpu"),
    **dict.fromkeys(("pause", "disable-gpu"), "pause-gpu"),
    **dict.fromkeys(("shutdown", "halt"), "down"),
    **dict.fromkeys(("init", "launch"), "up"),
    **dict.fromkeys(("settings", "configure"), "config"),
    **dict.fromkeys(("check", "diagnose", "selftest"), "doctor"),
    **dict.fromkeys(("pause-job", "suspend"), "hold"),
    **dict.fromkeys(("version", "--v"), "--version"),
}
"""Commands of other schedulers and tools, and the command of tgpu to suggest instead."""
SCONTROL = {
    **{word: word for word in ("show", "hold", "release", "update")},
    **dict.fromkeys(("requeue", "requeuehold"), "retry"),
    **dict.fromkeys(("suspend", "uhold"), "hold"),
    "create": "reserve",
    "reconfigure": "config",
    "ping": "health",
}
"""The command to suggest for each command of `scontrol`."""


def _unknown(name: str, words: "Sequence[str]" = ()) -> str:
    from difflib import get_close_matches

    if name == "scontrol" and words and words[0] in SCONTROL:
        meant = SCONTROL[words[0]]
        if words[0] == "show":
            about = "".join(words[1:2])
            meant = {"node": "nodes", "partition": "nodes", "reservation": "reserve"}.get(
                about.removesuffix("s"), "show"
            )
        return f"unknown command 'scontrol {words[0]}'; did you mean '{PROGRAM} {meant}'?"
    if name in MEANT:
        return f"unknown command '{name}'; did you mean '{PROGRAM} {MEANT[name]}'?"
    near = get_close_matches(name, [*COMMANDS, *ALIASES], n=1)
    advice = f"did you mean '{near[0]}'?" if near else f"'{PROGRAM} --help' lists the commands"
    return f"unknown command '{name}'; {advice}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _print_error(message: str) -> None:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)


def _prepare_streams() -> None:
    """Make stdin, stdout and stderr safe to use.

    A closed stream is opened on /dev/null: else the next file would get its number, and warnings
    would be written into that file. A terminal that cannot show a character shows '?' instead of
    ending the command.
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
    """Whether stdout cannot be written: an error of another file has a file name."""
    return isinstance(error, OSError) and error.errno in DISK_FULL and error.filename is None


def _discard_output() -> None:
    """Send stdout to /dev/null, so that Python's own flush at exit cannot fail as well."""
    null = os.open(os.devnull, os.O_WRONLY)
    os.dup2(null, sys.stdout.fileno())
    os.close(null)
