"""The options of `tgpu simulate`, and which of them go together.

Nothing here has a default but None: whether an option was given is what the checks ask. Defaults
are put in where the values are used.
"""

from __future__ import annotations

from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable
from pathlib import Path

from gpu_scheduler.cli.simulate_values import (
    decimal,
    duration_ms,
    duration_s,
    milli,
    names,
    one_of,
    seeds,
    weights,
    whole,
)
from gpu_scheduler.model.errors import InvalidRequest

Reader = Callable[[str], object]

FORMATS = ("json", "jsonl", "csv", "helios", "philly", "openb", "swf")
PREDICTORS = ("auto", "history", "oracle", "stated")
GROUPINGS = ("tenant", "partition")
EXAMPLES = """\
examples:
  tgpu simulate --demo
  tgpu simulate --trace jobs.csv --nodes 4 --policy fifo,easy,feedback
  tgpu simulate --trace jobs.csv.gz --cluster vc_nodes.csv --policy fifo --by partition
  tgpu simulate --generate --days 7 --load 1.1 --policy fair --report fair.html
  tgpu simulate --generate --jobs 1000 --write-trace work.json
  tgpu simulate --fill --trace pods.csv --cluster nodes.csv --policy fgd,balance

A time is written as 90 (seconds), 90m, 2h, 1h30m, 1d or 02:30:00."""

CLUSTER: dict[str, tuple[Callable[[str], Reader], str, str]] = {
    "nodes": (whole, "N", "that many alike nodes; default 8 with --generate"),
    "gpus_per_node": (whole, "N", "GPUs of each node; default 8"),
    "gpu_model": (lambda _: str, "NAME", "model of the GPUs; default GPU"),
    "gpu_memory_mb": (whole, "MB", "memory of each GPU; default 81920"),
    "cpu_cores": (milli, "N", "cores of each node; default 16 for each GPU"),
    "memory_mb": (whole, "MB", "memory of each node; default 131072 for each GPU"),
    "gpus_per_island": (whole, "N", "GPUs that NVLink joins; default all of a node"),
    "nodes_per_rack": (whole, "N", "nodes that stand in one rack; default no racks"),
}
"""Machines by numbers: reader, placeholder, meaning."""

SHAPE: dict[str, tuple[Callable[[str], Reader], str, str]] = {
    "load": (decimal, "X", "offered GPU time over capacity; default 0.9"),
    "tenants": (whole, "N", "tenants; default 6"),
    "users": (whole, "N", "users; default 60"),
    "user_skew": (decimal, "X", "how much busier the first users are; default 1"),
    "kinds_per_user": (whole, "N", "recurring jobs of a user and size, at most; default 3"),
    "gpu_mix": (
        lambda flag: weights(flag, "1:70,8:30"),
        "N:W,...",
        "GPU counts and their weights; default mostly 1, some up to 64",
    ),
    "fraction_share": (decimal, "X", "share of jobs below one GPU; default 0.12"),
    "cpu_only_share": (decimal, "X", "share of jobs without a GPU; default 0.06"),
    "interactive_share": (decimal, "X", "share of small kinds that are sessions; default 0.05"),
    "median_run": (lambda flag: duration_s(flag, least=1), "TIME", "median run; default 15m"),
    "longest_run": (lambda flag: duration_s(flag, least=1), "TIME", "longest run; default 7d"),
    "kind_spread": (decimal, "X", "spread of medians between kinds, log; default 1.5"),
    "size_exponent": (decimal, "X", "runs grow with GPUs to this power; default 0.25"),
    "fail_share": (decimal, "X", "share of jobs that fail early; default 0.12"),
    "limit_share": (decimal, "X", "share of kinds with a stated limit; default 0.85"),
    "sweep_share": (decimal, "X", "share of small kinds that come as sweeps; default 0.25"),
    "sweep_jobs": (whole, "N", "mean size of a sweep; default 12"),
    "day_swing": (decimal, "X", "rhythm of the day, 0 to 1; default 0.7"),
    "peak_hour": (decimal, "X", "busiest hour of the day; default 15"),
    "weekend_factor": (decimal, "X", "weekend over working day; default 0.5"),
    "priorities": (
        lambda flag: weights(flag, "normal:80,high:20"),
        "P:W,...",
        "priorities and their weights; default mostly normal",
    ),
}
"""Generated work: reader, placeholder, meaning."""

_MODES = ("demo", "generate", "fill", "list_policies")
_TRACE = ("trace", "format")
_MACHINES = ("cluster", *CLUSTER)
_WORK = ("jobs", "days", *SHAPE)
_WORLD = ("predictor", "preemption_cost", "wide_preemption_cost", "lose_progress", "default_limit")
_STUDY = ("forecasts", "by", "report")
_FILLING = ("seeds", "rename_nodes")
_REFUSED: dict[str, tuple[str, ...]] = {
    "trace": (*_WORK, *_FILLING, "write_trace"),
    "demo": (*_TRACE, *_MACHINES, *_WORK, *_FILLING, "write_trace", "limit_jobs"),
    "generate": (*_TRACE, *_FILLING),
    "fill": (*_WORK, *_WORLD, *_STUDY, "write_trace", "limit_jobs", "seed"),
    "write_trace": (*_WORLD, *_STUDY, "policy", "json"),
    "cluster": tuple(CLUSTER),
    "jobs": ("days",),
}
"""Which options make no sense beside another."""


def add_options(parser: ArgumentParser) -> None:
    """All options, in groups that the help shows."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.usage = (
        "%(prog)s (--trace FILE | --generate | --demo | --fill | --list-policies) [options]"
    )
    parser.epilog = EXAMPLES
    _add_modes(parser)
    work = parser.add_argument_group("generated work (--generate)")
    work.add_argument("--jobs", type=whole("--jobs"), metavar="N", help="jobs; default 10000")
    work.add_argument("--days", type=decimal("--days"), metavar="X", help="or so many days of work")
    _add_table(work.add_argument, SHAPE)
    machines = parser.add_argument_group("machines")
    machines.add_argument("--cluster", type=Path, metavar="FILE", help="a file that lists nodes")
    _add_table(machines.add_argument, CLUSTER)
    _add_world(parser)
    _add_output(parser)


def check_together(args: Namespace) -> None:
    """Refuse options that contradict each other or have no meaning together."""
    modes = [mode for mode in _MODES if is_given(args, mode)]
    if len(modes) > 1:
        raise InvalidRequest(f"{_flags(modes)} cannot be given together; choose one")
    if args.write_trace is not None and not args.generate:
        raise InvalidRequest("--write-trace writes generated work; add --generate")
    if not modes and args.trace is None:
        raise InvalidRequest("nothing to simulate; give --trace FILE, --generate or --demo")
    holders = [*(modes or ["trace"]), "write_trace", "cluster", "jobs"]
    for holder in holders:
        refused = [name for name in _REFUSED.get(holder, ()) if is_given(args, name)]
        if is_given(args, holder) and refused:
            raise InvalidRequest(
                f"{_flags(refused)} cannot be given with {flag_of(holder)}; leave one of them out"
            )
    looks = [name for name in CLUSTER if name != "nodes" and is_given(args, name)]
    if looks and args.nodes is None and not is_given(args, "generate"):
        raise InvalidRequest(f"{_flags(looks)} says what a node is like; say how many with --nodes")


def is_given(args: Namespace, name: str) -> bool:
    """Tell whether an option stands on the command line."""
    value = getattr(args, name)
    return value is not None and value is not False


def flag_of(name: str) -> str:
    """The option as it is written."""
    return f"--{name.replace('_', '-')}"


def _add_modes(parser: ArgumentParser) -> None:
    modes = parser.add_argument_group("what to run")
    modes.add_argument("--trace", type=Path, metavar="FILE", help="a trace of jobs")
    modes.add_argument(
        "--format",
        type=one_of("--format", FORMATS),
        metavar="F",
        help=f"its format ({', '.join(FORMATS)}); default by content",
    )
    modes.add_argument("--generate", action="store_true", help="generated work, no trace")
    modes.add_argument("--demo", action="store_true", help="one day on a small cluster")
    modes.add_argument("--fill", action="store_true", help="the filling experiment on openb lists")
    modes.add_argument("--list-policies", action="store_true", help="the policies, and no run")
    modes.add_argument(
        "--write-trace", type=Path, metavar="FILE", help="write the generated work, and no run"
    )
    modes.add_argument(
        "--limit-jobs", type=whole("--limit-jobs"), metavar="N", help="only the first N jobs"
    )


def _add_world(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("policies and how the world behaves")
    group.add_argument(
        "--policy",
        action="extend",
        type=names("--policy"),
        metavar="P,...",
        help="policies to compare; may be repeated; default fifo,fair,feedback",
    )
    group.add_argument(
        "--predictor",
        type=one_of("--predictor", PREDICTORS),
        metavar="P",
        help=f"what policies know of run times ({', '.join(PREDICTORS)}); default auto",
    )
    for name, meaning in (
        ("preemption_cost", "run time that a preemption adds; default 40s"),
        ("wide_preemption_cost", "the same for jobs of more than 8 GPUs; default 60s"),
        ("default_limit", "limit of jobs that state none; default none"),
    ):
        least_ms = 1000 if name == "default_limit" else 0
        reader = duration_ms(flag_of(name), least_ms=least_ms)
        group.add_argument(flag_of(name), type=reader, metavar="TIME", help=meaning)
    group.add_argument(
        "--lose-progress", action="store_true", help="a preempted job starts from the beginning"
    )
    group.add_argument(
        "--forecasts", action="store_true", help="forecast every start, and see how well (slow)"
    )
    group.add_argument(
        "--seed", type=whole("--seed", least=0), metavar="N", help="seed of all chance; default 1"
    )
    group.add_argument(
        "--seeds", type=seeds("--seeds"), metavar="A-B", help="with --fill; default 42-51"
    )
    group.add_argument(
        "--rename-nodes",
        type=whole("--rename-nodes", least=0),
        metavar="SEED",
        help="with --fill: other names and another order for the nodes",
    )


def _add_output(parser: ArgumentParser) -> None:
    group = parser.add_argument_group("output")
    group.add_argument("--json", action="store_true", help="one JSON document instead of tables")
    group.add_argument("--report", type=Path, metavar="FILE.html", help="write a report as well")
    group.add_argument(
        "--by",
        type=one_of("--by", GROUPINGS),
        metavar="G",
        help=f"also a table for each policy by {' or '.join(GROUPINGS)}",
    )
    group.add_argument("--quiet", action="store_true", help="no progress bar and no notes")


def _add_table(
    add_argument: Callable[..., object],
    table: dict[str, tuple[Callable[[str], Reader], str, str]],
) -> None:
    for name, (reader, placeholder, meaning) in table.items():
        flag = flag_of(name)
        add_argument(flag, type=reader(flag), metavar=placeholder, help=meaning)


def _flags(option_names: Iterable[str]) -> str:
    return " and ".join(map(flag_of, option_names))
