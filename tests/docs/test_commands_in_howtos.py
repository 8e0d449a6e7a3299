"""Every command of ours that a how-to page shows is one that the program takes."""

import re
import shlex
from pathlib import Path

import pytest

from gpu_scheduler.cli.main import command_named, parser_for
from gpu_scheduler.cli.submit_body import body_of, dependencies_of
from gpu_scheduler.model.errors import SchedulerError

HOWTO = Path(__file__).parents[2] / "docs" / "howto"
PAGES = (
    *("from-slurm.md", "from-gflow.md", "from-task-spooler.md"),
    *("nodes.md", "distributed-training.md"),
    *("sweeps.md", "llm.md", "snapshots.md", "jobs-txt.md", "preemption-safe-training.md"),
)


def commands(page: str) -> list[str]:
    text = (HOWTO / page).read_text(encoding="utf-8")
    inline = re.findall(r"`(tgpu [^`]+)`", text)
    shown = re.findall(r"^(?:\$ )?(tgpu .+)$", text, re.MULTILINE)
    found = [line.partition("  #")[0].strip() for line in (*inline, *shown)]
    return sorted({line for line in found if "..." not in line})


@pytest.mark.parametrize("page", PAGES)
def test_every_command_is_taken(page: str) -> None:
    found = commands(page)
    assert found
    wrong = []
    for line in found:
        try:
            _read(shlex.split(line))
        except (SystemExit, SchedulerError, AssertionError) as error:
            wrong.append(f"{line}: {error}")
    assert wrong == []


def _read(words: list[str]) -> None:
    name = words[1]
    command = command_named(name)
    assert command is not None, f"there is no command {name}"
    module, parser = parser_for(name, command)
    args = parser.read(words[2:], takes_words=getattr(module, "TAKES_WORDS", False))
    if name in ("submit", "run"):
        args.dependency = [word.replace("last", "1") for word in args.dependency or []]
        dependencies_of(args.dependency) if args.dependency else None
        body_of(args)


def test_a_wrong_command_would_be_found() -> None:
    for line in ("tgpu nosuch", "tgpu submit --nosuch", "tgpu submit --time soon -- x"):
        with pytest.raises((SystemExit, SchedulerError, AssertionError)):
            _read(shlex.split(line))
