"""`--llm MODEL`: the GPUs of a submission by the model that it uses."""

from __future__ import annotations

from argparse import Namespace
from typing import Any

from gpu_scheduler.cli.connection import client_for, warn
from gpu_scheduler.client.errors import NoServer
from gpu_scheduler.client.jobs_file import llm_config
from gpu_scheduler.client.llm_sizing import fields_for, gpu_kinds, wanted_model

STATED = ("gpu_count", "gpu_memory_mb", "gpu_memory_mb_per_gpu", "mig_profile")


def add_model(
    bodies: list[dict[str, Any]], args: Namespace, stated: tuple[str, ...] = STATED
) -> None:
    """Fill in the GPUs, and say how they were found; what was stated is left as it is."""
    config = llm_config(args.llm_config)
    name, _ = wanted_model(args.llm)
    kinds = {} if name in config.get("models", {}) else kinds_here(args)
    fields, how = fields_for(args.llm, config, kinds)
    for body in bodies:
        if not any(key in body for key in stated):
            body.update(fields)
    warn(how)


def kinds_here(args: Namespace) -> dict[str, tuple[int, int]]:
    """The GPUs of the server; none if it does not answer, which the submission will say."""
    try:
        with client_for(args) as client:
            return gpu_kinds(client.gpus())
    except NoServer:
        return {}
