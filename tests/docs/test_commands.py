"""Every command shown on a page is accepted by the program."""

import re
import shlex

import pytest

from gpu_scheduler.cli.main import command_named, parser_for
from gpu_scheduler.cli.submit.body import body_of, dependencies_of
from gpu_scheduler.model.errors import SchedulerError
from tests.docs.pages import PAGES, text_of

REFUSED = (SystemExit, SchedulerError, AssertionError)
OF_THE_SHELL = re.compile(r" (?:\||>|&|2>)")
UNFINISHED = ("is missing;", "needs a value")
"""A page may mention `tgpu explain` without a job."""


def shown(page: str) -> set[str]:
    """Commands on their own lines, which a reader may copy."""
    return finished(re.findall(r"^(?:\$ )?(?:sudo )?(tgpu .+)$", text_of(page), re.MULTILINE))


def named(page: str) -> set[str]:
    """Commands within a sentence."""
    return finished(re.findall(r"`(tgpu [^`]+)`", text_of(page)))


def finished(lines: list[str]) -> set[str]:
    """Without comments, shell constructs, and abbreviated commands."""
    whole = [line.partition("  #")[0].strip() for line in lines]
    whole = [line for line in whole if not re.search(r"\.\.\.|…|\\$|COMMAND|bash\|zsh", line)]
    return {OF_THE_SHELL.split(re.sub(r"\$\(.*?\)", "x", line))[0] for line in whole}


WITH_COMMANDS = [page for page in PAGES if shown(page) | named(page)]


@pytest.mark.parametrize("page", WITH_COMMANDS)
def test_every_documented_command_is_valid(page: str, capsys: pytest.CaptureFixture[str]) -> None:
    wrong = [f"{line}: {why}" for line in sorted(shown(page)) if (why := refusal(line, capsys))]
    for line in sorted(named(page) - shown(page)):
        why = refusal(line, capsys)
        if why and not any(words in why for words in UNFINISHED):
            wrong.append(f"{line}: {why}")
    assert wrong == []


def test_most_pages_have_commands() -> None:
    assert "README.md" in WITH_COMMANDS
    assert len(WITH_COMMANDS) > 40


def refusal(line: str, capsys: pytest.CaptureFixture[str]) -> str:
    """Why the program rejects a command; "" if it does not."""
    try:
        _read(shlex.split(line))
    except REFUSED as error:
        if isinstance(error, SystemExit) and not error.code:
            return ""
        return capsys.readouterr().err or str(error)
    return ""


def _read(words: list[str]) -> None:
    name = words[1]
    if name.startswith("-"):
        return
    command = command_named(name)
    assert command is not None, f"there is no command {name}"
    _, parser = parser_for(name, command)
    args = parser.read(words[2:], takes_words=command.takes_words)
    if name in ("submit", "run"):
        args.dependency = [word.replace("last", "1") for word in args.dependency or []]
        dependencies_of(args.dependency) if args.dependency else None
        body_of(args)


@pytest.mark.parametrize(
    "line", ["tgpu nosuch", "tgpu submit --nosuch", "tgpu submit --time soon -- x"]
)
def test_check_finds_invalid_command(line: str, capsys: pytest.CaptureFixture[str]) -> None:
    why = refusal(line, capsys)
    assert why
    assert not any(words in why for words in UNFINISHED)
