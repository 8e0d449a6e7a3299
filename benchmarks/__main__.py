"""`python -m benchmarks [names...]`: each measure in a process of its own, one line of JSON each.

A process of its own, so that no measure finds memory or caches that another has left behind.
"""

from __future__ import annotations

import argparse
import importlib
import json
import subprocess
import sys

from benchmarks import progress

MEASURES = {
    "placement": "benchmarks.placement",
    "cycle": "benchmarks.cycle",
    "queue": "benchmarks.queue_operations",
    "memory": "benchmarks.memory",
    "store": "benchmarks.store",
    "postgres": "benchmarks.postgres",
    "http": "benchmarks.http",
    "grpc": "benchmarks.grpc_bulk",
    "spawn": "benchmarks.spawn",
    "jobs": "benchmarks.jobs",
    "users": "benchmarks.other_users",
    "floods": "benchmarks.floods",
    "latency": "benchmarks.latency",
    "startup": "benchmarks.startup",
    "submissions": "benchmarks.submissions",
    "pending": "benchmarks.pending",
    "idle": "benchmarks.idle",
    "monitoring": "benchmarks.monitoring",
    "top": "benchmarks.top",
    "dashboard": "benchmarks.dashboard",
    "heartbeats": "benchmarks.heartbeats",
    "throughput": "benchmarks.throughput",
    "failover": "benchmarks.failover",
    "kubernetes": "benchmarks.kubernetes",
    "venus": "benchmarks.venus",
    "year": "benchmarks.year",
}
FULL_YEAR_JOBS = 1_000_000


def main() -> int:
    """Run what was asked for; 1 if a measure broke, or with --check if a target was missed."""
    options = _options()
    if options.list:
        for name, module in MEASURES.items():
            summary = (importlib.import_module(module).__doc__ or "").splitlines()[0]
            print(f"{name:<12} {summary}")
        return 0
    if options.here:
        _run_here(options)
        return 0
    broken = missed = False
    for name in options.names or MEASURES:
        line = _run_apart(name, options)
        if line is None:
            broken = True
            continue
        print(line, flush=True)
        missed |= json.loads(line)["met"] is False
    return 1 if broken or (options.check and missed) else 0


def _options() -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m benchmarks", description=__doc__)
    parser.add_argument("names", nargs="*", metavar="name", help="measures; default all")
    parser.add_argument("--list", action="store_true", help="list the measures and stop")
    parser.add_argument("--repeats", type=int, default=5, help="laps of which the best counts")
    parser.add_argument("--full", action="store_true", help="the whole year: 1,000,000 jobs")
    parser.add_argument("--year-jobs", type=int, default=0, help="another length of the year")
    parser.add_argument(
        "--max-seconds", type=float, default=0, help="stop the year after this time"
    )
    parser.add_argument(
        "--kubernetes-nodes",
        type=int,
        default=0,
        help="nodes of the cluster of kwok (default 1000)",
    )
    parser.add_argument("--check", action="store_true", help="exit with 1 if a target is missed")
    parser.add_argument("--here", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    unknown = [name for name in options.names if name not in MEASURES]
    if unknown:
        parser.error(f"no measure is called {unknown[0]}; known: {', '.join(MEASURES)}")
    if options.repeats < 1:
        parser.error(f"--repeats is {options.repeats}; it must be 1 or more")
    return options


def _run_here(options: argparse.Namespace) -> None:
    """One measure in this process."""
    (name,) = options.names
    extra: dict[str, float] = {}
    if name == "year":
        if options.full:
            extra = {"jobs": FULL_YEAR_JOBS, "max_seconds": 24 * 3_600}
        if options.year_jobs:
            extra["jobs"] = options.year_jobs
        if options.max_seconds:
            extra["max_seconds"] = options.max_seconds
    if name == "kubernetes" and options.kubernetes_nodes:
        extra = {"nodes": options.kubernetes_nodes}
    answer = importlib.import_module(MEASURES[name]).measure(options.repeats, **extra)
    progress.clear()
    print(json.dumps(answer))


def _run_apart(name: str, options: argparse.Namespace) -> str | None:
    """One measure in a child; None if it broke, and then its error stands on standard error."""
    command = [sys.executable, "-m", "benchmarks", "--here", name]
    command += [f"--repeats={options.repeats}", f"--year-jobs={options.year_jobs}"]
    command += [f"--kubernetes-nodes={options.kubernetes_nodes}"]
    command += [f"--max-seconds={options.max_seconds}"] + ["--full"] * options.full
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        print(f"{name} broke with exit code {done.returncode}", file=sys.stderr)
        return None
    return done.stdout.strip()


if __name__ == "__main__":
    sys.exit(main())
