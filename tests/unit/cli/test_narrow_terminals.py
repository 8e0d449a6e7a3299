"""Tables on narrow terminals: the least important columns are dropped, and no line wraps."""

import re
from collections.abc import Callable, Iterator

import pytest

from gpu_scheduler.cli.jobs.columns import HEADINGS, NARROW, RIGHT, SPARE
from gpu_scheduler.cli.main import main
from gpu_scheduler.cli.text import tables
from gpu_scheduler.cli.text.tables import aligned, width_of
from tests.unit.client.fake_server import USER, FakeServer, a_server

JOB = ["1017", "a-rather-long-name-of-a-job", "annabelle", "PD", "0:00", "2:00:00", "8"]
JOBS = [[*JOB, "(waiting for 8 GPUs)"], ["2", "b", "ben", "R", "1:00:03", "-", "0.5", "box[0]"]]


def job_lines(width: int) -> list[str]:
    return aligned(HEADINGS, JOBS, right=frozenset(RIGHT), width=width, narrow=NARROW, spare=SPARE)


def test_nothing_is_cut_when_there_is_room() -> None:
    assert job_lines(120)[0].split() == list(HEADINGS)
    assert "…" not in "\n".join(job_lines(120))


def test_names_are_cut_before_columns_are_dropped() -> None:
    titles, first, _ = job_lines(80)
    assert titles.split() == list(HEADINGS)
    assert first.startswith("1017   a-rathe")
    assert "…" in first


def test_columns_are_dropped_in_stated_order() -> None:
    assert "LIMIT" not in job_lines(60)[0]
    assert job_lines(45)[0].split() == ["JOBID", "NAME", "ST", "GPUS", "NODELIST(REASON)"]


def test_small_column_replaces_dropped_large_one() -> None:
    lines = aligned(
        ("ID", "N", "WHEN", "END"), [["1", "23", "x" * 30, "e"]], width=20, spare=("N", "WHEN")
    )
    assert lines[0].split() == ["ID", "N", "END"]


@pytest.mark.parametrize("width", [*range(30, 130, 7), 40, 60, 80])
def test_no_line_is_wider_than_terminal(width: int) -> None:
    for line in job_lines(width):
        assert width_of(line) <= width, line


def test_names_of_a_sweep_are_cut_so_that_they_differ() -> None:
    names = [f"train learning_rate={a},batch_size={b}" for a in (0.1, 0.01) for b in (32, 64)]
    assert tables.cut_apart(names, 40) == names
    assert tables.cut_apart([*names, "x"], 14) == [
        *("train 0.1,32", "train 0.1,64", "train 0.01,32", "train 0.01,64", "x")
    ]
    assert tables.cut_apart(names, 9) == ["tra…0.1,…", "tra…0.1,…", "tra…0.01…", "tra…0.01…"]
    assert tables.cut_apart(["a" * 30] * 2, 5) == ["aaaa…"] * 2
    steps = [f"preprocess-the-whole-corpus-{part}" for part in ("one", "two")]
    assert tables.cut_apart(steps, 12) == ["prep…one", "prep…two"]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with a_server() as running:
        monkeypatch.setenv("TGPU_SERVER", running.directory)
        monkeypatch.setenv("NO_COLOR", "1")
        monkeypatch.setattr("gpu_scheduler.cli.jobs.list.mine", lambda: USER)
        yield running


@pytest.fixture
def on_a_terminal(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> Callable[..., list[str]]:
    """Run a command on a terminal of that width, and return its lines."""

    def shown(width: int, *words: str) -> list[str]:
        for module in (tables, "gpu_scheduler.cli.cluster.status"):
            name = module if isinstance(module, str) else module.__name__
            monkeypatch.setattr(f"{name}.is_terminal", lambda: True)
            monkeypatch.setattr(f"{name}.terminal_width", lambda: width)
        assert main(words) == 0
        return capsys.readouterr().out.splitlines()

    return shown


@pytest.mark.parametrize("width", [40, 60, 80])
@pytest.mark.parametrize(
    "words",
    ["list", "list -A", "gpus", "nodes", "status", "status -d"],
    ids=lambda words: words.replace(" ", ""),
)
def test_common_tables_fit_terminal(
    server: FakeServer, on_a_terminal: Callable[..., list[str]], width: int, words: str
) -> None:
    for number in range(3):
        body = {"command": ["sleep", str(number)], "name": f"experiment-{number}" * 3}
        server.add(body | {"gpu_count": 2})
    gpus = [{"index": index, "share": 1, "memory_mb": 0} for index in range(2)]
    server.change("job-2", state="running", allocation=[{"node": "box", "gpus": gpus}])
    lines = on_a_terminal(width, *words.split())
    assert len(lines) > 1
    for line in lines:
        assert width_of(line) <= width, line


def test_long_job_list_with_progress_bar_fits_terminal(
    server: FakeServer,
    on_a_terminal: Callable[..., list[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    jobs = [f"job-{number}" for number in range(1, 30)]
    gpu = {"index": 0, "node": "box", "state": "used", "allocated_share": 1, "jobs": jobs}
    monkeypatch.setattr("gpu_scheduler.client.client.Client.gpus", lambda _: [gpu])
    beside = next(line for line in on_a_terminal(60, "status") if line.startswith("  GPU 0"))
    assert re.search(r"  job-1, job-2, .*…$", beside)
    assert width_of(beside) <= 60


def test_table_of_figures_keeps_most_important_ones(
    server: FakeServer, on_a_terminal: Callable[..., list[str]]
) -> None:
    lines = on_a_terminal(40, "usage")
    assert lines[0].split()[:3] == ["TENANT", "USER", "GPU"]
    assert all(width_of(line) <= 40 for line in lines)


def test_column_without_values_is_left_out_before_text_is_cut() -> None:
    headings = ("JOBID", "ENERGY", "REASON")
    rows = [("1", "-", "could not be started: no such file"), ("2", "-", "-")]
    for width, shown in ((0, headings), (80, headings), (45, ("JOBID", "REASON"))):
        lines = aligned(headings, rows, width=width, spare=("ENERGY",))
        assert lines[0].split() == list(shown)
        assert lines[1].endswith("no such file")
