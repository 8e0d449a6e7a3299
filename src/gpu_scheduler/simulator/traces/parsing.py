"""Parses text into values, and reads and writes the files of traces.

An error message says what was found and what was expected. The functions for single values raise
`InvalidRequest`; the file readers turn it into `InvalidInput` with file and line.
"""

from __future__ import annotations

import csv
import gzip
import io
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass
from decimal import Decimal
from difflib import get_close_matches
from pathlib import Path
from typing import BinaryIO, TextIO, TypeVar, cast

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, NeverFits

LARGEST = 10**12
"""An upper limit above any plausible number of seconds, MiB or items."""
LONGEST_TEXT = 4_000
OTHER_MACHINES = "other machines are given with --cluster FILE, or --nodes N and --gpus-per-node N"
THOUSAND = 1_000
_PLAIN_DIGITS = len(str(LARGEST)) - 1
_NUMBER = re.compile(r"\+?\d+(\.\d*)?([eE][+-]?\d{1,3})?|\+?\.\d+", re.ASCII)
_TRUE = frozenset({"true", "yes", "1"})
_FALSE = frozenset({"false", "no", "0"})


def whole_number(text: str, name: str) -> int:
    """A whole number of 0 or more; `8.0`, as some programs write it, is valid."""
    if len(text) <= _PLAIN_DIGITS and text.isdigit() and text.isascii():
        return int(text)
    expected = "a whole number of 0 or more"
    number = _decimal(text, name, expected)
    if number != number.to_integral_value():
        raise unexpected(text, name, expected)
    return int(number)


def thousandths(text: str, name: str) -> int:
    """A number of 0 or more times 1000, rounded: seconds to milliseconds, cores to milli-cores."""
    if len(text) <= _PLAIN_DIGITS and text.isdigit() and text.isascii():
        return int(text) * THOUSAND
    number = _decimal(text, name, "a number of 0 or more")
    return int((number * THOUSAND).to_integral_value())


def exact_thousandths(text: str, name: str) -> int:
    """A number of 0 or more with at most three decimals, times 1000."""
    if len(text) <= _PLAIN_DIGITS and text.isdigit() and text.isascii():
        return int(text) * THOUSAND
    expected = "a number of 0 or more such as 2, 0.5 or 1.5"
    scaled = _decimal(text, name, expected) * THOUSAND
    if scaled != scaled.to_integral_value():
        raise unexpected(text, name, expected)
    return int(scaled)


def yes_or_no(text: str, name: str) -> bool:
    """A truth value in one of the usual spellings."""
    word = text.strip().lower()
    if word in _TRUE:
        return True
    if word in _FALSE:
        return False
    raise unexpected(text, name, "true or false")


def choices(text: str, name: str) -> tuple[str, ...]:
    """Alternatives: `A|B`."""
    found = tuple(part.strip() for part in text.split("|"))
    if not all(found):
        raise unexpected(text, name, "names such as A100 or A100|H100")
    return found


def pairs(text: str, name: str) -> tuple[tuple[str, str], ...]:
    """Labels: `zone=a;disk=ssd`."""
    found: dict[str, str] = {}
    for part in text.split(";"):
        key, equals, value = (piece.strip() for piece in part.partition("="))
        if not (key and equals) or key in found:
            raise unexpected(text, name, "different labels such as zone=a;disk=ssd")
        found[key] = value
    return tuple(sorted(found.items()))


def one_of(text: str, name: str, allowed: Iterable[str]) -> str:
    """One word of a list."""
    words = list(allowed)
    if text not in words:
        raise unexpected(text, name, "one of " + ", ".join(words))
    return text


def as_decimal(thousandths_: int) -> str:
    """The shortest decimal for a number of thousandths: 1500 gives 1.5."""
    whole, rest = divmod(thousandths_, THOUSAND)
    return f"{whole}.{rest:03d}".rstrip("0") if rest else str(whole)


def unexpected(text: object, name: str, expected: str) -> InvalidRequest:
    """The error for one value. Control characters in it are escaped."""
    shown = repr(text)
    if len(shown) > 60:
        shown = shown[:57] + "..."
    return InvalidRequest(f"{name} is {shown}; expected {expected}")


def _decimal(text: str, name: str, expected: str) -> Decimal:
    text = text.strip()
    if len(text) > LONGEST_TEXT or not _NUMBER.fullmatch(text):
        raise unexpected(text, name, expected)
    number = Decimal(text)
    if number >= LARGEST:
        raise unexpected(text, name, f"{expected}, below {LARGEST:.0e}".replace("+", ""))
    return number


# Files, plain or gzipped (recognised by content). Every file error becomes `InvalidInput`. A file
# is written under a temporary name and renamed when it is complete.

GZIP_MAGIC = b"\x1f\x8b"
HEAD_BYTES = 65_536
BYTE_ORDER_MARK = "\ufeff"


def text_lines(path: Path) -> Iterator[str]:
    """The lines of a UTF-8 file with their ends, one by one."""
    number = 0
    with _opened(path) as stream:
        for number, raw in enumerate(stream, start=1):
            try:
                line = raw.decode("utf-8")
            except UnicodeDecodeError as error:
                raise InvalidInput(
                    f"byte 0x{raw[error.start]:02x} is not UTF-8; expected text, plain or gzipped, "
                    "in UTF-8",
                    file=str(path),
                    line=number,
                ) from error
            yield line.removeprefix(BYTE_ORDER_MARK) if number == 1 else line
    if number == 0:
        raise InvalidInput("the file is empty; expected at least one job or node", file=str(path))


def head(path: Path) -> str:
    """The beginning of a file, to detect its format; invalid UTF-8 is replaced."""
    with _opened(path) as stream:
        text = stream.read(HEAD_BYTES).decode("utf-8", errors="replace")
    return text.removeprefix(BYTE_ORDER_MARK)


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Write a file atomically; gzipped if the name ends in .gz.

    The text goes to a temporary file in the same directory, which is renamed when complete.
    """
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        with temporary.open("xb") as raw:
            with _text_writer(raw, compress=path.suffix == ".gz") as text:
                yield text
            raw.flush()
            os.fsync(raw.fileno())
        temporary.replace(path)
    except OSError as error:
        raise InvalidInput(
            f"cannot be written: {error.strerror or error}", file=str(path)
        ) from error
    finally:
        with suppress(OSError):
            temporary.unlink()


@contextmanager
def _opened(path: Path) -> Iterator[BinaryIO]:
    """Open for reading; every error message names the file."""
    try:
        with path.open("rb") as raw:
            if raw.peek(2)[:2] == GZIP_MAGIC:
                # The wrapper iterates over lines in C, which is four times as fast.
                unpacked = cast("io.RawIOBase", gzip.GzipFile(fileobj=raw))
                with io.BufferedReader(unpacked, HEAD_BYTES) as stream:
                    yield cast("BinaryIO", stream)
            else:
                yield raw
    except EOFError as error:
        raise InvalidInput(
            "the gzip data ends too early; expected a complete file, so download it again",
            file=str(path),
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(
            f"the gzip data is damaged ({error}); expected a complete file, so download it again",
            file=str(path),
        ) from error
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", file=str(path)) from error


@contextmanager
def _text_writer(raw: BinaryIO, *, compress: bool) -> Iterator[TextIO]:
    with ExitStack() as stack:
        target = raw
        if compress:
            # Without name and time in the header, the same trace gives the same bytes.
            packed = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
            target = cast("BinaryIO", packed)
        text = io.TextIOWrapper(target, encoding="utf-8", newline="")
        yield text
        text.detach()


# CSV with a header row: the columns are checked once; rows come with their line numbers.

Item = TypeVar("Item")
T = TypeVar("T")
Line = TypeVar("Line", int, int | None)
Row = dict[str, str]


@dataclass(frozen=True, slots=True, kw_only=True)
class Layout:
    """The columns of one kind of file. Of each group in `one_of`, at least one is required."""

    name: str
    required: tuple[str, ...]
    optional: tuple[str, ...] = ()
    one_of: tuple[tuple[str, ...], ...] = ()

    @property
    def columns(self) -> tuple[str, ...]:
        """All known columns."""
        return (
            self.required + tuple(name for group in self.one_of for name in group) + self.optional
        )

    def check(self, header: list[str], path: Path, line: int) -> None:
        """Raise `InvalidInput` unless the header row belongs to this layout."""
        if fault := self.fault(header):
            raise InvalidInput(fault, file=str(path), line=line)

    def fault(self, header: list[str]) -> str:
        """Why a header row does not belong to this layout; empty if it does."""
        known = ", ".join(self.columns)
        for place, name in enumerate(header):
            if name not in self.columns:
                near = get_close_matches(name, self.columns, n=1, cutoff=0.5)
                hint = f"did you mean {near[0]!r}? " if near else ""
                return (
                    f"unknown column {name!r} for {self.name}; {hint}expected columns are {known}"
                )
            if name in header[:place]:
                return f"column {name!r} appears twice; expected each column once"
        for group in (*((name,) for name in self.required), *self.one_of):
            if not any(name in header for name in group):
                wanted = " or ".join(repr(name) for name in group)
                found = ", ".join(header)
                return f"column {wanted} is missing for {self.name}; found {found}"
        return ""


def read_rows(path: Path, layout: Layout, make: Callable[[Row, int], T]) -> Iterator[tuple[int, T]]:
    """The result of `make(row, number)` for each row (from 1), each with its line in the file."""
    return read_items(path, _rows(path, layout), make)


def read_unique(
    path: Path,
    layout: Layout,
    make: Callable[[Row, int], T],
    kind: str,
    name_of: Callable[[T], str],
) -> dict[str, T]:
    """The result of `make` for each row by its name; at least one, and each name once."""
    by_name: dict[str, T] = {}
    for line, made in read_rows(path, layout, make):
        name = name_of(made)
        if name in by_name:
            raise InvalidInput(
                f"{kind} {name!r} appears twice; expected each once", file=str(path), line=line
            )
        by_name[name] = made
    if not by_name:
        raise InvalidInput(f"the file holds no {kind}s; expected at least one", file=str(path))
    return by_name


def read_items(
    path: Path, items: Iterable[tuple[Line, Item]], make: Callable[[Item, int], T]
) -> Iterator[tuple[Line, T]]:
    """The result of `make(item, number)` for each item (from 1), each with its line in the file.

    A rejection by `make` is raised again with file and line.
    """
    for number, (line, item) in enumerate(items, start=1):
        try:
            made = make(item, number)
        except InvalidRequest as error:
            raise InvalidInput(str(error), file=str(path), line=line) from error
        except NeverFits as error:
            raise InvalidInput(f"{error}; {OTHER_MACHINES}", file=str(path), line=line) from error
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
