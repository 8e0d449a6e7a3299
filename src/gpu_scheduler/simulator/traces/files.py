"""Bytes on disk to lines of text and back: plain or gzipped, told apart by content.

Whatever goes wrong with a file becomes `InvalidInput` here. A file is written beside its place
and moved there when it is complete.
"""

from __future__ import annotations

import gzip
import io
import os
import zlib
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import BinaryIO, TextIO, cast

from gpu_scheduler.model.errors import InvalidInput

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
    """The beginning of a file, to guess from; what is not UTF-8 is replaced."""
    with _opened(path) as stream:
        text = stream.read(HEAD_BYTES).decode("utf-8", errors="replace")
    return text.removeprefix(BYTE_ORDER_MARK)


@contextmanager
def replacing(path: Path) -> Iterator[TextIO]:
    """Write a whole file or none: gzipped if the name ends in .gz.

    The text goes to a temporary neighbour, which takes the name when all is on disk.
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
    """Open for reading; every fault of the file names the file."""
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
            "the gzip data ends too early; expected a complete file, so fetch it again",
            file=str(path),
        ) from error
    except (gzip.BadGzipFile, zlib.error) as error:
        raise InvalidInput(
            f"the gzip data is damaged ({error}); expected a complete file, so fetch it again",
            file=str(path),
        ) from error
    except OSError as error:
        raise InvalidInput(f"cannot be read: {error.strerror or error}", file=str(path)) from error


@contextmanager
def _text_writer(raw: BinaryIO, *, compress: bool) -> Iterator[TextIO]:
    with ExitStack() as stack:
        target = raw
        if compress:
            # No name and no time inside, so that the same trace gives the same bytes.
            packed = stack.enter_context(gzip.GzipFile("", "wb", fileobj=raw, mtime=0))
            target = cast("BinaryIO", packed)
        text = io.TextIOWrapper(target, encoding="utf-8", newline="")
        yield text
        text.detach()
