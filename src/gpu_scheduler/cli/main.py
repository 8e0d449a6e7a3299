"""The command line: arguments in, an exit code out.

A command's module is imported only when that command is asked for, so this module must never
import one, nor anything else that is slow to load.
"""

import os
import sys
from collections.abc import Sequence
from importlib import import_module
from typing import TYPE_CHECKING, NamedTuple

from gpu_scheduler import __version__

if TYPE_CHECKING:
    from argparse import ArgumentParser

PROGRAM = "tgpu"

EXIT_USAGE = 2
EXIT_INTERRUPTED = 128 + 2
EXIT_BROKEN_PIPE = 128 + 13


class Command(NamedTuple):
    """Where a sub-command lives: its module has ``register(parser)`` and the named function."""

    help: str
    module: str
    function: str


COMMANDS: dict[str, Command] = {
    "simulate": Command(
        "run a trace through the scheduler on virtual time", "gpu_scheduler.cli.simulate", "run"
    ),
}


def main(argv: Sequence[str] | None = None) -> int:
    """Run one command and return its exit code; argparse leaves by SystemExit."""
    arguments = list(sys.argv[1:] if argv is None else argv)
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

        if not isinstance(error, SchedulerError):
            raise
        _complain(str(error))
        return error.exit_code


def _run(arguments: list[str]) -> int:
    # No option before the command takes a value, so the first other word is the command.
    place = next((i for i, word in enumerate(arguments) if not word.startswith("-")), None)
    before = arguments if place is None else arguments[:place]
    if before:
        _program_parser().parse_args(before)
    if place is None:
        _program_parser().print_help(sys.stderr)
        return EXIT_USAGE
    name = arguments[place]
    command = COMMANDS.get(name)
    if command is None:
        _complain(_unknown(name))
        return EXIT_USAGE
    return _run_command(name, command, arguments[place + 1 :])


def _run_command(name: str, command: Command, arguments: list[str]) -> int:
    from argparse import ArgumentParser

    module = import_module(command.module)
    parser = ArgumentParser(
        prog=f"{PROGRAM} {name}", description=_sentence(command.help), allow_abbrev=False
    )
    module.register(parser)
    exit_code: int = getattr(module, command.function)(parser.parse_args(arguments))
    return exit_code


def _program_parser() -> "ArgumentParser":
    from argparse import ArgumentParser, RawDescriptionHelpFormatter

    width = max(map(len, COMMANDS))
    lines = [f"  {name:<{width}}  {command.help}" for name, command in COMMANDS.items()]
    parser = ArgumentParser(
        prog=PROGRAM,
        usage=f"{PROGRAM} [--help] [--version] <command> ...",
        description="Share GPUs fairly, and know why a job waits.",
        epilog="\n".join(
            ["commands:", *lines, "", f"'{PROGRAM} <command> --help' explains one of them."]
        ),
        formatter_class=RawDescriptionHelpFormatter,
        allow_abbrev=False,
    )
    parser.add_argument("--version", action="version", version=f"{PROGRAM} {__version__}")
    return parser


def _unknown(name: str) -> str:
    from difflib import get_close_matches

    near = get_close_matches(name, COMMANDS, n=1)
    advice = f"did you mean '{near[0]}'?" if near else f"'{PROGRAM} --help' lists the commands"
    return f"there is no command '{name}'; {advice}"


def _sentence(text: str) -> str:
    return f"{text[:1].upper()}{text[1:]}."


def _complain(message: str) -> None:
    print(f"{PROGRAM}: error: {message}", file=sys.stderr)


def _discard_output() -> None:
    """Point stdout at nothing, so that Python's own flush at exit cannot fail as well."""
    nothing = os.open(os.devnull, os.O_WRONLY)
    os.dup2(nothing, sys.stdout.fileno())
    os.close(nothing)
