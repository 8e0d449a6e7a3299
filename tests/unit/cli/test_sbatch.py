"""`tgpu submit job.sbatch` follows `#SBATCH` lines, or says why it cannot."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.cli.main import main
from tests.unit.client.fake_server import FakeServer, a_server

Write = Callable[..., str]


@pytest.fixture
def server(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeServer]:
    with a_server() as running:
        monkeypatch.setenv("TGPU_SERVER", running.directory)
        yield running


@pytest.fixture
def script(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Write:
    """Write job.sbatch with these lines after the first one."""
    monkeypatch.chdir(tmp_path)

    def write(*lines: str) -> str:
        Path("job.sbatch").write_text("\n".join(["#!/bin/sh", *lines, ""]))
        return "job.sbatch"

    return write


def body(server: FakeServer, *words: str) -> dict[str, Any]:
    assert main(["submit", *words]) == 0
    return server.bodies[-1]


@pytest.mark.parametrize(
    ("lines", "fields"),
    [
        (["--gpus=2"], {"gpu_count": 2}),
        (["-G a100:2"], {"gpu_count": 2, "gpu_models": ["a100"]}),
        (["--gres=gpu"], {"gpu_count": 1}),
        (["--gres gpu:3"], {"gpu_count": 3}),
        (["--gres=gpu:h100:1(S:0)"], {"gpu_count": 1, "gpu_models": ["h100"]}),
        (["--gpus-per-node=4 --nodes=1"], {"gpu_count": 4}),
        (["--ntasks 1 --ntasks-per-node=1 -N1-1"], {}),
        (["-c8 --mem=64G"], {"cpu_cores": 8, "memory_mb": 65536}),
        (["--mem=500"], {"memory_mb": 500}),
        (["--mem-per-cpu=2G", "-c 4"], {"memory_mb": 8192}),
        (["--mem-per-gpu=10G --gres=gpu:a100:2"], {"memory_mb": 20480}),
        (["--mem-per-gpu=10G --gres=gpu:a100"], {"memory_mb": 10240}),
        (["-t 10"], {"max_runtime_seconds": 600}),
        (["--time=10:30"], {"max_runtime_seconds": 630}),
        (["--time=1-02"], {"max_runtime_seconds": 26 * 3600}),
        (["-J 'my job'   # its name"], {"name": "my job"}),
        (["--array=0-9:3%2"], {"array": "0-9:3%2"}),
        (
            ["-d afterok:3:4,afterany:5"],
            {"dependencies": ["afterok:job-3", "afterok:job-4", "afterany:job-5"]},
        ),
        (["--signal=B:USR1@90"], {"signal": "USR1@90"}),
        (["--signal=TERM"], {"signal": "TERM@60"}),
        (["-o out_%A_%a_%x.txt -e out_%A_%a_%x.txt"], {"output": "out_%A_%a_%x.txt"}),
        (["--exclusive", "--hold"], {"exclusive": True, "hold": True}),
        (["-w n1", "-x n2,n3"], {"nodes": ["n1"], "exclude_nodes": ["n2", "n3"]}),
        (["--gpus=1", "--gpus=2"], {"gpu_count": 2}),
        (["--comment='a b' --requeue --open-mode=append --get-user-env", "-G 1"], {"gpu_count": 1}),
    ],
    ids=str,
)  # fmt: skip
def test_shared_options_are_followed(
    server: FakeServer,
    script: Write,
    capsys: pytest.CaptureFixture[str],
    lines: list[str],
    fields: dict[str, Any],
) -> None:
    found = body(server, script(*(f"#SBATCH {line}" for line in lines), "true"))
    assert {name: found.get(name) for name in fields} == fields
    assert capsys.readouterr().err == ""


@pytest.mark.parametrize(
    "line",
    [
        *("--ntasks=4", "--nodes=2", "-N 1-4", "--ntasks-per-node=8", "--gres=shard:4"),
        *("--gres=gpu:1,license:2", "--constraint=a100", "--time=0", "--mem=0", "--no-requeue"),
        *("--deadline=now", "-i data", "--output=out_%N.txt", "--nodelist=n[1-3]", "-w n1,n2"),
        *("--exclude=n[1-3]", "-d singleton", "--dependency=after:3", "--exclusive=user"),
        *("--licenses=matlab", "--gpus-per-socket=1", "--export=NIL", "--frobnicate=1", "-Z"),
    ],
)
def test_line_that_would_change_what_runs_is_rejected(
    server: FakeServer, script: Write, capsys: pytest.CaptureFixture[str], line: str
) -> None:
    path = script("#SBATCH --gpus=2", f"#SBATCH {line}", "true")
    assert main(["submit", path]) == 2
    told = capsys.readouterr().err
    assert "job.sbatch was not submitted: it would not run as with sbatch\n  line 3: " in told
    assert not server.bodies
    assert body(server, "--force", path)["gpu_count"] == 2
    assert "warning: job.sbatch, line 3: " in capsys.readouterr().err


def test_all_rejected_lines_are_listed_together(
    server: FakeServer, script: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script("#SBATCH --ntasks=4", "#SBATCH --constraint=a", "x=1 && srun python a.py")
    assert main(["submit", path]) == 2
    told = capsys.readouterr().err
    assert "line 2: --ntasks=4: a script runs once, on one node" in told
    assert "line 3: --constraint=a: write '#TGPU --gpu-model A100'" in told
    assert "line 4: srun: a job has no steps; write the command without it" in told


def test_lines_about_the_queue_are_noted(
    server: FakeServer, script: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    path = script(
        "#SBATCH -p gpu -A lab --qos=high",
        "#SBATCH --mail-type=END",
        "#SBATCH -G 1",
        "#SBATCH --mail-user=a@b.org",
    )
    assert body(server, path)["gpu_count"] == 1
    told = capsys.readouterr().err
    assert "note: job.sbatch, line 2: --partition=gpu is not used: there are no partitions" in told
    assert "--account=lab is not used" in told
    assert "--qos=high is not used" in told
    assert "line 3: --mail-type=END is not used: --notify end,fail sends you a message" in told
    assert "--mail-user" not in told


def test_command_line_and_own_lines_override(server: FakeServer, script: Write) -> None:
    path = script("#SBATCH -G 1 -c 2 --ntasks=4", "#SBATCH -t 60", "#TGPU -G 2 -c 4", "true")
    found = body(server, "-c", "8", path)
    assert (found["gpu_count"], found["cpu_cores"]) == (2, 8)
    assert found["max_runtime_seconds"] == 3600


def test_only_lines_before_the_first_command_count(server: FakeServer, script: Write) -> None:
    path = script("# SBATCH -G 3", "##SBATCH -G 4", "true", "#SBATCH -G 2")
    found = body(server, path)
    assert "gpu_count" not in found
    assert "TGPU_SLURM_NAMES" not in found.get("environment", {})


def test_wrong_value_names_its_line(
    server: FakeServer, script: Write, capsys: pytest.CaptureFixture[str]
) -> None:
    assert main(["submit", script("#SBATCH -G 1", "#SBATCH --time=soon")]) == 2
    assert "job.sbatch, line 3: --time is 'soon'" in capsys.readouterr().err
    assert main(["submit", script("#SBATCH --comment='open")]) == 2
    assert "job.sbatch, line 2: No closing quotation" in capsys.readouterr().err


def test_script_gets_the_variables_of_slurm(server: FakeServer, script: Write) -> None:
    path = script("#SBATCH -G 1 -J x -c 4", "true")
    assert body(server, "-e", "A=1", path)["environment"] == {
        "TGPU_SLURM_NAMES": "1",
        "SLURM_JOB_NAME": "x",
        "SLURM_SUBMIT_DIR": str(Path.cwd()),
        "SLURM_CPUS_PER_TASK": "4",
        "SLURM_GPUS": "1",
        "A": "1",
    }
