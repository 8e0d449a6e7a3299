"""From a request about a job to the model's words: what it asks for, and how it is run.

Who the caller is comes from the server; nothing in a request can change it. Times, durations,
fractions and the several ways to write a gang, an array or a dependency end here.
"""

from __future__ import annotations

import hashlib
import signal
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

import msgspec
from msgspec import UNSET, UnsetType

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.identity import Caller
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Dependency, DependencyKind, Job, parse_priority
from gpu_scheduler.model.launch import PLAIN_TERMINAL, CodeSnapshot, Launch, Mount, Runner, Terminal
from gpu_scheduler.model.node import canonical_model_name, node_name_labels, short_model_name
from gpu_scheduler.model.notification import read_rules
from gpu_scheduler.model.request import ONE_CORE_MILLI, WHOLE_MILLI, Request, Topology
from gpu_scheduler.wire.jobs import (
    MAX_SECONDS,
    MOST_ARGUMENT,
    MOST_ARGUMENTS,
    MOST_NAME,
    ArrayRequest,
    DependencyRequest,
    JobPatch,
    JobRequest,
    MemberRequest,
    SnapshotRequest,
    TaskRequest,
    TerminalRequest,
    check_ranges,
    check_task_count,
    read_job_name,
    read_tasks,
)
from gpu_scheduler.wire.times import read_time

DEFAULT_UMASK = 0o022
DEFAULT_WARNING_SECONDS = 60
SHELL = ("/bin/sh", "-c")
MOST_ENVIRONMENT_BYTES = 1 << 19
MOST_ALIKE_BYTES = 1 << 20
LEAST_ALIKE_BYTES = 4_096
"""So much is remembered of jobs that were alike, and so much is counted for each at least."""
_PLAIN_MEMBER = MemberRequest()
_JOB = msgspec.json.Decoder(JobRequest)
_ENCODE_JSON = msgspec.json.Encoder().encode
_DEPENDENCY_KINDS = tuple(kind.value for kind in DependencyKind)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job that was read. `environment` is what was captured, named by `launch.captured`."""

    job: Job
    launch: Launch
    environment: tuple[tuple[str, str], ...] | None = None


class JobReader:
    """Reads the jobs of one caller. Jobs that differ only in name and command are read once."""

    def __init__(
        self,
        caller: Caller,
        tenant_of: Callable[[str], str],
        runner: Runner = Runner.PROCESS,
    ) -> None:
        """`tenant_of` turns the id or name of a tenant into its id, or refuses.

        `runner` is for jobs that do not name one.
        """
        if caller.uid is None or caller.gid is None:
            raise InvalidRequest(
                "the caller has no account on this machine, so no job can run for it"
            )
        self._caller = caller
        self._tenant_of = tenant_of
        self._runner = runner
        self._alike: dict[bytes, Submission] = {}
        self._alike_bytes = 0
        self._last: tuple[JobRequest, Submission] | None = None
        self._environment: tuple[dict[str, str], str, tuple[tuple[str, str], ...]] | None = None
        self._encode = msgspec.msgpack.Encoder().encode

    def read(self, asked: JobRequest) -> Submission:
        """One job."""
        argv = (*asked.command, *asked.args)
        _check_name(asked.name)
        return self._read(asked, argv)

    def read_alike(self, asked: JobRequest) -> tuple[Submission, str, tuple[str, ...]]:
        """One of many jobs that may have nearly everything in common. Uses the request up.

        Its name and its command stand beside what is the same object for all that are alike, and
        has a name and a command that mean nothing.
        """
        name, argv = asked.name, (*asked.command, *asked.args)
        asked.name = ""
        asked.command, asked.args = ["x"] if argv else [], []
        if self._last is not None and asked == self._last[0]:
            common = self._last[1]
        else:
            common = self._common(self._encode(asked), lambda: asked)
            self._last = (asked, common)
        _check_own(name, "".join(argv))
        return common, name, argv

    def read_object(self, fields: dict[str, Any]) -> tuple[Submission, str, tuple[str, ...]]:
        """The same for an object as JSON has it: all but its name and command is read only if new.

        A ValidationError means that this way of reading cannot tell what is wrong, or if anything
        is: read it as a `JobRequest`.
        """
        name = fields.pop("name", "")
        command, args = fields.pop("command", []), fields.pop("args", [])
        if not (type(name) is str and type(command) is list and type(args) is list):
            raise msgspec.ValidationError
        argv = (*command, *args)
        if argv:
            fields["command"] = ["x"]
        try:
            written = "".join(argv)
            # In JSON true is not 1, and 1 is not 1.0, though Python finds them equal.
            key = _ENCODE_JSON(fields)
        except (TypeError, OverflowError) as problem:
            raise msgspec.ValidationError from problem
        if len(name) > MOST_NAME or len(argv) > MOST_ARGUMENTS or len(written) > MOST_ARGUMENT:
            raise msgspec.ValidationError
        common = self._alike.get(key) or self._common(key, lambda: _JOB.decode(key))
        if "\0" in written or not name.isprintable() or name.isspace():
            _check_own(name, written)
        return common, name, argv

    def _common(self, key: bytes, asked: Callable[[], JobRequest]) -> Submission:
        known = self._alike.get(key)
        if known is None:
            if self._alike_bytes > MOST_ALIKE_BYTES:
                self.forget()
            new = asked()
            known = self._alike[key] = self._read(new, tuple(new.command))
            self._alike_bytes += len(key) + LEAST_ALIKE_BYTES
        return known

    def forget(self) -> None:
        """Read all that comes anew."""
        self._last = None
        self._alike.clear()
        self._alike_bytes = 0

    def read_task(self, asked: TaskRequest) -> Submission:
        """The short form, whose command is one line for a shell."""
        return self.read(
            JobRequest(
                name=asked.name,
                priority=asked.priority,
                command=[*SHELL, asked.command],
                gpu_count=asked.gpu_count,
                gpu_model=asked.gpu_model,
                environment=asked.env,
            )
        )

    def _read(self, asked: JobRequest, argv: tuple[str, ...]) -> Submission:
        captured, environment = "", None
        if asked.captured_environment is not None:
            captured, environment = self._captured(asked.captured_environment)
        return Submission(self._job(asked, argv), self._launch(asked, argv, captured), environment)

    def _job(self, asked: JobRequest, argv: tuple[str, ...]) -> Job:
        return Job(
            id="",
            number=0,
            submit_ms=0,
            tenant=self._tenant_of(asked.tenant_id),
            user=self._caller.user,
            name=asked.name,
            command=argv,
            members=_members(asked),
            min_members=asked.min_members,
            priority=_priority(asked.priority),
            pool=asked.pool,
            interactive=asked.interactive,
            preemptible=asked.preemptible,
            max_runtime_ms=_max_runtime_ms(asked.max_runtime_minutes, asked.max_runtime_seconds),
            estimate_ms=round(asked.estimate_seconds * 1000),
            deadline_ms=_moment(asked.deadline, "deadline"),
            begin_ms=_moment(asked.begin_at, "begin_at"),
            dependencies=_dependencies(asked.dependencies),
            array=_array(asked.array),
            hold=asked.hold,
            retries=asked.retries,
            retry_exit_codes=tuple(sorted(set(asked.retry_exit_codes))),
            requeue_on_node_loss=asked.requeue_on_node_loss,
            same_rack=asked.same_rack,
            allow_idle=asked.allow_idle,
            notify=read_rules(asked.notify),
        )

    def _launch(self, asked: JobRequest, argv: tuple[str, ...], captured: str) -> Launch:
        caller = self._caller
        runner = asked.runner or (Runner.CONTAINER if asked.image else self._runner)
        if asked.mounts and runner is not Runner.CONTAINER:
            raise InvalidRequest("mounts are for containers; give an image too")
        warn_signal, warn_before_ms = _warning(asked.signal)
        return Launch(
            argv=argv,
            script=asked.script,
            workdir=_workdir(asked.working_directory),
            environment=_variables(asked.environment, "environment"),
            captured=captured,
            uid=caller.uid or 0,
            gid=caller.gid or 0,
            user=caller.user,
            umask=DEFAULT_UMASK if asked.umask is None else asked.umask,
            runner=runner,
            image=asked.image,
            mounts=tuple(map(_mount, asked.mounts)),
            conda=asked.conda,
            output=asked.output,
            warn_signal=warn_signal,
            warn_before_ms=warn_before_ms,
            grace_ms=None if asked.grace_seconds is None else round(asked.grace_seconds * 1000),
            max_processes=asked.max_processes,
            limits_cpu=not any(map(_counts_as_one_core, _parts(asked))),
            sweep=_label(asked.sweep, "sweep"),
            params=_params(asked.params),
            snapshot=_snapshot(asked.snapshot),
            terminal=_terminal(asked.terminal),
        )

    def _captured(self, given: dict[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
        """The name of an environment and its variables; those of one request are mostly equal."""
        if self._environment is None or given != self._environment[0]:
            variables = _variables(given, "captured_environment")
            self._environment = (given, self._environment_name(variables), variables)
        return self._environment[1:]

    def _environment_name(self, variables: tuple[tuple[str, str], ...]) -> str:
        """Equal environments of one user have one name; those of two users never."""
        text = self._encode((self._caller.uid, variables))
        return "env-" + hashlib.sha256(text).hexdigest()[:32]


def read_patch(asked: JobPatch, job: Job) -> tuple[tuple[str, Any], ...]:
    """Which fields of the job get which values."""
    given = {
        name: value
        for name in asked.__struct_fields__
        if (value := getattr(asked, name)) is not msgspec.UNSET
    }
    changes: dict[str, Any] = {
        name: given[name] for name in ("name", "retries", "preemptible", "hold") if name in given
    }
    _check_name(changes.get("name", ""))
    if "priority" in given:
        changes["priority"] = _priority(given["priority"])
    if "max_runtime_minutes" in given or "max_runtime_seconds" in given:
        changes["max_runtime_ms"] = _max_runtime_ms(
            asked.max_runtime_minutes, asked.max_runtime_seconds
        )
    if "estimate_seconds" in given:
        changes["estimate_ms"] = round(given["estimate_seconds"] * 1000)
    for name, target in (("deadline", "deadline_ms"), ("begin_at", "begin_ms")):
        if name in given:
            changes[target] = _moment(given[name], name)
    if "dependencies" in given:
        changes["dependencies"] = _dependencies(given["dependencies"])
    if "notify" in given:
        changes["notify"] = read_rules(given["notify"])
    if given.keys() & _OF_MEMBERS:
        changes["members"] = (_changed_member(given, job),)
        changes["min_members"] = 1
    return tuple(sorted(changes.items()))


_OF_MEMBERS = frozenset(JobPatch.__struct_fields__) & frozenset(MemberRequest.__struct_fields__)


def _changed_member(given: dict[str, Any], job: Job) -> Request:
    """What a plain job asks for, with some of it changed."""
    if job.is_gang:
        raise InvalidRequest("what the members of a gang ask for cannot be changed; submit it anew")
    old = job.members[0]
    return _request(
        MemberRequest(
            gpu_count=given.get("gpu_count", old.gpu_milli / WHOLE_MILLI),
            gpu_memory_mb=given.get(
                "gpu_memory_mb",
                0 if "gpu_memory_mb_per_gpu" in given else old.gpu_memory_total_mb,
            ),
            gpu_memory_mb_per_gpu=given.get("gpu_memory_mb_per_gpu", 0),
            gpu_models=given.get("gpu_models", list(old.gpu_models)),
            exclusive=given.get("exclusive", False),
            mig_profile=old.mig_profile,
            cpu_cores=given.get("cpu_cores", old.cpu_milli / 1000),
            memory_mb=given.get("memory_mb", old.memory_mb),
            allowed_gpus=list(old.device_ids),
            node_labels=dict(old.node_labels),
            topology=old.topology,
            contiguous=old.contiguous,
            min_bandwidth_gbps=old.min_bandwidth_gbps,
        )
    )


# --- what a job asks for


def _members(asked: JobRequest) -> tuple[Request, ...]:
    if isinstance(asked.members, int):
        return (_request(asked),) * asked.members
    for name in MemberRequest.__struct_fields__:
        if getattr(asked, name) != getattr(_PLAIN_MEMBER, name):
            raise InvalidRequest(
                f"{name} was given for the job and members as a list; "
                "write it into each member, or give members as a number"
            )
    return tuple(map(_request, asked.members))


def _request(asked: MemberRequest) -> Request:
    models = (*asked.gpu_models, asked.gpu_model) if asked.gpu_model else tuple(asked.gpu_models)
    allowed = asked.allowed_gpus
    gpus_milli = _milli(asked.gpu_count, "gpu_count")
    if asked.mig_profile and not gpus_milli:
        gpus_milli = WHOLE_MILLI
    if not (gpus_milli or asked.gpu_memory_mb or asked.gpu_memory_mb_per_gpu):
        _check_no_gpus(asked)
    return Request.for_gpus(
        gpus_milli,
        gpu_memory_mb=asked.gpu_memory_mb,
        gpu_memory_mb_per_gpu=asked.gpu_memory_mb_per_gpu,
        exclusive=asked.exclusive,
        gpu_models=tuple(canonical_model_name(short_model_name(model)) for model in models),
        mig_profile=asked.mig_profile,
        cpu_milli=_cpu_milli(asked),
        memory_mb=asked.memory_mb,
        device_ids=_devices(allowed) if isinstance(allowed, str) else tuple(allowed),
        node_labels=(
            *asked.node_labels.items(),
            *node_name_labels(asked.nodes, asked.exclude_nodes),
        ),
        topology=asked.topology,
        contiguous=asked.contiguous,
        min_bandwidth_gbps=asked.min_bandwidth_gbps,
    )


def _check_no_gpus(asked: MemberRequest) -> None:
    """Refuse what says which GPUs, if there are to be none: that was surely not meant."""
    for name in ("gpu_model", "gpu_models", "allowed_gpus", "contiguous", "min_bandwidth_gbps"):
        if getattr(asked, name):
            raise InvalidRequest(
                f"{name} says which GPUs, and no gpu_count says how many; give gpu_count, as in 1"
            )
    if asked.topology is Topology.REQUIRE_ISLAND:
        raise InvalidRequest(
            "topology says how GPUs are connected, and no gpu_count says how many; give gpu_count, "
            "as in 2"
        )


def _cpu_milli(asked: MemberRequest) -> int:
    if _counts_as_one_core(asked):
        return ONE_CORE_MILLI
    return _milli(asked.cpu_cores or 0, "cpu_cores")


def _counts_as_one_core(asked: MemberRequest) -> bool:
    """Who asks for nothing at all must not come by the thousand: it counts as one core.

    It may use more, as somebody who wants a limit says so.
    """
    has_gpu = asked.gpu_count or asked.gpu_memory_mb or asked.gpu_memory_mb_per_gpu
    return asked.cpu_cores is None and not (has_gpu or asked.mig_profile)


def _parts(asked: JobRequest) -> list[MemberRequest]:
    """Of a job whose members differ, each of them; else the job itself."""
    return [asked] if isinstance(asked.members, int) else asked.members


def _milli(amount: float, name: str) -> int:
    milli = round(amount * 1000)
    if abs(milli - amount * 1000) > 1e-6 * max(1, milli):
        raise InvalidRequest(f"{name} is {amount:g}; the finest step is 0.001")
    return milli


def _devices(text: str) -> tuple[int, ...]:
    """Read `0-3` or `0,2`."""
    if not text.strip():
        return ()
    try:
        return tuple(read_tasks(text))
    except InvalidRequest as error:
        raise InvalidRequest(f"allowed_gpus is no list of GPUs: {error}") from None


def _priority(value: int | str) -> int:
    return value if isinstance(value, int) else parse_priority(value)


def _max_runtime_ms(minutes: float | UnsetType, seconds: float | UnsetType) -> int:
    """The limit; 0 if none was given, which means the default."""
    if minutes is not UNSET and seconds is not UNSET:
        raise InvalidRequest("the run time was given in minutes and in seconds; give one of them")
    for name, amount, unit_ms in (
        ("max_runtime_minutes", minutes, 60_000),
        ("max_runtime_seconds", seconds, 1_000),
    ):
        if amount is UNSET:
            continue
        limit_ms = round(amount * unit_ms)
        if not limit_ms:
            raise InvalidRequest(
                f"{name} is {amount:g}, and no job can run for no time; leave it out for the "
                f"default (scheduler.job_timeout_s), or give up to {MAX_SECONDS * 1000 // unit_ms}"
            )
        return limit_ms
    return 0


def _moment(value: str | float | None, name: str) -> int:
    return 0 if value is None else read_time(value, name)


def _dependencies(asked: list[str | DependencyRequest]) -> tuple[Dependency, ...]:
    return tuple(dict.fromkeys(map(_dependency, asked)))


def _dependency(asked: str | DependencyRequest) -> Dependency:
    if isinstance(asked, str):
        kind, colon, job = asked.partition(":")
        if not colon:
            kind, job = DependencyKind.AFTER_OK.value, asked
        if kind not in _DEPENDENCY_KINDS:
            kinds = ", ".join(_DEPENDENCY_KINDS)
            raise InvalidRequest(f"dependency '{asked}': '{kind}' is not one of {kinds}")
        return Dependency(DependencyKind(kind), _whole_job(job))
    return Dependency(asked.type, _whole_job(str(asked.job_id)))


def _whole_job(text: str) -> str:
    job_id, task = read_job_name(text)
    if task is not None:
        raise InvalidRequest(
            f"dependency on '{text}': a single task cannot be waited for; name its array"
        )
    return job_id


def _array(asked: str | ArrayRequest | None) -> Array | None:
    if asked is None:
        return None
    if isinstance(asked, str):
        text, percent, most = asked.partition("%")
        if percent and not (most.isascii() and most.isdigit() and len(most) < 10):
            raise InvalidRequest(f"array '{asked[:80]}': behind % stands a number, as in 0-99%10")
        if percent and not int(most):
            raise InvalidRequest(
                f"array '{asked[:80]}': behind % stands how many tasks may run at once, from 1; "
                "leave it out for all of them"
            )
        asked = ArrayRequest(tasks=text, max_running=int(most or 0))
    check_ranges(asked.tasks)
    tasks = IntervalSet.parse(asked.tasks)
    check_task_count(tasks)
    return Array(tasks=tasks, max_running=asked.max_running)


# --- how it is run


def _check_own(name: str, written: str) -> None:
    """What each of many jobs has for itself: its name, and all of its command."""
    _check_name(name)
    if "\0" in written:
        raise InvalidRequest("a command holds a NUL character; remove it")


def _check_name(name: str) -> None:
    if name and not name.isprintable():
        raise InvalidRequest("the name holds a control character; remove it")
    if name and not name.strip():
        raise InvalidRequest("the name is nothing but spaces; write a word, or leave it out")


def _workdir(path: str) -> str:
    if path and not path.startswith("/"):
        raise InvalidRequest(f"working_directory is '{path}'; write the whole path, from / on")
    return path


def _variables(given: dict[str, str], name: str) -> tuple[tuple[str, str], ...]:
    size = 0
    for variable, value in given.items():
        size += len(variable) + len(value) + 2
        if not variable or "=" in variable or "\0" in variable or "\0" in value:
            raise InvalidRequest(
                f"{name} has a variable that no process could be given: '{variable[:80]}'"
            )
    if size > MOST_ENVIRONMENT_BYTES:
        raise InvalidRequest(
            f"{name} has {size} characters; at most {MOST_ENVIRONMENT_BYTES} can be given"
        )
    return tuple(sorted(given.items()))


def _label(text: str, name: str) -> str:
    if text and not text.isprintable():
        raise InvalidRequest(f"{name} holds a control character; remove it")
    return text


def _params(given: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """In the order in which they came: it is that of the grid."""
    return tuple((_label(name, "params"), value) for name, value in given.items())


def _snapshot(asked: SnapshotRequest | None) -> CodeSnapshot | None:
    if asked is None:
        return None
    for path in (asked.path, asked.source):
        if not path.startswith("/"):
            raise InvalidRequest(f"snapshot has the path '{path}'; write whole paths, from / on")
    return CodeSnapshot(
        path=_label(asked.path, "snapshot"),
        source=_label(asked.source, "snapshot"),
        tree=_label(asked.tree, "snapshot"),
        commit=_label(asked.commit, "snapshot"),
        dirty=asked.dirty,
    )


def _terminal(asked: TerminalRequest | None) -> Terminal:
    if asked is None:
        return PLAIN_TERMINAL
    return Terminal(
        rows=asked.rows,
        columns=asked.columns,
        idle_ms=round(asked.idle_seconds * 1000),
        attach_within_ms=round(asked.attach_within_seconds * 1000),
        keep=asked.on_disconnect == "keep",
    )


def _mount(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source.startswith("/") or not target.startswith("/") or mode not in {"", "ro", "rw"}:
        raise InvalidRequest(
            f"mount '{text}': write /path/outside:/path/inside, with :ro behind it to only read"
        )
    if "\0" in text:
        raise InvalidRequest("a mount holds a NUL character; remove it")
    return Mount(source, target, mode == "ro")


def _warning(text: str) -> tuple[str, int]:
    """Read `USR1@120`: which signal, and how long before the end."""
    if not text:
        return "", 0
    name, at, seconds = text.partition("@")
    name = name.upper().removeprefix("SIG")
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) < 9
    if f"SIG{name}" not in signal.Signals.__members__ or (at and not is_number):
        raise InvalidRequest(
            f"signal '{text}': write a name and seconds before the end, as in USR1@120"
        )
    return name, int(seconds if at else DEFAULT_WARNING_SECONDS) * 1000
