"""`LocalScheduler`: a scheduler inside a Python program, with its configuration and jobs.

It runs on a thread of its own; every method may be called from any other thread. Jobs are real
processes.
"""

from __future__ import annotations

import asyncio
import atexit
import logging
import os
import shutil
import tempfile
import threading
import time
import weakref
from collections.abc import Callable, Coroutine, Mapping, Sequence
from concurrent.futures import CancelledError, Future
from dataclasses import asdict, dataclass, field, replace
from pathlib import Path
from typing import Any, Self, TypeVar

import structlog

from gpu_scheduler import __version__
from gpu_scheduler.client import requests
from gpu_scheduler.client.captured_environment import capture
from gpu_scheduler.client.jobs_file import PRIORITIES, models_in, script_job
from gpu_scheduler.client.llm_sizing import gpu_kinds
from gpu_scheduler.control.messages import Cancel, PauseDevice, ResumeDevice
from gpu_scheduler.model.errors import ClusterError, InvalidInput, InvalidRequest
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.job import ENDED, JobState
from gpu_scheduler.server.background.jobs_file import JobsFile
from gpu_scheduler.server.in_process.components import LocalEngine
from gpu_scheduler.server.in_process.providers import (
    OK,
    FileSystemProvider,
    GPUProvider,
    HealthMonitor,
    MetricsProvider,
    PlainMetrics,
    ProvidedDevices,
    RealFiles,
)
from gpu_scheduler.settings.catalogue import ITEMS, plain_values, unknown_key
from gpu_scheduler.settings.file_paths import paths
from gpu_scheduler.settings.groups.operations import FileSettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.settings.sources import load
from gpu_scheduler.store.interface import JobQuery

T = TypeVar("T")
START_TIMEOUT_S = 60.0
CALL_TIMEOUT_S = 60.0
SUMMARY_JOBS = 20
STOPPED = "the scheduler was stopped meanwhile"


class SchedulerConfig:
    """`SchedulerConfig(num_gpus=2, queue_size_limit=10)`, or `SchedulerConfig.from_file(path)`.

    A setting is named without its group (`num_gpus`), or with it where the name alone is ambiguous
    (`gpu_monitor_interval_s`, `files_monitor_interval_s`). Values are checked.
    """

    def __init__(self, settings: Settings | None = None, /, **values: Any) -> None:
        """The defaults or the given settings, with some values changed."""
        found = settings or Settings()
        for name, value in values.items():
            item = ITEMS[_key_of(name)]
            group = replace(getattr(found, item.group), **{item.name: item.checked(value)})
            found = replace(found, **{item.group: group})
        self.settings = found

    @classmethod
    def from_file(cls, path: str, **values: Any) -> SchedulerConfig:
        """The settings of a JSON or YAML file; `values` take precedence."""
        return cls(load(str(path), environ={}).settings, **values)

    def to_dict(self) -> dict[str, Any]:
        """Every setting by `group.name`."""
        return plain_values(self.settings)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or name == "settings":
            raise AttributeError(name)
        try:
            item = ITEMS[_key_of(name)]
        except InvalidRequest as error:
            raise AttributeError(str(error)) from None
        return getattr(getattr(self.settings, item.group), item.name)

    def __repr__(self) -> str:
        defaults = plain_values(Settings())
        changed = {
            key: value for key, value in self.to_dict().items() if value != defaults.get(key)
        }
        return f"SchedulerConfig({changed})"


def _key_of(name: str) -> str:
    """`num_gpus` is scheduler.num_gpus; `gpu_monitor_interval_s` is gpu.monitor_interval_s."""
    alone = [item.key for item in ITEMS.values() if item.name == name]
    if len(alone) == 1:
        return alone[0]
    grouped = [item.key for item in ITEMS.values() if f"{item.group}_{item.name}" == name]
    if grouped:
        return grouped[0]
    if alone:
        ways = " or ".join(key.replace(".", "_") for key in alone)
        raise InvalidRequest(f"'{name}' is ambiguous; write {ways}")
    raise InvalidRequest(unknown_key(f"scheduler.{name}"))


class ProvidedJobsFile(JobsFile):
    """A jobs.txt from a file provider; its jobs run as the user of the program."""

    def __init__(
        self, engine: LocalEngine, settings: FileSettings, files: FileSystemProvider
    ) -> None:
        super().__init__(engine.loop, settings, environment=os.environ)
        self._caller = engine.caller
        self._files = files
        self._settings = settings

    def _open(self) -> tuple[list[str], Caller] | None:
        path = self._settings.jobs_file
        if not self._files.exists(path):
            return None
        try:
            return self._files.read_text(path).splitlines(), self._caller
        except (OSError, UnicodeDecodeError) as error:
            raise InvalidInput(f"cannot be read: {error}", file=path) from error

    def _gpus_by_model(self) -> dict[str, Any]:
        return _read_models(self._files, self._settings.llm_config_file)


def _read_models(files: FileSystemProvider, path: str) -> dict[str, Any]:
    """The model configuration in a file; empty if the file does not exist."""
    return models_in(files.read_text(path), path) if files.exists(path) else {}


JobStatus = JobState
"""pending, scheduled, running, completed, failed, cancelled, preempted."""


@dataclass(slots=True, kw_only=True)
class Job:
    """A snapshot of a job. Changing it does not affect the job."""

    script_path: str = ""
    args: list[str] = field(default_factory=list)
    priority: int = 1
    job_id: str = ""
    name: str = ""
    status: JobStatus = JobStatus.PENDING
    required_gpus: float = 0.0
    gpu_ids: list[int] = field(default_factory=list)
    reason: str = ""
    attempt: int = 0
    exit_code: int | None = None
    signal: int | None = None
    submitted_at: str | None = None
    started_at: str | None = None
    ended_at: str | None = None

    def update_status(self, status: JobStatus | str) -> None:
        """Set the status of this object, and the matching time."""
        self.status = JobStatus(status)
        now = time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime())
        if self.status is JobStatus.RUNNING:
            self.started_at = now
        elif self.is_over:
            self.ended_at = now

    @property
    def is_over(self) -> bool:
        """Whether the job has ended."""
        return self.status in (JobStatus.COMPLETED, JobStatus.FAILED, JobStatus.CANCELLED)

    def to_dict(self) -> dict[str, Any]:
        """All fields as plain values."""
        return asdict(self) | {"status": self.status.value}


def job_of(form: Mapping[str, Any]) -> Job:
    """A job from its form in the REST API."""
    command = list(form["command"])
    is_python = len(command) > 1 and command[0].rpartition("/")[2].startswith("python")
    script = command[1] if is_python else "".join(command[:1])
    held = {gpu["index"] for place in form["allocation"] for gpu in place["gpus"]}
    return Job(
        job_id=form["id"],
        name=form["name"],
        script_path=script,
        args=command[2:] if is_python else command[1:],
        priority=form["priority"],
        status=JobStatus(form["state"]),
        required_gpus=form["gpu_count"],
        gpu_ids=sorted(held),
        reason=form["reason"],
        attempt=form["attempt"],
        exit_code=form["exit_code"],
        signal=form["signal"],
        submitted_at=form["submitted_at"],
        started_at=form["started_at"],
        ended_at=form["ended_at"],
    )


class LocalScheduler:
    """One scheduler, which can be started and stopped repeatedly.

    Without `state_dir`, state is lost and jobs are cancelled when it stops. With `state_dir`, jobs
    keep running when it stops, and the next start (of any program) finds them again.
    """

    def __init__(
        self,
        config: SchedulerConfig | None = None,
        *,
        gpu_provider: GPUProvider | None = None,
        file_system: FileSystemProvider | None = None,
        metrics_provider: MetricsProvider | None = None,
        health_monitor: HealthMonitor | None = None,
        state_dir: str | Path | None = None,
    ) -> None:
        """Nothing is started yet."""
        self.config = config or SchedulerConfig()
        self._gpu_provider = gpu_provider
        self._files = file_system or RealFiles()
        self.metrics = metrics_provider or PlainMetrics()
        self._health = health_monitor
        self._state_dir = None if state_dir is None else str(state_dir)
        self._lock = threading.Lock()
        self._thread: threading.Thread | None = None
        self._started_at = 0.0
        self._failure: Exception | None = None
        self._cancel_on_stop = True
        # Set by the thread before `start` returns.
        self._engine: LocalEngine
        self._events: asyncio.AbstractEventLoop
        self._stop: asyncio.Event

    def start(self) -> bool:
        """Start and wait until it is ready. False if it runs already; raises on failure."""
        with self._lock:
            if self._thread is not None:
                return False
            if not structlog.is_configured():
                _use_program_logging()
            ready: Future[None] = Future()
            thread = threading.Thread(
                target=self._run_thread, args=(ready,), name="gpu-scheduler", daemon=True
            )
            thread.start()
            try:
                ready.result(START_TIMEOUT_S)
            except BaseException:
                thread.join(START_TIMEOUT_S)
                raise
            self._thread = thread
            self._started_at = time.monotonic()
            _stop_at_exit(self)
            return True

    def stop(self, *, cancel: bool | None = None) -> bool:
        """Stop; False if it did not run. `cancel` cancels its jobs (default: without state_dir)."""
        with self._lock:
            if self._thread is None:
                return False
            self._cancel_on_stop = self._state_dir is None if cancel is None else cancel
            self._events.call_soon_threadsafe(self._stop.set)
            self._thread.join()
            self._thread = None
            if self._failure is not None:
                raise self._failure
            return True

    @property
    def is_running(self) -> bool:
        """Whether it has been started and not stopped."""
        return self._thread is not None

    def __enter__(self) -> Self:
        """Start it for a block."""
        self.start()
        return self

    def __exit__(self, *_: object) -> None:
        """Stop it at the end of the block."""
        self.stop()

    def add_job(
        self,
        script: str,
        args: Sequence[str] = (),
        priority: int | str = 1,
        *,
        gpus: float | None = None,
        conda_env: str = "",
        allowed_gpus: str = "",
        **fields: Any,
    ) -> str:
        """Submit a script; returns the id of the job.

        A priority is 0 (high), 1 (normal), 2 (low), or a name such as `urgent`. Without `gpus`, the
        number follows from the model in the arguments, as with jobs.txt. `fields` are those of
        `Client.submit`.
        """
        body = script_job(
            script,
            [str(word) for word in args],
            conda=conda_env,
            allowed=allowed_gpus,
            models=_read_models(self._files, self.config.settings.files.llm_config_file),
            kinds=gpu_kinds(self.get_gpus()),
        )
        if gpus is not None:
            body = {key: value for key, value in body.items() if not key.startswith("gpu_")}
            body["gpu_count"] = gpus
        body["priority"] = PRIORITIES.get(str(priority), priority)
        return self._submit(body | requests.rest_fields(fields))

    def submit(self, command: Sequence[object] | str, **fields: Any) -> str:
        """Submit any command, with the fields of `Client.submit`; returns the id of the job.

        A single string as command is run by a shell.
        """
        words = command if isinstance(command, str) else [str(word) for word in command]
        return self._result(
            self._engine_now().submit(requests.submission(words, fields)), CALL_TIMEOUT_S
        )

    def get_job(self, job_id: str | int) -> Job:
        """The current state of a job."""
        job = requests.job_id(job_id)
        return self._call(lambda engine: job_of(engine.form(engine.row(job))))

    def list_jobs(self, status: JobStatus | str | None = None) -> list[Job]:
        """All jobs, or those in one state, by number."""
        if status is not None and status not in list(JobState):
            states_text = ", ".join(state.value for state in JobState)
            raise InvalidRequest(f"status is {status!r}; expected one of {states_text}")
        states = () if status is None else (JobState(status),)
        query = JobQuery(states=states, limit=1_000_000)
        return self._call(
            lambda engine: [job_of(engine.form(row)) for row in engine.store.find_jobs(query)]
        )

    def wait(self, job_id: str | int, timeout: float | None = None) -> Job:
        """Wait until a job has ended; TimeoutError if that takes too long."""
        return self._result(self._wait_for_end(requests.job_id(job_id)), timeout)

    def cancel_job(self, job_id: str | int) -> Job:
        """Cancel a running or waiting job."""
        self._result(self._engine_now().apply(Cancel(requests.job_id(job_id))), CALL_TIMEOUT_S)
        return self.get_job(job_id)

    def read_log(self, job_id: str | int) -> str:
        """The output of the last attempt of a job so far."""
        data = self._result(self._engine_now().log(requests.job_id(job_id)), CALL_TIMEOUT_S)
        return data.decode(errors="replace")

    def get_gpus(self) -> list[dict[str, Any]]:
        """The GPUs in the form of the REST API."""
        return self._call(lambda engine: engine.gpus())

    def pause_gpu(self, index: int) -> None:
        """Stop giving new work to a GPU."""
        engine = self._engine_now()
        self._result(engine.apply(PauseDevice(engine.node, index)), CALL_TIMEOUT_S)

    def resume_gpu(self, index: int) -> None:
        """Use a paused GPU again."""
        engine = self._engine_now()
        self._result(engine.apply(ResumeDevice(engine.node, index)), CALL_TIMEOUT_S)

    def get_status(self) -> dict[str, Any]:
        """A summary of queue, GPUs, jobs, health and metrics, also when it does not run."""
        if not self.is_running:
            return {"version": __version__, "status": "stopped", "health": {"status": "unhealthy"}}
        summary = self._call(_summary)
        return {
            "version": __version__,
            "status": "running",
            "uptime_seconds": time.monotonic() - self._started_at,
            **summary,
            "health": self.get_health(),
            "metrics": dict(self.metrics.get_metrics()),
        }

    def get_health(self) -> dict[str, Any]:
        """`healthy`, `degraded` (a check fails) or `unhealthy` (not running), with the checks."""
        if not self.is_running:
            return {"status": "unhealthy", "checks": {"scheduler": "not running"}}
        connected = self._call(lambda engine: engine.connected)
        checks = {"scheduler": OK, "agent": OK if connected else "not connected"}
        if self._health is not None:
            checks.update(self._health.check())
        is_healthy = all(value == OK for value in checks.values())
        return {"status": "healthy" if is_healthy else "degraded", "checks": checks}

    def _run_thread(self, ready: Future[None]) -> None:
        """The scheduler's thread."""
        self._failure = None
        temporary = None
        try:
            if self._state_dir is None:
                temporary = tempfile.mkdtemp(prefix="tgpu-local-")
            asyncio.run(self._work(self._state_dir or str(temporary), ready))
        except Exception as error:  # noqa: BLE001 - raised by start() or stop()
            if ready.done():
                self._failure = error
            else:
                ready.set_exception(error)
        finally:
            if temporary is not None:
                shutil.rmtree(temporary, ignore_errors=True)

    async def _work(self, state: str, ready: Future[None]) -> None:
        settings = self.config.settings
        source = None if self._gpu_provider is None else ProvidedDevices(self._gpu_provider)
        engine = LocalEngine(settings, paths(state), source, durable=self._state_dir is not None)
        try:
            await engine.start()
        except BaseException:
            await engine.close()
            raise
        self._stop = asyncio.Event()
        self._events = asyncio.get_running_loop()
        self._engine = engine
        counting = asyncio.create_task(self._count(engine))
        watching = asyncio.create_task(self._watch(engine))
        ready.set_result(None)
        await self._stop.wait()
        watching.cancel()
        await asyncio.gather(watching, return_exceptions=True)
        await engine.stop(cancel=self._cancel_on_stop)
        await counting  # its events end with the loop

    async def _watch(self, engine: LocalEngine) -> None:
        """Watch jobs.txt, if it is configured."""
        files = self.config.settings.files
        if files.jobs_file:
            await ProvidedJobsFile(engine, files, self._files).watch()

    async def _count(self, engine: LocalEngine) -> None:
        """Record job events as metrics."""
        async for _, event in engine.loop.subscribe():
            if not event.job_id:
                continue
            self.metrics.increment(f"jobs_{event.kind}")
            row = engine.store.job(event.job_id)
            ends = {state.value for state in ENDED}
            if event.kind in ends and row and row.start_ms is not None and row.end_ms is not None:
                self.metrics.observe("job_run_seconds", (row.end_ms - row.start_ms) / 1000)
                self.metrics.observe("job_wait_seconds", row.waited_ms / 1000)

    async def _wait_for_end(self, job_id: str) -> Job:
        engine = self._engine
        last = engine.store.last_event()
        while engine.row(job_id).state not in ENDED:
            if self._stop.is_set():
                raise ClusterError(STOPPED)
            async for sequence, event in engine.loop.subscribe(last):
                last = sequence
                if event.job_id == job_id and engine.row(job_id).state in ENDED:
                    break
        return job_of(engine.form(engine.row(job_id)))

    def _submit(self, body: dict[str, Any]) -> str:
        return self._result(self._engine_now().submit(capture() | body), CALL_TIMEOUT_S)

    def _engine_now(self) -> LocalEngine:
        if self._thread is None:
            raise ClusterError("the scheduler is not running; call start() first")
        if threading.current_thread() is self._thread:
            raise InvalidRequest("a provider must not call the scheduler from its own thread")
        return self._engine

    def _call(self, function: Callable[[LocalEngine], T]) -> T:
        """Call a function in the scheduler's thread, where state does not change meanwhile."""
        engine = self._engine_now()

        async def call() -> T:
            return function(engine)

        return self._result(call(), CALL_TIMEOUT_S)

    def _result(self, coroutine: Coroutine[Any, Any, T], timeout: float | None) -> T:
        try:
            self._engine_now()
            future = asyncio.run_coroutine_threadsafe(coroutine, self._events)
        except BaseException:
            coroutine.close()
            raise
        try:
            return future.result(timeout)
        except TimeoutError:
            future.cancel()
            raise
        except CancelledError:
            raise ClusterError(STOPPED) from None


def _stop_at_exit(scheduler: LocalScheduler) -> None:
    """Stop the scheduler at exit, so that a program that does not stop it leaves no jobs behind.

    This uses the exit hooks of `threading` if available: when `atexit` runs, threads can no longer
    be started, and stopping needs some.
    """
    reference = weakref.ref(scheduler)

    def stop() -> None:
        scheduler = reference()
        if scheduler is not None:
            scheduler.stop()

    getattr(threading, "_register_atexit", atexit.register)(stop)


def _summary(engine: LocalEngine) -> dict[str, Any]:
    counts = engine.store.count_states()
    waiting = {"total": 0, "high": 0, "normal": 0, "low": 0}
    for record in engine.loop.core.state.jobs.values():
        if record.queued or record.waiting_on:
            waiting["total"] += 1
            waiting[_class_of(record.job.priority)] += 1
    holding = JobQuery(states=(JobState.SCHEDULED, JobState.RUNNING), limit=SUMMARY_JOBS)
    return {
        "jobs_processed": sum(counts.get(state, 0) for state in ENDED),
        "jobs": {state.value: count for state, count in counts.items()},
        "queue": waiting,
        "resources": engine.gpus(),
        "active_jobs": [
            job_of(engine.form(row)).to_dict() for row in engine.store.find_jobs(holding)
        ],
    }


def _class_of(priority: int) -> str:
    normal = PRIORITIES["1"]
    if priority == normal:
        return "normal"
    return "high" if priority > normal else "low"


def _use_program_logging() -> None:
    """Send log lines to the standard library's `logging`, like those of the program."""
    structlog.configure(
        processors=[
            structlog.stdlib.filter_by_level,
            structlog.stdlib.add_logger_name,
            structlog.processors.format_exc_info,
            structlog.stdlib.render_to_log_kwargs,
        ],
        logger_factory=structlog.stdlib.LoggerFactory(),
        wrapper_class=structlog.stdlib.BoundLogger,
        cache_logger_on_first_use=False,
    )
    for name in ("server", "control", "agents", "agent", "jobs_file"):
        # As in other libraries, nothing is printed unless the program configures logging.
        logging.getLogger(name).addHandler(logging.NullHandler())
