"""A scheduler inside a Python program: the same core, real processes, replaceable parts."""

import json
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from gpu_scheduler import (
    FileSystemProvider,
    GPUProvider,
    HealthMonitor,
    Job,
    JobStatus,
    LocalScheduler,
    MetricsProvider,
    SchedulerConfig,
    UltraGPUScheduler,
)
from gpu_scheduler.model.errors import ClusterError, InvalidRequest, QueueFull, SchedulerError
from gpu_scheduler.testing import (
    MockFileSystem,
    MockGPUProvider,
    MockHealthMonitor,
    MockMetricsProvider,
)

SHOW = ["/bin/sh", "-c", "echo on $CUDA_VISIBLE_DEVICES $TGPU_JOB_ID"]


def until(true: Callable[[], object]) -> None:
    give_up = time.monotonic() + 60
    while not true():
        assert time.monotonic() < give_up
        time.sleep(0.02)


def processes_that_name(path: Path) -> bytes:
    """Helper processes of an ended scheduler exit a little later."""
    return subprocess.run(["pgrep", "-f", str(path)], capture_output=True, check=False).stdout


@pytest.fixture(scope="module")
def gpus() -> MockGPUProvider:
    return MockGPUProvider(num_gpus=2)


@pytest.fixture(scope="module")
def scheduler(gpus: MockGPUProvider) -> Iterator[LocalScheduler]:
    config = SchedulerConfig(num_gpus=2, gpu_monitor_interval_s=0.1, grace_s=1.0)
    with LocalScheduler(
        config, gpu_provider=gpus, metrics_provider=MockMetricsProvider()
    ) as running:
        yield running


def test_documented_first_steps_work() -> None:
    config = SchedulerConfig(num_gpus=2, queue_size_limit=10)
    gpu_provider = MockGPUProvider(num_gpus=2)
    metrics = MockMetricsProvider()
    scheduler = UltraGPUScheduler(
        config=config, gpu_provider=gpu_provider, metrics_provider=metrics
    )
    assert scheduler.start()
    job_id = scheduler.add_job("/test/script.py", args=["--test"])
    assert job_id is not None
    assert scheduler.stop()
    assert ("jobs_submitted", 1.0) in metrics.told
    assert not scheduler.stop()


def test_jobs_take_the_fields_of_the_client(scheduler: LocalScheduler) -> None:
    job_id = scheduler.submit("exit 3", gpus=1, time="1h")
    job = scheduler.wait(int(job_id.removeprefix("job-")), timeout=60)
    assert (job.exit_code, job.required_gpus) == (3, 1)
    with pytest.raises(InvalidRequest, match="no field 'env'; did you mean 'environment'"):
        scheduler.submit(["true"], env={"A": "1"})
    with pytest.raises(InvalidRequest, match=r"status is 'done'; expected one of pending, .*"):
        scheduler.list_jobs("done")
    with pytest.raises(SchedulerError, match=r"^job 999 is not known"):
        scheduler.get_job(999)


def test_job_is_real_process_on_its_own_gpus(scheduler: LocalScheduler) -> None:
    job = scheduler.wait(scheduler.submit(SHOW, gpu_count=2), timeout=60)
    assert (job.status, job.exit_code, job.gpu_ids) == (JobStatus.COMPLETED, 0, [0, 1])
    assert scheduler.read_log(job.job_id) == f"on 0,1 {job.job_id}\n"
    assert job.to_dict()["status"] == "completed"


def test_script_is_added_with_its_arguments(scheduler: LocalScheduler, tmp_path: Path) -> None:
    script = tmp_path / "task.sh"
    script.write_text("#!/bin/sh\necho $0 $*\nexit 3\n")
    script.chmod(0o755)
    job = scheduler.wait(scheduler.add_job(str(script), ["--x", "1"], 0, gpus=0.5), timeout=60)
    assert (job.status, job.exit_code, job.required_gpus) == (JobStatus.FAILED, 3, 0.5)
    assert (job.script_path, job.args, job.priority) == (str(script), ["--x", "1"], 1500)
    assert scheduler.read_log(job.job_id) == f"{script} --x 1\n"


def test_status_shows_queue_gpus_jobs_and_health(scheduler: LocalScheduler) -> None:
    long = scheduler.submit(["sleep", "600"], gpu_count=2, preemptible=False)
    until(lambda: scheduler.get_job(long).status is JobStatus.RUNNING)
    waiting = scheduler.submit(["true"], gpu_count=1, priority="urgent")
    low = scheduler.add_job("/bin/true", priority=2)
    scheduler.pause_gpu(1)
    status = scheduler.get_status()
    assert status["status"] == "running"
    assert status["active_jobs"][0]["job_id"] == long
    assert status["queue"] == {"total": 2, "high": 1, "normal": 0, "low": 1}
    assert [gpu["paused"] for gpu in status["resources"]] == [False, True]
    assert status["health"]["status"] == "healthy"
    json.dumps(status)
    scheduler.resume_gpu(1)
    assert scheduler.list_jobs("running")[0].job_id == long
    for job in (long, waiting, low):
        if not scheduler.get_job(job).is_over:
            scheduler.cancel_job(job)
    assert scheduler.wait(long, timeout=60).status is JobStatus.CANCELLED


def test_gpu_reported_hot_by_provider_gets_no_jobs(
    scheduler: LocalScheduler, gpus: MockGPUProvider
) -> None:
    gpus.set(0, temperature_c=99)
    until(lambda: scheduler.get_gpus()[0]["state"] == "hot")
    job = scheduler.wait(scheduler.submit(SHOW, gpu_count=1), timeout=60)
    assert job.gpu_ids == [1]
    gpus.set(0, temperature_c=30)
    until(lambda: scheduler.get_gpus()[0]["state"] == "free")


def test_scheduler_is_thread_safe(scheduler: LocalScheduler) -> None:
    ended: list[Job] = []

    def work() -> None:
        ids = [scheduler.submit(["true"], gpu_count=0.25) for _ in range(5)]
        ended.extend(scheduler.wait(job, timeout=60) for job in ids)

    threads = [threading.Thread(target=work) for _ in range(8)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({job.job_id for job in ended}) == 40
    assert {job.status for job in ended} == {JobStatus.COMPLETED}


def test_invalid_job_is_rejected_and_leaves_nothing(scheduler: LocalScheduler) -> None:
    with pytest.raises(SchedulerError, match="largest node has 2"):
        scheduler.submit(["true"], gpu_count=3)
    with pytest.raises(InvalidRequest):
        scheduler.submit(["true"], gpu_count="many")
    with pytest.raises(SchedulerError, match="not known"):
        scheduler.get_job("job-999")
    with pytest.raises(TimeoutError):
        scheduler.wait(scheduler.submit(["sleep", "60"]), timeout=0.05)
    assert not scheduler.start()


def test_stopped_scheduler_rejects_calls_and_can_be_restarted() -> None:
    scheduler = LocalScheduler(gpu_provider=MockGPUProvider(1))
    assert scheduler.get_status()["status"] == "stopped"
    with pytest.raises(ClusterError, match=r"call start\(\) first"):
        scheduler.submit(["true"])
    for _ in range(2):
        with scheduler:
            job = scheduler.wait(scheduler.submit(SHOW, gpu_count=1), timeout=60)
            assert (job.job_id, job.status) == ("job-1", JobStatus.COMPLETED)
    assert not scheduler.is_running


def test_jobs_of_scheduler_without_state_end_with_it(tmp_path: Path) -> None:
    mark = tmp_path / "alive"
    with LocalScheduler(SchedulerConfig(grace_s=1.0), gpu_provider=MockGPUProvider(1)) as scheduler:
        script = f"while :; do date > {mark}; sleep 0.05; done"
        job = scheduler.submit(["/bin/sh", "-c", script])
        until(mark.exists)
        pid_state = scheduler.get_job(job).status
    assert pid_state in (JobStatus.RUNNING, JobStatus.SCHEDULED)
    before = mark.stat().st_mtime_ns
    time.sleep(0.3)
    assert mark.stat().st_mtime_ns == before


def test_jobs_outlive_scheduler_with_state_directory_and_are_recovered(tmp_path: Path) -> None:
    state = tmp_path / "s"
    go = tmp_path / "go"
    first = LocalScheduler(gpu_provider=MockGPUProvider(1), state_dir=state)
    first.start()
    job = first.submit(["/bin/sh", "-c", f"while [ ! -e {go} ]; do sleep 0.05; done; exit 5"])
    until(lambda: first.get_job(job).status is JobStatus.RUNNING)
    with pytest.raises(SchedulerError, match="another server"):
        LocalScheduler(gpu_provider=MockGPUProvider(1), state_dir=state).start()
    first.stop()
    go.touch()
    with LocalScheduler(gpu_provider=MockGPUProvider(1), state_dir=state) as second:
        ended = second.wait(job, timeout=60)
        assert (ended.status, ended.exit_code) == (JobStatus.FAILED, 5)


def test_jobs_outlive_killed_program(tmp_path: Path) -> None:
    state, go = tmp_path / "s", tmp_path / "go"
    program = (
        "import os, signal\n"
        "from gpu_scheduler import LocalScheduler\n"
        "from gpu_scheduler.testing import MockGPUProvider\n"
        f"s = LocalScheduler(gpu_provider=MockGPUProvider(1), state_dir={str(state)!r})\n"
        "s.start()\n"
        f"job = s.submit(['/bin/sh', '-c', 'while [ ! -e {go} ]; do sleep 0.05; done; exit 6'])\n"
        "s.submit(['true'], hold=True)\n"
        "print(job, flush=True)\n"
        "os.kill(os.getpid(), signal.SIGKILL)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=60, check=False
    )
    assert ended.returncode == -9, ended.stderr
    go.touch()
    job = ended.stdout.strip()
    with LocalScheduler(gpu_provider=MockGPUProvider(1), state_dir=state) as scheduler:
        assert scheduler.wait(job, timeout=60).exit_code == 6
        assert scheduler.get_status()["queue"]["total"] == 1
        scheduler.cancel_job("job-2")


def test_full_queue_rejects_job(tmp_path: Path) -> None:
    config = SchedulerConfig(queue_size_limit=2)
    with LocalScheduler(config, gpu_provider=MockGPUProvider(1)) as scheduler:
        scheduler.submit(["sleep", "600"], gpu_count=1)
        until(lambda: scheduler.get_status()["queue"]["total"] == 0)
        for _ in range(2):
            scheduler.submit(["true"], gpu_count=1)
        with pytest.raises(QueueFull):
            scheduler.submit(["true"], gpu_count=1)


def test_file_metrics_and_health_providers_can_be_replaced() -> None:
    files = MockFileSystem(
        {
            "jobs.txt": "1,/bin/echo,,--llm small,\n",
            "llm_config.json": json.dumps({"models": {"small": 0.5}}),
        }
    )
    health, metrics, gpus = MockHealthMonitor(), MockMetricsProvider(), MockGPUProvider(1)
    for part, protocol in (
        (files, FileSystemProvider),
        (health, HealthMonitor),
        (metrics, MetricsProvider),
        (gpus, GPUProvider),
    ):
        assert isinstance(part, protocol)
    config = SchedulerConfig(jobs_file="jobs.txt", files_monitor_interval_s=1.0)
    with LocalScheduler(
        config,
        gpu_provider=gpus,
        file_system=files,
        metrics_provider=metrics,
        health_monitor=health,
    ) as scheduler:
        until(lambda: scheduler.list_jobs("completed"))
        assert [job.required_gpus for job in scheduler.list_jobs()] == [0.5]
        files.files["jobs.txt"] += "2,/bin/echo,,again,\n"
        until(lambda: len(scheduler.list_jobs("completed")) == 2)
        health.problems["disk"] = "full"
        assert scheduler.get_health()["status"] == "degraded"
        assert scheduler.get_status()["health"]["checks"]["disk"] == "full"
        until(lambda: scheduler.get_status()["metrics"].get("jobs_completed") == 2)
        assert scheduler.get_status()["metrics"]["job_run_seconds"]["count"] == 2


def test_settings_are_read_from_keywords_or_file(tmp_path: Path) -> None:
    file = tmp_path / "config.json"
    file.write_text(json.dumps({"scheduler": {"num_gpus": 4}, "jobs": {"queue_size_limit": 7}}))
    file.chmod(0o600)
    config = SchedulerConfig.from_file(str(file), max_workers=16)
    assert (config.num_gpus, config.queue_size_limit, config.max_workers) == (4, 7, 16)
    assert config.to_dict()["jobs.queue_size_limit"] == 7
    assert "num_gpus" in repr(config)
    for wrong, told in (
        ({"nu_gpus": 2}, "did you mean"),
        ({"monitor_interval_s": 2}, "gpu_monitor_interval_s"),
        ({"num_gpus": "two"}, "scheduler.num_gpus is 'two'"),
    ):
        with pytest.raises(InvalidRequest, match=told):
            SchedulerConfig(**wrong)
    with pytest.raises(AttributeError):
        _ = config.no_such_setting


def test_provider_that_fails_at_start_is_reported(tmp_path: Path) -> None:
    gpus = MockGPUProvider(1)
    gpus.fail("no driver")
    scheduler = LocalScheduler(gpu_provider=gpus)
    with pytest.raises(SchedulerError, match="no driver"):
        scheduler.start()
    gpus.fail("")
    assert scheduler.start()
    assert scheduler.stop()


@pytest.fixture
def short_path() -> Iterator[Path]:
    """For sockets, whose paths are limited to 107 bytes."""
    path = Path(tempfile.mkdtemp(prefix="tgpu-"))
    yield path
    shutil.rmtree(path, ignore_errors=True)


def test_state_directory_path_too_long_for_sockets_is_rejected(tmp_path: Path) -> None:
    far = tmp_path / ("x" * 100)
    with pytest.raises(SchedulerError, match="choose a shorter directory"):
        LocalScheduler(gpu_provider=MockGPUProvider(1), state_dir=str(far)).start()
    assert not far.exists()


def test_scheduler_prints_nothing_and_leaves_no_process(short_path: Path) -> None:
    program = (
        "from gpu_scheduler import LocalScheduler\n"
        "from gpu_scheduler.testing import MockGPUProvider\n"
        "with LocalScheduler(gpu_provider=MockGPUProvider(1)) as s:\n"
        "    print(s.wait(s.submit(['true'])).status.value)\n"
    )
    ended = subprocess.run(
        [sys.executable, "-X", "dev", "-c", program],
        capture_output=True,
        text=True,
        timeout=60,
        check=True,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(short_path)},
    )
    assert (ended.stdout, ended.stderr) == ("completed\n", "")
    assert list(short_path.iterdir()) == []
    until(lambda: not processes_that_name(short_path))


def test_waiting_caller_is_notified_when_scheduler_stops() -> None:
    scheduler = LocalScheduler(SchedulerConfig(grace_s=1.0), gpu_provider=MockGPUProvider(1))
    scheduler.start()
    held = scheduler.submit(["true"], hold=True)
    told: list[object] = []

    def wait() -> None:
        try:
            told.append(scheduler.wait(held).status)
        except SchedulerError as error:
            told.append(str(error))

    waiting = threading.Thread(target=wait)
    waiting.start()
    scheduler.stop(cancel=False)
    waiting.join(60)
    assert told
    assert "was stopped meanwhile" in str(told[0]) or "start() first" in str(told[0])


def test_program_that_does_not_stop_scheduler_leaves_nothing_behind(short_path: Path) -> None:
    program = (
        "from gpu_scheduler import LocalScheduler, SchedulerConfig\n"
        "from gpu_scheduler.testing import MockGPUProvider\n"
        "s = LocalScheduler(SchedulerConfig(grace_s=1.0), gpu_provider=MockGPUProvider(1))\n"
        "s.start()\n"
        f"s.submit(['/bin/sh', '-c', 'sleep 600; : {short_path}'])\n"
    )
    subprocess.run(
        [sys.executable, "-c", program],
        timeout=60,
        check=True,
        env={"PATH": "/usr/bin:/bin", "TMPDIR": str(short_path)},
    )
    assert list(short_path.iterdir()) == []
    until(lambda: not processes_that_name(short_path))


def test_job_view_is_read_only() -> None:
    job = Job(priority=1, script_path="/script.py")
    job.update_status(JobStatus.RUNNING)
    assert job.started_at
    job.update_status("failed")
    assert job.is_over
    assert job.to_dict()["script_path"] == "/script.py"


@pytest.mark.skipif(Path("/proc/driver/nvidia").exists(), reason="this machine has a GPU driver")
def test_documented_configuration_works_on_a_machine_without_gpus() -> None:
    with LocalScheduler(SchedulerConfig(num_gpus=2, queue_size_limit=10)) as running:
        job = running.submit(SHOW, gpu_count=2)
        assert running.wait(job, 60).status is JobStatus.COMPLETED
        assert running.read_log(job) == f"on 0,1 {job}\n"
        assert [gpu["model"] for gpu in running.get_gpus()] == ["A100", "A100"]
    with LocalScheduler(SchedulerConfig(simulate="1xH100-80GB")) as running:
        assert [gpu["model"] for gpu in running.get_gpus()] == ["H100"]
