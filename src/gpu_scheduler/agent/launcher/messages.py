"""The JSON forms of the values that agent and launcher exchange.

Values in, dictionaries out, and back. A dictionary that is no such value raises ValueError, so that
a bad line never harms the launcher.
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
# Whatever is wrong with a line is one kind of error to its reader: a bad line.

TYPE_CHECKING = False
if TYPE_CHECKING:  # typing itself would be a tenth of the launcher's memory
    from typing import Any

    Form = dict[str, Any]
else:
    Form = dict

Key = tuple[str, int]

PROTOCOL = 2
"""The launcher's language: 1 has no introduction, 2 says which fields of work it knows."""
FIRST_FIELDS = frozenset(
    {
        *("allocation_id", "member", "job_id", "task", "attempt", "name", "argv", "script"),
        *("workdir", "environment", "uid", "gid", "user", "umask", "runner", "image", "mounts"),
        *("devices", "closed_devices", "cpu_milli", "memory_mb", "cpus", "max_processes"),
        *("limit_ms", "warn_signal", "warn_before_ms", "grace_ms", "log_path", "log_max_bytes"),
        *("log_files", "log_of_user", "scratch_dir", "prolog", "epilog", "hook_timeout_ms"),
        *("terminal", "members_here"),
    }
)
"""What a launcher of protocol 1 knows of work, and refuses to do without."""
NOT_NEEDED = ("start_timeout_ms", "engine_timeout_ms")
"""What a launcher that does not know it does without: it has more patience than was asked for."""
MOST_LINE_BYTES = 32 * 1024 * 1024
_NOTHING = Work(allocation_id="")
_WORK_DEFAULTS = {name: getattr(_NOTHING, name) for name in Work.__slots__}
_DEVICE_FIELDS = tuple(WorkDevice.__slots__)
_TERMINAL_FIELDS = tuple(WorkTerminal.__slots__)
_REPORTS: dict[str, type[Prepared] | type[Began] | type[Over] | type[Saved]] = {
    "prepared": Prepared,
    "began": Began,
    "over": Over,
    "saved": Saved,
}


def line(form: Form) -> bytes:
    """One line of the conversation."""
    return json.dumps(form, separators=(",", ":")).encode() + b"\n"


def parsed(text: bytes) -> Form:
    """The object that a line holds."""
    form = json.loads(text)
    if not isinstance(form, dict):
        raise ValueError(f"expected an object, found {type(form).__name__}")
    return form


def work_form(work: Work) -> Form:
    """Only what differs from the defaults: a form is sent and written for every start."""
    form: Form = {"allocation_id": work.allocation_id, "member": work.member}
    for name, usual in _WORK_DEFAULTS.items():
        value = getattr(work, name)
        if value != usual:
            form[name] = value
    if work.terminal is not None:
        form["terminal"] = terminal_form(work.terminal)
    if work.devices:
        form["devices"] = [
            {name: getattr(device, name) for name in _DEVICE_FIELDS} for device in work.devices
        ]
    return form


def terminal_order(work: Work) -> Form | None:
    """What the shim is told of the terminal, if the work has one."""
    if work.runner != "terminal":
        return None
    return terminal_form(work.terminal or WorkTerminal()) | {"limit_ms": work.limit_ms}


def terminal_form(terminal: WorkTerminal) -> Form:
    """What a shim must know of the terminal that it serves."""
    return {name: getattr(terminal, name) for name in _TERMINAL_FIELDS}


def introduction() -> Form:
    """What a launcher says of itself, so that an agent of another version can talk to it."""
    return {"protocol": PROTOCOL, "version": __version__, "work_fields": list(_WORK_DEFAULTS)}


def understood(form: Form, known: frozenset[str]) -> tuple[Form, list[str]]:
    """The part of a work's form that a launcher knows, and the names that it does not.

    A form holds only what differs from the usual; what is left out of it would be missing.
    """
    unknown = [name for name in form if name not in known and name not in NOT_NEEDED]
    return {name: value for name, value in form.items() if name in known}, unknown


def work_from(form: object, *, lenient: bool = False) -> Work:
    """The work that a form describes. Unknown fields are refused: they would be left out.

    `lenient`: they are passed over, as in the journal of a later launcher, whose jobs run already.
    """
    if not isinstance(form, dict):
        raise ValueError("work must be an object")
    fields = dict(_known(form, Work, lenient))
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
        raise ValueError(f"this is no work: {error}") from None
    _check(work)
    return work


def _known(form: Form, kind: type, lenient: bool) -> Form:
    if not lenient:
        return form
    names: tuple[str, ...] = kind.__slots__  # type: ignore[attr-defined]
    return {name: value for name, value in form.items() if name in names}


def _check(work: Work) -> None:
    for name in ("allocation_id", "workdir", "log_path", "scratch_dir", "runner", "script"):
        if not isinstance(getattr(work, name), str):
            raise ValueError(f"{name} must be text")
    numbers = ("member", "uid", "gid", "umask", "limit_ms", "grace_ms", "warn_before_ms")
    for name in (*numbers, "lease_ms", "leased_ms", "prepare_ms", *NOT_NEEDED):
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


def report_form(report: Report) -> Form:
    """A report, with its kind under `report`."""
    form: Form = {"report": type(report).__name__.lower()}
    form.update((name, getattr(report, name)) for name in type(report).__slots__)
    return form


def report_from(form: Form) -> Report:
    """The report that a form holds. What a later launcher says beside it is passed over."""
    kind = form.get("report")
    if kind not in _REPORTS:
        raise ValueError(f"no report is called {kind!r}")
    try:
        return _REPORTS[kind](**_known(form, _REPORTS[kind], lenient=True))
    except TypeError as error:
        raise ValueError(f"this is no report: {error}") from None


def over_from(form: Form | None) -> Over | None:
    """The end in a form that may be missing."""
    if form is None:
        return None
    report = report_from(form)
    return report if isinstance(report, Over) else None
