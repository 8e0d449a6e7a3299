"""`tgpu gpus`, `pause-gpu` and `resume-gpu`: the devices and the jobs on them."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from collections.abc import Iterator, Sequence
from typing import Any

from gpu_scheduler.cli.connection import (
    add_kube_options,
    add_server_options,
    client_for,
    print_answer,
)
from gpu_scheduler.cli.text.tables import print_json, print_table, visible
from gpu_scheduler.cli.text.values import size_text
from gpu_scheduler.client.http1 import quoted, target
from gpu_scheduler.client.requests import API
from gpu_scheduler.model.errors import InvalidRequest

HEADINGS = ("GPU", "MODEL", "STATE", "SHARE", "MEMORY", "UTIL", "TEMP", "POWER", "USED BY")
RIGHT = ("SHARE", "MEMORY", "UTIL", "TEMP", "POWER")
NARROW = ("MODEL",)
SPARE = ("POWER", "TEMP", "MODEL", "SHARE", "UTIL", "MEMORY")


def register_gpus(parser: ArgumentParser) -> None:
    """Add the options of `tgpu gpus`."""
    add_kube_options(parser, namespaced=False)
    add_server_options(parser, table=True)


def register_pause(parser: ArgumentParser) -> None:
    """Add the options of `tgpu pause-gpu`."""
    register_resume(parser)
    parser.add_argument("--reason", metavar="TEXT", help="why; shown by tgpu gpus")


def register_resume(parser: ArgumentParser) -> None:
    """Add the options of `tgpu resume-gpu`."""
    parser.add_argument("gpu", nargs="+", metavar="GPU", help="index, or node:index")
    add_server_options(parser)


def run_gpus(args: Namespace) -> int:
    """Show the devices."""
    with client_for(args) as client:
        gpus = client.gpus()
    return print_answer(args, {"gpus": list(gpus)}, lambda: _print_gpus(gpus))


def _print_gpus(gpus: Sequence[dict[str, Any]]) -> None:
    """A line for each device; then why devices take no new work, for each node and reason."""
    named = len({gpu.get("node") for gpu in gpus}) > 1
    rows = (row(gpu, named=named) for gpu in gpus)
    print_table(HEADINGS, rows, right=RIGHT, narrow=NARROW, spare=SPARE)
    by_reason: dict[tuple[str, str], list[str]] = {}
    for gpu in gpus:
        if gpu.get("why"):
            key = (str(gpu.get("node")), str(gpu["why"]))
            by_reason.setdefault(key, []).append(_name(gpu, named=named))
    for (_, why), names in by_reason.items():
        print(f"GPU{'s' * (len(names) > 1)} {', '.join(names)}: {visible(why)}")


def run_pause(args: Namespace) -> int:
    """Give devices no new work."""
    return _change(args, "pause", "paused; running jobs go on")


def run_resume(args: Namespace) -> int:
    """Use devices again."""
    return _change(args, "resume", "in use again")


def is_measured(gpu: dict[str, Any]) -> bool:
    """Whether the device reports measurements; declared devices do not."""
    return bool(gpu.get("memory_used_mb")) or gpu.get("utilisation_percent") is not None


def row(gpu: dict[str, Any], *, named: bool) -> list[str]:
    """The columns of one device."""
    used = size_text(gpu.get("memory_used_mb") or 0) if is_measured(gpu) else "-"
    return [
        _name(gpu, named=named),
        str(gpu.get("model") or "") + (f" ({', '.join(gpu['mig'])})" if gpu.get("mig") else ""),
        str(gpu.get("state") or ""),
        f"{round(100 * float(gpu.get('allocated_share') or 0))}%",
        f"{used} / {size_text(gpu.get('memory_mb') or 0)}",
        _figure(gpu.get("utilisation_percent"), "%"),
        _figure(gpu.get("temperature_c") or None, " C"),
        _figure(gpu.get("power_watts") or None, " W"),
        ", ".join(_users(gpu)),
    ]


def _name(gpu: dict[str, Any], *, named: bool) -> str:
    index = str(gpu.get("index", "?"))
    return f"{gpu.get('node')}:{index}" if named else index


def _users(gpu: dict[str, Any]) -> Iterator[str]:
    """The jobs on the device followed by their users, then the processes of no running job.

    A process is `user:pid program (memory)`.
    """
    jobs = ", ".join(map(str, gpu.get("jobs") or []))
    owners = ", ".join(visible(str(user)) for user in gpu.get("users") or [])
    if jobs:
        yield f"{jobs} ({owners})" if owners else jobs
    for process in gpu.get("processes") or []:
        if process.get("job_id") and not process.get("leaked"):
            continue
        memory, command = process.get("memory_mb"), process.get("command")
        program = f" {visible(str(command))}" if command else ""
        size = f" ({size_text(memory)})" if memory else ""
        left = f"left by {process['job_id']}: " if process.get("leaked") else ""
        yield f"{left}{process.get('user') or '?'}:{process.get('pid')}{program}{size}"


def _figure(value: float | None, unit: str) -> str:
    return "-" if value is None else f"{value:.0f}{unit}"


def _change(args: Namespace, action: str, done: str) -> int:
    answers = []
    with client_for(args) as client:
        for word in args.gpu:
            node, colon, index = word.rpartition(":")
            if not index.isdecimal() or (colon and not node):
                raise InvalidRequest(f"'{word}' is not a GPU; write its index, or node:index")
            place = f"{quoted(node)}/{index}" if node else index
            query = {"reason": getattr(args, "reason", None)}
            answer = client.call("POST", target(f"{API}/gpus/{place}/{action}", query))
            answers.append(answer)
            # The server's remark on a resumed device, for example that its node is offline.
            message = "" if answer.get("paused") else str(answer.get("message") or "")
            remark = message.partition("; ")[2]
            if not args.json:
                print(f"GPU {word} {done}" + (f"; {visible(remark)}" if remark else ""))
    if args.json:
        print_json(answers)
    return 0
