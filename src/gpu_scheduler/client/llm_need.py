"""`--llm NAME`: the GPUs that a job with this model needs, and a sentence that says why.

By `llm_config.json` if it names the model; else estimated, for the GPUs that there are; else the
file's default.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from gpu_scheduler.client.model_directory import found_model
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.predict.llm.fit import fits, share_of_one
from gpu_scheduler.predict.llm.memory import GIB, MIB, Need, Train, Use, memory_need
from gpu_scheduler.predict.llm.model import Model

EXAMPLE = "qwen2.5-32b, or qwen2.5-32b,context=32k,dtype=int4,batch=4,train=lora"
_UNITS = {"": 1, "k": 1 << 10, "m": 1 << 20}
_COUNTS = ("context", "batch", "rank")


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
    if not (digits.isascii() and digits.isdigit()) or not 0 < int(digits) < 1 << 40:
        raise InvalidRequest(f"{name} is '{text}'; write a number such as 8192 or 32k")
    return int(digits) * _UNITS[unit]


def gpu_kinds(gpus: Iterable[Mapping[str, Any]]) -> dict[str, tuple[int, int]]:
    """The kinds of GPU that a server has: name to memory in MiB and how many."""
    kinds: dict[str, tuple[int, int]] = {}
    for gpu in gpus:
        memory_mb = int(gpu.get("memory_mb") or 0)
        name = f"{gpu.get('model') or 'GPU'}-{round(memory_mb / 1024)}GB"
        kinds[name] = (memory_mb, kinds.get(name, (0, 0))[1] + 1)
    return {name: kind for name, kind in kinds.items() if kind[0]}


def fields_for(
    text: str, config: Mapping[str, Any], kinds: Mapping[str, tuple[int, int]]
) -> tuple[dict[str, Any], str]:
    """The fields of a submission for a model, and how they were found."""
    name, use = wanted_model(text)
    models = config.get("models") or {}
    if name in models:
        gpus = float(models[name])
        return {"gpu_count": gpus}, f"{name} takes {gpus:g} GPUs by the file of models"
    try:
        model = found_model(name)
    except InvalidRequest as error:
        if "default_requirement" not in config:
            raise
        gpus = float(config["default_requirement"])
        return {"gpu_count": gpus}, f"{error}; the default of {gpus:g} GPUs is taken"
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
        # A share has its part of the memory by itself, and that is enough by its making.
        fields = {"gpu_count": count, "gpu_memory_mb": need.total_bytes // MIB + 1}
    return fields, f"{model.name} needs {summary(need)}: {count:g} x {fit.gpu}"


def summary(need: Need) -> str:
    """`70.1 GB (weights 61.0, KV cache 8.0, ...)`."""
    parts = [*((part.name, part.size_bytes) for part in need.parts), ("CUDA", need.per_gpu_bytes)]
    told = ", ".join(f"{name} {size / GIB:.1f}" for name, size in parts if size >= GIB / 20)
    return f"{need.total_bytes / GIB:.1f} GB ({told})"
