"""`tgpu simulate --nodes 4,8,16` and `--target-wait 1h`: one workload on clusters of several sizes.

The work stays the same while the number of nodes changes, so the result says what more nodes would
change. With a target, the fewest nodes are searched by doubling and then halving the interval.
"""

from __future__ import annotations

import shlex
import sys
from argparse import Namespace
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field, replace
from math import log10
from typing import Any

from gpu_scheduler.cli.simulate.modes import (
    DEFAULT_POLICIES,
    SCHEMA_VERSION,
    conditions_of,
    policies_named,
    print_json,
    print_line,
    progress,
)
from gpu_scheduler.cli.simulate.workload import (
    DEFAULT_NODES,
    check_writable,
    cluster_with,
    generated,
    trace_reading,
)
from gpu_scheduler.cli.text.tables import print_table
from gpu_scheduler.engine.policy import Policy
from gpu_scheduler.model.errors import InvalidInput, InvalidRequest
from gpu_scheduler.simulator.experiment import run_policy, tenant_weights_milli, total_tasks
from gpu_scheduler.simulator.metric_defs import duration_text, gpus_text
from gpu_scheduler.simulator.metrics import Distribution, Measures, measure
from gpu_scheduler.simulator.report.capacity import write_capacity_report
from gpu_scheduler.simulator.tables import to_json
from gpu_scheduler.simulator.workload import Workload

MOST_NODES = 16_384
BAR = 30
WAITS: dict[str, Callable[[Distribution], float]] = {
    "mean": lambda wait: wait.mean_s,
    "median": lambda wait: wait.median_s,
    "p90": lambda wait: wait.p90_s,
    "p99": lambda wait: wait.p99_s,
    "max": lambda wait: wait.max_s,
}
"""The waits that may be wished, by name."""


def compare_sizes(args: Namespace) -> None:
    """Run every policy on every size, or search the fewest nodes for the wished wait."""
    if args.report is not None:
        check_writable(args.report)
    policies = policies_named(args.policy or DEFAULT_POLICIES[1:2])
    study = _Study(args, args.target_of or "p90")
    sizes = args.nodes if isinstance(args.nodes, tuple) else None
    for policy in policies:
        if args.target_wait is None:
            for size in sizes or ():
                study.run(policy, size)
        else:
            study.fewest[policy.name] = _fewest(study, policy, args.target_wait, sizes)
    if args.report is not None:
        _write_report(args, study)
    if args.json:
        print_json(_document(args, study))
    else:
        _print(args, study)


@dataclass(slots=True)
class _Study:
    """The workload of the options on any number of nodes, and the runs so far."""

    args: Namespace
    wait: str
    found: dict[str, dict[int, Measures]] = field(default_factory=dict)
    fewest: dict[str, int] = field(default_factory=dict)
    title: str = ""

    def run(self, policy: Policy, size: int) -> Measures:
        """Run the policy on so many nodes, once."""
        runs = self.found.setdefault(policy.name, {})
        if size not in runs:
            workload = self._workload(size)
            self.title = workload.name
            name = f"{policy.name}, {size} nodes"
            with progress([name], total_tasks(workload), quiet=self.args.quiet) as advance:
                on_progress = None if advance is None else lambda _, ended: advance(name, ended)
                run = run_policy(workload, policy, conditions_of(self.args), on_progress)
            runs[size] = measure(run, tenant_weights_milli(workload))
        return runs[size]

    def wait_s(self, run: Measures) -> float:
        """The wait of interest."""
        return WAITS[self.wait](run.wait)

    def _workload(self, size: int) -> Workload:
        args = Namespace(**vars(self.args))
        if not args.generate:
            args.nodes = size
            return trace_reading(args).workload
        # The work that is generated for the first size; more nodes get the same work.
        given = self.args.nodes
        args.nodes = given[0] if isinstance(given, tuple) else given or DEFAULT_NODES
        workload = generated(args)
        nodes = cluster_with(args, size).nodes
        parts = [replace(part, nodes=nodes) for part in workload.partitions]
        return replace(workload, partitions=parts)


def _fewest(study: _Study, policy: Policy, target_s: float, sizes: tuple[int, ...] | None) -> int:
    """The fewest nodes on which the wait is at most the target; of the given sizes, if any."""

    def meets(size: int) -> bool:
        try:
            run = study.run(policy, size)
        except InvalidInput:
            if size >= MOST_NODES:
                raise
            return False  # a job that fits on no cluster of this size
        return not run.dropped_jobs and study.wait_s(run) <= target_s

    if sizes is not None:
        enough = [size for size in sorted(sizes) if meets(size)]
        return enough[0] if enough else 0
    too_few, enough_nodes = 0, study.args.nodes or DEFAULT_NODES
    while not meets(enough_nodes):
        if enough_nodes >= MOST_NODES:
            raise InvalidRequest(
                f"{policy.name}: the {study.wait} wait is above {duration_text(target_s)} even on "
                f"{enough_nodes:,} nodes; does the work wait for something else than GPUs?"
            )
        too_few, enough_nodes = enough_nodes, min(2 * enough_nodes, MOST_NODES)
    while enough_nodes - too_few > 1:
        middle = (too_few + enough_nodes) // 2
        if meets(middle):
            enough_nodes = middle
        else:
            too_few = middle
    return enough_nodes


def _print(args: Namespace, study: _Study) -> None:
    """A row for each run, with a bar of its wait; then the answer."""
    print_line(study.title)
    print_line("")
    runs = [(name, size, run) for name, size, run in _rows(study)]
    longest = max((study.wait_s(run) for _, _, run in runs), default=0.0)
    wait = study.wait.upper()
    headings = (
        "POLICY",
        "NODES",
        "GPUS",
        f"{wait} WAIT",
        "MEAN JCT",
        "IN USE",
        f"{wait} WAIT, LOG",
    )
    rows = [
        (
            name,
            f"{size:,}",
            gpus_text(run.capacity_gpu_milli),
            duration_text(study.wait_s(run)),
            duration_text(run.jct.mean_s),
            f"{run.utilisation_percent:.0f} %",
            _bar(study.wait_s(run), longest)
            + ("  <- fewest" if study.fewest.get(name) == size else ""),
        )
        for name, size, run in runs
    ]
    print_table(headings, rows, right=headings[1:6])
    for name, size in study.fewest.items():
        goal = f"a {study.wait} wait of at most {duration_text(args.target_wait)}"
        if not size:
            print_line(f"{name}: none of these sizes has {goal}")
            continue
        gpus = gpus_text(study.found[name][size].capacity_gpu_milli)
        print_line(f"{name}: {goal} needs {size:,} nodes ({gpus} GPUs)")
    if args.report is not None:
        print_line(f"Report: {args.report}")


def _rows(study: _Study) -> Iterator[tuple[str, int, Measures]]:
    for name, runs in study.found.items():
        for size in sorted(runs):
            yield name, size, runs[size]


def _bar(seconds: float, longest: float) -> str:
    """A bar on a logarithmic scale: waits differ by orders of magnitude."""
    return "█" * round(BAR * log10(1 + seconds) / log10(1 + longest)) if longest else ""


def _write_report(args: Namespace, study: _Study) -> None:
    try:
        write_capacity_report(
            study.found,
            args.report,
            wait_of=study.wait_s,
            wait_name=study.wait,
            target_s=args.target_wait,
            title=study.title,
            command=shlex.join(["tgpu", *sys.argv[1:]]),
        )
    except OSError as error:
        problem = f"cannot be written: {error.strerror or error}"
        raise InvalidInput(problem, file=str(args.report)) from error


def _document(args: Namespace, study: _Study) -> dict[str, Any]:
    target = None
    if args.target_wait is not None:
        target = {"of": study.wait, "wait_s": args.target_wait, "fewest_nodes": study.fewest}
    return {
        "schema_version": SCHEMA_VERSION,
        "workload": {"name": study.title},
        "target": target,
        "runs": [{"nodes": size} | to_json(run) for _, size, run in _rows(study)],
    }
