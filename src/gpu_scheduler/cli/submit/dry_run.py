"""What `--dry-run` shows: what would be submitted, and what the server says to it."""

from __future__ import annotations

import os
import shlex
import time
from argparse import Namespace
from typing import Any

from gpu_scheduler.cli.connection import client_for, warn
from gpu_scheduler.cli.jobs.explain import about, end_text
from gpu_scheduler.cli.text.tables import print_json, print_table, visible
from gpu_scheduler.client.environment import described
from gpu_scheduler.client.errors import NoServer
from gpu_scheduler.client.requests import API


def show_dry_run(args: Namespace, bodies: list[dict[str, Any]]) -> int:
    """Print what would be submitted, without secrets; then let the server judge it, on stderr."""
    if getattr(args, "json", False):
        print_json([preview(body) for body in bodies])
    elif len(bodies) > 1:
        print_sweep(bodies)
    else:
        print_json(preview(bodies[0]))
    try:
        with client_for(args) as client:
            asked = bodies[0] if len(bodies) == 1 else bodies
            _say(client.call("POST", f"{API}/jobs/validate", asked))
    except NoServer as error:
        warn(f"not checked, as no server answers: {error}")
    return 0


def _say(answer: dict[str, Any]) -> None:
    """What the server would do."""
    for warning in answer["warnings"]:
        warn(f"warning: {visible(str(warning))}")
    count = answer["count"]
    warn("the server would accept " + ("it" if count == 1 else f"all {count:,} jobs"))
    now = time.time()
    which = "" if count == 1 else " of the first"
    position = answer["position"]
    for name, text in (
        ("place in line", "" if position is None else str(position)),
        ("expected start", about(answer, now)),
        ("expected end", end_text(answer, now)),
    ):
        if text:
            warn(f"{name}{which}: {text}")


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
