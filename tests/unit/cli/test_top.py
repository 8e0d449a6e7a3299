"""`tgpu top`: keys and layout."""

import re
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.cli.interactive import top
from gpu_scheduler.cli.interactive.top import State, split_keys
from gpu_scheduler.cli.interactive.top_panels import Curve, host_readings
from gpu_scheduler.cli.interactive.top_rendering import LineFormatter, frame, plain_text, width

NOW = "2026-11-16T12:00:00.000Z"
STYLES = re.compile(r"\x1b\[[\d;]*m")


def a_gpu(index: int = 0, **more: Any) -> dict[str, Any]:
    return {
        "node": "box",
        "index": index,
        "model": "A100",
        "memory_mb": 81_920,
        "state": "free",
        "allocated_share": 0,
        "jobs": [],
        "users": [],
        "memory_used_mb": 1024,
        "utilisation_percent": 40,
        "temperature_c": 55,
        "power_watts": 120.0,
        "processes": [],
        **more,
    }


def a_job(number: int, **more: Any) -> dict[str, Any]:
    return {
        "id": f"job-{number}",
        "name": f"train-{number}",
        "user": "ann",
        "tenant_id": "default",
        "state": "pending",
        "reason": "waiting for 2 GPUs",
        "gpus": 2,
        "members": 1,
        "priority": 750,
        "hold": False,
        "tasks": "",
        "places": [],
        "may_change": True,
        **more,
    }


def an_overview(*jobs: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {
        "version": "1.2.3",
        "now": NOW,
        "uptime_seconds": 7200,
        "nodes": 1,
        "online_nodes": 1,
        "problem": "",
        "counts": {"running": 0, "scheduled": 0, "pending": len(jobs), "held": 0},
        "gpus": [a_gpu(index) for index in range(8)],
        "jobs": list(jobs),
        "offset": 0,
        "total": len(jobs),
        "found": None,
        **more,
    }


def drawn(
    overview: dict[str, Any], state: State | None = None, columns: int = 80, rows: int = 24
) -> list[str]:
    formatter = LineFormatter(columns, colours=False, unicode=True, styles=False)
    return frame(overview, state or State(), formatter, rows)


ODD = [
    a_job(1, name="数据处理" * 9, user="ürsula-" * 5, reason="x" * 300),
    a_job(2, name="\x1b[31mred\x07\n", user="a\tb", places=["b" * 90 + "[0]"], state="running"),
    a_job(3, name="", tasks="0-99999", expected_start="2027-01-01T00:00:00.000Z", gpus=0.25),
    a_job(4, name="e\u0301" * 40, hold=True, expected_start=NOW),
]


@pytest.mark.parametrize("columns", [1, 7, 20, 40, 79, 80, 81, 110, 133, 200, 300])
@pytest.mark.parametrize("rows", [1, 3, 10, 24, 60])
def test_no_line_or_frame_exceeds_window(columns: int, rows: int) -> None:
    strange = {"pid": 7, "user": "数" * 30, "memory_mb": 999_999, "command": "c\x1b[2J" * 50}
    for count in (0, 1, 8, 40, 200):
        gpus = [a_gpu(i, processes=[strange], why="w" * 200) for i in range(count)]
        gpus += [a_gpu(count, node="n" * 30, state="unhealthy", jobs=["job-1"] * 9, users=["a"])]
        for mode in ("list", "filter", "confirm", "logs", "explain", "help"):
            state = State(mode=mode, selected="job-1", text=["\x1b[1mlong " * 80] * 99, typed="字")
            state.update(an_overview(*ODD))
            formatter = LineFormatter(columns, colours=True, unicode=True)
            lines = frame(an_overview(*ODD, gpus=gpus), state, formatter, rows)
            assert len(lines) <= max(1, rows)
            for line in lines:
                shown = STYLES.sub("", line)
                assert width(shown) <= columns
                assert "\x1b" not in shown
                assert "\n" not in shown


def test_everything_fits_80x24() -> None:
    gpus = [a_gpu(index) for index in range(8)]
    gpus[0] |= {"state": "used", "jobs": ["job-1"], "users": ["ann"], "memory_used_mb": 79_000}
    gpus[1] |= {
        "state": "foreign",
        "processes": [{"pid": 4242, "user": "bob", "memory_mb": 10_240, "job_id": ""}],
    }
    gpus[2] |= {"state": "hot", "temperature_c": 91}
    jobs = [
        a_job(1, state="running", started_at="2026-11-16T11:00:00.000Z", places=["box[0]"]),
        a_job(2, expected_start="2026-11-16T13:30:00.000Z"),
        a_job(3, hold=True, reason="held"),
    ]
    lines = drawn(an_overview(*jobs, gpus=gpus))
    assert len(lines) == 24
    assert "5 of 8 GPUs free, 0 running, 3 pending" in lines[0]
    shown = r"0   A100  █+░? +77G/80G ██░░░░  40% ██░░ 55C   120  1 ann train-1"
    assert re.match(shown, lines[2])
    assert lines[3].endswith("bob:4242 10G")
    assert "HOT" in lines[4]
    assert lines[11].startswith(" JOBID    NAME         USER     ST GPUS     TIME EXPECTED")
    assert re.match(r" 1 +train-1 +ann +R +2 +1:00:00 - +box\[0\]$", lines[12])
    assert re.match(r" 2 +train-2 +ann +PD +2 +- start \d\d:\d\d waiting for 2 GPUs$", lines[13])
    assert re.match(r" 3 +train-3 +ann +H +2 +- - +held$", lines[14])
    assert lines[-1].startswith("q quit  ? help")


def test_gpus_of_disconnected_node_are_not_free() -> None:
    away = a_gpu(0, node="n1", why="its node does not answer")
    lines = drawn(
        an_overview(gpus=[a_gpu(0, node="n0"), away], nodes=2, online_nodes=1), columns=110
    )
    assert "2 nodes, 1 of 2 GPUs free" in lines[0]
    assert "1 NODE OFFLINE" in lines[0]
    assert lines[3].endswith("its node does not answer")


def test_wait_reason_is_in_local_time() -> None:
    lines = drawn(an_overview(a_job(1, reason="until 2020-03-01 12:00 UTC")), columns=110)
    (line,) = (line for line in lines if "train-1" in line)
    here = datetime(2020, 3, 1, 12, tzinfo=UTC).astimezone()
    assert line.endswith(f"until {here:%Y-%m-%d %H:%M}")


def test_unmeasured_memory_is_not_shown_as_unused() -> None:
    declared = {"memory_used_mb": 0, "temperature_c": 0, "power_watts": 0.0}
    gpus = [a_gpu(0, utilisation_percent=None, **declared), a_gpu(1, memory_used_mb=0)]
    lines = drawn(an_overview(gpus=gpus))
    assert re.match(r"0   A100 +- +- +- +-  free$", lines[2])
    assert "0M/80G" in lines[3]


def test_larger_windows_show_wider_bars_more_columns_and_foreign_processes() -> None:
    strange = {"pid": 4242, "user": "bob", "memory_mb": 10_240, "command": "python secret.py"}
    gpus = [a_gpu(0, state="foreign", processes=[strange]), a_gpu(1)]
    small, large = (
        drawn(an_overview(a_job(1), gpus=gpus), columns=columns, rows=rows)
        for columns, rows in ((80, 24), (180, 50))
    )
    assert large[2].count("░") > small[2].count("░")
    assert "TENANT" in "\n".join(large)
    assert "LIMIT" in "\n".join(large)
    assert "foreign process: GPU 0  bob:4242  10 GB  python secret.py" in "\n".join(large)


def test_more_gpus_than_lines_are_shown_side_by_side() -> None:
    lines = drawn(an_overview(a_job(1), gpus=[a_gpu(index) for index in range(40)]))
    assert lines[1].count("40%") == 3
    assert sum(line.count("40%") for line in lines) == 40
    assert any("train-1" in line for line in lines)
    lines = drawn(an_overview(gpus=[a_gpu(index) for index in range(400)]))
    assert any("more GPUs" in line for line in lines)


def test_terminal_without_unicode_gets_ascii() -> None:
    formatter = LineFormatter(80, colours=False, unicode=False, styles=False)
    lines = frame(an_overview(a_job(1)), State(), formatter, 24)
    assert all(line.isascii() for line in lines)
    assert "##" in lines[2]


def test_job_output_cannot_control_terminal() -> None:
    assert plain_text("\x1b[31mred\x1b[0m \x1b]0;title\x07text\x1b[2J") == "red text"
    assert plain_text("10%\r50%\r100%\r") == "100%"
    assert plain_text("a\tb\x07") == "a       b\\x07"


# --- keys


def looking(count: int = 30, page: int = 10) -> State:
    """A state that sees the first page of so many jobs."""
    state = State(page=page, me="ann")
    answered(state, count)
    return state


def answered(state: State, count: int = 30) -> None:
    """The server's answer to the query of the state."""
    every = [a_job(number) for number in range(1, count + 1)]
    query = state.query()
    for _ in range(2):
        offset = min(int(str(query["offset"])), max(0, count - state.page))
        ids = [job["id"] for job in every]
        place = ids.index(state.selected) if state.selected in ids else None
        window = every[offset : offset + state.page]
        if not state.update(an_overview(*window, offset=offset, total=count, found=place)):
            return
        query = state.query()


def press(state: State, *keys: str) -> list[Any]:
    actions = []
    for key in keys:
        action = state.press(key)
        if action == top.REFRESH:
            answered(state)
        actions.append(action)
    return [action for action in actions if action not in (None, top.REFRESH)]


def test_first_job_is_selected_and_selection_moves() -> None:
    state = looking()
    assert state.selected == "job-1"
    press(state, "down", "j", "k", "up", "up")
    assert state.selected == "job-1"
    press(state, *["down"] * 9)
    assert (state.selected, state.offset) == ("job-10", 0)
    press(state, "down")
    assert (state.selected, state.offset) == ("job-11", 1)
    press(state, "end")
    assert (state.selected, state.offset) == ("job-30", 20)
    press(state, "page-up")
    assert (state.selected, state.offset) == ("job-21", 20)
    press(state, "g")
    assert (state.selected, state.offset) == ("job-1", 0)


def test_selection_stays_with_job_when_list_changes() -> None:
    state = looking()
    press(state, "down", "down")
    assert state.selected == "job-3"
    moved = an_overview(*[a_job(n) for n in range(10, 20)], total=30, offset=0, found=15)
    assert state.update(moved)
    assert state.offset == 10
    assert state.selected == "job-3"


def test_neighbour_is_selected_when_selected_job_ends() -> None:
    state = looking()
    press(state, "down", "down")
    state.press("x-unknown")
    left = [a_job(number) for number in range(1, 11) if number != 3]
    assert not state.update(an_overview(*left, total=29))
    assert state.selected == "job-4"
    assert not state.update(an_overview())
    assert state.selected == ""
    assert press(state, "c", "l", "down") == []


def test_cancel_needs_explicit_yes() -> None:
    for no in ("n", "enter", "escape", " ", "c", "q"):
        state = looking()
        assert press(state, "c", no) == []
        assert (state.mode, state.message) == ("list", "not cancelled")
    state = looking()
    assert press(state, "down", "c", "y") == [("cancel", "job-2")]


def test_only_authorised_users_can_change_job() -> None:
    state = State()
    state.update(an_overview(a_job(1, may_change=False, user="ben")))
    assert press(state, "c", "y", "h", "r") == []
    assert state.mode == "list"
    assert state.message == "job-1 belongs to ben"
    assert press(state, "e") == [("explain", "job-1")]


def test_filter_is_typed_and_escape_clears_it() -> None:
    state = looking()
    assert press(state, "/", *"quick", "backspace", " ", "q", "enter") == []
    assert (state.filter, state.mode) == ("quic q", "list")
    assert state.query()["filter"] == "quic q"
    press(state, "/", "x", "escape")
    assert state.filter == "quic q"
    press(state, "escape")
    assert state.filter == ""


def test_order_users_and_refresh_rate_are_changed_by_keys() -> None:
    state = looking()
    press(state, "s")
    assert state.query()["sort"] == "time"
    press(state, "R")
    assert state.query()["sort"] == "-time"
    press(state, "S", "S")
    assert state.query()["sort"] == "-state"
    press(state, "u")
    assert state.query()["user"] == "ann"
    press(state, "u")
    assert state.query()["user"] is None
    press(state, *["+"] * 9)
    assert state.interval_s == 0.5
    press(state, *["-"] * 20)
    assert state.interval_s == 60


def test_text_views_are_opened_and_closed() -> None:
    state = looking()
    assert press(state, "l") == [("logs", "job-1")]
    state.text = [str(number) for number in range(100)]
    assert drawn(an_overview(a_job(1)), state)[-2] == "99"
    press(state, "page-up", "up")
    assert not state.follows
    assert drawn(an_overview(a_job(1)), state)[-2] != "99"
    press(state, "end")
    assert drawn(an_overview(a_job(1)), state)[-2] == "99"
    press(state, "q")
    assert state.mode == "list"
    assert press(state, "?", "c", "y") == [("cancel", "job-1")]
    assert press(state, "?", "q", "q") == [("quit", "")]


def test_keys_are_recognised_by_their_codes() -> None:
    assert list(split_keys(b"\x1b[A\x1b[Bj\x1b[6~\x1bOF\r\x7f")) == [
        *("up", "down", "j", "page-down", "end", "enter", "backspace"),
    ]
    assert list(split_keys(b"\x1b")) == ["escape"]
    assert list(split_keys("é数".encode())) == ["é", "数"]
    assert list(split_keys(b"\x1b[1;5Aq\x1bxz\x00\xff")) == ["q", "z"]


def test_narrow_window_shows_users_and_wait_reason() -> None:
    gpu = a_gpu(0) | {"state": "used", "jobs": ["job-1"], "users": ["ann"], "memory_used_mb": 100}
    jobs = [a_job(1, state="running", places=["box[0]"]), a_job(2)]
    for columns, headings in (
        (40, ["GPU", "MODEL", "MEMORY", "USED", "BY"]),
        (60, ["GPU", "MODEL", "MEMORY", "UTIL", "USED", "BY"]),
    ):
        lines = drawn(an_overview(*jobs, gpus=[gpu]), columns=columns)
        assert re.fullmatch(r"0 of 1 GPU free, .*? pending( .*:..)?", lines[0].rstrip())
        assert lines[1].split() == headings
        assert lines[2].index("1 ann train-1") == lines[1].index("USED BY")
        assert any(re.match(r" 1 +train-1 +R +2 .*box\[0\]$", line) for line in lines)
        assert any(re.match(r" 2 +train-2 +PD +2 .*waiting for", line) for line in lines)


def test_large_window_adds_curves_and_output_of_the_selected_job() -> None:
    state = State(selected="job-1", preview=[f"step {number}" for number in range(99)])
    overview = an_overview(a_job(1, state="running"), gpus=[a_gpu(allocated_share=1), a_gpu(1)])
    state.update(overview)
    for _ in range(3):
        state.history.add(overview, is_local=False)
    lines = drawn(overview, state, columns=160, rows=50)
    assert len(lines) == 50
    assert [line.split("  ")[0].strip() for line in lines[4:8]] == [
        *("Last 6 s", "GPU use", "GPUs allocated", "jobs pending")
    ]
    assert lines[5].endswith("40 %  ▄▄▄")
    assert "1 of 2" in lines[6]
    title = lines.index("Output of job-1 train-1")
    assert title == 50 - 1 - state.preview_rows
    assert lines[-2] == " step 98"
    for columns, rows in ((80, 24), (80, 50), (160, 30)):
        assert "Output of" not in "\n".join(drawn(overview, state, columns, rows))


def test_one_view_for_a_pipe_has_no_room_for_the_output_of_a_job() -> None:
    lines = drawn(an_overview(a_job(1)), State(), columns=120, rows=60)
    assert not any(line.startswith("Output of") for line in lines)


def test_expected_start_is_cut_in_no_window() -> None:
    times = {
        "expected_start": "2026-11-16T13:50:00.000Z",
        "expected_start_earliest": "2026-11-16T13:10:00.000Z",
        "expected_start_latest": "2026-11-16T14:40:00.000Z",
    }
    for columns, has_range in ((100, False), (120, False), (160, True)):
        lines = drawn(an_overview(a_job(1, **times)), columns=columns)
        (line,) = [line for line in lines if "train-1" in line]
        assert re.search(r"start \d\d:\d\d(, by \d\d:\d\d)? ", line)
        assert (", by " in line) == has_range


def test_host_readings_are_shares_of_the_time_between_two(tmp_path: Path) -> None:
    (tmp_path / "meminfo").write_text("MemTotal: 8388608 kB\nMemAvailable: 2097152 kB\n")
    (tmp_path / "stat").write_text("cpu 100 0 100 800 0 0 0 0 0 0\ncpu0 1 1\ncpu1 1 1\n")
    first = host_readings(None, tmp_path)
    (tmp_path / "stat").write_text("cpu 150 0 125 825 0 0 0 0 0 0\ncpu0 1 1\ncpu1 1 1\n")
    second = host_readings(first, tmp_path)
    assert first is not None
    assert second is not None
    assert (first.cpu, second.cpu, second.cores) == (None, 0.75, 2)
    assert (second.memory_used_mb, second.memory_mb) == (6144, 8192)
    assert host_readings(second, tmp_path / "none") is None


def test_curve_shows_its_last_samples_up_to_its_scale() -> None:
    curve = Curve("x", scale=0)
    for value in (9, 0, 4, 8):
        curve.add(value, "")
    assert curve.drawn(3, unicode=True) == "▁▅█"
    assert curve.drawn(3, unicode=False) == "_+#"
    assert curve.drawn(0, unicode=True) == ""


def test_wide_screen_shows_by_when_four_in_five_such_jobs_start() -> None:
    wide = a_job(
        2,
        expected_start="2026-11-16T13:30:00.000Z",
        expected_start_earliest="2026-11-16T13:00:00.000Z",
        expected_start_latest="2026-11-16T15:00:00.000Z",
    )
    narrow = a_job(
        3,
        expected_start="2026-11-16T13:30:00.000Z",
        expected_start_earliest="2026-11-16T13:26:00.000Z",
        expected_start_latest="2026-11-16T13:35:00.000Z",
    )
    lines = "\n".join(drawn(an_overview(wide, narrow), columns=160))
    assert len(re.findall(r"start \d\d:\d\d, by \d\d:\d\d", lines)) == 1
    assert len(re.findall(r"start \d\d:\d\d ", lines)) == 1
