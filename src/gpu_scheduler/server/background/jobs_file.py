"""Watches a jobs.txt: every new line becomes a job, once, however often the file is read.

A line that was submitted is remembered in the same commit as its job. Jobs run as the owner of the
file; a file that others may write to is not read, and neither is a link: whose it is, is asked of
the very file that is read. Jobs of the server's own user have the environment that it was started
in, as if they were submitted there; those of others have that of a login.
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
from gpu_scheduler.client.environment import exported
from gpu_scheduler.client.jobs_file import llm_config, read_line
from gpu_scheduler.client.llm_sizing import gpu_kinds
from gpu_scheduler.control.effects import Outcome
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import Submit
from gpu_scheduler.model.errors import Forbidden, InvalidInput, SchedulerError
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.launch import Runner
from gpu_scheduler.settings.groups.operations import FileSettings
from gpu_scheduler.store.rows import AnswerRow, EnvironmentRow, Write
from gpu_scheduler.wire.job_reader import JobReader
from gpu_scheduler.wire.jobs import JobRequest

FOR_EVER_MS = 1 << 52
"""Answers are dropped by age; a line of a file must never be submitted again."""
OTHERS_MAY_WRITE = 0o022
OF_A_SERVER = ("GPU_SCHEDULER_", "LISTEN_", "SYSTEMD_", "WATCHDOG_", "MEMORY_PRESSURE_")
"""Variables that are meant for a server, and can hold its secrets."""
OF_A_SERVICE = frozenset(
    ("NOTIFY_SOCKET", "INVOCATION_ID", "JOURNAL_STREAM", "CREDENTIALS_DIRECTORY", "MAINPID")
)
log = structlog.get_logger("jobs_file")


class JobsFile:
    """One file, looked at now and then."""

    def __init__(
        self,
        loop: Loop,
        settings: FileSettings,
        admins: Sequence[str] = (),
        runner: str = "process",
        environment: Mapping[str, str] | None = None,
    ) -> None:
        """Nothing is read yet. Its jobs run in `runner`; None means the environment of a login."""
        self._loop = loop
        self._runner = Runner(runner)
        self._people = Directory(os.geteuid(), admins, lambda: loop.core.state.tenant_directory)
        self._path = Path(settings.jobs_file).expanduser().absolute()
        self._models = settings.llm_config_file
        self.interval_s = settings.monitor_interval_s
        self._complained: set[str] = set()
        self._last_look = (0, 0)
        self._own = None if environment is None else _carried(environment)

    async def watch(self) -> None:
        """Until cancelled."""
        while True:
            try:
                count = await self.read()
                if count:
                    log.info("submitted", file=str(self._path), jobs=count)
            except (SchedulerError, OSError) as error:
                self._complain(str(error))
            await asyncio.sleep(self.interval_s)

    async def read(self) -> int:
        """Submit the lines that are new; says how many. A bad line costs only itself."""
        found = await self._people.when_known(self._open)
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
                self._complain(f"line {number} is left out: {error}")
        return count

    def _open(self) -> tuple[list[str], Caller] | None:
        """What the file says and whose it is; None while there is none."""
        # Without O_NONBLOCK a pipe of that name would hold up the whole server.
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
                text = self._settled(file.read(), status).decode("utf-8-sig")
            except (OSError, UnicodeDecodeError) as error:
                raise InvalidInput(f"cannot be read: {error}", file=str(self._path)) from error
            return text.splitlines(), caller

    def _settled(self, data: bytes, status: os.stat_result) -> bytes:
        """Leave out a last line without an end while somebody may be writing it.

        Half a command would be another job. One that is the same at the next look is whole.
        """
        look = (status.st_mtime_ns, len(data))
        is_settled = look == self._last_look
        self._last_look = look
        return data if is_settled else data[: data.rfind(b"\n") + 1]

    def _gpus_by_model(self) -> dict[str, Any]:
        return llm_config(self._models) if Path(self._models).is_file() else {}

    def _kinds(self) -> dict[str, tuple[int, int]]:
        """The GPUs that there are, for models that the file does not name."""
        return gpu_kinds(
            {"model": device.model, "memory_mb": device.memory_mb}
            for node in self._loop.store.nodes()
            for device in node.devices
        )

    async def _submit(
        self, text: str, number: int, nth: int, caller: Caller, models: dict[str, Any]
    ) -> int:
        """The same line twice means two jobs, so it counts which one this is."""
        key = hashlib.sha256(f"{self._path}\0{nth}\0{text}".encode()).hexdigest()
        if self._loop.store.answer(caller.user, key) is not None:
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
                AnswerRow(
                    user=caller.user,
                    key=key,
                    request_hash=key,
                    status=201,
                    body=job_id,
                    at_ms=FOR_EVER_MS,
                )
            ]

        environment = None
        if submission.environment is not None:
            environment = EnvironmentRow(submission.launch.captured, submission.environment)
        message = Submit(submission.job, submission.launch, environment)
        await self._loop.apply(message, caller, extra_writes=remember)
        return 1

    def _owner(self, status: os.stat_result) -> Caller:
        if not stat.S_ISREG(status.st_mode):
            raise InvalidInput("is not a file", file=str(self._path))
        if status.st_mode & OTHERS_MAY_WRITE:
            raise InvalidInput(
                "others may write to it, so whoever can would run jobs as its owner; "
                "use 'chmod go-w'",
                file=str(self._path),
            )
        if os.geteuid() not in {0, status.st_uid}:
            raise Forbidden(
                f"{self._path} belongs to uid {status.st_uid}, and a server that is not root runs "
                f"jobs only as itself (uid {os.geteuid()})"
            )
        return self._people.caller(status.st_uid, status.st_gid, str(self._path))

    def _complain(self, problem: str) -> None:
        """Once: the same line is read again and again."""
        if problem not in self._complained:
            self._complained.add(problem)
            log.warning("not read", file=str(self._path), problem=problem)


def _carried(environment: Mapping[str, str]) -> dict[str, str]:
    """What a job takes over from where its server was started; a service has less than a login."""
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
    carried = exported(None, environment)[0]
    return login | {
        name: value
        for name, value in carried.items()
        if name not in OF_A_SERVICE and not name.startswith(OF_A_SERVER)
    }
