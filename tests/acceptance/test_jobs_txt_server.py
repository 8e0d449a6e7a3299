"""A server with jobs.txt, llm_config.json and one JSON settings file, as documented."""

import json
import shutil
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.acceptance.conftest import RealServer, a_state_dir

SETTINGS = {
    "scheduler": {
        "num_gpus": 8,
        "max_workers": 8,
        "worker_timeout_s": 300.0,
        "job_timeout_s": 3600.0,
        "graceful_shutdown_timeout_s": 30.0,
    },
    "gpu": {
        "memory_threshold": 0.8,
        "load_threshold": 0.8,
        "allocation_precision": 0.01,
        "monitor_interval_s": 5.0,
        "utilization_window_s": 60.0,
    },
    "jobs": {
        "max_assignment_attempts": 5,
        "assignment_retry_wait_s": 5.0,
        "queue_size_limit": 1000,
        "max_concurrent_jobs": 100,
    },
    "files": {
        "jobs_file": "jobs.txt",
        "llm_config_file": "llm_config.json",
        "state_file": "gpu_scheduler_state.json",
        "log_file": "gpu_scheduler.log",
        "monitor_interval_s": 30.0,
    },
    "logging": {
        "level": "INFO",
        "structured": True,
        "max_log_size_mb": 100.0,
        "backup_count": 5,
        "metrics_enabled": True,
    },
    "security": {
        "allowed_script_paths": ["/data3/", "/home/user/", "/tmp/test/"],
        "max_memory_per_job_gb": 32.0,
        "enable_resource_limits": True,
    },
}
MODELS = {
    "default_requirement": 1.0,
    "models": {"qwen2.5-3b-inst": 0.5, "qwen2.5-7b-inst": 1.0, "qwen2.5-32b-inst": 2.0},
}
SCRIPT = "#!/bin/sh\necho $0 $* on $CUDA_VISIBLE_DEVICES >> $(dirname $0)/ran\n"


class Place:
    """A directory with scripts, jobs.txt and settings, and the server that works in it."""

    def __init__(self, state_dir: str, *, allows_all: bool = False) -> None:
        self.dir = Path(state_dir) / "work"
        self.dir.mkdir(mode=0o755)
        self.server = RealServer(state_dir)
        settings = json.loads(json.dumps(SETTINGS))
        settings["security"]["allowed_script_paths"] = [] if allows_all else [str(self.dir)]
        settings["files"]["monitor_interval_s"] = 1.0
        self.write("config.json", json.dumps(settings))
        self.write("llm_config.json", json.dumps(MODELS))
        self.script = self.write("train.sh", SCRIPT)
        self.script.chmod(0o755)

    def write(self, name: str, text: str) -> Path:
        path = self.dir / name
        path.write_text(text)
        path.chmod(0o644)
        return path

    def start(self) -> None:
        self.server.tgpu(
            *("start", "--config", "config.json", "--screen", "--log-level", "DEBUG", "--daemon"),
            *("--state-dir", self.server.state_dir, "--simulate", "8xA100-80GB"),
            cwd=self.dir,
        )

    def jobs(self, **query: object) -> list[dict[str, Any]]:
        with self.server.client() as client:
            return list(client.list(**query))

    def state(self, job: str) -> str:
        with self.server.client() as client:
            return str(client.get(job)["state"])

    def ran(self) -> list[str]:
        try:
            return (self.dir / "ran").read_text().splitlines()
        except FileNotFoundError:
            return []


def until(true: Callable[[], object]) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.05)


@pytest.fixture(scope="module")
def place() -> Iterator[Place]:
    if shutil.which("screen") is None:
        pytest.skip("screen is not installed")
    with a_state_dir() as state_dir:
        made = Place(state_dir)
        made.start()
        yield made
        made.server.stop()


def test_each_new_line_of_jobs_txt_runs_once_also_after_restart(place: Place) -> None:
    lines = [
        "# Priority, Script, Conda_Env, Arguments, Allowed_GPUs",
        f"0,{place.script},,--llm qwen2.5-3b-inst --mode test,0-3",
        f"1,{place.script},,--llm qwen2.5-32b-inst --epochs 10,4-7",
    ]
    place.write("jobs.txt", "\n".join(lines) + "\n")
    until(lambda: len(place.ran()) == 2)
    jobs = {job["gpu_count"]: job for job in place.jobs()}
    assert jobs.keys() == {0.5, 2}
    assert jobs[0.5]["priority"] > jobs[2]["priority"]
    until(lambda: place.state(jobs[2]["id"]) == "completed")

    place.server.tgpu("down", "--state-dir", place.server.state_dir)
    place.start()
    place.write("jobs.txt", "\n".join([*lines, f"2,{place.script},,--batch_size 32,"]) + "\n")
    until(lambda: len(place.ran()) == 3)
    assert sorted(line.split()[1] for line in place.ran()) == ["--batch_size", "--llm", "--llm"]
    until(lambda: not place.jobs(state=("running", "scheduled", "pending")))
    assert len(place.jobs()) == 3


def test_script_outside_allowed_directories_is_rejected(place: Place) -> None:
    told = place.server.tgpu("add", "/bin/sleep", "--args", "1", code=5).stderr
    assert str(place.dir) in told


def test_add_shows_and_cancels_job(place: Place) -> None:
    wait = place.write("wait.sh", "#!/bin/sh\nsleep 600\n")
    wait.chmod(0o755)
    added = place.server.tgpu(
        *("add", wait, "--args", "--llm qwen2.5-7b-inst --mode test", "--priority", "1"),
        *("--gpus", "0,1", "--llm-config", place.dir / "llm_config.json"),
        cwd=place.dir,
    )
    job = added.stdout.split()[-1]
    until(lambda: place.state(job) == "running")
    until(lambda: "gpujob_" in place.server.tgpu("screens").stdout)
    session = place.server.tgpu("screens").stdout
    number = job.removeprefix("job-")
    assert f"screen -r gpujob_0_wait-sh_{job}" in session or "gpujob_1_wait-sh" in session
    assert number in place.server.tgpu("list-jobs", "--status", "running").stdout

    place.server.tgpu("pause-gpu", 7)
    ended = len(place.jobs(state=("completed", "failed", "cancelled")))
    detailed = place.server.tgpu("status", "--detailed").stdout
    told = ("gpu-scheduler 0.", "healthy, up for", f"{ended} jobs processed", "0 high, 0 normal")
    assert [words for words in told if words not in detailed] == []
    assert "paused" in detailed
    metrics = place.server.tgpu("metrics").stdout
    assert "median run seconds" in metrics
    assert "GPU 7  not measured (PAUSED)" in metrics, "declared devices have no load"
    place.server.tgpu("resume-gpu", 7)
    resources = place.server.json("status")["resources"]
    assert len(resources) == 8
    assert "healthy" in place.server.tgpu("health").stdout

    place.server.tgpu("cancel-job", job)
    until(lambda: place.state(job) == "cancelled")


def test_log_is_json_with_standard_field_names(place: Place) -> None:
    lines = (place.dir / "gpu_scheduler.log").read_text().splitlines()
    first = json.loads(lines[0])
    assert list(first)[:5] == ["timestamp", "level", "logger", "thread", "message"]
    assert {json.loads(line)["level"] for line in lines} <= {"DEBUG", "INFO", "WARNING", "ERROR"}


@pytest.mark.parametrize("program", ["tgpu", "gpu-scheduler", "gpu-cli", "python -m gpu_scheduler"])
def test_every_name_of_the_program_works(place: Place, program: str, tmp_path: Path) -> None:
    words = program.split()
    start = [sys.executable, *words[1:]] if words[1:] else [Path(sys.executable).parent / program]
    sample = subprocess.run(
        [*start, "config-sample"], capture_output=True, text=True, check=True
    ).stdout
    config = tmp_path / "config.json"
    config.write_text(sample)
    assert json.loads(sample)["scheduler"]["max_workers"] == 8
    subprocess.run([*start, "config", "check", config], check=True, capture_output=True)


def test_quick_self_test_passes(place: Place) -> None:
    told = place.server.tgpu("test", "--quick").stdout.splitlines()
    assert [line.split()[0] for line in told[:-1]] == ["ok"] * 5


PROGRAM = "#!/bin/sh\n"
PYTHON = PROGRAM + 'echo "python $*" >> {ran}\n'
CONDA = PROGRAM + 'shift 3\necho "conda $*" >> {ran}\n'


def a_program(path: Path, text: str) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text)
    path.chmod(0o755)


def test_scripts_use_python_and_conda_of_server_environment() -> None:
    if shutil.which("screen") is None:
        pytest.skip("screen is not installed")
    with a_state_dir() as state_dir:
        place = Place(state_dir, allows_all=True)
        home = place.dir / "home"
        a_program(home / "venv/bin/python", PYTHON.format(ran=place.dir / "ran"))
        a_program(home / "miniconda3/bin/conda", CONDA.format(ran=place.dir / "ran"))
        place.server.environment |= {"HOME": str(home), "PATH": f"{home}/venv/bin:/usr/bin:/bin"}
        place.server.environment.pop("CONDA_EXE", None)
        place.write("jobs.txt", "1,train.py,,--epochs 10,\n1,train.py,ml_env,--epochs 5,\n")
        place.start()
        until(lambda: len(place.ran()) == 2)
        ran = ["conda ml_env python train.py --epochs 5", "python train.py --epochs 10"]
        assert sorted(place.ran()) == ran
        place.server.stop()
