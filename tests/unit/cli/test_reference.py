"""The documents about the command line say what the commands say."""

from pathlib import Path

from gpu_scheduler.cli.main import COMMANDS, EXIT_BROKEN_PIPE, EXIT_INTERRUPTED, EXIT_USAGE
from gpu_scheduler.cli.reference import reference_page
from gpu_scheduler.client.errors import (
    EXIT_NO_SERVER,
    EXIT_NOT_FOUND,
    EXIT_REFUSED,
    EXIT_TIMED_OUT,
)

REFERENCE = Path(__file__).parents[3] / "docs" / "reference"


def test_the_page_is_made_from_the_commands() -> None:
    assert (REFERENCE / "cli.md").read_text() == reference_page(), (
        "run 'python -m gpu_scheduler.cli.reference > docs/reference/cli.md'"
    )


def test_every_command_has_a_section() -> None:
    page = reference_page()
    assert [name for name in COMMANDS if f"\n## tgpu {name}\n" not in page] == []


def test_every_exit_code_is_documented() -> None:
    text = (REFERENCE / "exit-codes.md").read_text()
    codes = (
        *(0, 1, EXIT_USAGE, EXIT_NO_SERVER, EXIT_NOT_FOUND, EXIT_REFUSED),
        *(EXIT_TIMED_OUT, EXIT_INTERRUPTED, EXIT_BROKEN_PIPE),
    )
    assert [code for code in codes if f"\n| {code} |" not in text] == []
