"""The options of `tgpu simulate`, and which of them go together.

Nothing here has a default but None: whether an option was given is what the checks ask. Defaults
are put in where the values are used.
"""

from __future__ import annotations

import re
from argparse import ArgumentParser, Namespace, RawDescriptionHelpFormatter
from collections.abc import Callable, Iterable
from difflib import get_close_matches
from pathlib import Path

from gpu_scheduler.model.errors import InvalidRequest

# --- Words of the command line to values: numbers, durations, lists, weights.
#
# Every kind of option is a function from its flag to a reader, so that a refusal can name the flag.
# A refusal is an `InvalidRequest`; argparse lets it pass.

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
            raise _refused(flag, text, f"a whole number from {least} to {LARGEST}")
        return int(digits)

    return read


def decimal(flag: str) -> Callable[[str], float]:
    """A number of 0 or more."""

    def read(text: str) -> float:
        if not _PLAIN.fullmatch(text.strip()):
            raise _refused(flag, text, "a number of 0 or more such as 2 or 0.5")
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
            raise _refused(flag, text, f"a time such as 90, 90m, 2h, 1h30m, 1d or 02:30:00{above}")
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


def names(flag: str) -> Callable[[str], list[str]]:
    """A list of words: `fifo,fair`."""

    def read(text: str) -> list[str]:
        found = [word.strip() for word in text.split(",")]
        if not all(found):
            raise _refused(flag, text, "names such as fifo or fifo,fair")
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
                raise _refused(flag, text, f"seeds such as 42-51 or 1,3,7-9, at most {MOST_SEEDS}")
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
                raise _refused(flag, text, f"different names with weights such as {example}")
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


def _refused(flag: str, text: str, expected: str) -> InvalidRequest:
    return InvalidRequest(f"{flag} is {text!r}; expected {expected}")


# --- The options of `tgpu simulate`, and which of them go together.

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
