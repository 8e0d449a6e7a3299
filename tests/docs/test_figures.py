"""Every figure that README and the results page attribute to a command is what that command gives.

The golden tests run the long commands and keep their exact results in `tests/simulation/exact`, so
figures are compared with these records and the runs are not repeated; short commands are run here.
A mean completion time is cut off, as `tgpu simulate` prints it; other figures are rounded. A table,
a row or an example with figures that this module does not know fails: give its source, or the
reason in NOT_COMPARED.
"""

import json
import os
import re
import subprocess
import sys
from collections.abc import Iterator
from functools import cache
from io import StringIO
from pathlib import Path
from types import SimpleNamespace
from typing import Any, NamedTuple

import pytest
from rich.console import Console

from gpu_scheduler.cli.simulate import modes
from gpu_scheduler.simulator.experiment import Filling
from gpu_scheduler.simulator.tables import comparison_tables, print_tables
from tests.docs.pages import text_of

RECORDS = Path(__file__).parents[1] / "simulation" / "exact"
README = "README.md"
RESULTS = "docs/reference/results.md"
SEEDS = range(42, 52)

Key = tuple[str, str, str]
"""What was measured: trace, measure, policy."""


class Source(NamedTuple):
    """A value in a record, by the names on the way to it."""

    record: str
    path: str

    def value(self) -> float:
        found: Any = record(self.record)
        for name in self.path.split("."):
            found = found[int(name)] if isinstance(found, list) else found[name]
        return float(found)


class Seeds(NamedTuple):
    """The mean over the seeds of a filling, where 100 % have arrived."""

    record: str

    def value(self) -> float:
        return sum(fillings(self.record, SEEDS)) / len(SEEDS)


VENUS, PHILLY, KTH = "Venus", "Philly, 4 virtual clusters", "KTH-SP2"
PHILLY_TWO = "Philly, 2 virtual clusters"
JCT, TAIL, SLOWDOWN = "mean JCT", "p99.9 wait", "mean bounded slowdown"
ALLOCATED = "allocated % at 100 % arrived, 10 seeds"
KEPT = "predicted starts kept within 10 % or 10 min"
JAIN = "Jain's index while three unequal tenants all wait"
FIGURES: dict[Key, tuple[Source | Seeds, ...]] = {
    **{
        (VENUS, JCT, name): (Source(f"venus-{name.split()[0]}", "jct.mean_s"),)
        for name in ("fifo", "sjf (oracle)", "fair", "feedback")
    },
    **{
        (VENUS, TAIL, name): (Source(f"venus-{name}", "wait.p999_s"),)
        for name in ("fair", "feedback")
    },
    **{
        (PHILLY_TWO, JCT, name): (
            Source(f"philly-two-{name.split()[0]}", "partitions.1.mean_jct_s"),
            Source(f"philly-two-{name.split()[0]}", "partitions.0.mean_jct_s"),
        )
        for name in ("fifo", "sjf (oracle)")
    },
    (PHILLY, JCT, "feedback"): (Source("philly-feedback", "jct.mean_s"),),
    (PHILLY, TAIL, "feedback"): (Source("philly-feedback", "wait.p999_s"),),
    ("openb", ALLOCATED, "fgd"): (Seeds("openb-fgd-by-name"),),
    ("openb", ALLOCATED, "balance"): (Seeds("openb-balance-by-name"),),
    (KTH, SLOWDOWN, "easy, users' limits"): (Source("kth-easy-stated", "mean_bounded_slowdown"),),
    (KTH, SLOWDOWN, "easy, true run times"): (Source("kth-easy-oracle", "mean_bounded_slowdown"),),
    (VENUS, KEPT, "short"): (Source("promises-venus-short-medians", "forecast.kept_percent"),),
    (KTH, "the same", "easy"): (Source("promises-kth-easy-medians", "forecast.kept_percent"),),
    ("generated", JAIN, "fair"): (Source("unequal-fair", "jain_backlogged"),),
    ("generated", JAIN, "fifo"): (Source("unequal-fifo", "jain_backlogged"),),
}
"""The column "here" of the results page."""

BASELINES: dict[Key, Source] = {
    (VENUS, KEPT, "short"): Source("promises-venus-short-user-means", "forecast.kept_percent"),
    (KTH, "the same", "easy"): Source("promises-kth-easy-user-limits", "forecast.kept_percent"),
}
"""The column "published or known", where the comparison is a run of ours."""

RANGES = {
    "KTH-SP2, 9,000 jobs, `easy`": "ranges-kth-easy",
    "Philly, 4 virtual clusters, `short`": "ranges-philly-short",
    "Venus, `short`": "ranges-venus-short",
    "SDSC-SP2, 9,000 jobs, `easy`": "ranges-sdsc-easy",
}

README_ROWS: dict[tuple[str, str], tuple[str, str]] = {
    ("Venus", "mean completion time, with preemption"): (VENUS, JCT),
    ("Venus", "p99.9 of the wait"): (VENUS, TAIL),
    ("Philly", "mean completion time, with preemption"): (PHILLY, JCT),
    ("openb", "GPUs allocated when 100 % were requested"): ("openb", ALLOCATED),
    ("three unequal tenants", "Jain's index while all tenants have waiting jobs"): (
        "generated",
        JAIN,
    ),
}
README_JOBS = {
    "Venus": Source("venus-feedback", "jobs"),
    "Philly": Source("philly-feedback", "jobs"),
}

SENTENCES: tuple[tuple[str, str, tuple[Source | Seeds, ...]], ...] = (
    (
        RESULTS,
        r"Of (\d+) jobs on Philly whose forecast was between 4 and 16 hours, only (\d+) %",
        (
            Source("ranges-philly-short", "horizons.2.jobs"),
            Source("ranges-philly-short", "horizons.2.covered_percent"),
        ),
    ),
    (
        "docs/decisions/0005-preemption-on-static-grounds.md",
        r"(?s)`feedback` has a mean completion time of ([\d,]+) s.* are below ([\d,]+) s against",
        (Source("venus-feedback", "jct.mean_s"), Source("venus-feedback", "wait.p999_s")),
    ),
    (
        "docs/decisions/0007-balance-ranking.md",
        r"\| `default` \| ([\d.]+) \|",
        (Seeds("openb-balance-by-name"),),
    ),
    (
        "docs/explanation/placement.md",
        r"\| `default` \| ([\d.]+) \| [\d.]+ \(our run: ([\d.]+)\)",
        (Seeds("openb-balance-by-name"), Seeds("openb-fgd-by-name")),
    ),
)
"""Figures in sentences, and the same measures on other pages."""

THREE_SEEDS = "the mean of ten seeds; the golden test runs three of them"
NOT_COMPARED = {
    (RESULTS, "openb `gpuspec33`"): THREE_SEEDS,
    (RESULTS, "openb `multigpu50`"): THREE_SEEDS,
    (RESULTS, "A generated year"): "the run takes two hours, and its times depend on the machine",
    (RESULTS, "The traces"): "names of files; no figures of ours",
    (README, "tgpu submit --gpus 2"): "ids, times and users of an illustration",
    (README, "tgpu list"): "ids, times and users of an illustration",
    (README, "tgpu explain 3"): "ids, times and users of an illustration",
    (README, "tgpu up --daemon"): "pid, port and version of the machine",
    (README, "tgpu run --gpus 1"): "run by the acceptance tests of `run`",
    (README, "echo $?"): "run by the acceptance tests of `run`",
    (README, "tgpu submit --array 0-3%2"): "ids of an illustration",
    (README, "tgpu submit --param lr=0.1,0.01"): "run by the acceptance tests of sweeps",
    (README, "tgpu submit --gpus 9"): "run by the acceptance tests of `submit`",
    (README, "tgpu top --once"): "load, memory and processes of the machine",
}
"""Figures that are not compared, by section or command, and why."""


@cache
def record(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((RECORDS / f"{name}.json").read_text(encoding="utf-8"))
    return found


def fillings(name: str, seeds: range) -> list[float]:
    return [record(name)[f"seed {seed}"]["allocated_percent"]["100"] for seed in seeds]


MEAN_JCT = ("jct.mean_s", "mean_jct_s")


def numbers(text: str) -> list[str]:
    return re.findall(r"\d[\d,]*(?:\.\d+)?", text)


def check(page: str, what: str, shown: str, source: Source | Seeds) -> None:
    """Fail with both values unless the figure is that of the record."""
    decimals = len(shown.partition(".")[2])
    value = source.value()
    is_cut_off = isinstance(source, Source) and source.path.endswith(MEAN_JCT)
    printed = int(value) if is_cut_off else value
    if shown.replace(",", "") != f"{printed:.{decimals}f}":
        pytest.fail(
            f"{page} says {shown} for {what}, but the run in tests/simulation/exact/"
            f"{source.record}.json gives {value:,.4f}. If the new result is right, change the "
            "page (and the other pages with this figure, which fail as well).",
            pytrace=False,
        )


class Table(NamedTuple):
    """A table of a page below its heading; empty cells repeat the cell above in two columns."""

    section: str
    header: list[str]
    rows: list[list[str]]


def tables(page: str) -> Iterator[Table]:
    text = re.sub(r"(?ms)^```.*?^```", "", text_of(page))
    section, lines = "", [*text.splitlines(), ""]
    block: list[str] = []
    for line in lines:
        if line.startswith("|"):
            block.append(line)
            continue
        if block:
            header, _, *rows = (
                [cell.strip() for cell in re.split(r"(?<!\\)\|", row)[1:-1]] for row in block
            )
            filled: list[list[str]] = []
            for row in rows:
                above = filled[-1] if filled else row
                kept = [row[n] or (above[n] if n < 2 and not any(row[:n]) else "") for n in (0, 1)]
                filled.append([*kept, *row[2:]] if len(row) > 2 else row)
            yield Table(section, header, filled)
            block = []
        if line.startswith("#"):
            section = line.lstrip("# ")


def the_table(page: str, first_heading: str) -> Table:
    return next(table for table in tables(page) if table.header[0] == first_heading)


def plain(cell: str) -> str:
    return cell.replace("`", "")


# --- the results page

MEASURED = the_table(RESULTS, "trace")


@pytest.mark.parametrize("row", MEASURED.rows, ids=lambda row: " ".join(map(plain, row[:3])))
def test_measured_figure_is_that_of_the_golden_run(row: list[str]) -> None:
    trace, measure, policy, here, known = row
    key = (trace, measure, plain(policy))
    if (RESULTS, trace) in NOT_COMPARED:
        return
    assert key in FIGURES, f"{RESULTS}: {key} has no source; add it to FIGURES in {__file__}"
    shown = numbers(here)
    assert len(shown) == len(FIGURES[key]), f"{RESULTS}: {here} for {key}"
    for figure, source in zip(shown, FIGURES[key], strict=True):
        check(RESULTS, " / ".join(key), figure, source)
    if key in BASELINES:
        check(RESULTS, f"the comparison of {' / '.join(key)}", numbers(known)[0], BASELINES[key])


@pytest.mark.parametrize("row", the_table(RESULTS, "trace and policy").rows, ids=lambda row: row[0])
def test_ranges_hold_as_often_as_the_page_says(row: list[str]) -> None:
    name, jobs, within, better, horizons = row
    assert name in RANGES, f"{RESULTS}: {name} has no source; add it to RANGES in {__file__}"
    source = RANGES[name]
    for shown, path in ((jobs, "jobs"), (within, "covered_percent"), (better, "better_percent")):
        check(RESULTS, f"{path} of {name}", numbers(shown)[0], Source(source, path))
    found = [
        ("beyond 16 h" if one["up_to_s"] is None else f"up to {length(one['up_to_s'])}", place)
        for place, one in enumerate(record(source)["horizons"])
        if one["jobs"] >= 200
    ]
    shown_horizons = [part.strip().split(" % ") for part in horizons.split(",")]
    assert [horizon for _, horizon in shown_horizons] == [horizon for horizon, _ in found]
    for (percent, horizon), (_, place) in zip(shown_horizons, found, strict=True):
        where = f"horizons.{place}.covered_percent"
        check(RESULTS, f"{name}, {horizon}", percent, Source(source, where))


DECISION = "docs/decisions/0020-ranges-of-expected-starts.md"
COLUMNS = ("jobs", "covered_percent", "interval_score_s", "recent_waits_score_s", "better_percent")


@pytest.mark.parametrize("row", the_table(DECISION, "trace").rows, ids=lambda row: row[0])
def test_ranges_of_the_decision_are_those_of_the_golden_run(row: list[str]) -> None:
    name, jobs, within, *horizons, score, recent, better = row
    trace = name.partition(",")[0]
    source = next(found for title, found in RANGES.items() if title.startswith(trace))
    for shown, path in zip((jobs, within, score, recent, better), COLUMNS, strict=True):
        check(DECISION, f"{path} of {name}", numbers(shown)[0], Source(source, path))
    filled = [cell for cell in horizons if cell != "none"]
    assert len(filled) == len(record(source)["horizons"])
    for place, cell in enumerate(filled):
        percent, *count = numbers(cell)
        where = f"horizons.{place}"
        check(DECISION, f"{name}, {where}", percent, Source(source, f"{where}.covered_percent"))
        for shown in count:
            check(DECISION, f"jobs of {name}, {where}", shown, Source(source, f"{where}.jobs"))


def length(seconds: int) -> str:
    return f"{seconds // 3600} h" if seconds >= 3600 else f"{seconds // 60} min"


def test_every_table_with_figures_is_compared_or_excused() -> None:
    compared = {"The figures", "Ranges of expected starts"}
    unknown = {
        table.section
        for table in tables(RESULTS)
        if table.section not in compared and (RESULTS, table.section) not in NOT_COMPARED
    }
    assert unknown == set(), f"tables of {RESULTS} that are neither compared nor in NOT_COMPARED"


# --- README and other pages

README_TABLE = the_table(README, "public trace")


@pytest.mark.parametrize("row", README_TABLE.rows, ids=lambda row: " ".join(row[:2]))
def test_figure_of_readme_is_that_of_the_golden_run(row: list[str]) -> None:
    trace, measure, ours, others = row
    name = trace.partition(", ")[0]
    assert (name, measure) in README_ROWS, f"{README}: {row[:2]} is not in README_ROWS"
    where = README_ROWS[name, measure]
    if name in README_JOBS:
        check(README, f"the jobs of {name}", numbers(trace)[0], README_JOBS[name])
    found = re.findall(r"`(\w+)` ([\d,.]*\d)", ours)
    assert found, ours
    # What is compared with is published (its name is in parentheses) or a run of ours.
    found += [pair[::-1] for pair in re.findall(r"([\d,.]*\d) % \(`(\w+)`", others)]
    found += re.findall(r"`(\w+)` ([\d,.]*\d)", others)
    for policy, shown in found:
        (source,) = FIGURES[(*where, policy)]
        check(README, f"`{policy}`, {measure} on {name}", shown, source)


@pytest.mark.parametrize(
    ("page", "pattern", "sources"), SENTENCES, ids=lambda value: str(value)[:50]
)
def test_figure_in_a_sentence_is_that_of_the_golden_run(
    page: str, pattern: str, sources: tuple[Source | Seeds, ...]
) -> None:
    match = re.search(pattern, text_of(page))
    assert match, f"{page} no longer says {pattern!r}; change SENTENCES in {__file__}"
    for shown, source in zip(match.groups(), sources, strict=True):
        check(page, match[0].replace("\n", " ")[:80], shown, source)


def test_every_example_of_readme_with_figures_is_excused() -> None:
    """README shows no output of `tgpu simulate`; what it shows depends on the machine."""
    unknown = [
        command
        for command, output in examples(README)
        if re.search(r"\d", output)
        and not any(page == README and command.startswith(name) for page, name in NOT_COMPARED)
    ]
    assert unknown == []


# --- the examples of the results page


def examples(page: str) -> Iterator[tuple[str, str]]:
    """The commands of a page with the output that is shown below them."""
    for _, block in re.findall(r"(?ms)^```(\w*)\n(.*?)^```$", text_of(page)):
        for part in re.split(r"(?m)^\$ ", block)[1:]:
            joined = part.replace("\\\n", "")
            command, _, output = joined.partition("\n")
            yield " ".join(command.split()), output


EXAMPLES = dict(examples(RESULTS))


def example(beginning: str) -> tuple[str, str]:
    return next(pair for pair in EXAMPLES.items() if pair[0].startswith(beginning))


def printed(folder: Path, command: str) -> str:
    words = [sys.executable, "-m", "gpu_scheduler", *command.split()[1:]]
    done = subprocess.run(
        words,
        cwd=folder,
        env={**os.environ, "COLUMNS": "200"},
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 0, done.stderr
    return done.stdout


def assert_shown(shown: str, output: str) -> None:
    """Every line that the page shows is a line of the output, in this order."""
    lines = iter([line.rstrip() for line in output.splitlines()])
    for line in filter(None, map(str.rstrip, shown.splitlines())):
        assert line in lines, (
            f"the page shows {line!r}, which the command does not print:\n{output}"
        )


def test_list_of_policies_is_as_shown(tmp_path: Path) -> None:
    command, shown = example("tgpu simulate --list-policies")
    assert_shown(shown, printed(tmp_path, command))


@pytest.mark.slow
def test_generated_comparison_is_as_shown(tmp_path: Path) -> None:
    generate, written = example("tgpu simulate --generate")
    assert_shown(written, printed(tmp_path, generate))
    compare, shown = example("tgpu simulate --trace work.json")
    assert_shown(shown, printed(tmp_path, compare))


@pytest.mark.slow
def test_search_for_the_fewest_nodes_is_as_shown(tmp_path: Path) -> None:
    ((command, shown),) = examples("docs/reference/simulate.md")
    assert_shown(shown, printed(tmp_path, command))


def rendered(print_to: Any) -> str:
    console = Console(file=StringIO(), width=200)
    print_to(console)
    assert isinstance(console.file, StringIO)
    return console.file.getvalue()


def test_replayed_trace_is_as_shown() -> None:
    command, shown = example("tgpu simulate --policy")
    policies = command.split()[3].split(",")
    runs: list[Any] = [
        json.loads(
            json.dumps(record(f"venus-{name}")), object_hook=lambda found: SimpleNamespace(**found)
        )
        for name in policies
    ]
    first, *rest = shown.splitlines()
    gpus, partitions = runs[0].capacity_gpu_milli // 1000, len(runs[0].partitions)
    assert first.endswith(f"with {gpus:,} GPUs in {partitions} partitions")
    output = rendered(lambda console: print_tables(comparison_tables(runs), console))
    assert_shown("\n".join(rest), output)


def test_filling_is_as_shown() -> None:
    command, shown = example("tgpu simulate --fill")
    words = command.split()
    policies = words[words.index("--policy") + 1].split(",")
    first, last = map(int, words[words.index("--seeds") + 1].split("-"))
    found = {
        name: [
            Filling(allocated_percent={100: percent}, dropped=0, placed=0)
            for percent in fillings(f"openb-{name}-by-name", range(first, last + 1))
        ]
        for name in policies
    }
    output = rendered(lambda console: print_tables([modes._fill_table(found, 100)], console))
    assert_shown(shown, output)


def test_every_example_of_the_results_page_is_compared() -> None:
    """A new example needs a test above."""
    assert len(EXAMPLES) == 5
