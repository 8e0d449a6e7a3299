"""Every command of `tgpu` with its options, defaults and choices, and its exit codes."""

from argparse import SUPPRESS, Action
from collections.abc import Iterator
from importlib.metadata import entry_points
from typing import Any

from gpu_scheduler.cli.cluster.kubernetes import kubectl_main
from gpu_scheduler.cli.main import (
    ALIASES,
    COMMANDS,
    EXIT_BROKEN_PIPE,
    EXIT_FAILED,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    PROGRAM,
    _program_parser,
    parser_for,
)
from gpu_scheduler.cli.parser import OTHER_NAMES, Parser
from gpu_scheduler.client.errors import EXIT_NO_SERVER, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_TIMED_OUT
from tests.interface.stored import check_snapshot

ENDED_BY_ARGPARSE = {"_HelpAction": "help", "_VersionAction": "version"}


def test_commands_and_options() -> None:
    lines = list(described(_program_parser(), words=False))
    for name, command in sorted(COMMANDS.items()):
        _, parser = parser_for(name, command)
        lines += ["", *described(parser, words=command.takes_words)]
    check_snapshot("commands.txt", lines)


def test_aliases_of_commands_and_options() -> None:
    check_snapshot("command_aliases.json", {"commands": ALIASES, "options": OTHER_NAMES})


def test_three_programs_share_one_entry_point() -> None:
    scripts = {
        script.name: script.load()
        for script in entry_points(group="console_scripts")
        if script.dist is not None and script.dist.name == "gpu-scheduler"
    }
    plugin = scripts.pop("kubectl-gpu")  # kubectl finds its plugins by this name
    assert plugin is kubectl_main
    assert scripts.keys() == {"tgpu", "gpu-scheduler", "gpu-cli"}
    assert len(set(scripts.values())) == 1
    assert PROGRAM == "tgpu"


def test_exit_codes_of_the_command_line() -> None:
    """The exit codes of errors are in `errors.json`."""
    found = {
        "cannot do it now, or the output cannot be written": EXIT_FAILED,
        "wrong usage": EXIT_USAGE,
        "no server answers": EXIT_NO_SERVER,
        "not found": EXIT_NOT_FOUND,
        "refused": EXIT_REFUSED,
        "timed out": EXIT_TIMED_OUT,
        "interrupted": EXIT_INTERRUPTED,
        "broken pipe": EXIT_BROKEN_PIPE,
    }
    check_snapshot("exit_codes.json", found)


def described(parser: Parser, *, words: bool) -> Iterator[str]:
    """One line for the command, and one for each option or word."""
    yield parser.prog + (" (then words that it does not read)" if words else "")
    groups = {
        action: f"g{number}" + ("!" if group.required else "")
        for number, group in enumerate(parser._mutually_exclusive_groups, start=1)
        for action in group._group_actions
    }
    lines = [_line(action, groups.get(action)) for action in parser._actions]
    positional = [line for line in lines if not line.startswith("-")]
    options = sorted(line for line in lines if line.startswith("-"))
    yield from (f"    {line}" for line in [*positional, *options])


def _line(action: Action, group: str | None) -> str:
    parts = [", ".join(action.option_strings) or f"<{action.dest}>"]
    kind = ENDED_BY_ARGPARSE.get(type(action).__name__)
    if kind is None:
        parts += list(_facts(action))
        if group is not None:
            parts.append(f"not together with others of {group}")
    return "  ".join(parts)


def _facts(action: Action) -> Iterator[str]:
    # None stands for an argparse type function, whose name is not public.
    kind: Any = action.type if action.type in (None, int, float, str) else None
    yield "flag" if action.nargs == 0 else f"value {action.metavar or ''}".strip()
    if kind is not None:
        yield f"type={kind.__name__}"
    if action.nargs not in (None, 0):
        yield f"nargs={action.nargs}"
    if action.choices is not None:
        yield f"choices={'|'.join(map(str, action.choices))}"
    if action.default not in (None, SUPPRESS):
        yield f"default={action.default!r}"
    if action.const is not None:
        yield f"const={action.const!r}"
    if action.option_strings and action.required:
        yield "required"
    if "Append" in type(action).__name__ or "Extend" in type(action).__name__:
        yield "may be repeated"
    if action.help == SUPPRESS:
        yield "not listed in the help"
