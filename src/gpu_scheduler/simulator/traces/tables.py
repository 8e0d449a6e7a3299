"""CSV with a header row: checks the columns once and hands out the rows with their line numbers."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, NeverFits
from gpu_scheduler.simulator.traces.files import text_lines

T = TypeVar("T")
Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of one kind of file. Of each group in `one_of`, at least one must be there."""

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All columns that are known."""
        return (
            self.required + tuple(name for group in self.one_of for name in group) + self.optional
        )

    def accepts(self, header: list[str]) -> bool:
        """Tell whether a header row belongs to this layout."""
        return not self._fault(header)

    def check(self, header: list[str], path: Path, line: int) -> None:
        """Raise `InvalidInput` unless the header row belongs to this layout."""
        if fault := self._fault(header):
            raise InvalidInput(fault, file=str(path), line=line)

    def _fault(self, header: list[str]) -> str:
        known = ", ".join(self.columns)
        for place, name in enumerate(header):
            if name not in self.columns:
                return f"unknown column {name!r} for {self.name}; expected columns are {known}"
            if name in header[:place]:
                return f"column {name!r} appears twice; expected each column once"
        for group in (*((name,) for name in self.required), *self.one_of):
            if not any(name in header for name in group):
                wanted = " or ".join(repr(name) for name in group)
                found = ", ".join(header)
                return f"column {wanted} is missing for {self.name}; found {found}"
        return ""


def read_rows(path: Path, layout: Layout, make: Callable[[Row, int], T]) -> Iterator[tuple[int, T]]:
    """What `make` gives for each row and its number (from 1), each with its line in the file.

    A complaint of `make` about a value is raised again with file and line.
    """
    for number, (line, row) in enumerate(_rows(path, layout), start=1):
        try:
            made = make(row, number)
        except (InvalidRequest, NeverFits) as error:
            raise InvalidInput(str(error), file=str(path), line=line) from error
        yield line, made


def header_of(first_line: str) -> list[str]:
    """The column names in a line of text."""
    try:
        return [name.strip() for name in next(csv.reader([first_line], strict=True), [])]
    except csv.Error:
        return []


def _rows(path: Path, layout: Layout) -> Iterator[tuple[int, Row]]:
    reader = csv.reader(text_lines(path), strict=True)
    header: list[str] = []
    try:
        for values in reader:
            if not values:
                continue
            if not header:
                header = [name.strip() for name in values]
                layout.check(header, path, reader.line_num)
            elif len(values) != len(header):
                raise InvalidInput(
                    f"the row has {len(values)} values; expected {len(header)}, as in the header",
                    file=str(path),
                    line=reader.line_num,
                )
            else:
                yield reader.line_num, dict(zip(header, values, strict=True))
    except csv.Error as error:
        raise InvalidInput(
            f"not valid CSV ({error}); expected {layout.name}",
            file=str(path),
            line=reader.line_num,
        ) from error
    if not header:
        raise InvalidInput(f"no header row was found; expected {layout.name}", file=str(path))
