"""`tgpu simulate` as a process: files, output and exit codes."""

import json
import os
import pty
import re
import signal
import subprocess
import sys
from argparse import ArgumentParser
from pathlib import Path

import pytest

from gpu_scheduler.cli import main as cli
from gpu_scheduler.cli.simulate.command import (
    FORMATS,
    PREDICTORS,
    SHAPE,
    duration_ms,
    register,
    seeds,
)
from gpu_scheduler.engine.presets import PRESET_DESCRIPTIONS, PRESETS
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.predict import training
from gpu_scheduler.simulator.experiment import PredictorChoice
from gpu_scheduler.simulator.generator import WorkShape
from gpu_scheduler.simulator.traces.detect import TraceFormat

ESCAPE = "\x1b"
PROGRAM = (sys.executable, "-m", "gpu_scheduler", "simulate")
JOBS = """\
id,submit_s,run_s,gpus,user,tenant,limit_s
1,0,600,8,ada,vision,1200
2,10,600,8,bob,nlp,1200
3,20,60,1,ada,vision,600
4,30,60,2,bob,nlp,600
"""
NODES = "id,count,gpus\nbig,1,8\n"
PODS = """\
name,cpu_milli,memory_mib,num_gpu,gpu_milli,gpu_spec
p1,1000,100,1,500,
p2,1000,100,1,300,
p3,1000,100,1,1000,
p4,2000,100,2,1000,
"""
OPENB_NODES = "sn,cpu_milli,memory_mib,gpu,model\nn1,64000,1000,4,A\nn2,64000,1000,2,A\n"


def simulate(*words: object, cwd: Path | None = None) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [*PROGRAM, *map(str, words)],
        capture_output=True,
        text=True,
        cwd=cwd,
        check=False,
        timeout=120,
    )


def succeeding(*words: object, cwd: Path | None = None) -> str:
    ended = simulate(*words, cwd=cwd)
    assert (ended.returncode, ended.stderr) == (0, "")
    return ended.stdout


@pytest.fixture
def trace(tmp_path: Path) -> Path:
    path = tmp_path / "jobs.csv"
    path.write_text(JOBS)
    return path


@pytest.fixture
def openb(tmp_path: Path) -> tuple[str, ...]:
    (tmp_path / "pods.csv").write_text(PODS)
    (tmp_path / "nodes.csv").write_text(OPENB_NODES)
    return ("--trace", f"{tmp_path}/pods.csv", "--cluster", f"{tmp_path}/nodes.csv")


# --- tables


def test_trace_prints_one_row_per_policy(trace: Path) -> None:
    shown = succeeding("--trace", trace, "--nodes", 1, "--policy", "fifo,skip")
    assert "jobs.csv: 1 node with 8 GPUs" in shown
    assert "Waiting and completion of 4 jobs" in shown
    rows = [line.split()[0] for line in shown.splitlines() if line.startswith(("fifo ", "skip "))]
    assert rows == ["fifo", "skip"] * 3


def test_pipe_output_is_plain_without_trailing_blanks(trace: Path) -> None:
    shown = succeeding("--trace", trace, "--nodes", 1, "--policy", "fifo")
    assert ESCAPE not in shown
    assert "─" not in shown
    assert all(line == line.rstrip() for line in shown.splitlines())


def test_fifo_waits_match_manual_computation(trace: Path) -> None:
    # Job 2 waits 590 s for job 1; 3 and 4 wait behind it until 1200 s.
    shown = succeeding("--trace", trace, "--nodes", 1, "--policy", "fifo")
    assert "fifo: mean wait 735 s, mean JCT 1,065 s." in shown


def test_repeated_policies_are_listed_and_run_once(trace: Path) -> None:
    words = ("--policy", "fifo,skip", "--policy", "sjf", "--policy", "fifo", "--json")
    document = json.loads(succeeding("--trace", trace, "--nodes", 1, *words))
    assert [run["policy"] for run in document["runs"]] == ["fifo", "skip", "sjf"]


def test_learned_run_times_need_the_extra(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr(training, "LIBRARY", "no_such_library")
    with pytest.raises(SystemExit) as stopped:
        sys.exit(cli.main(["simulate", "--generate", "--days", "1", "--predictor", "learned"]))
    assert stopped.value.code == 2
    assert "pip install 'gpu-scheduler[learned]'" in capsys.readouterr().err


def test_report_is_written_to_html_alone() -> None:
    ended = simulate("--generate", "--jobs", 5, "--report", "report.pdf")
    assert ended.returncode == 2
    assert "--report is 'report.pdf'; the report is HTML, so end its name in .html" in ended.stderr


def test_footnote_names_policies_that_know_true_run_times(trace: Path) -> None:
    shown = succeeding("--trace", trace, "--nodes", 1, "--policy", "sjf,easy,fifo")
    assert (
        "These policies know the true run times (oracle), as the literature assumes: sjf." in shown
    )
    assert "These policies take the stated limits and estimates as run times: easy." in shown


@pytest.mark.parametrize(("by", "names"), [("tenant", ("nlp", "vision")), ("partition", ("all",))])
def test_by_option_adds_table_with_row_per_group(
    trace: Path, by: str, names: tuple[str, ...]
) -> None:
    shown = succeeding("--trace", trace, "--nodes", 1, "--policy", "fifo", "--by", by)
    table = shown.split(f"{by.capitalize()}s under fifo\n")[1].split("\n\n")[0]
    assert tuple(line.split()[0] for line in table.splitlines()[1:]) == names


def test_cluster_is_read_from_file(trace: Path, tmp_path: Path) -> None:
    (tmp_path / "nodes.csv").write_text(NODES)
    shown = succeeding("--trace", trace, "--cluster", tmp_path / "nodes.csv", "--policy", "fifo")
    assert "1 node with 8 GPUs" in shown


def test_every_policy_is_listed_with_description() -> None:
    assert set(PRESET_DESCRIPTIONS) == set(PRESETS)
    shown = succeeding("--list-policies")
    for name in PRESETS:
        assert re.search(rf"^{name}\s+\S.*\s(yes|no)$", shown, re.MULTILINE)
    assert re.search(r"^sjf .* yes$", shown, re.MULTILINE)


# --- JSON


def test_json_is_one_document_with_units_in_names(trace: Path) -> None:
    document = json.loads(
        succeeding("--trace", trace, "--nodes", 1, "--policy", "fifo,sjf,easy", "--json")
    )
    assert document["schema_version"] == 1
    assert document["workload"]["capacity_gpu_milli"] == 8000
    assert document["conditions"]["preemption_cost_s"] == 40
    assert document["conditions"]["default_limit_s"] is None
    fifo = document["runs"][0]
    assert (fifo["jobs"], fifo["mean_wait_s"], fifo["mean_jct_s"]) == (4, 735.0, 1065.0)
    assert [run["predictor"] for run in document["runs"]] == ["history", "oracle", "stated"]


def test_runs_are_reproducible() -> None:
    words = ("--generate", "--jobs", 150, "--seed", 5, "--policy", "fair,random", "--json")
    documents = [json.loads(succeeding(*words)) for _ in range(2)]
    for document in documents:
        for run in document["runs"]:
            run.pop("wall_seconds")
    assert documents[0] == documents[1]


def test_jobs_without_limit_are_cut_only_on_request(tmp_path: Path) -> None:
    long = tmp_path / "long.csv"
    long.write_text("id,submit_s,run_s,gpus\n1,0,2000000,1\n")
    words = ("--trace", long, "--nodes", 1, "--policy", "fifo", "--json")
    (run,) = json.loads(succeeding(*words))["runs"]
    assert (run["mean_jct_s"], run["failed_jobs"]) == (2_000_000, 0)
    (run,) = json.loads(succeeding(*words, "--default-limit", "2h"))["runs"]
    assert (run["mean_jct_s"], run["failed_jobs"]) == (7200, 1)


def test_limit_jobs_keeps_earliest_jobs(trace: Path) -> None:
    words = ("--policy", "fifo", "--json", "--limit-jobs", 2)
    (run,) = json.loads(succeeding("--trace", trace, "--nodes", 1, *words))["runs"]
    assert run["jobs"] == 2


def test_preemption_cost_is_as_configured() -> None:
    words = ("--generate", "--jobs", 200, "--nodes", 2, "--policy", "srtf", "--json")
    cost = ("--preemption-cost", 0, "--wide-preemption-cost", 0)
    (free,) = json.loads(succeeding(*words, *cost))["runs"]
    (dear,) = json.loads(succeeding(*words, *cost, "--lose-progress"))["runs"]
    assert free["preemptions"] > 0
    assert free["lost_gpu_hours"] == 0 < dear["lost_gpu_hours"]


def test_forecasts_are_measured_on_request(trace: Path) -> None:
    words = ("--trace", trace, "--nodes", 1, "--policy", "easy", "--json")
    assert json.loads(succeeding(*words))["runs"][0]["forecast"] is None
    assert json.loads(succeeding(*words, "--forecasts"))["runs"][0]["forecast"]["jobs"] > 0


# --- output of Slurm and Kubernetes


def test_month_of_slurm_is_replayed_on_its_nodes(tmp_path: Path) -> None:
    columns = "JobID|User|Account|Submit|Start|Elapsed|Timelimit|State|Partition|AllocTRES"
    job = "|ada|vision|2026-10-01T0{hour}:00:00|2026-10-01T0{hour}:00:00|01:00:00|UNLIMITED|"
    tres = "COMPLETED|gpu|cpu=4,gres/gpu=2,mem=8G,node=1"
    rows = [f"{hour}{job.format(hour=hour)}{tres}" for hour in range(1, 4)]
    trace = tmp_path / "sacct.txt"
    trace.write_text("\n".join([columns, *rows, rows[0].replace("1|ada", "1.batch|ada")]) + "\n")
    nodes = tmp_path / "nodes.txt"
    nodes.write_text("NodeName=g1 CPUTot=64 Gres=gpu:a100:2\n   RealMemory=512000 Partitions=gpu\n")
    words = ("--trace", trace, "--cluster", nodes, "--policy", "easy", "--json")
    document = json.loads(succeeding(*words))
    (run,) = document["runs"]
    assert (run["jobs"], run["mean_wait_s"], run["mean_jct_s"]) == (3, 0, 3600)
    assert document["workload"]["skipped_rows"] == {"a job step": 1}
    in_zone = json.loads(succeeding(*words, "--time-zone", "Europe/Berlin"))
    assert in_zone["runs"][0]["mean_jct_s"] == 3600


# --- generated work


def test_written_workload_equals_generated_one(tmp_path: Path) -> None:
    shape = ("--generate", "--jobs", 120, "--seed", 3, "--nodes", 2)
    path = tmp_path / "work.json"
    assert succeeding(*shape, "--write-trace", path) == f"120 jobs written to {path}\n"
    policy = ("--policy", "fifo,fair", "--json")
    direct = json.loads(succeeding(*shape, *policy))["runs"]
    replayed = json.loads(succeeding("--trace", path, *policy))["runs"]
    for one, other in zip(direct, replayed, strict=True):
        assert one["mean_wait_s"] == other["mean_wait_s"]
        assert one["mean_jct_s"] == other["mean_jct_s"]


def test_days_option_ends_workload_after_last_day() -> None:
    words = ("--generate", "--days", 2, "--nodes", 1, "--gpu-mix", "1:1", "--policy", "fifo")
    (run,) = json.loads(succeeding(*words, "--json"))["runs"]
    assert run["jobs"] > 10


def test_options_list_everything_simulator_supports() -> None:
    assert set(FORMATS) == set(TraceFormat)
    assert set(PREDICTORS) == set(PredictorChoice)
    named = {name + ("_s" if name.endswith("_run") else "") for name in SHAPE}
    assert named <= set(WorkShape.__dataclass_fields__)


def test_every_option_is_documented() -> None:
    reference = Path(__file__).parents[2] / "docs" / "reference" / "simulate.md"
    parser = ArgumentParser()
    register(parser)
    text = reference.read_text()
    flags = [action.option_strings[-1] for action in parser._actions if action.dest != "help"]
    assert [flag for flag in flags if f"`{flag}" not in text] == []
    assert [name for name in PRESETS if f"`{name}`" not in text] == []


# --- filling


def test_fill_compares_policies_seed_by_seed(openb: tuple[str, ...]) -> None:
    words = ("--fill", *openb, "--seeds", "1-3", "--policy", "fgd,balance,random")
    shown = succeeding(*words)
    assert "4 pods on 2 nodes with 6 GPUs, 3 seeds" in shown
    assert "Allocated when 100% of the GPUs were requested" in shown
    document = json.loads(succeeding(*words, "--json"))
    fgd, balance, _ = document["fillings"]
    assert fgd["over_fgd_at_130_points"] == {"mean": 0, "min": 0, "max": 0}
    assert len(balance["allocated_at_100_percent"]["by_seed"]) == 3


def test_fill_does_not_depend_on_names_under_balance(openb: tuple[str, ...]) -> None:
    words = ("--fill", *openb, "--seeds", "1-5", "--policy", "balance", "--json")
    plain = json.loads(succeeding(*words))
    renamed = json.loads(succeeding(*words, "--rename-nodes", 9))
    assert plain["fillings"] == renamed["fillings"]


# --- report and demo


def test_report_contains_its_command(trace: Path, tmp_path: Path) -> None:
    path = tmp_path / "new" / "report.html"
    words = ("--trace", trace, "--nodes", 1, "--policy", "fifo,skip", "--report", path)
    assert succeeding(*words).endswith(f"Report: {path}\n")
    page = path.read_text()
    assert page.startswith("<!DOCTYPE html>")
    assert "tgpu simulate --trace" in page
    assert sorted(item.name for item in path.parent.iterdir()) == ["report.html"]


def test_demo_prints_summary_and_writes_report(tmp_path: Path) -> None:
    shown = succeeding("--demo", cwd=tmp_path)
    assert shown.endswith("Report: build/demo-report.html\n")
    assert all(name in shown for name in ("fifo", "fair", "feedback"))
    assert (tmp_path / "build" / "demo-report.html").stat().st_size > 10_000


def test_interrupt_leaves_no_report(tmp_path: Path) -> None:
    ours, theirs = pty.openpty()
    process = subprocess.Popen(
        [*PROGRAM, "--generate", "--days", "60", "--nodes", "2", "--report", "r.html"],
        cwd=tmp_path,
        stdout=subprocess.PIPE,
        stderr=theirs,
        env=os.environ | {"TERM": "xterm"},
        # Tests in the background ignore this signal, and the program would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    drawn = b""
    while b"fifo" not in drawn:  # The bar is shown, so the run is in progress.
        drawn += os.read(ours, 1000)
    process.send_signal(signal.SIGINT)
    out, _ = process.communicate(timeout=60)
    os.close(theirs)
    os.close(ours)
    assert (process.returncode, out) == (130, b"")
    assert list(tmp_path.iterdir()) == []


def test_terminal_shows_progress_bar_on_stderr_only(trace: Path) -> None:
    words = ["--trace", str(trace), "--nodes", "1", "--policy", "fifo", "--json"]
    ended, drawn = on_a_terminal(words)
    assert json.loads(ended.stdout)
    assert "fifo" in drawn
    ended, drawn = on_a_terminal([*words, "--quiet"])
    assert (ended.returncode, drawn) == (0, "")


def on_a_terminal(words: list[str]) -> tuple[subprocess.CompletedProcess[bytes], str]:
    """Run with a pseudo-terminal as stderr."""
    ours, theirs = pty.openpty()
    try:
        ended = subprocess.run(
            [*PROGRAM, *words],
            stdout=subprocess.PIPE,
            stderr=theirs,
            env=os.environ | {"TERM": "xterm"},
            check=False,
        )
        os.set_blocking(ours, False)
        try:
            drawn = os.read(ours, 100_000).decode()
        except BlockingIOError:
            drawn = ""
    finally:
        os.close(theirs)
        os.close(ours)
    return ended, drawn


# --- bad input

BAD: list[tuple[str, str]] = [
    ("", "nothing to simulate; give --trace FILE, --generate or --demo"),
    ("--trace missing.csv --nodes 1", "missing.csv: cannot be read"),
    ("--trace jobs.csv", "has no nodes; give them with --cluster FILE or --nodes N"),
    ("--trace jobs.csv --cluster missing.csv", "missing.csv: cannot be read"),
    ("--trace jobs.csv --nodes 1 --format cvs", "--format is 'cvs'; did you mean 'csv'?"),
    ("--trace jobs.csv --nodes 1 --format swf", "jobs.csv, line 1"),
    ("--trace bad.csv --nodes 1", "bad.csv, line 2: run_s is '-5'"),
    ("--trace quota.json", "quota.json, line 4: quota exceeded for tenant nlp: GPUs requested=5"),
    ("--trace hours.json", "hours.json, line 4: quota exceeded for tenant nlp: GPU-hours"),
    ("--trace hours.json", "this one has none, so give limit_s or --default-limit"),
    ("--trace mig.csv --nodes 1", "mig.csv, line 3: a request for 1 GPUs, MIG profile 3g.40gb"),
    ("--trace late.csv --nodes 1", "late.csv, line 2: the deadline"),
    ("--trace jobs.csv --cluster twice.csv", "twice.csv, line 3: node 'big' is named twice"),
    ("--trace jobs.csv --nodes 1 --policy fif", "did you mean 'fifo'?"),
    ("--trace jobs.csv --nodes 1 --policy tiresias", "policy 'tiresias' is 'las' here"),
    ("--trace jobs.csv --nodes 1 --time-zone Mars", "--time-zone is 'Mars'"),
    ("--trace jobs.csv --nodes 1 --policy fifo,", "--policy is 'fifo,'"),
    ("--trace jobs.csv --nodes 1 --predictor magic", "--predictor is 'magic'"),
    ("--trace jobs.csv --nodes 0", "--nodes is '0'"),
    ("--trace jobs.csv --nodes -3", "--nodes is '-3'"),
    ("--trace jobs.csv --nodes 1 --gpus-per-node 2 --memory-mb x", "--memory-mb is 'x'"),
    ("--trace jobs.csv --nodes 1 --gpus-per-node 2", "jobs.csv, line 2"),
    ("--trace jobs.csv --gpus-per-node 2", "needs --nodes"),
    ("--trace jobs.csv --nodes 1 --gpus-per-island 9", "an island is part of one node"),
    ("--trace jobs.csv --nodes 1 --cluster nodes.csv", "--nodes cannot be given with --cluster"),
    ("--trace jobs.csv --nodes 1 --load 2", "--load cannot be given with --trace"),
    ("--trace jobs.csv --nodes 1 --seeds 1-2", "--seeds cannot be given with --trace"),
    ("--trace jobs.csv --nodes 1 --write-trace x.csv", "add --generate"),
    ("--trace jobs.csv --generate", "--trace cannot be given with --generate"),
    ("--trace jobs.csv --nodes 1 --preemption-cost=-1", "--preemption-cost is '-1'"),
    ("--trace jobs.csv --nodes 1 --default-limit soon", "--default-limit is 'soon'"),
    ("--trace jobs.csv --nodes 1 --by user", "--by is 'user'"),
    ("--trace jobs.csv --nodes 1 --limit-jobs 0", "--limit-jobs is '0'"),
    ("--trace jobs.csv --nodes 1 --report .", ".: is a directory"),
    ("--trace jobs.csv --nodes 1 --report jobs.csv/x.html", "is not a directory"),
    ("--trace jobs.csv --nodes 1 --report /proc/x/y.html", "cannot be written"),
    ("--demo --generate", "--demo and --generate cannot be given together"),
    ("--demo --trace jobs.csv", "--trace cannot be given with --demo"),
    ("--generate --jobs 5 --days 2", "--days cannot be given with --jobs"),
    ("--generate --jobs -5", "--jobs is '-5'"),
    ("--generate --load nan", "--load is 'nan'"),
    ("--generate --fail-share 2", "fail_share is 2.0"),
    ("--generate --gpu-mix many", "--gpu-mix is 'many'"),
    ("--generate --gpu-mix 64:1 --nodes 1 --fraction-share 0", "use smaller counts or more nodes"),
    ("--generate --jobs 5 --write-trace x.txt", "end the name in .csv, .json or .jsonl"),
    ("--generate --jobs 5 --write-trace nowhere/x.csv", "nowhere/x.csv: cannot be written"),
    ("--generate --write-trace x.csv --report x.html", "--report cannot be given with"),
    ("--fill", "--fill needs an openb pod list"),
    ("--fill --trace jobs.csv --cluster nodes.csv", "jobs.csv, line 1"),
    ("--fill --trace jobs.csv --cluster nodes.csv --seeds 9-1", "--seeds is '9-1'"),
    ("--fill --trace jobs.csv --cluster nodes.csv --forecasts", "cannot be given with --fill"),
]


TENANT = """\
{"nodes": [{"id": "n", "gpus": 8}],
 "tenants": [{"id": "nlp", "%s": 2}],
 "jobs": [{"id": 1, "submit_s": 0, "run_s": 60, "gpus": 1, "tenant": "nlp", "limit_s": 60},
          {"id": 2, "submit_s": 5, "run_s": 60, "gpus": %d, "tenant": "nlp"}]}
"""
BAD_FILES = {
    "nodes.csv": NODES,
    "twice.csv": f"{NODES}big,1,4\n",
    "bad.csv": "id,submit_s,run_s,gpus\n1,0,-5,1\n",
    "mig.csv": "id,submit_s,run_s,gpus,mig_profile\n1,0,5,1,\n2,0,5,1,3g.40gb\n",
    "late.csv": "id,submit_s,run_s,gpus,deadline_s\n1,60,5,1,30\n",
    "quota.json": TENANT % ("max_gpus", 5),
    "hours.json": TENANT % ("max_gpu_hours", 1),
}


@pytest.mark.parametrize(
    ("words", "message"), BAD, ids=[f"{words}: {message}" for words, message in BAD]
)
def test_bad_input_is_rejected_with_code_2_and_leaves_nothing(
    trace: Path, words: str, message: str
) -> None:
    folder = trace.parent
    for name, text in BAD_FILES.items():
        (folder / name).write_text(text)
    before = sorted(folder.iterdir())
    ended = simulate(*words.split(), cwd=folder)
    assert ended.returncode == 2
    assert ended.stdout == ""
    assert ended.stderr.startswith("tgpu: error: ")
    assert ended.stderr.count("\n") == 1
    assert message in ended.stderr
    assert sorted(folder.iterdir()) == before


# --- words


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("90", 90),
        ("1.5", 1.5),
        ("90s", 90),
        ("90m", 5400),
        ("2h", 7200),
        ("1h30m", 5400),
        ("1h 30m", 5400),
        ("1.5d", 129_600),
        ("1w", 604_800),
        ("02:30:00", 9000),
        ("100:00:01", 360_001),
    ],
)
def test_durations_are_parsed(text: str, seconds: float) -> None:
    assert duration_ms("--limit")(text) == seconds * 1000


@pytest.mark.parametrize("text", ["", "-1", "h", "1h1", "30m1h", "1:00", "1e5", "9999w", "nan"])
def test_invalid_durations_are_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="--limit is"):
        duration_ms("--limit")(text)


def test_seeds_are_numbers_and_ranges() -> None:
    assert seeds("--seeds")("42-44,7,43") == [42, 43, 44, 7]


def test_sizes_of_a_cluster_are_compared(tmp_path: Path) -> None:
    (tmp_path / "jobs.csv").write_text(JOBS)
    words = ("--trace", "jobs.csv", "--nodes", "1,2,4", "--policy", "fifo,fair")
    shown = succeeding(*words, "--report", "r.html", cwd=tmp_path).splitlines()
    assert shown[2].split()[:5] == ["POLICY", "NODES", "GPUS", "P90", "WAIT"]
    rows = [line.split()[:3] for line in shown[3:9]]
    assert rows[:3] == [["fifo", "1", "8"], ["fifo", "2", "16"], ["fifo", "4", "32"]]
    assert rows[3:] == [["fair", "1", "8"], ["fair", "2", "16"], ["fair", "4", "32"]]
    assert "By the number of nodes" in (tmp_path / "r.html").read_text()
    runs = json.loads(succeeding(*words, "--json", cwd=tmp_path))["runs"]
    waits = [run["p90_wait_s"] for run in runs if run["policy"] == "fifo"]
    assert waits[0] > waits[1] >= waits[2]


def test_fewest_nodes_for_a_wait_are_found(tmp_path: Path) -> None:
    # 12 jobs of 8 GPUs and 1,000 s at once: on n nodes, they start in 12 / n rounds.
    rows = [f"{number},0,1000,8,ada,vision,1200" for number in range(1, 13)]
    header = JOBS.splitlines()[0]
    (tmp_path / "jobs.csv").write_text("\n".join([header, *rows, ""]))
    words = ("--trace", "jobs.csv", "--policy", "fifo", "--target-of", "max")
    for target, fewest in (("1s", 12), ("1000s", 6), ("3000s", 3), ("11000s", 1)):
        document = json.loads(succeeding(*words, "--target-wait", target, "--json", cwd=tmp_path))
        assert document["target"]["fewest_nodes"] == {"fifo": fewest}, target
    shown = succeeding(*words, "--target-wait", "1000s", "--report", "r.html", cwd=tmp_path)
    assert "<- fewest" in shown
    assert shown.splitlines()[-2:] == [
        "fifo: a max wait of at most 16m 40s needs 6 nodes (48 GPUs)",
        "Report: r.html",
    ]
    shown = succeeding(*words, "--target-wait", "1000s", "--nodes", "2,4", cwd=tmp_path)
    assert shown.splitlines()[-1].startswith("fifo: none of these sizes has a max wait")


def test_generated_work_stays_the_same_on_more_nodes(tmp_path: Path) -> None:
    words = ("--generate", "--jobs", "40", "--nodes", "2,4", "--policy", "fifo", "--json")
    runs = json.loads(succeeding(*words, cwd=tmp_path))["runs"]
    assert runs[0]["jobs"] == runs[1]["jobs"] == 40
    assert runs[0]["utilisation_percent"] > runs[1]["utilisation_percent"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        ("--demo --target-wait 1h", "--demo cannot be given with --target-wait"),
        ("--generate --target-of p99", "--target-of says which wait --target-wait limits"),
        ("--generate --nodes 2,4 --by tenant", "--by needs one number of --nodes"),
        ("--generate --nodes 2,x", "--nodes is 'x'; expected a whole number"),
    ],
)
def test_options_of_sizes_are_checked(words: str, message: str) -> None:
    ended = simulate(*words.split())
    assert ended.returncode == 2
    assert message in ended.stderr
