"""Reads what a model's directory says about it: `config.json`, and the headers of its tensors.

Only headers are read, so a model of 100 GB costs some milliseconds. A file that lies about its
header is refused before anything large is read.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, why_unreadable
from gpu_scheduler.predict.llm.files import (
    Weights,
    model_from_files,
    quantised_bits,
    weights_of,
)
from gpu_scheduler.predict.llm.model import Model, named_model

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LARGEST_HEADER = 100 << 20
"""As the format itself allows."""
LARGEST_JSON = 64 << 20


def found_model(name: str, parameters: int | None = None) -> Model:
    """A model by its directory if there is one of that name, else by the name itself."""
    directory = Path(name).expanduser()
    if parameters is None and ("/" in name or name in {".", ".."}) and directory.is_dir():
        return read_model(directory)
    return named_model(name, parameters)


def read_model(directory: Path) -> Model:
    """What the files of a model say."""
    config = _json(directory / CONFIG)
    if not isinstance(config, dict):
        raise InvalidInput("is no configuration of a model", file=str(directory / CONFIG))
    files = tensor_files(directory)
    headers = [read_header(file) for file in files]
    weights = weights_of(headers, quantised_bits(config)) if headers else Weights()
    try:
        return model_from_files(directory.resolve().name, config, weights)
    except InvalidRequest as error:
        raise InvalidInput(str(error), file=str(directory / CONFIG)) from error


def tensor_files(directory: Path) -> list[Path]:
    """The files that make up the model: by its index, else the one, else all there are."""
    index = directory / INDEX
    if index.is_file():
        names = set((_json(index).get("weight_map") or {}).values())
        if any(not isinstance(name, str) or "/" in name for name in names):
            raise InvalidInput("names files outside of its directory", file=str(index))
        return [directory / name for name in sorted(names)]
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    return sorted(directory.glob("*.safetensors"))


def read_header(file: Path) -> dict[str, Any]:
    """The table of tensors at the beginning of a safetensors file."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(LARGEST_HEADER, file.stat().st_size):
                raise InvalidInput("is no safetensors file", file=str(file))
            text = stream.read(length)
            header = json.loads(text) if len(text) == length else None
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot be read: {why_unreadable(error)}", file=str(file)) from error
    if not isinstance(header, dict):
        raise InvalidInput("is no safetensors file", file=str(file))
    return header


def _json(file: Path) -> Any:
    try:
        if file.stat().st_size > LARGEST_JSON:
            raise InvalidInput(f"is larger than {LARGEST_JSON:,} bytes", file=str(file))
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError) as error:
        raise InvalidInput(f"cannot be read: {why_unreadable(error)}", file=str(file)) from error
