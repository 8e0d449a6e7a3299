"""`--llm NAME`: a model and its use come in; GPU fields of a submission and an explanation go out.

The number of GPUs comes from `llm_config.json` if it lists the model, else from an estimate for the
GPUs of the server, else from the default in the file.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from gpu_scheduler.model.errors import InvalidInput, InvalidRequest, read_error_detail
from gpu_scheduler.sizing.memory import GIB, MIB, Need, Train, Use, fits, memory_need, share_of_one
from gpu_scheduler.sizing.model import (
    Model,
    Weights,
    model_from_files,
    named_model,
    quantised_bits,
    weights_of,
)

# Reading the directory of a model: `config.json` and the headers of its tensor files.
# Only headers are read, so a model of 100 GB takes some milliseconds. A file with an implausible
# header size is rejected before anything large is read.

CONFIG = "config.json"
INDEX = "model.safetensors.index.json"
SINGLE = "model.safetensors"
LARGEST_HEADER = 100 << 20
"""The limit of the safetensors format."""
LARGEST_JSON = 64 << 20


def found_model(name: str, parameters: int | None = None) -> Model:
    """The model in the directory `name` if that is a path to one, else the model of that name."""
    directory = Path(name).expanduser()
    if parameters is None and ("/" in name or name in {".", ".."}) and directory.is_dir():
        return read_model(directory)
    return named_model(name, parameters)


def read_model(directory: Path) -> Model:
    """The model that the files in a directory describe."""
    config = _json(directory / CONFIG)
    if not isinstance(config, dict):
        raise InvalidInput("is not the configuration of a model", file=str(directory / CONFIG))
    files = tensor_files(directory)
    headers = [read_header(file) for file in files]
    weights = weights_of(headers, quantised_bits(config)) if headers else Weights()
    try:
        return model_from_files(directory.resolve().name, config, weights)
    except InvalidRequest as error:
        raise InvalidInput(str(error), file=str(directory / CONFIG)) from error


def tensor_files(directory: Path) -> list[Path]:
    """The tensor files of a model: those in its index, else the single file, else all."""
    index = directory / INDEX
    if index.is_file():
        content = _json(index)
        listed = content.get("weight_map") if isinstance(content, dict) else None
        if not isinstance(listed, dict):
            raise InvalidInput("has no 'weight_map', an object of tensors", file=str(index))
        if not all(isinstance(name, str) and _is_file_name(name) for name in listed.values()):
            raise InvalidInput("names files outside of its directory", file=str(index))
        return [directory / name for name in sorted(set(listed.values()))]
    if (directory / SINGLE).is_file():
        return [directory / SINGLE]
    return sorted(directory.glob("*.safetensors"))


def _is_file_name(name: str) -> bool:
    return name not in {"", ".", ".."} and not {"/", "\0"} & set(name)


def read_header(file: Path) -> dict[str, Any]:
    """The table of tensors at the beginning of a safetensors file."""
    try:
        with file.open("rb") as stream:
            length = int.from_bytes(stream.read(8), "little")
            if not 2 <= length <= min(LARGEST_HEADER, file.stat().st_size):
                raise InvalidInput("is not a safetensors file", file=str(file))
            text = stream.read(length)
            header = json.loads(text) if len(text) == length else None
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot be read: {read_error_detail(error)}", file=str(file)) from error
    if not isinstance(header, dict):
        raise InvalidInput("is not a safetensors file", file=str(file))
    return header


def _json(file: Path) -> Any:
    try:
        if file.stat().st_size > LARGEST_JSON:
            raise InvalidInput(f"is larger than {LARGEST_JSON:,} bytes", file=str(file))
        return json.loads(file.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        raise InvalidInput(f"cannot be read: {read_error_detail(error)}", file=str(file)) from error


# From the option to the fields of a submission.

EXAMPLE = "qwen2.5-32b, or qwen2.5-32b,context=32k,dtype=int4,batch=4,train=lora"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_COUNTS = ("context", "batch", "rank")
MOST_DIGITS = 20


def wanted_model(text: str) -> tuple[str, Use]:
    """The name and the use in `NAME,context=32k,dtype=int4`."""
    name, *settings = [part.strip() for part in text.split(",")]
    values: dict[str, Any] = {}
    for setting in settings:
        key, equals, value = setting.partition("=")
        if key in _COUNTS and equals:
            values[key] = token_count(value, key)
        elif key == "train" and value in tuple(Train):
            values[key] = Train(value)
        elif key in ("dtype", "cache_dtype") and equals:
            values[key] = value
        else:
            raise InvalidRequest(f"--llm has '{setting}'; write {EXAMPLE}")
    if not name:
        raise InvalidRequest(f"--llm names no model; write {EXAMPLE}")
    return name, Use(**values)


def token_count(text: str, name: str) -> int:
    """`32k` is 32,768."""
    word = text.strip().lower()
    digits, unit = (word[:-1], word[-1]) if word[-1:] in ("k", "m") else (word, "")
    is_number = digits.isascii() and digits.isdigit() and len(digits) < MOST_DIGITS
    if not is_number or not 0 < int(digits) < 1 << 40:
        raise InvalidRequest(f"{name} is '{text}'; write a number such as 8192 or 32k")
    return int(digits) * _UNITS[unit]


def gpu_kinds(gpus: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """The kinds of GPU of a server: name to memory in MiB and number of GPUs."""
    kinds: dict[str, tuple[int, int]] = {}
    for gpu in gpus:
        memory_mb = int(gpu.get("memory_mb") or 0)
        name = f"{gpu.get('model') or 'GPU'}-{round(memory_mb / 1024)}GB"
        kinds[name] = (memory_mb, kinds.get(name, (0, 0))[1] + 1)
    return {name: kind for name, kind in kinds.items() if kind[0]}


def fields_for(
    text: str, config: Mapping[str, Any], kinds: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, Any], str]:
    """The GPU fields of a submission for a model, and an explanation."""
    name, use = wanted_model(text)
    models = config.get("models") or {}
    if name in models:
        gpus = float(models[name])
        return {"gpu_count": gpus}, f"{name} takes {gpus:g} GPUs according to the model file"
    try:
        model = found_model(name)
    except InvalidRequest as error:
        if "default_requirement" not in config:
            raise
        gpus = float(config["default_requirement"])
        return {"gpu_count": gpus}, f"{error}; using the default of {gpus:g} GPUs"
    return estimated_fields(model, use, kinds)


def estimated_fields(
    model: Model, use: Use, kinds: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, Any], str]:
    """GPUs and their memory for a model, on the kind of GPU of which the fewest are needed."""
    need = memory_need(model, use)
    found = [
        fit
        for fit in fits(need, {name: memory_mb for name, (memory_mb, _) in kinds.items()})
        if fit.count <= kinds[fit.gpu][1]
    ]
    if not found:
        have = ", ".join(f"{count} x {name}" for name, (_, count) in kinds.items()) or "no GPUs"
        raise InvalidRequest(
            f"{model.name} needs {summary(need)}, and there are {have}; choose a smaller data "
            "type, context or model, or ask for GPUs with --gpus"
        )
    fit = found[0]
    count = fit.count if fit.count > 1 else share_of_one(need, fit.memory_mb)
    fields = {"gpu_count": count, "gpu_memory_mb_per_gpu": fit.each_mb}
    if count < 1:
        # A share includes its part of the memory, and `share_of_one` chose it large enough.
        fields = {"gpu_count": count, "gpu_memory_mb": need.total_bytes // MIB + 1}
    return fields, f"{model.name} needs {summary(need)}: {count:g} x {fit.gpu}"


def summary(need: Need) -> str:
    """`70.1 GB (weights 61.0, KV cache 8.0, ...)`."""
    parts = [*((part.name, part.size_bytes) for part in need.parts), ("CUDA", need.per_gpu_bytes)]
    listed = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts if size >= GIB / 20)
    return f"{need.total_bytes / GIB:.1f} GB ({listed})"
