"""GPUs for language models: `tgpu estimate`, and `--llm MODEL` of submissions."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for, print_answer, warn
from gpu_scheduler.cli.parser import Options
from gpu_scheduler.cli.text.tables import painted, print_table, visible
from gpu_scheduler.cli.text.values import positive
from gpu_scheduler.client.errors import NoServer
from gpu_scheduler.client.jobs_file import llm_config
from gpu_scheduler.client.llm_sizing import (
    fields_for,
    found_model,
    gpu_kinds,
    token_count,
    wanted_model,
)
from gpu_scheduler.model.errors import InvalidRequest, SchedulerError
from gpu_scheduler.sizing.memory import (
    DTYPE_BITS,
    GIB,
    MIB,
    Fit,
    Need,
    Train,
    Use,
    billions,
    fits,
    known_kinds,
    memory_need,
)
from gpu_scheduler.sizing.model import BILLION, LARGEST

STATED = ("gpu_count", "gpu_memory_mb", "gpu_memory_mb_per_gpu", "mig_profile")


def add_model(
    bodies: list[dict[str, Any]], args: Namespace, stated: tuple[str, ...] = STATED
) -> None:
    """Fill in the GPUs for `--llm`, and print how they were determined; given values stay."""
    config = llm_config(args.llm_config)
    name, _ = wanted_model(args.llm)
    kinds = {} if name in config.get("models", {}) else server_gpu_kinds(args)
    fields, how = fields_for(args.llm, config, kinds)
    for body in bodies:
        if not any(key in body for key in stated):
            body.update(fields)
    warn(how)


def server_gpu_kinds(args: Namespace) -> dict[str, tuple[int, int]]:
    """The GPUs of the server; empty if it does not answer, which the submission will report."""
    try:
        with client_for(args) as client:
            return gpu_kinds(client.gpus())
    except NoServer:
        return {}


COMMON_GPUS = (
    *("H100", "H200", "A100", "B200", "L40S", "A10", "L4", "V100", "RTX4090", "RTX3090", "T4"),
)
"""GPU models that are shown without --all."""
EXAMPLES = """\
examples:
  tgpu estimate qwen2.5-32b --context 32k --dtype bf16
  tgpu estimate llama-3.1-8b-instruct --train lora --context 4k --batch 4
  tgpu estimate ./checkpoints/my-model        config.json and safetensors headers are read
  tgpu estimate our-model --params 13b"""


def register_estimate(parser: ArgumentParser) -> None:
    """Add the options of `tgpu estimate`."""
    parser.epilog = EXAMPLES
    add = Options(parser)
    types = tuple(DTYPE_BITS)
    add.word("model", "MODEL", "a name such as qwen2.5-32b, or a model's directory")
    add.value("--params", None, "N", "number of parameters, such as 7b or 350m")
    add.choice("--dtype", types, "type of the weights; default: the model's, or bf16")
    add.choice("--kv-dtype", types, "type of the KV cache; default: as the weights")
    add.value("--context", None, "TOKENS", "tokens per sequence; default 8k", default="8k")
    add.value("--batch", positive, "N", "sequences at once", default=1)
    add.choice("--train", tuple(Train), "training instead of inference")
    add.value("--rank", positive, "R", "rank of LoRA adapters", default=16)
    add.flag("--keep-activations", "train without activation checkpointing")
    add.flag("--all", "show every known GPU model")
    add_server_options(parser)


def run_estimate(args: Namespace) -> int:
    """Estimate the memory and print it."""
    try:
        model = found_model(args.model, _parameters(args.params) if args.params else None)
    except InvalidRequest as error:
        if args.params:
            raise
        raise InvalidRequest(f"{error}; or give --params 7b") from None
    use = Use(
        dtype=args.dtype or "",
        cache_dtype=args.kv_dtype or "",
        context=token_count(args.context, "--context"),
        batch=args.batch,
        train=Train(args.train) if args.train else None,
        rank=args.rank,
        checkpointing=not args.keep_activations,
    )
    need = memory_need(model, use)
    known = fits(need, known_kinds(() if args.all else COMMON_GPUS))
    on_server = fits(need, {name: kind[0] for name, kind in _gpu_kinds_if_any(args).items()})
    return print_answer(
        args, document(need, known, on_server), lambda: show(need, known, on_server)
    )


def show(need: Need, known: list[Fit], on_server: list[Fit]) -> None:
    """Print the memory by component, and the GPUs on which it fits."""
    model, use = need.model, need.use
    doing = f"{use.train.value} training" if use.train else "inference"
    print(
        f"{painted(visible(model.name), 'bold')}  {doing}, {need.dtype}, "
        f"context {use.context:,}, batch {use.batch:,}"
    )
    print(f"parameters  {billions(model.parameters)}: {model.parameters_from}")
    print(f"shape       {model.shape_from}")
    print()
    rows = [[part.name, f"{part.size_bytes / GIB:.2f}", part.how] for part in need.parts]
    rows.append(["CUDA", f"{need.per_gpu_bytes / GIB:.2f}", "context and libraries, on each GPU"])
    rows.append(["total", f"{need.total_bytes / GIB:.2f}", "on one GPU"])
    print_table(("PART", "GB", "HOW"), rows, right=("GB",))
    print()
    print("fits on: " + "\n         ".join(_fit_lines(known) or ["none of the known GPUs"]))
    if on_server:
        print("here:    " + "\n         ".join(_fit_lines(on_server)))


def document(need: Need, known: list[Fit], on_server: list[Fit]) -> dict[str, Any]:
    """The estimate for JSON; sizes in MiB."""
    model, use = need.model, need.use
    return {
        "model": model.name,
        "parameters": model.parameters,
        "parameters_from": model.parameters_from,
        "shape_from": model.shape_from,
        "dtype": need.dtype,
        "context": use.context,
        "batch": use.batch,
        "train": use.train.value if use.train else None,
        "parts": [
            {"name": part.name, "memory_mb": round(part.size_bytes / MIB), "how": part.how}
            for part in need.parts
        ],
        "per_gpu_memory_mb": round(need.per_gpu_bytes / MIB),
        "total_memory_mb": round(need.total_bytes / MIB),
        **{
            place: [
                {"gpus": fit.count, "gpu": fit.gpu, "memory_mb_per_gpu": fit.each_mb}
                for fit in fitting
            ]
            for place, fitting in (("fits_on", known), ("here", on_server))
        },
    }


def _fit_lines(found: list[Fit]) -> list[str]:
    """One line for each count: `2 x A100-40GB / L40S-48GB`."""
    by_count: dict[int, list[str]] = {}
    for fit in found:
        by_count.setdefault(fit.count, []).append(fit.gpu)
    return [f"{count} x {' / '.join(gpus)}" for count, gpus in by_count.items()]


def _gpu_kinds_if_any(args: Namespace) -> dict[str, tuple[int, int]]:
    """The GPUs of the server if one answers; an estimate needs no server."""
    try:
        with client_for(args) as client:
            return gpu_kinds(client.gpus())
    except NoServer:
        if args.server:
            raise
        return {}
    except SchedulerError:
        return {}


def _parameters(text: str) -> int:
    word = text.strip().lower()
    unit = {"b": BILLION, "m": BILLION // 1000}.get(word[-1:])
    try:
        amount = float(word[:-1]) * unit if unit else int(word)
    except ValueError:
        amount = 0
    if not 1 <= amount < LARGEST:
        raise InvalidRequest(f"--params is '{text}'; write a number such as 7b, 350m or 7615616512")
    return round(amount)
