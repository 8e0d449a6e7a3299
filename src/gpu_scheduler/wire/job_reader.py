"""From a job request to a job and its launch.

A validated request and the caller come in, a `Submission` goes out. The caller comes from the
server; no field of a request can change it. Times, durations, fractions and the alternative forms
of gangs, arrays and dependencies are converted here, and inconsistent requests are rejected.
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
from gpu_scheduler.model.job import Array, Dependency, DependencyKind, Job, parse_priority
from gpu_scheduler.model.launch import PLAIN_TERMINAL, CodeSnapshot, Launch, Mount, Runner, Terminal
from gpu_scheduler.model.node import canonical_model_name, node_name_labels, short_model_name
from gpu_scheduler.model.notification import read_rules
from gpu_scheduler.model.request import ONE_CORE_MILLI, WHOLE_MILLI, Request, Topology
from gpu_scheduler.wire.jobs import (
    MAX_ARGUMENT,
    MAX_ARGUMENTS,
    MAX_NAME,
    MAX_SECONDS,
    ArrayRequest,
    DependencyRequest,
    JobPatch,
    JobRequest,
    MemberRequest,
    SnapshotRequest,
    TaskRequest,
    TerminalRequest,
    read_job_name,
    read_tasks,
)
from gpu_scheduler.wire.times import read_time

DEFAULT_UMASK = 0o022
DEFAULT_WARNING_SECONDS = 60
SHELL = ("/bin/sh", "-c")
MAX_ENVIRONMENT_BYTES = 1 << 19
MAX_CACHE_BYTES = 1 << 20
MIN_ENTRY_BYTES = 4_096
"""The size of the cache of similar jobs, and the least size that is counted for an entry."""
_PLAIN_MEMBER = MemberRequest()
_JOB = msgspec.json.Decoder(JobRequest)
_ENCODE_JSON = msgspec.json.Encoder().encode
_DEPENDENCY_KINDS = tuple(kind.value for kind in DependencyKind)


@dataclass(frozen=True, slots=True)
class Submission:
    """A job to submit. `environment` is the captured one, with the name `launch.captured`."""

    job: Job
    launch: Launch
    environment: tuple[tuple[str, str], ...] | None = None


class JobReader:
    """Converts the requests of one caller; similar requests share the work."""

    def __init__(
        self,
        caller: Caller,
        tenant_of: Callable[[str], str],
        runner: Runner = Runner.PROCESS,
    ) -> None:
        """`tenant_of` returns the id for a tenant's id or name, or raises.

        `runner` is the default for jobs that do not name one.
        """
        if caller.uid is None or caller.gid is None:
            raise InvalidRequest(
                "the caller has no account on this machine, so its jobs cannot run"
            )
        self._caller = caller
        self._tenant_of = tenant_of
        self._runner = runner
        self._cache: dict[bytes, Submission] = {}
        self._cache_bytes = 0
        self._last: tuple[JobRequest, Submission] | None = None
        self._environment: tuple[dict[str, str], str, tuple[tuple[str, str], ...]] | None = None
        self._encode = msgspec.msgpack.Encoder().encode

    def read(self, request: JobRequest) -> Submission:
        """Convert one request."""
        argv = (*request.command, *request.args)
        _check_name(request.name)
        return self._read(request, argv)

    def read_similar(self, request: JobRequest) -> tuple[Submission, str, tuple[str, ...]]:
        """Convert one of many similar requests, which it changes; returns also name and command.

        The returned submission is one object for all similar requests; its own name and command are
        placeholders.
        """
        name, argv = request.name, (*request.command, *request.args)
        request.name = ""
        request.command, request.args = ["x"] if argv else [], []
        if self._last is not None and request == self._last[0]:
            shared = self._last[1]
        else:
            shared = self._cached(self._encode(request), lambda: request)
            self._last = (request, shared)
        _check_name_and_command(name, "".join(argv))
        return shared, name, argv

    def read_json_object(self, fields: dict[str, Any]) -> tuple[Submission, str, tuple[str, ...]]:
        """Like `read_similar` for a JSON object, which is validated only if it is new.

        A ValidationError means that this fast path cannot decide whether the object is valid:
        decode it as a `JobRequest`.
        """
        name = fields.pop("name", "")
        command, args = fields.pop("command", []), fields.pop("args", [])
        if not (type(name) is str and type(command) is list and type(args) is list):
            raise msgspec.ValidationError
        argv = (*command, *args)
        if argv:
            fields["command"] = ["x"]
        try:
            text = "".join(argv)
            # As JSON, because Python regards true, 1 and 1.0 as equal.
            key = _ENCODE_JSON(fields)
        except (TypeError, OverflowError) as problem:
            raise msgspec.ValidationError from problem
        if len(name) > MAX_NAME or len(argv) > MAX_ARGUMENTS or len(text) > MAX_ARGUMENT:
            raise msgspec.ValidationError
        shared = self._cache.get(key) or self._cached(key, lambda: _JOB.decode(key))
        if "\0" in text or not name.isprintable() or name.isspace():
            _check_name_and_command(name, text)
        return shared, name, argv

    def _cached(self, key: bytes, decode: Callable[[], JobRequest]) -> Submission:
        known = self._cache.get(key)
        if known is None:
            if self._cache_bytes > MAX_CACHE_BYTES:
                self.clear_cache()
            new = decode()
            known = self._cache[key] = self._read(new, tuple(new.command))
            self._cache_bytes += len(key) + MIN_ENTRY_BYTES
        return known

    def clear_cache(self) -> None:
        """Drop the cached similar jobs."""
        self._last = None
        self._cache.clear()
        self._cache_bytes = 0

    def read_task(self, request: TaskRequest) -> Submission:
        """Convert the short form, whose command is one line for a shell."""
        return self.read(
            JobRequest(
                name=request.name,
                priority=request.priority,
                command=[*SHELL, request.command],
                gpu_count=request.gpu_count,
                gpu_model=request.gpu_model,
                environment=request.env,
            )
        )

    def _read(self, request: JobRequest, argv: tuple[str, ...]) -> Submission:
        captured, environment = "", None
        if request.captured_environment is not None:
            captured, environment = self._captured(request.captured_environment)
        return Submission(
            self._job(request, argv), self._launch(request, argv, captured), environment
        )

    def _job(self, request: JobRequest, argv: tuple[str, ...]) -> Job:
        return Job(
            id="",
            number=0,
            submit_ms=0,
            tenant=self._tenant_of(request.tenant_id),
            user=self._caller.user,
            name=request.name,
            command=argv,
            members=_members(request),
            min_members=request.min_members,
            priority=_priority(request.priority),
            pool=request.pool,
            interactive=request.interactive,
            preemptible=request.preemptible,
            max_runtime_ms=_max_runtime_ms(
                request.max_runtime_minutes, request.max_runtime_seconds
            ),
            estimate_ms=round(request.estimate_seconds * 1000),
            deadline_ms=_moment(request.deadline, "deadline"),
            begin_ms=_moment(request.begin_at, "begin_at"),
            dependencies=_dependencies(request.dependencies),
            array=_array(request.array),
            hold=request.hold,
            retries=request.retries,
            retry_exit_codes=tuple(sorted(set(request.retry_exit_codes))),
            requeue_on_node_loss=request.requeue_on_node_loss,
            same_rack=request.same_rack,
            allow_idle=request.allow_idle,
            notify=read_rules(request.notify),
        )

    def _launch(self, request: JobRequest, argv: tuple[str, ...], captured: str) -> Launch:
        caller = self._caller
        runner = request.runner or (Runner.CONTAINER if request.image else self._runner)
        if request.mounts and runner is not Runner.CONTAINER:
            raise InvalidRequest("mounts need a container; also give an image")
        warn_signal, warn_before_ms = _warning(request.signal)
        members = [request] if isinstance(request.members, int) else request.members
        return Launch(
            argv=argv,
            script=request.script,
            workdir=_workdir(request.working_directory),
            environment=_variables(request.environment, "environment"),
            captured=captured,
            uid=caller.uid or 0,
            gid=caller.gid or 0,
            user=caller.user,
            umask=DEFAULT_UMASK if request.umask is None else request.umask,
            runner=runner,
            image=request.image,
            mounts=tuple(map(_mount, request.mounts)),
            conda=request.conda,
            output=_path(request.output, "output"),
            warn_signal=warn_signal,
            warn_before_ms=warn_before_ms,
            grace_ms=None if request.grace_seconds is None else round(request.grace_seconds * 1000),
            max_processes=request.max_processes,
            limits_cpu=not any(map(_counts_as_one_core, members)),
            sweep=_label(request.sweep, "sweep"),
            params=_params(request.params),
            snapshot=_snapshot(request.snapshot),
            terminal=_terminal(request.terminal),
        )

    def _captured(self, given: dict[str, str]) -> tuple[str, tuple[tuple[str, str], ...]]:
        """Return the name and the variables of an environment; equal neighbours share the work."""
        if self._environment is None or given != self._environment[0]:
            variables = _variables(given, "captured_environment")
            # Equal environments of one user share a name; those of two users never do.
            text = self._encode((self._caller.uid, variables))
            name = "env-" + hashlib.sha256(text).hexdigest()[:32]
            self._environment = (given, name, variables)
        return self._environment[1:]


def read_patch(request: JobPatch, job: Job) -> tuple[tuple[str, Any], ...]:
    """Return the changed fields of a job and their values."""
    given = {
        name: value
        for name in request.__struct_fields__
        if (value := getattr(request, name)) is not msgspec.UNSET
    }
    changes: dict[str, Any] = {
        name: given[name] for name in ("name", "retries", "preemptible", "hold") if name in given
    }
    _check_name(changes.get("name", ""))
    if "priority" in given:
        changes["priority"] = _priority(given["priority"])
    if "max_runtime_minutes" in given or "max_runtime_seconds" in given:
        changes["max_runtime_ms"] = _max_runtime_ms(
            request.max_runtime_minutes, request.max_runtime_seconds
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
    if given.keys() & _MEMBER_FIELDS:
        changes["members"] = (_changed_member(given, job),)
        changes["min_members"] = 1
    return tuple(sorted(changes.items()))


_MEMBER_FIELDS = frozenset(JobPatch.__struct_fields__) & frozenset(MemberRequest.__struct_fields__)


def _changed_member(given: dict[str, Any], job: Job) -> Request:
    """Return the request of a job with one member, with the given changes."""
    if job.is_gang:
        raise InvalidRequest(
            "the resources of a gang cannot be changed; cancel the job and submit it again"
        )
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


# The resources of a job.


def _members(request: JobRequest) -> tuple[Request, ...]:
    if isinstance(request.members, int):
        return (_request(request),) * request.members
    for name in MemberRequest.__struct_fields__:
        if getattr(request, name) != getattr(_PLAIN_MEMBER, name):
            raise InvalidRequest(
                f"{name} was given for the job although members is a list; "
                "set it in each member, or give members as a number"
            )
    return tuple(map(_request, request.members))


def _request(request: MemberRequest) -> Request:
    models = (
        (*request.gpu_models, request.gpu_model) if request.gpu_model else tuple(request.gpu_models)
    )
    allowed = request.allowed_gpus
    gpus_milli = _milli(request.gpu_count, "gpu_count")
    if request.mig_profile and not gpus_milli:
        gpus_milli = WHOLE_MILLI
    if not (gpus_milli or request.gpu_memory_mb or request.gpu_memory_mb_per_gpu):
        _check_no_gpus(request)
    return Request.for_gpus(
        gpus_milli,
        gpu_memory_mb=request.gpu_memory_mb,
        gpu_memory_mb_per_gpu=request.gpu_memory_mb_per_gpu,
        exclusive=request.exclusive,
        gpu_models=tuple(canonical_model_name(short_model_name(model)) for model in models),
        mig_profile=request.mig_profile,
        cpu_milli=_cpu_milli(request),
        memory_mb=request.memory_mb,
        device_ids=_devices(allowed) if isinstance(allowed, str) else tuple(allowed),
        node_labels=(
            *request.node_labels.items(),
            *node_name_labels(request.nodes, request.exclude_nodes),
        ),
        topology=request.topology,
        contiguous=request.contiguous,
        min_bandwidth_gbps=request.min_bandwidth_gbps,
    )


def _check_no_gpus(request: MemberRequest) -> None:
    """Reject a selection of GPUs without a number of GPUs."""
    for name in ("gpu_model", "gpu_models", "allowed_gpus", "contiguous", "min_bandwidth_gbps"):
        if getattr(request, name):
            raise InvalidRequest(
                f"{name} is given without gpu_count; add the number of GPUs, for example "
                "gpu_count: 1"
            )
    if request.topology is Topology.REQUIRE_ISLAND:
        raise InvalidRequest(
            "topology is given without gpu_count; add the number of GPUs, for example gpu_count: 2"
        )


def _cpu_milli(request: MemberRequest) -> int:
    if _counts_as_one_core(request):
        return ONE_CORE_MILLI
    return _milli(request.cpu_cores or 0, "cpu_cores")


def _counts_as_one_core(request: MemberRequest) -> bool:
    """Tell whether a job without any request counts as one core, so that only some start at once.

    It may use more than one core: only an explicit request is a limit.
    """
    has_gpu = request.gpu_count or request.gpu_memory_mb or request.gpu_memory_mb_per_gpu
    return request.cpu_cores is None and not (has_gpu or request.mig_profile)


def _milli(amount: float, name: str) -> int:
    milli = round(amount * 1000)
    if abs(milli - amount * 1000) > 1e-6 * max(1, milli):
        raise InvalidRequest(f"{name} is {amount:g}; the smallest step is 0.001")
    return milli


def _devices(text: str) -> tuple[int, ...]:
    """Read `0-3` or `0,2`."""
    if not text.strip():
        return ()
    try:
        return tuple(read_tasks(text))
    except InvalidRequest as error:
        raise InvalidRequest(f"allowed_gpus is not a list of GPUs: {error}") from None


def _priority(value: int | str) -> int:
    return value if isinstance(value, int) else parse_priority(value)


def _max_runtime_ms(minutes: float | UnsetType, seconds: float | UnsetType) -> int:
    """Return the time limit; 0 (not given) means the default."""
    if minutes is not UNSET and seconds is not UNSET:
        raise InvalidRequest("give max_runtime_minutes or max_runtime_seconds, not both")
    for name, amount, unit_ms in (
        ("max_runtime_minutes", minutes, 60_000),
        ("max_runtime_seconds", seconds, 1_000),
    ):
        if amount is UNSET:
            continue
        limit_ms = round(amount * unit_ms)
        if not limit_ms:
            raise InvalidRequest(
                f"{name} is {amount:g}, but must be positive; leave it out for the default "
                f"(scheduler.job_timeout_s), or give up to {MAX_SECONDS * 1000 // unit_ms}"
            )
        return limit_ms
    return 0


def _moment(value: str | float | None, name: str) -> int:
    return 0 if value is None else read_time(value, name)


def _dependencies(request: list[str | DependencyRequest]) -> tuple[Dependency, ...]:
    return tuple(dict.fromkeys(map(_dependency, request)))


def _dependency(request: str | DependencyRequest) -> Dependency:
    if isinstance(request, str):
        kind, colon, job = request.partition(":")
        if not colon:
            kind, job = DependencyKind.AFTER_OK.value, request
        if kind not in _DEPENDENCY_KINDS:
            kinds = ", ".join(_DEPENDENCY_KINDS)
            raise InvalidRequest(f"dependency '{request}': '{kind}' is not one of {kinds}")
        return Dependency(DependencyKind(kind), _whole_job(job))
    return Dependency(request.type, _whole_job(str(request.job_id)))


def _whole_job(text: str) -> str:
    job_id, task = read_job_name(text)
    if task is not None:
        raise InvalidRequest(
            f"dependency on '{text}': a job cannot depend on a single task; name its array"
        )
    return job_id


def _array(request: str | ArrayRequest | None) -> Array | None:
    if request is None:
        return None
    if isinstance(request, str):
        text, percent, most = request.partition("%")
        if percent and not (most.isascii() and most.isdigit() and len(most) < 10):
            raise InvalidRequest(f"array '{request[:80]}': write a number after %, as in 0-99%10")
        if percent and not int(most):
            raise InvalidRequest(
                f"array '{request[:80]}': the number of tasks that may run at once (after %) must "
                "be 1 or more; leave it out for no limit"
            )
        request = ArrayRequest(tasks=text, max_running=int(most or 0))
    return Array(tasks=read_tasks(request.tasks), max_running=request.max_running)


# The launch of a job.


def _check_name_and_command(name: str, command: str) -> None:
    _check_name(name)
    if "\0" in command:
        raise InvalidRequest("the command contains a NUL character; remove it")


def _check_name(name: str) -> None:
    if name and not name.isprintable():
        raise InvalidRequest("the name contains a control character; remove it")
    if name and not name.strip():
        raise InvalidRequest("the name contains only spaces; write a name, or leave it out")


def _workdir(path: str) -> str:
    if path and not path.startswith("/"):
        raise InvalidRequest(f"working_directory is '{path}'; write an absolute path")
    return _path(path, "working_directory")


def _path(path: str, name: str) -> str:
    """Reject a path that could forge a line in a file of one path per line, or in a log."""
    if any(character < " " or character == "\x7f" for character in path):
        raise InvalidRequest(f"{name} contains a control character; remove it")
    return path


def _variables(given: dict[str, str], name: str) -> tuple[tuple[str, str], ...]:
    size = 0
    for variable, value in given.items():
        size += len(variable) + len(value) + 2
        if not variable or "=" in variable or "\0" in variable or "\0" in value:
            raise InvalidRequest(
                f"{name} has a variable with an invalid name or value: '{variable[:80]}'"
            )
    if size > MAX_ENVIRONMENT_BYTES:
        raise InvalidRequest(
            f"{name} has {size} characters; at most {MAX_ENVIRONMENT_BYTES} are allowed"
        )
    return tuple(sorted(given.items()))


def _label(text: str, name: str) -> str:
    if text and not text.isprintable():
        raise InvalidRequest(f"{name} contains a control character; remove it")
    return text


def _params(given: dict[str, str]) -> tuple[tuple[str, str], ...]:
    """Return the parameters in their order, which is that of the sweep's grid."""
    return tuple((_label(name, "params"), value) for name, value in given.items())


def _snapshot(request: SnapshotRequest | None) -> CodeSnapshot | None:
    if request is None:
        return None
    for path in (request.path, request.source):
        if not path.startswith("/"):
            raise InvalidRequest(f"snapshot has the path '{path}'; write absolute paths")
    for text in (request.path, request.source, request.tree, request.commit):
        _label(text, "snapshot")
    return CodeSnapshot(**msgspec.structs.asdict(request))


def _terminal(request: TerminalRequest | None) -> Terminal:
    if request is None:
        return PLAIN_TERMINAL
    return Terminal(
        rows=request.rows,
        columns=request.columns,
        idle_ms=round(request.idle_seconds * 1000),
        attach_within_ms=round(request.attach_within_seconds * 1000),
        keep=request.on_disconnect == "keep",
    )


def _mount(text: str) -> Mount:
    source, _, rest = text.partition(":")
    target, _, mode = rest.partition(":")
    if not source.startswith("/") or not target.startswith("/") or mode not in {"", "ro", "rw"}:
        raise InvalidRequest(
            f"mount '{text}': write /host/path:/container/path, with :ro at the end for read-only"
        )
    if "\0" in text:
        raise InvalidRequest("a mount contains a NUL character; remove it")
    return Mount(source, target, mode == "ro")


def _warning(text: str) -> tuple[str, int]:
    """Parse `USR1@120`: the signal, and how many seconds before the end it is sent."""
    if not text:
        return "", 0
    name, at, seconds = text.partition("@")
    name = name.upper().removeprefix("SIG")
    is_number = seconds.isascii() and seconds.isdigit() and len(seconds) < 9
    if f"SIG{name}" not in signal.Signals.__members__ or (at and not is_number):
        raise InvalidRequest(
            f"signal '{text}': write a signal name and the seconds before the end, as in USR1@120"
        )
    return name, int(seconds if at else DEFAULT_WARNING_SECONDS) * 1000
