"""The messages between agent and launcher: values to JSON objects, and back.

A JSON object that is not a valid message raises ValueError, so that a bad line never harms the
launcher. The journal uses the same encoding.
"""

from __future__ import annotations

import json

from gpu_scheduler import __version__
from gpu_scheduler.agent.work import (
    Began,
    Over,
    Prepared,
    Report,
    Saved,
    Work,
    WorkDevice,
    WorkTerminal,
)

# ruff: noqa: TRY004
# Every fault of a line is one kind of error to its reader: a bad line.

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would be a tenth of the launcher's memory
    from typing import Any

    Message = dict[str, Any]
else:
    Message = dict

Key = tuple[str, int]

PROTOCOL = 2
"""Version 1 has no introduction; version 2 names the fields of work that it knows."""
PROTOCOL_1_FIELDS = frozenset(
    {
        *("allocation_id", "member", "job_id", "task", "attempt", "name", "argv", "script"),
        *("workdir", "environment", "uid", "gid", "user", "umask", "runner", "image", "mounts"),
        *("devices", "closed_devices", "cpu_milli", "memory_mb", "cpus", "max_processes"),
        *("limit_ms", "warn_signal", "warn_before_ms", "grace_ms", "log_path", "log_max_bytes"),
        *("log_files", "log_of_user", "scratch_dir", "prolog", "epilog", "hook_timeout_ms"),
        *("terminal", "members_here"),
    }
)
"""The fields of work that a launcher of protocol 1 knows; it refuses all others."""
OPTIONAL_FIELDS = ("start_timeout_ms", "engine_timeout_ms")
"""A launcher that does not know these works without them: its own timeouts are longer."""
MAX_LINE_BYTES = 32 * 1024 * 1024
_DEFAULT_WORK = Work(allocation_id="")
_WORK_DEFAULTS = {name: getattr(_DEFAULT_WORK, name) for name in Work.__slots__}
_DEVICE_FIELDS = tuple(WorkDevice.__slots__)
_TERMINAL_FIELDS = tuple(WorkTerminal.__slots__)
_REPORTS: dict[str, type[Prepared] | type[Began] | type[Over] | type[Saved]] = {
    "prepared": Prepared,
    "began": Began,
    "over": Over,
    "saved": Saved,
}


def encode_line(message: Message) -> bytes:
    return json.dumps(message, separators=(",", ":")).encode() + b"\n"


def decode_line(text: bytes) -> Message:
    message = json.loads(text)
    if not isinstance(message, dict):
        raise ValueError(f"expected an object, found {type(message).__name__}")
    return message


def encode_work(work: Work) -> Message:
    """Only what differs from the defaults, as every start sends and writes it."""
    message: Message = {"allocation_id": work.allocation_id, "member": work.member}
    for name, default in _WORK_DEFAULTS.items():
        value = getattr(work, name)
        if value != default:
            message[name] = value
    if work.terminal is not None:
        message["terminal"] = encode_terminal(work.terminal)
    if work.devices:
        message["devices"] = [
            {name: getattr(device, name) for name in _DEVICE_FIELDS} for device in work.devices
        ]
    return message


def terminal_order(work: Work) -> Message | None:
    """The terminal part of the order for the shim; None if the work has no terminal."""
    if work.runner != "terminal":
        return None
    return encode_terminal(work.terminal or WorkTerminal()) | {"limit_ms": work.limit_ms}


def encode_terminal(terminal: WorkTerminal) -> Message:
    return {name: getattr(terminal, name) for name in _TERMINAL_FIELDS}


def introduction() -> Message:
    """How a launcher introduces itself, so that an agent of another version can talk to it."""
    return {"protocol": PROTOCOL, "version": __version__, "work_fields": list(_WORK_DEFAULTS)}


def split_known_fields(work: Message, known: frozenset[str]) -> tuple[Message, list[str]]:
    """The part of an encoded work that a launcher knows, and the names that it does not.

    The work cannot run without the latter: only what differs from the defaults is encoded.
    """
    unknown = [name for name in work if name not in known and name not in OPTIONAL_FIELDS]
    return {name: value for name, value in work.items() if name in known}, unknown


def decode_work(message: object, *, lenient: bool = False) -> Work:
    """Unknown fields are refused, because the job would run without them.

    `lenient` ignores them, as in the journal of a later launcher, whose jobs run already.
    """
    if not isinstance(message, dict):
        raise ValueError("work must be an object")
    fields = dict(_known(message, Work, lenient))
    try:
        for name in ("argv", "closed_devices", "cpus", "prolog", "epilog"):
            if name in fields:
                fields[name] = tuple(fields[name])
        fields["mounts"] = tuple(
            (str(source), str(target), bool(read_only))
            for source, target, read_only in fields.get("mounts", ())
        )
        if fields.get("terminal") is not None:
            fields["terminal"] = WorkTerminal(**_known(fields["terminal"], WorkTerminal, lenient))
        fields["devices"] = tuple(
            WorkDevice(**_known(device, WorkDevice, lenient))
            for device in fields.get("devices", ())
        )
        work = Work(**fields)
    except TypeError as error:
        raise ValueError(f"not a valid work: {error}") from None
    _check(work)
    return work


def _known(message: Message, kind: type, lenient: bool) -> Message:
    if not lenient:
        return message
    names: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]
    return {name: value for name, value in message.items() if name in names}


def _check(work: Work) -> None:
    for name in ("allocation_id", "workdir", "log_path", "scratch_dir", "runner", "script"):
        if not isinstance(getattr(work, name), str):
            raise ValueError(f"{name} must be text")
    numbers = ("member", "uid", "gid", "umask", "limit_ms", "grace_ms", "warn_before_ms")
    for name in (*numbers, "lease_ms", "leased_ms", "prepare_ms", *OPTIONAL_FIELDS):
        if not isinstance(getattr(work, name), int):
            raise ValueError(f"{name} must be a whole number")
    if not work.allocation_id or "/" in work.allocation_id or work.allocation_id[0] == ".":
        raise ValueError(f"allocation_id {work.allocation_id!r} cannot name a file")
    texts = (*work.argv, *work.environment, *work.environment.values())
    if not all(isinstance(text, str) for text in texts):
        raise ValueError("argv and environment must hold texts")
    if any("\0" in text for text in texts):
        raise ValueError("argv and environment must not hold NUL characters")
    if not work.argv and not work.script and not work.image:
        raise ValueError("there is nothing to run: neither argv nor script nor image")


def encode_report(report: Report) -> Message:
    """The kind of the report is in the field `report`."""
    message: Message = {"report": type(report).__name__.lower()}
    message.update((name, getattr(report, name)) for name in type(report).__slots__)
    return message


def decode_report(message: Message) -> Report:
    """Fields of a later launcher that are unknown here are ignored."""
    kind = message.get("report")
    if kind not in _REPORTS:
        raise ValueError(f"no report is called {kind!r}")
    try:
        return _REPORTS[kind](**_known(message, _REPORTS[kind], lenient=True))
    except TypeError as error:
        raise ValueError(f"not a valid report: {error}") from None


def decode_over(message: Message | None) -> Over | None:
    """The end of an attempt that may not have one yet."""
    if message is None:
        return None
    report = decode_report(message)
    return report if isinstance(report, Over) else None
