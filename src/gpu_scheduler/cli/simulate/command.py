"""`tgpu simulate`: options and dispatch.

The options choose a workload, policies and conditions; `workload` makes the workload, and `modes`
runs the simulator and renders the result. Those modules are heavy and imported when needed.
Every option defaults to None, so that the checks know which ones were given; the defaults are
applied where the values are used.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable
from datetime import tzinfo
from difflib import get_close_matches
from functools import partial
from pathlib import Path
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

from gpu_scheduler.cli.parser import Options
from gpu_scheduler.model.errors import InvalidRequest

# Parsers of values. Each takes the flag, so that errors can name it; an invalid value raises
# `InvalidRequest`, which argparse does not catch.

UNITS_S = {"w": 604_800, "d": 86_400, "h": 3_600, "m": 60, "s": 1}
LONGEST_S = 3_650 * UNITS_S["d"]
LARGEST = 10**9
MOST_SEEDS = 1_000
_NUMBER = r"(\d{1,12}(?:\.\d{1,6})?)"
_PLAIN = re.compile(_NUMBER, re.ASCII)
_CLOCK = re.compile(r"(\d{1,6}):([0-5]\d):([0-5]\d)", re.ASCII)
_WITH_UNITS = re.compile("".join(f"(?:{_NUMBER}{unit})?" for unit in UNITS_S), re.ASCII)


def whole(flag: str, *, least: int = 1) -> Callable[[str], int]:
    """A whole number that is not below `least`."""

    def read(text: str) -> int:
        digits = text.strip()
        if not (digits.isascii() and digits.isdigit() and least <= int(digits[:12]) <= LARGEST):
            raise _invalid(flag, text, f"a whole number from {least} to {LARGEST}")
        return int(digits)

    return read


def node_counts(flag: str) -> Callable[[str], int | tuple[int, ...]]:
    """A number of nodes, or several: `4,8,16`."""
    number = whole(flag)

    def read(text: str) -> int | tuple[int, ...]:
        counts = tuple(dict.fromkeys(number(word) for word in text.split(",")))
        return counts if len(counts) > 1 else counts[0]

    return read


def decimal(flag: str) -> Callable[[str], float]:
    """A number of 0 or more."""

    def read(text: str) -> float:
        if not _PLAIN.fullmatch(text.strip()):
            raise _invalid(flag, text, "a number of 0 or more such as 2 or 0.5")
        return float(text)

    return read


def milli(flag: str) -> Callable[[str], int]:
    """A number of 0 or more, in thousandths."""
    number = decimal(flag)
    return lambda text: round(number(text) * 1000)


def duration_s(flag: str, *, least: int = 0) -> Callable[[str], int]:
    """A duration in whole seconds."""
    read_ms = duration_ms(flag, least_ms=least * 1000)
    return lambda text: round(read_ms(text) / 1000)


def duration_ms(flag: str, *, least_ms: int = 0) -> Callable[[str], int]:
    """`90` (seconds), `90m`, `1h30m`, `1.5d` or `02:30:00`, in milliseconds."""

    def read(text: str) -> int:
        seconds = _seconds(text.strip().lower())
        if seconds is None or seconds > LONGEST_S or seconds * 1000 < least_ms:
            above = f", at least {least_ms / 1000:g} s" if least_ms else ""
            raise _invalid(flag, text, f"a time such as 90, 90m, 2h, 1h30m, 1d or 02:30:00{above}")
        return round(seconds * 1000)

    return read


def one_of(flag: str, allowed: Iterable[str]) -> Callable[[str], str]:
    """One word of a list, with a suggestion when it is not among them."""
    words = list(allowed)

    def read(text: str) -> str:
        if text not in words:
            close = get_close_matches(text, words, n=1)
            hint = f"; did you mean '{close[0]}'?" if close else ";"
            raise InvalidRequest(f"{flag} is '{text}'{hint} expected one of {', '.join(words)}")
        return text

    return read


def time_zone(flag: str) -> Callable[[str], tzinfo]:
    """A time zone by its name: `Europe/Berlin`."""

    def read(text: str) -> tzinfo:
        try:
            return ZoneInfo(text)
        except (ZoneInfoNotFoundError, ValueError, OSError) as error:
            raise _invalid(flag, text, "a time zone such as UTC or Europe/Berlin") from error

    return read


def names(flag: str) -> Callable[[str], list[str]]:
    """A list of words: `fifo,fair`."""

    def read(text: str) -> list[str]:
        found = [word.strip() for word in text.split(",")]
        if not all(found):
            raise _invalid(flag, text, "names such as fifo or fifo,fair")
        return found

    return read


def seeds(flag: str) -> Callable[[str], list[int]]:
    """Whole numbers and ranges: `42-51` or `1,3,7-9`."""

    def read(text: str) -> list[int]:
        found: list[int] = []
        for part in text.split(","):
            match = re.fullmatch(r"(\d{1,9})(?:-(\d{1,9}))?", part.strip(), re.ASCII)
            first, last = (int(match[1]), int(match[2] or match[1])) if match else (1, 0)
            if not first <= last < first + MOST_SEEDS:
                raise _invalid(flag, text, f"seeds such as 42-51 or 1,3,7-9, at most {MOST_SEEDS}")
            found.extend(range(first, last + 1))
        return list(dict.fromkeys(found))

    return read


def weights(flag: str, example: str) -> Callable[[str], tuple[tuple[str, float], ...]]:
    """Pairs of a name and a weight: `1:70,8:30`."""
    number = decimal(flag)

    def read(text: str) -> tuple[tuple[str, float], ...]:
        found: dict[str, float] = {}
        for part in text.split(","):
            name, colon, weight = (piece.strip() for piece in part.partition(":"))
            if not (name and colon and _PLAIN.fullmatch(weight)) or name in found:
                raise _invalid(flag, text, f"different names with weights such as {example}")
            found[name] = number(weight)
        return tuple(found.items())

    return read


def _seconds(text: str) -> float | None:
    if _PLAIN.fullmatch(text):
        return float(text)
    if clock := _CLOCK.fullmatch(text):
        hours, minutes, seconds = map(int, clock.groups())
        return hours * 3600 + minutes * 60 + seconds
    parts = _WITH_UNITS.fullmatch(text.replace(" ", ""))
    if parts is None or not any(parts.groups()):
        return None
    return sum(
        float(amount) * unit_s
        for amount, unit_s in zip(parts.groups(), UNITS_S.values(), strict=True)
        if amount
    )


def _invalid(flag: str, text: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"{flag} is {text!r}; expected {expected}")


# Options

ValueParser = Callable[[str], object]

FORMATS = ("json", "jsonl", "csv", "helios", "philly", "openb", "swf", "sacct", "kubernetes")
PREDICTORS = ("auto", "history", "oracle", "stated", "learned")
VICTIMS = ("age", "predicted")
WAITS = ("mean", "median", "p90", "p99", "max")
GROUPINGS = ("tenant", "partition")
EXAMPLES = """\
examples:
  tgpu simulate --demo
  tgpu simulate --trace jobs.csv --nodes 4 --policy fifo,easy,feedback
  tgpu simulate --trace jobs.csv.gz --cluster vc_nodes.csv --policy fifo --by partition
  tgpu simulate --trace sacct.txt --cluster nodes.txt --policy fair
  tgpu simulate --generate --days 7 --load 1.1 --policy fair --report fair.html
  tgpu simulate --generate --days 7 --nodes 4,8,16 --policy fair
  tgpu simulate --trace jobs.csv --gpus-per-node 8 --target-wait 1h --policy fair
  tgpu simulate --generate --jobs 1000 --write-trace work.json
  tgpu simulate --fill --trace pods.csv --cluster nodes.csv --policy fgd,balance

A time is written as 90 (seconds), 90m, 2h, 1h30m, 1d or 02:30:00."""

CLUSTER: dict[str, tuple[Callable[[str], ValueParser], str, str]] = {
    "nodes": (
        node_counts,
        "N[,N...]",
        "number of identical nodes, default 8 with --generate; several are compared",
    ),
    "gpus_per_node": (whole, "N", "GPUs per node; default 8"),
    "gpu_model": (lambda _: str, "NAME", "model of the GPUs; default GPU"),
    "gpu_memory_mb": (whole, "MB", "memory per GPU; default 81920"),
    "cpu_cores": (milli, "N", "CPU cores per node; default 16 per GPU"),
    "memory_mb": (whole, "MB", "memory per node; default 131072 per GPU"),
    "gpus_per_island": (whole, "N", "GPUs connected by NVLink; default all of a node"),
    "nodes_per_rack": (whole, "N", "nodes per rack; default no racks"),
}
"""Options of a uniform cluster: parser, placeholder, help."""

SHAPE: dict[str, tuple[Callable[[str], ValueParser], str, str]] = {
    "load": (decimal, "X", "offered GPU time over capacity; default 0.9"),
    "tenants": (whole, "N", "tenants; default 6"),
    "users": (whole, "N", "users; default 60"),
    "user_skew": (decimal, "X", "how much busier the first users are; default 1"),
    "kinds_per_user": (whole, "N", "most recurring jobs per user and size; default 3"),
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
    "argument_share": (decimal, "X", "share of kinds whose arguments decide the run; default 0"),
    "limit_share": (decimal, "X", "share of kinds with a stated limit; default 0.85"),
    "sweep_share": (decimal, "X", "share of small kinds that come as sweeps; default 0.25"),
    "sweep_jobs": (whole, "N", "mean size of a sweep; default 12"),
    "day_swing": (decimal, "X", "daily variation, 0 to 1; default 0.7"),
    "peak_hour": (decimal, "X", "busiest hour of the day; default 15"),
    "weekend_factor": (decimal, "X", "weekend over working day; default 0.5"),
    "priorities": (
        lambda flag: weights(flag, "normal:80,high:20"),
        "P:W,...",
        "priorities and their weights; default mostly normal; of a trace: as it says",
    ),
}
"""Options of generated work: parser, placeholder, help."""

_MODES = ("demo", "generate", "fill", "list_policies")
_TRACE = ("trace", "format", "time_zone")
_MACHINES = ("cluster", *CLUSTER)
_WORK = ("jobs", "days", *(name for name in SHAPE if name != "priorities"))
_WORLD = (
    *("predictor", "preemption_cost", "wide_preemption_cost", "lose_progress", "default_limit"),
    *("checkpoint_every", "victims"),
)
_STUDY = ("forecasts", "forecast_every", "by", "report")
_FILLING = ("seeds", "rename_nodes")
_EXCLUDED: dict[str, tuple[str, ...]] = {
    "trace": (*_WORK, *_FILLING, "write_trace"),
    "demo": (*_TRACE, *_MACHINES, *_WORK, "priorities", *_FILLING, "write_trace", "limit_jobs"),
    "generate": (*_TRACE, *_FILLING),
    "fill": (*_WORK, "priorities", *_WORLD, *_STUDY, "write_trace", "limit_jobs", "seed"),
    "write_trace": (*_WORLD, *_STUDY, "policy", "json"),
    "cluster": (*CLUSTER, "target_wait"),
    "target_wait": ("demo", "fill", "write_trace", "by", "forecasts"),
    "jobs": ("days",),
    "lose_progress": ("checkpoint_every",),
}
"""The options that cannot be given with another one."""


def register(parser: ArgumentParser) -> None:
    """Add all options, in the groups that the help shows."""
    parser.formatter_class = RawDescriptionHelpFormatter
    parser.usage = (
        "%(prog)s (--trace FILE | --generate | --demo | --fill | --list-policies) [options]"
    )
    parser.epilog = EXAMPLES

    add = Options(parser.add_argument_group("what to run"))
    add.value("--trace", _path, "FILE", "a trace of jobs")
    formats = f"its format ({', '.join(FORMATS)}); default by content"
    add.value("--format", partial(one_of, allowed=FORMATS), "F", formats)
    zone = "the zone of times without an offset in the output of sacct; default UTC"
    add.value("--time-zone", time_zone, "ZONE", zone)
    add.flag("--generate", "generated work, no trace")
    add.flag("--demo", "one day on a small cluster")
    add.flag("--fill", "the filling experiment on openb lists")
    add.flag("--list-policies", "the policies, and no run")
    add.value("--write-trace", _path, "FILE", "write the generated work instead of running it")
    add.value("--limit-jobs", whole, "N", "only the first N jobs")

    add = Options(parser.add_argument_group("generated work (--generate)"))
    add.value("--jobs", whole, "N", "jobs; default 10000")
    add.value("--days", decimal, "X", "or days of work")
    for name, (reader, placeholder, meaning) in SHAPE.items():
        add.value(flag_of(name), reader, placeholder, meaning)

    add = Options(parser.add_argument_group("machines"))
    add.value("--cluster", _path, "FILE", "a file that lists nodes")
    for name, (reader, placeholder, meaning) in CLUSTER.items():
        add.value(flag_of(name), reader, placeholder, meaning)

    wait = "find the fewest nodes on which the p90 of the wait is at most TIME"
    add.value("--target-wait", partial(duration_s, least=1), "TIME", wait)
    of = f"the wait that --target-wait limits ({', '.join(WAITS)}); default p90"
    add.value("--target-of", partial(one_of, allowed=WAITS), "W", of)

    add = Options(parser.add_argument_group("policies and conditions"))
    policies = "policies to compare; may be repeated; default fifo,fair,feedback"
    add.value("--policy", names, "P,...", policies, action="extend")
    known = f"what the policies know about run times ({', '.join(PREDICTORS)}); default auto"
    add.value("--predictor", partial(one_of, allowed=PREDICTORS), "P", known)
    cost = "run time that a preemption adds; default 40s"
    add.value("--preemption-cost", duration_ms, "TIME", cost)
    wide = "the same for jobs of more than 8 GPUs; default 60s"
    add.value("--wide-preemption-cost", duration_ms, "TIME", wide)
    limit = "limit of jobs that state none; default none"
    add.value("--default-limit", partial(duration_ms, least_ms=1000), "TIME", limit)
    add.flag("--lose-progress", "a preempted job starts from the beginning")
    every = "a preempted job goes on from its last checkpoint, one each TIME; default when stopped"
    add.value("--checkpoint-every", partial(duration_ms, least_ms=1000), "TIME", every)
    victims = f"how jobs to preempt are chosen ({', '.join(VICTIMS)}); default age"
    add.value("--victims", partial(one_of, allowed=VICTIMS), "V", victims)
    add.flag("--forecasts", "forecast every start, and report the accuracy (slow)")
    add.value("--forecast-every", whole, "N", "forecast one start in N, which is faster")
    seed = partial(whole, least=0)
    add.value("--seed", seed, "N", "random seed; default 1")
    add.value("--seeds", seeds, "A-B", "with --fill; default 42-51")
    add.value("--rename-nodes", seed, "SEED", "with --fill: rename and reorder the nodes")

    add = Options(parser.add_argument_group("output"))
    add.flag("--json", "one JSON document instead of tables")
    add.value("--report", _path, "FILE.html", "write a report as well")
    groups = f"also a table for each policy by {' or '.join(GROUPINGS)}"
    add.value("--by", partial(one_of, allowed=GROUPINGS), "G", groups)
    add.flag("--quiet", "no progress bar and no messages")


def _path(_: str) -> type[Path]:
    """A parser of paths."""
    return Path


def check_together(args: Namespace) -> None:
    """Reject options that cannot be given together."""
    modes = [mode for mode in _MODES if is_given(args, mode)]
    if len(modes) > 1:
        raise InvalidRequest(f"{_flags(modes)} cannot be given together; choose one")
    if args.write_trace is not None and not args.generate:
        raise InvalidRequest("--write-trace writes generated work; add --generate")
    report = args.report
    if report and not report.is_dir() and report.suffix.lower() not in (".html", ".htm"):
        raise InvalidRequest(
            f"--report is '{report}'; the report is HTML, so end its name in .html"
        )
    if not modes and args.trace is None:
        raise InvalidRequest("nothing to simulate; give --trace FILE, --generate or --demo")
    given = [
        *(modes or ["trace"]),
        "write_trace",
        "cluster",
        "jobs",
        "target_wait",
        "lose_progress",
    ]
    if args.target_of is not None and args.target_wait is None:
        raise InvalidRequest("--target-of says which wait --target-wait limits; add it")
    if isinstance(args.nodes, tuple):
        one = [name for name in ("fill", "write_trace", "by", "forecasts") if is_given(args, name)]
        if one:
            raise InvalidRequest(f"{_flags(one)} needs one number of --nodes")
    for option in given:
        excluded = [name for name in _EXCLUDED.get(option, ()) if is_given(args, name)]
        if is_given(args, option) and excluded:
            raise InvalidRequest(
                f"{_flags(excluded)} cannot be given with {flag_of(option)}; leave one of them out"
            )
    node_options = [name for name in CLUSTER if name != "nodes" and is_given(args, name)]
    has_nodes = args.nodes is not None or args.target_wait is not None
    if node_options and not has_nodes and not is_given(args, "generate"):
        raise InvalidRequest(f"{_flags(node_options)} needs --nodes, the number of nodes")


def is_given(args: Namespace, name: str) -> bool:
    """Whether an option was given."""
    value = getattr(args, name)
    return value is not None and value is not False


def flag_of(name: str) -> str:
    """The option as it is written."""
    return f"--{name.replace('_', '-')}"


def _flags(option_names: Iterable[str]) -> str:
    return " and ".join(map(flag_of, option_names))


def run(args: Namespace) -> int:
    """Run the mode that the options choose."""
    check_together(args)
    from gpu_scheduler.cli.simulate import modes

    if args.list_policies:
        modes.list_policies(as_json=args.json)
    elif args.fill:
        modes.fill(args)
    elif args.write_trace is not None:
        modes.write_generated(args)
    elif isinstance(args.nodes, tuple) or args.target_wait is not None:
        from gpu_scheduler.cli.simulate.capacity import compare_sizes

        compare_sizes(args)
    else:
        modes.compare(args)
    return 0
