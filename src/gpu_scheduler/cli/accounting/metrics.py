"""`tgpu metrics`: how jobs and GPUs have fared; `--raw` prints what Prometheus reads."""

from __future__ import annotations

import time
from argparse import ArgumentParser, Namespace
from statistics import fmean, median
from typing import Any

from gpu_scheduler.cli.connection import add_server_options, client_for
from gpu_scheduler.cli.jobs.columns import elapsed_s, seconds_at
from gpu_scheduler.cli.jobs.list import pages
from gpu_scheduler.cli.text.tables import painted, print_json, print_pairs
from gpu_scheduler.cli.text.values import whole
from gpu_scheduler.client.requests import ENDED

SAMPLE = 1000


def register(parser: ArgumentParser) -> None:
    """Add the options."""
    parser.add_argument("--raw", action="store_true", help="print the Prometheus metrics")
    parser.add_argument(
        "--last",
        type=whole("--last", least=1),
        default=SAMPLE,
        metavar="N",
        help=f"look at the last N jobs that ended; default {SAMPLE}",
    )
    add_server_options(parser)


def run(args: Namespace) -> int:
    """Show the figures of the server, for people, programs or Prometheus."""
    with client_for(args) as client:
        if args.raw:
            print(client.text("/metrics"), end="")
            return 0
        query: dict[str, object] = {"state": ",".join(sorted(ENDED)), "sort": "-ended_at"}
        jobs, ended = pages(client, query, args.last)
        figures = summary(jobs, ended, client.status(), list(client.gpus()))
    if args.json:
        print_json(figures)
        return 0
    print(painted("Performance metrics", "bold"))
    gpus = figures.pop("gpus")
    labels = {"failed_jobs_of_the_last": f"failed of the last {len(jobs):,} ended"}
    print_pairs(
        (labels.get(name) or name.replace("_", " ").replace("gpu", "GPU"), _text(value))
        for name, value in figures.items()
    )
    if gpus:
        print(painted("GPU utilisation since the server's start", "bold"))
        print_pairs((gpu["gpu"], _load_text(gpu)) for gpu in gpus)
    return 0


def summary(
    jobs: list[dict[str, Any]], ended: int, status: dict[str, Any], gpus: list[dict[str, Any]]
) -> dict[str, Any]:
    """The figures, by name; None where nothing is known."""
    now = time.time()
    ran = [elapsed_s(job, now) for job in jobs if job.get("started_at")]
    waited = [
        (seconds_at(job["started_at"]) or 0) - (seconds_at(job["submitted_at"]) or 0)
        for job in jobs
        if job.get("started_at") and job.get("submitted_at")
    ]
    busy = [
        gpu["utilisation_percent"] for gpu in gpus if gpu.get("utilisation_percent") is not None
    ]
    shares = [float(gpu.get("allocated_share") or 0) for gpu in gpus]
    return {
        "total_jobs": status.get("total_jobs"),
        "running_jobs": status.get("running_jobs"),
        "pending_jobs": status.get("pending_jobs"),
        "ended_jobs": ended,
        "failed_jobs_of_the_last": sum(job["state"] == "failed" for job in jobs),
        "mean_run_seconds": fmean(ran) if ran else None,
        "median_run_seconds": median(ran) if ran else None,
        "mean_wait_seconds": fmean(waited) if waited else None,
        "mean_gpu_utilisation_percent": fmean(busy) if busy else None,
        "allocated_gpu_percent": 100 * fmean(shares) if shares else None,
        "gpus": [_load(gpu, named=len({gpu.get("node") for gpu in gpus}) > 1) for gpu in gpus],
    }


def _load(gpu: dict[str, Any], *, named: bool) -> dict[str, Any]:
    """How busy one GPU was."""
    place = f"{gpu.get('node')}:{gpu.get('index')}" if named else f"GPU {gpu.get('index')}"
    return {
        "gpu": place,
        "mean_percent": gpu.get("utilisation_mean_percent"),
        "peak_percent": gpu.get("utilisation_peak_percent"),
        "state": gpu.get("state") or "",
    }


def _load_text(load: dict[str, Any]) -> str:
    """`78.5% avg, 95% peak`, and whether it is paused or out of order."""
    if load["mean_percent"] is None:
        told = "not measured"
    else:
        told = f"{load['mean_percent']:.1f}% avg, {load['peak_percent']}% peak"
    state = load["state"]
    return told + ("" if state in ("", "free", "used", "shared") else f" ({state.upper()})")


def _text(value: Any) -> str:
    if value is None:
        return "-"
    return f"{value:.1f}" if isinstance(value, float) else f"{value:,}"
