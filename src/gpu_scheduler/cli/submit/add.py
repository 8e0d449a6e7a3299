"""`tgpu add`: one script with the columns of jobs.txt, as options."""

from __future__ import annotations

import shlex
from argparse import ArgumentParser, Namespace
from pathlib import Path
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for, warn
from gpu_scheduler.cli.submit.body import missing_program
from gpu_scheduler.cli.submit.llm import add_model
from gpu_scheduler.cli.text.tables import print_json
from gpu_scheduler.cli.text.values import number
from gpu_scheduler.client.environment import capture
from gpu_scheduler.client.jobs_file import PRIORITIES, llm_config, model_named, script_job
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.sizing.model import can_be_sized


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add = parser.add_argument
    add("script", metavar="SCRIPT", help="what to run; a .py is run by python")
    add("--args", default="", metavar="TEXT", help="its arguments, in quotes")
    add("--priority", choices=tuple(PRIORITIES), default="1", help="0 high, 1 normal, 2 low")
    add("--conda-env", "--conda", dest="conda", default="", metavar="ENV", help="conda environment")
    add("--gpus", default="", metavar="LIST", help="devices that it may use, as 0,1 or 0-3")
    add("--gpu-count", type=number("--gpu-count"), metavar="N", help="GPUs; default by the model")
    add("--llm", metavar="MODEL", help="GPUs as this model needs: qwen2.5-7b[,context=32k,...]")
    add("--llm-config", metavar="FILE", help="GPUs by model; default llm_config.json, if there")
    add("--screen", action="store_true", help="run it in a screen session")
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Submit the script as a line of jobs.txt would be."""
    try:
        arguments = shlex.split(args.args)
    except ValueError as error:
        raise InvalidRequest(f"--args is '{args.args}': {error}") from None
    body = script_job(
        args.script,
        arguments,
        conda=args.conda,
        allowed=args.gpus,
        models=llm_config(args.llm_config),
    )
    body["priority"] = PRIORITIES[args.priority]
    if args.gpu_count is not None:
        body["gpu_count"] = args.gpu_count
    else:
        named = model_named(arguments)
        args.llm = args.llm or (named if can_be_sized(named) and "," not in named else "")
        if args.llm:
            add_model([body], args, stated=())
    if args.screen:
        body["runner"] = "screen"
    body |= capture()
    if lacking := _lacking(args.script, body):
        warn(f"warning: there is no '{lacking}' here; the job will need it")
    with client_for(args) as client:
        answer = client.call("POST", f"{API}/jobs", body, once=True)
    if args.json:
        print_json(answer)
    else:
        print(f"submitted {answer['job_id']}")
    return 0


def _lacking(script: str, body: dict[str, Any]) -> str:
    """The script, or what runs it, if it cannot be found from here."""
    if script.endswith(".py") and not Path(script).exists():
        return script
    return missing_program(body["command"], body)
