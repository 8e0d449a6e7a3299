"""The command-line reference page matches the commands."""

import re
from pathlib import Path

from gpu_scheduler.cli.main import (
    COMMANDS,
    EXIT_BROKEN_PIPE,
    EXIT_INTERRUPTED,
    EXIT_USAGE,
    parser_for,
)
from gpu_scheduler.cli.reference import reference_page
from gpu_scheduler.client.errors import EXIT_NO_SERVER, EXIT_NOT_FOUND, EXIT_REFUSED, EXIT_TIMED_OUT

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_cli_page_is_generated_from_commands() -> None:
    assert (REFERENCE / "cli.md").read_text() == reference_page(), (
        "run 'python -m gpu_scheduler.cli.reference > docs/reference/cli.md'"
    )


def test_every_command_has_section() -> None:
    page = reference_page()
    assert [name for name in COMMANDS if f"\n## tgpu {name}\n" not in page] == []


def test_command_documents_its_job_name_forms() -> None:
    taken = {}
    for name in ("show", "explain", "wait", "cancel", "hold", "release", "retry", "update"):
        words = [a for a in parser_for(name, COMMANDS[name])[1]._actions if a.dest == "jobs"]
        taken[name] = tuple(form for form in ("12_4", "12_[1-3]") if form in str(words[0].help))
    assert taken == {
        **dict.fromkeys(("show", "explain", "wait"), ("12_4",)),
        **dict.fromkeys(("hold", "release", "retry", "update"), ()),
        "cancel": ("12_4", "12_[1-3]"),
    }
    assert COMMANDS["retry"].help == "put failed or cancelled jobs back into the queue"


def test_commands_without_json_are_named() -> None:
    without = {
        name
        for name, command in COMMANDS.items()
        if "--json" not in parser_for(name, command)[1].format_help()
    }
    told = re.search(r"These commands have no `--json`:\s(.*?)\n\n", reference_page(), re.DOTALL)
    assert told is not None
    assert without == set(re.findall(r"`([a-z]+)`", told[1]))


def test_every_exit_code_is_documented() -> None:
    text = (REFERENCE / "exit-codes.md").read_text()
    codes = (
        *(0, 1, EXIT_USAGE, EXIT_NO_SERVER, EXIT_NOT_FOUND, EXIT_REFUSED),
        *(EXIT_TIMED_OUT, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE),
    )
    assert [code for code in codes if f"\n| {code} |" not in text] == []
