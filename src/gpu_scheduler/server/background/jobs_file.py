"""Watches a jobs.txt: every new line becomes one job, however often the file is read.

A submitted line is recorded in the same commit as its job. Jobs run as the owner of the file. A
file that others may write is not read, and neither is a symbolic link; the owner is taken from the
open file. Jobs of the server's own user get the environment that the server was started in, jobs
of other users that of a login.
"""

from __future__ import annotations

import asyncio
import hashlib
import os
import pwd
import stat
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import msgspec
import structlog

from gpu_scheduler.agent.jobs.environment import PLAIN_PATH
from gpu_scheduler.api.auth.accounts import Directory
from gpu_scheduler.api.routes.submit import submit_message
from gpu_scheduler.client.captured_environment import exported
from gpu_scheduler.client.jobs_file import llm_config, read_line
from gpu_scheduler.client.llm_sizing import gpu_kinds
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.model.errors import Forbidden, InvalidInput, SchedulerError
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.settings.groups.operations import FileSettings
from gpu_scheduler.store.rows import ResponseRow, Write
from gpu_scheduler.wire.job_reader import JobReader
from gpu_scheduler.wire.jobs import JobRequest

NEVER_EXPIRES_MS = 1 << 52
"""Idempotency keys expire by age, but a line must never be submitted again."""
OTHERS_MAY_WRITE = 0o022
MOST_BYTES = 16 << 20
"""A larger file is not read: its owner could let the server run out of memory, also by a hole."""
MOST_REPORTED = 1000
SERVER_PREFIXES = ("GPU_SCHEDULER_", "LISTEN_", "SYSTEMD_", "WATCHDOG_", "MEMORY_PRESSURE_")
"""Variables for the server itself, which may hold its secrets."""
SERVICE_VARIABLES = frozenset(
    ("NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "MAINPID")
)
log = structlog.get_logger("jobs_file")


class JobsFile:
    """One file, read at intervals."""

    def __init__(
        self,
        loop: Loop,
        settings: FileSettings,
        admins: Sequence[str] = (),
        runner: str = "process",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Its jobs run in `runner`; `environment` None means the environment of a login."""
        self._loop = loop
        self._runner = Runner(runner)
        self._people = Directory(os.geteuid(), admins, lambda: loop.core.state.tenant_directory)
        self._path = Path(settings.jobs_file).expanduser().absolute()
        self._models = settings.llm_config_file
        self.interval_s = settings.monitor_interval_s
        self._reported: set[str] = set()
        self._last_stamp = (0, 0)
        self._own = None if environment is None else _inherited(environment)

    async def watch(self) -> None:
        """Read the file at intervals until cancelled."""
        while True:
            try:
                count = await self.read()
                if count:
                    log.info("jobs file submitted", file=str(self._path), jobs=count)
            except (SchedulerError, OSError) as error:
                self._report(str(error))
            await asyncio.sleep(self.interval_s)

    async def read(self) -> int:
        """Submit new lines and return their number. A bad line is skipped."""
        found = await self._people.accounts.wait_for(self._open)
        if found is None:
            return 0
        lines, caller = found
        models = self._gpus_by_model()
        seen: Counter[str] = Counter()
        count = 0
        for number, line in enumerate(lines, 1):
            text = line.strip()
            if not text or text.startswith("#"):
                continue
            seen[text] += 1
            try:
                count += await self._submit(text, number, seen[text], caller, models)
            except (SchedulerError, msgspec.MsgspecError, ValueError) as error:
                self._report(f"line {number} skipped: {error}")
        return count

    def _open(self) -> tuple[list[str], Caller] | None:
        """The lines of the file and its owner; None if there is no file."""
        # Without O_NONBLOCK a pipe of that name would block the whole server.
        flags = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC
        try:
            file = os.fdopen(os.open(self._path, flags), "rb")
        except FileNotFoundError:
            return None
        except OSError as error:
            raise InvalidInput(f"cannot be opened: {error}", file=str(self._path)) from error
        with file:
            status = os.fstat(file.fileno())
            caller = self._owner(status)
            try:
                data = file.read(MOST_BYTES + 1)
                if len(data) > MOST_BYTES:
                    raise InvalidInput(
                        f"has more than {MOST_BYTES >> 20} MiB; remove lines of old jobs",
                        file=str(self._path),
                    )
                text = self._settled(data, status).decode("utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInput(f"cannot be read: {error}", file=str(self._path)) from error
            return text.splitlines(), caller

    def _settled(self, data: bytes, status: os.stat_result) -> bytes:
        """Omit a last line without a newline while it may still be written.

        Half a command would be a different job. If the file is unchanged at the next read, the
        line is complete.
        """
        stamp = (status.st_mtime_ns, len(data))
        is_settled = stamp == self._last_stamp
        self._last_stamp = stamp
        return data if is_settled else data[: data.rfind(b"\n") + 1]

    def _gpus_by_model(self) -> dict[str, Any]:
        return llm_config(self._models) if Path(self._models).is_file() else {}

    def _kinds(self) -> dict[str, tuple[int, int]]:
        """The GPUs of the cluster, for models that the file does not name."""
        return gpu_kinds(
            {"model": device.model, "memory_mb": device.memory_mb}
            for resources in self._loop.core.state.cluster.index.by_id.values()
            for device in resources.node.devices
        )

    async def _submit(
        self, text: str, number: int, nth: int, caller: Caller, models: dict[str, Any]
    ) -> int:
        """Submit one line; `nth` tells equal lines apart, because each of them is a job."""
        key = hashlib.sha256(f"{self._path}\0{nth}\0{text}".encode()).hexdigest()
        if await asyncio.to_thread(self._loop.store.response, caller.user, key) is not None:
            return 0
        own = self._own if caller.uid == os.geteuid() else None
        search = PLAIN_PATH if own is None else own.get("PATH", PLAIN_PATH)
        body = read_line(text, str(self._path), number, models, self._kinds(), search)
        body["working_directory"] = str(self._path.parent)
        if own is not None:
            body["captured_environment"] = own
        reader = JobReader(caller, lambda tenant: tenant or caller.tenant, self._runner)
        submission = reader.read(msgspec.convert(body, JobRequest))

        def remember(outcomes: Sequence[Outcome]) -> Sequence[Write]:
            job_id = outcomes[0].jobs[0].id
            return [
                ResponseRow(
                    user=caller.user,
                    key=key,
                    request_hash=key,
                    status=201,
                    body=job_id,
                    at_ms=NEVER_EXPIRES_MS,
                )
            ]

        await self._loop.apply(submit_message(submission), caller, extra_writes=remember)
        return 1

    def _owner(self, status: os.stat_result) -> Caller:
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput("is not a file", file=str(self._path))
        if status.st_mode & OTHERS_MAY_WRITE:
            raise InvalidInput(
                "others may write to it, so they could run jobs as its owner; use 'chmod go-w'",
                file=str(self._path),
            )
        if os.geteuid() not in {0, status.st_uid}:
            raise Forbidden(
                f"{self._path} belongs to uid {status.st_uid}; a server that is not root runs jobs "
                f"only as its own user (uid {os.geteuid()})"
            )
        return self._people.caller(status.st_uid, status.st_gid, str(self._path))

    def _report(self, problem: str) -> None:
        """Log a problem once, because the same line is read again and again."""
        if problem not in self._reported and len(self._reported) < MOST_REPORTED:
            self._reported.add(problem)
            log.warning("jobs file problem", file=str(self._path), problem=problem)


def _inherited(environment: Mapping[str, str]) -> dict[str, str]:
    """The variables that a job gets from the server's environment, completed with a login's."""
    try:
        entry = pwd.getpwuid(os.geteuid())
    except KeyError:
        login = {}
    else:
        login = {
            "USER": entry.pw_name,
            "LOGNAME": entry.pw_name,
            "HOME": entry.pw_dir,
            "SHELL": entry.pw_shell or "/bin/sh",
            "LANG": "C.UTF-8",
        }
    inherited = exported(None, environment)[0]
    return login | {
        name: value
        for name, value in inherited.items()
        if name not in SERVICE_VARIABLES and not name.startswith(SERVER_PREFIXES)
    }
