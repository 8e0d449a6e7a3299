"""What `--dry-run` shows."""

from __future__ import annotations

import os
import shlex
from typing import Any

from gpu_scheduler.cli.output import print_table
from gpu_scheduler.client.surroundings import described


def preview(body: dict[str, Any]) -> dict[str, Any]:
    """A submission without the values that it carries along, which may be secret."""
    shown = dict(body)
    carried = shown.pop("captured_environment", {})
    found = described(os.environ) if carried else ""
    shown["captured_environment"] = f"{len(carried)} variables" + (f", {found}" if found else "")
    return shown


def print_sweep(bodies: list[dict[str, Any]]) -> None:
    """One line for each job: its parameters and its command."""
    names = list(dict.fromkeys(name for body in bodies for name in body.get("params", {})))
    rows = [
        [
            *(body.get("params", {}).get(name, "") for name in names),
            str(body.get("gpu_count", 0)),
            shlex.join(body.get("command", [])) or str(body.get("name", "")),
        ]
        for body in bodies
    ]
    print_table([*names, "GPUS", "COMMAND"], rows)
    print(f"{len(bodies)} jobs would be submitted")
