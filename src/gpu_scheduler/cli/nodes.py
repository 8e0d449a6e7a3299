"""`tgpu nodes`: the machines."""

from __future__ import annotations

from argparse import ArgumentParser, Namespace
from typing import Any

from gpu_scheduler.cli.durations import size_text
from gpu_scheduler.cli.output import print_json, print_table
from gpu_scheduler.cli.reach import add_server_options, client_for

HEADINGS = ("NODE", "STATE", "GPUS", "FREE", "CPUS", "MEMORY", "LABELS")


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    add_server_options(parser)


def run(args: Namespace) -> int:
    """List."""
    with client_for(args) as client:
        nodes = client.nodes()
    if args.json:
        print_json({"nodes": list(nodes)})
        return 0
    right = ("GPUS", "FREE", "CPUS", "MEMORY")
    print_table(HEADINGS, (_row(node) for node in nodes), right=right)
    return 0


def _row(node: dict[str, Any]) -> list[str]:
    labels = node.get("labels") or {}
    free = node.get("available_gpus", node.get("free_gpus"))
    return [
        str(node.get("name") or node.get("id") or "?"),
        str(node.get("state") or node.get("status") or ""),
        _count(node, "gpus", "total_gpus", "gpu_count"),
        "-" if free is None else str(free),
        f"{node.get('cpu_cores') or 0:g}",
        size_text(node.get("memory_mb") or 0),
        " ".join(f"{name}={value}" for name, value in sorted(labels.items())),
    ]


def _count(node: dict[str, Any], *names: str) -> str:
    """A number that may also be given as a list of the things."""
    for name in names:
        value = node.get(name)
        if isinstance(value, list):
            return str(len(value))
        if value is not None:
            return str(value)
    return "-"
