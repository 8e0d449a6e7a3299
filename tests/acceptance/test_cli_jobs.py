"""The command line against a real server: real processes, real output, real exit codes."""

import json
import os
import pty
import pwd
import signal
import subprocess
import time
from contextlib import suppress
from pathlib import Path

import pytest

from gpu_scheduler import Client, JobFailed, NoServer
from gpu_scheduler.model.errors import UnknownThing
from tests.acceptance.conftest import PROGRAM, RealServer

EXAMPLES = Path(__file__).parents[2] / "examples"


def test_run_returns_output_and_exit_code_of_job(server: RealServer) -> None:
    ended = server.tgpu(
        "run", "-G", "1", "--", "sh", "-c", "echo out; echo err >&2; exit 7", code=7
    )
    assert sorted(ended.stdout.split()) == ["err", "out"]
    assert server.tgpu("run", "-q", "--", "sh", "-c", "kill -9 $$", code=137).stderr == ""


@pytest.mark.parametrize("source", ["a pipe", "a file", "an empty pipe", "nothing"])
def test_run_warns_that_stdin_does_not_reach_job(
    server: RealServer, tmp_path: Path, source: str
) -> None:
    (tmp_path / "data").write_text("data\n")
    if source.endswith("pipe"):
        stdin, other = os.pipe()
        os.write(other, b"" if "empty" in source else b"data\n")
        os.close(other)
    else:
        stdin = os.open(tmp_path / "data" if source == "a file" else os.devnull, os.O_RDONLY)
    ended = subprocess.run(
        [*PROGRAM, "run", "-q", "--", "cat"],
        stdin=stdin,
        capture_output=True,
        text=True,
        env=server.environment,
        check=True,
        timeout=60,
    )
    os.close(stdin)
    assert ended.stdout == ""
    told = "" if source in ("nothing", "an empty pipe") else "tgpu: warning: the job does not get"
    assert ended.stderr[: len(told) or None] == told
    assert ended.stderr.count("\n") == bool(told)


def test_audit_log_is_listed_in_time_order(server: RealServer) -> None:
    server.tgpu("cancel", "job-999999", code=4)  # audited a little later
    job = server.submit("-H", "--", "true")
    server.tgpu("cancel", job)

    def records() -> list[dict[str, str]]:
        return list(server.json("audit", "-L", 0)["records"])

    give_up = time.monotonic() + 30
    while not any("999999" in record["target"] for record in records()):
        assert time.monotonic() < give_up
        time.sleep(0.1)
    times = [record["at"] for record in records()]
    assert times == sorted(times)


def test_run_prints_output_of_every_attempt(server: RealServer) -> None:
    script = "echo attempt $TGPU_ATTEMPT; test $TGPU_ATTEMPT = 2"
    ended = server.tgpu("run", "-q", "--retries", 1, "--", "sh", "-c", script)
    assert ended.stdout == "attempt 1\nattempt 2\n"


def test_job_sees_its_own_gpus_not_those_of_submitter(server: RealServer) -> None:
    show = ("sh", "-c", "echo [$CUDA_VISIBLE_DEVICES] $CUDA_DEVICE_ORDER $TGPU_JOB_ID")
    ended = server.tgpu("run", "-q", "-G", "2", "--", *show, CUDA_VISIBLE_DEVICES="6,7")
    devices, order, job = ended.stdout.split()
    assert len(devices.strip("[]").split(",")) == 2
    assert order == "PCI_BUS_ID"
    assert job.startswith("job-")
    assert server.tgpu("run", "-q", "--", *show, CUDA_VISIBLE_DEVICES="3").stdout.startswith("[]")


def test_job_runs_in_working_directory_and_environment_of_submission(
    server: RealServer, tmp_path: Path
) -> None:
    job = server.submit(
        *("-e", "GREETING=good day", "--", "sh", "-c", 'echo "$PWD|$CARRIED|$GREETING|$(umask)"'),
        cwd=tmp_path,
        CARRIED="along",
    )
    assert server.output(job).strip() == f"{tmp_path}|along|good day|{_umask()}"
    job = server.submit("--export", "NONE", "--", "/bin/sh", "-c", "echo [$CARRIED]", CARRIED="x")
    assert server.output(job).strip() == "[]"


@pytest.mark.parametrize("export", ["NONE", "CARRIED"])
def test_job_with_minimal_export_has_home_and_path(server: RealServer, export: str) -> None:
    show = 'echo "[$CARRIED] $HOME $USER $LOGNAME"; command -v ls'
    job = server.submit("--export", export, "--", "sh", "-c", show, CARRIED="x", HOME="/elsewhere")
    me = pwd.getpwuid(os.getuid())
    carried, place = server.output(job).splitlines()
    expected = "[x]" if export == "CARRIED" else "[]"
    assert carried == f"{expected} {me.pw_dir} {me.pw_name} {me.pw_name}"
    assert place.endswith("/ls")


def a_conda(place: Path) -> Path:
    """A fake conda that activates an environment as conda does."""
    program = place / "conda"
    place.mkdir(parents=True)
    program.write_text(
        "#!/bin/sh\n"
        '[ "$1 $2 $3" = "run --no-capture-output -n" ] || exit 64\n'
        'export CONDA_DEFAULT_ENV="$4" BY="$0"\n'
        'shift 4\nexec "$@"\n'
    )
    program.chmod(0o755)
    return program


@pytest.mark.parametrize("how", ["on the path", "named by the shell", "only installed"])
def test_job_runs_in_its_conda_environment(server: RealServer, tmp_path: Path, how: str) -> None:
    conda = a_conda(tmp_path / "miniconda3" / "bin")
    given = {
        "on the path": {"PATH": f"{conda.parent}:{os.environ['PATH']}"},
        "named by the shell": {"CONDA_EXE": str(conda)},
        "only installed": {"HOME": str(tmp_path)},
    }[how]
    show = 'echo "$CONDA_DEFAULT_ENV $BY $CUDA_VISIBLE_DEVICES"'
    words = ("--gpus", 1, "--conda", "ml", "--", "sh", "-c", show)
    job = server.submit(*words, **given)
    environment, by, devices = server.output(job).split()
    assert (environment, by) == ("ml", str(conda))
    assert devices.isdigit()


def _umask() -> str:
    mask = os.umask(0)
    os.umask(mask)
    return f"{mask:04o}"


def test_submit_accepts_all_documented_option_forms(server: RealServer) -> None:
    job = server.submit("--gpus", 2, "--priority", 5, "--", 'cmd=echo "a  b"')
    assert server.output(job) == "a  b\n"
    words = ("--name", "x", "--gpus", 2, "--priority", 500, "--tenant-id", "default")
    shown = server.json("show", server.submit(*words, "--", "true"))
    assert (shown["name"], shown["priority"], shown["gpu_count"]) == ("x", 500, 2)
    job = server.tgpu("add", "true", "--args", "--llm x", "--priority", "1", "--gpus", "0,1")
    assert job.stdout.startswith("submitted job-")
    server.tgpu("list-jobs", "--status", "running")
    server.tgpu("screens")


def test_show_displays_effective_time_limit_also_when_it_is_default(server: RealServer) -> None:
    for words, limit in (((), "7-00:00:00 (default)"), (("-t", "2h"), "2:00:00")):
        job = server.submit("-H", *words, "--", "true")
        shown = server.tgpu("show", job).stdout.splitlines()
        assert f"limit {limit}" in [" ".join(line.split()) for line in shown]
        server.tgpu("cancel", job)


def test_held_job_waits_until_released(server: RealServer) -> None:
    job = server.submit("-H", "-G", 1, "--", "true")
    assert "held" in server.tgpu("explain", job).stdout
    assert job.removeprefix("job-") in server.tgpu("list").stdout
    server.tgpu("update", job, "-p", "urgent", "-t", "10m", "-J", "renamed")
    shown = server.json("show", job)
    assert (shown["priority"], shown["max_runtime_minutes"], shown["name"]) == (2500, 10, "renamed")
    server.tgpu("release", job)
    server.tgpu("wait", "--timeout", 30, job)
    assert server.json("history", "-L", 5)["jobs"][0]["state"] == "completed"


def test_wait_times_out_and_job_can_be_cancelled(server: RealServer) -> None:
    job = server.submit("--", "sleep", 600)
    server.tgpu("wait", "--timeout", "0.2", job, code=124)
    assert "would be cancelled" in server.tgpu("cancel", "--dry-run", job).stdout
    server.tgpu("cancel", "last")
    assert server.tgpu("wait", job, code=143).stdout == f"{job} cancelled 143\n"
    assert server.json("show", job)["state"] == "cancelled"
    server.tgpu("cancel", job)  # repeating it is no error
    server.tgpu("cancel", "99999", code=4)


def test_array_runs_every_task_once(server: RealServer, tmp_path: Path) -> None:
    job = server.submit(
        "-a", "0-5%2", "--", "sh", "-c", "echo $TGPU_ARRAY_INDEX >> tasks", cwd=tmp_path
    )
    server.tgpu("wait", "--timeout", 60, job)
    assert sorted((tmp_path / "tasks").read_text().split()) == list("012345")
    assert server.json("show", f"{job}_3")["state"] == "completed"
    server.tgpu("logs", f"{job}_3")


def test_cancelling_unknown_array_task_fails(
    server: RealServer,
) -> None:
    job = server.submit("-a", "0-5", "-H", "--", "true")
    number = job.removeprefix("job-")
    for named in (f"{number}_7", f"{number}_[2-7]"):
        refused = server.tgpu("cancel", named, code=4)
        assert refused.stdout == ""
        assert f"job {number} has no task" in refused.stderr
    with server.client() as client:
        with pytest.raises(UnknownThing, match="has no task 6"):
            client.cancel(job, "2-7")
        assert client.get(job)["array"]["states"] == {"pending": "0-5"}
        client.cancel(job)


def test_each_array_task_writes_to_its_own_output_file(server: RealServer, tmp_path: Path) -> None:
    words = ("-a", "0-1", "-J", "x", "-o", "%x_%A_%a.txt", "--")
    job = server.submit(*words, "sh", "-c", "echo $TGPU_ARRAY_INDEX", cwd=tmp_path)
    server.tgpu("wait", "--timeout", 60, job)
    number = job.removeprefix("job-")
    for task in (0, 1):
        assert (tmp_path / f"x_{number}_{task}.txt").read_text() == f"{task}\n"


def test_sweep_runs_every_combination(server: RealServer, tmp_path: Path) -> None:
    words = ("--param", "lr=0.1,0.01", "--param", "bs=32,64", "--")
    ids = server.submit(
        *words, "sh", "-c", "echo {lr} {bs} $TGPU_PARAM_LR $TGPU_PARAM_BS >> seen", cwd=tmp_path
    ).split()
    server.tgpu("wait", "--timeout", 60, *ids)
    lines = sorted((tmp_path / "seen").read_text().splitlines())
    assert lines == [f"{lr} {bs} {lr} {bs}" for lr in ("0.01", "0.1") for bs in ("32", "64")]


def test_dependent_job_runs_after_its_dependency(server: RealServer, tmp_path: Path) -> None:
    first = server.submit("--", "sh", "-c", "sleep 0.2; echo first >> order", cwd=tmp_path)
    second = server.submit(
        "-d", f"afterok:{first}", "--", "sh", "-c", "echo second >> order", cwd=tmp_path
    )
    server.tgpu("wait", "--timeout", 60, second)
    assert (tmp_path / "order").read_text().split() == ["first", "second"]


def test_submit_rejects_request_that_can_never_fit(server: RealServer) -> None:
    ended = server.tgpu("submit", "-G", 99, "--", "true", code=2)
    assert ended.stderr.startswith("tgpu: error: ")
    assert len(ended.stderr.splitlines()) == 1


def test_submit_rejects_request_over_tenant_quota(server: RealServer) -> None:
    made = server.json("tenants", "create", "small", "--id", "small", "--max-gpus", 4)
    assert made["id"] == "small"
    ended = server.tgpu("submit", "-T", "small", "-G", 8, "--", "true", code=5)
    assert "quota exceeded for tenant small: GPUs requested=8, quota=4" in ended.stderr
    server.tgpu("tenants", "update", "small", "--max-gpus", 8)
    assert server.json("tenants", "show", "small")["max_gpus"] == 8
    server.tgpu("tenants", "delete", "small")
    server.tgpu("tenants", "show", "small", code=4)


def test_paused_gpu_gets_no_jobs(server: RealServer) -> None:
    server.tgpu("pause-gpu", 0)
    assert server.json("gpus")["gpus"][0]["paused"] is True
    assert "PAUSED" in server.tgpu("status").stdout
    show = ("run", "-q", "-G", 1, "--", "sh", "-c", "echo $CUDA_VISIBLE_DEVICES")
    assert server.tgpu(*show).stdout.strip() != "0"
    server.tgpu("resume-gpu", 0)
    assert server.json("gpus")["gpus"][0]["paused"] is False


def test_status_commands_show_gpus_nodes_health_and_metrics(server: RealServer) -> None:
    assert len(server.json("gpus")["gpus"]) == 8
    assert len(server.json("nodes")["nodes"]) == 1
    assert server.json("health")["status"] == "healthy"
    assert server.json("status", "--detailed")["cluster"]["total_gpus"] == 8
    assert "gpu_scheduler_" in server.tgpu("metrics", "--raw").stdout
    for words in (["metrics"], ["usage"], ["status", "--detailed"], ["tenants"], ["history"]):
        server.tgpu(*words)


@pytest.mark.slow
def test_example_jobs_run(server: RealServer, tmp_path: Path) -> None:
    job = server.submit(EXAMPLES / "sleep_job.sh", "0.1")
    assert server.output(job).endswith("done\n")
    shown = server.json("show", job)
    assert (shown["name"], shown["gpu_count"], shown["max_runtime_minutes"]) == ("sleep", 1, 5)
    ended = server.tgpu("run", "-q", EXAMPLES / "multi_gpu_job.sh")
    assert ended.stdout.count("is done") == 2
    ended = server.tgpu("run", "-q", "--gpus", 3, EXAMPLES / "multi_gpu_job.sh")
    assert ended.stdout.count("is done") == 3
    (tmp_path / "examples").symlink_to(EXAMPLES)
    job = server.submit("examples/job.yaml", cwd=tmp_path)
    assert "finished 20 steps" in server.output(job)
    assert server.json("show", job)["gpu_count"] == 2


def test_training_example_checkpoints_on_stop_and_resumes(
    server: RealServer, tmp_path: Path
) -> None:
    command = ("python3", EXAMPLES / "train_demo.py", "--step-seconds", "0.05")
    # So many steps that the job still runs when it is cancelled, on any machine.
    job = server.submit("-G", 1, "--", *command, "--steps", 9999, "--save-every", 5, cwd=tmp_path)
    _await(tmp_path / "train_demo.checkpoint")
    server.tgpu("cancel", job)
    with server.client() as client:
        client.wait(job, timeout=30)
    saved = json.loads((tmp_path / "train_demo.checkpoint").read_text())["step"]
    assert 5 <= saved < 9999
    job = server.submit("-G", 1, "--", *command, "--steps", saved + 10, cwd=tmp_path)
    output = server.output(job)
    assert f"resumed at step {saved}" in output
    assert f"finished {saved + 10} steps" in output


def _await(path: Path) -> None:
    end = time.monotonic() + 30
    while not path.exists():
        assert time.monotonic() < end
        time.sleep(0.02)


def test_logs_follow_starts_before_job_does(server: RealServer) -> None:
    job = server.submit("-H", "--", "sh", "-c", "echo one; sleep 0.2; echo two")
    following = subprocess.Popen(
        [*PROGRAM, "logs", "-f", job],
        stdout=subprocess.PIPE,
        text=True,
        env=server.environment,
    )
    server.tgpu("release", job)
    output, _ = following.communicate(timeout=30)
    assert (output, following.returncode) == ("one\ntwo\n", 0)


def test_logs_follow_continues_to_last_attempt_of_retried_job(server: RealServer) -> None:
    script = "echo attempt $TGPU_ATTEMPT; test $TGPU_ATTEMPT = 2"
    job = server.submit("--retries", 3, "--", "sh", "-c", script)
    followed = server.tgpu("logs", "-f", job)
    assert followed.stdout == "attempt 1\nattempt 2\n"
    assert f"attempt 2 of {job} started" in followed.stderr
    assert server.tgpu("logs", "-f", "--attempt", 1, job).stdout == "attempt 1\n"


def test_interrupting_run_in_script_cancels_its_job(server: RealServer) -> None:
    running = subprocess.Popen(
        [*PROGRAM, "run", "-q", "--", "sh", "-c", "echo up; sleep 600"],
        stdout=subprocess.PIPE,
        stdin=subprocess.DEVNULL,
        text=True,
        env=server.environment,
        # Tests in the background ignore this signal, and the program would inherit that.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),  # noqa: PLW1509
    )
    assert running.stdout is not None
    assert running.stdout.readline() == "up\n"
    running.send_signal(signal.SIGINT)
    running.communicate(timeout=30)
    assert running.returncode == 130
    job = server.json("list", "--state", "all", "--sort=-number", "-L", 1)["jobs"][0]
    with server.client() as client:
        assert client.wait(job["id"], timeout=30)["state"] == "cancelled"


def test_output_is_coloured_on_terminal_and_plain_in_pipe(server: RealServer) -> None:
    job = server.submit("-H", "--", "true")
    assert "\x1b" not in server.tgpu("list").stdout
    for variables, coloured in (({}, True), ({"NO_COLOR": "1"}, False)):
        leader, follower = pty.openpty()
        subprocess.run(
            [*PROGRAM, "list"],
            stdout=follower,
            env=server.environment | {"TERM": "xterm"} | variables,
            check=True,
        )
        os.close(follower)
        shown = _all_of(leader).decode()
        os.close(leader)
        assert ("\x1b[" in shown) is coloured
        assert "JOBID" in shown
    server.tgpu("cancel", job)


def _all_of(leader: int) -> bytes:
    """Everything written to a closed terminal, which arrives in pieces."""
    found = b""
    with suppress(OSError):
        while piece := os.read(leader, 65_536):
            found += piece
    return found


def test_python_client_uses_same_server(server: RealServer) -> None:
    with server.client() as client:
        job = client.submit(["sh", "-c", "echo from python"], gpus=1, name="py")
        assert job.result(timeout=30) == 0
        assert "".join(job.logs()) == "from python\n"
        with pytest.raises(JobFailed, match="exit code 4"):
            client.submit("exit 4").result(timeout=30)
        events = client.events(after=0)
        assert next(events)["sequence"] == 1
        events.close()


def test_submit_many_submits_all_jobs_in_one_request(server: RealServer) -> None:
    with server.client() as client:
        jobs = client.submit_many({"command": ["true"], "gpus": 1} for _ in range(50))
        assert len({job.id for job in jobs}) == 50
        assert {job.result(timeout=60) for job in jobs} == {0}


def test_exit_code_is_3_without_server(server: RealServer, tmp_path: Path) -> None:
    ended = server.tgpu("list", "--server", tmp_path, code=3)
    assert "start one with 'tgpu up'" in ended.stderr
    with pytest.raises(NoServer):
        Client(str(tmp_path)).status()


def test_cli_reaches_server_over_tcp(server: RealServer) -> None:
    facts = json.loads(Path(server.state_dir, "server.json").read_text())
    words = ("run", "-q", "--server", facts["http"], "--", "echo", "hi")
    assert server.tgpu(*words).stdout == "hi\n"


def test_slurm_script_runs_with_its_gpus_and_variables(server: RealServer, tmp_path: Path) -> None:
    (tmp_path / "job.sbatch").write_text(
        "#!/bin/sh\n#SBATCH --gres=gpu:2 --time=10:00\n#SBATCH --array=3-4\n"
        "#SBATCH -o out_%j.txt\n"
        "echo $SLURM_ARRAY_TASK_ID $SLURM_ARRAY_JOB_ID $SLURM_JOB_ID $TGPU_JOB_NUMBER\n"
        'test "$(echo $CUDA_VISIBLE_DEVICES | tr , "\\n" | wc -l)" = 2\n'
    )
    job = server.submit("job.sbatch", cwd=tmp_path)
    assert server.tgpu("wait", job).stdout == f"{job} completed 0\n"
    number = job.removeprefix("job-")
    for task in (3, 4):
        name = f"{number}_{task}"
        assert (tmp_path / f"out_{name}.txt").read_text() == f"{task} {number} {name} {name}\n"
    # Submitted from within a task, a script has only its own variables.
    (tmp_path / "inner.sbatch").write_text(
        "#!/bin/sh\n#SBATCH --time=10:00\n"
        "env | grep -c ^SLURM_ARRAY; echo $SLURM_JOB_ID $TGPU_JOB_NUMBER\n"
    )
    job = server.submit("inner.sbatch", cwd=tmp_path, SLURM_ARRAY_TASK_ID="7")
    number = job.removeprefix("job-")
    assert server.output(job) == f"0\n{number} {number}\n"
