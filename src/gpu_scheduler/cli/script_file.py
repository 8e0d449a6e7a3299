"""Scripts: the text, and the options in its `#TGPU` lines."""

from __future__ import annotations

import re
from codecs import BOM_UTF8

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest

TYPE_CHECKING = False
if TYPE_CHECKING:
    from argparse import Namespace

    from gpu_scheduler.cli.parser import Parser

LARGEST = 500_000
_DIRECTIVE = re.compile(r"#\s?TGPU\s+(.*)")
_FOREIGN = re.compile(r"#(?:SBATCH|PBS|BSUB)(?=\s)|#\s*GFLOW(?=\s)")


def script_text(path: str) -> str | None:
    """The text of a script; None when the file is none (it has no `#!` at its beginning)."""
    try:
        with open(path, "rb") as stream:  # noqa: PTH123
            start = stream.read(len(BOM_UTF8) + 2).removeprefix(BOM_UTF8)
            if not start.startswith(b"#!"):
                return None
            raw = start + stream.read(LARGEST)
    except OSError:
        return None
    if len(raw) > LARGEST:
        raise InvalidInput(f"is larger than {LARGEST:,} bytes; submit a command", file=path)
    try:
        return raw.decode("utf-8")
    except UnicodeDecodeError as error:
        raise InvalidInput("is not UTF-8 text; submit it as a command", file=path) from error


def directives(text: str) -> list[tuple[int, str]]:
    """The `#TGPU` lines before the first line of code, with their numbers."""
    found = []
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if match := _DIRECTIVE.match(stripped):
            found.append((number, match[1]))
    return found


def foreign_directives(text: str) -> dict[str, int]:
    """Where lines before the code begin to speak to Slurm, PBS, LSF or gflow; they do nothing."""
    found: dict[str, int] = {}
    for number, line in enumerate(text.splitlines(), start=1):
        stripped = line.strip()
        if stripped and not stripped.startswith("#"):
            break
        if match := _FOREIGN.match(stripped):
            found.setdefault(match[0], number)
    return found


def read_directives(parser: Parser, path: str, text: str) -> Namespace:
    """The options of a script's own lines; a mistake names the file and the line."""
    import shlex

    args = parser.read([])
    for number, line in directives(text):
        parser.place = f"{path}, line {number}"
        try:
            words = shlex.split(line, comments=True)
        except ValueError as error:
            raise InvalidInput(f"{error}", file=path, line=number) from error
        try:
            args = parser.read(words, into=args)
        except InvalidRequest as error:
            raise InvalidInput(str(error), file=path, line=number) from None
    parser.place = ""
    return args
