"""Conversion between the messages of the gRPC SchedulerService and the JSON of the REST API.

Field names are the same on both sides, so only types are converted: unset fields are left out, and
times are text in JSON and timestamps in messages.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import datetime
from functools import cache
from typing import Any

from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gpu_scheduler.wire import scheduler_pb2 as pb

TIMESTAMP = "google.protobuf.Timestamp"
LIMITS = frozenset(
    {
        *("max_gpus", "max_gpu_memory_mb", "max_cpu_cores", "max_memory_mb"),
        *("max_concurrent_jobs", "max_gpu_hours", "max_pending_jobs", "budget_period"),
        *("user_max_gpus", "user_max_jobs", "user_max_pending_jobs", "user_max_gpu_hours"),
    }
)
"""The limits of a tenant that can be removed."""


def job_form(spec: pb.JobSpec) -> dict[str, Any]:
    """Return the JSON of a job to submit."""
    form = _plain(spec)
    if name := form.pop("priority_name", ""):
        form["priority"] = name
    if members := form.pop("member_specs", None):
        form["members"] = members
    if "captured_environment" in form:
        form["captured_environment"] = form["captured_environment"].get("values", {})
    return form


def quota_form(request: pb.UpdateTenantQuotaRequest) -> dict[str, Any]:
    """Return the JSON of a change of a tenant; None removes a limit.

    Raises ValueError if `unlimited` names anything but a limit.
    """
    form = _plain(request)
    form.pop("tenant_id", None)
    for name in form.pop("unlimited", ()):
        if name not in LIMITS:
            known = ", ".join(sorted(LIMITS))
            raise ValueError(f"unlimited has '{name[:80]}', which is not a limit; use {known}")
        if name in form:
            raise ValueError(f"{name} is given and in unlimited; leave one of them out")
        form[name] = None
    return form


def list_query(request: pb.ListJobsRequest) -> dict[str, str]:
    """Return the query parameters of a list of jobs."""
    query = {name: _word(value) for name, value in _plain(request).items() if name != "states"}
    if request.states:
        query["state"] = ",".join(request.states)
    return query


def job_of(form: Mapping[str, Any]) -> pb.Job:
    """Return the message of a job."""
    return pb.Job(**_filled(form, pb.Job.DESCRIPTOR))


def validated_of(form: Mapping[str, Any]) -> pb.SubmitJobAnswer:
    """Return the message of a dry run."""
    return pb.SubmitJobAnswer(
        status=form["status"],
        message="The job would be accepted; nothing was stored",
        tasks=form["tasks"],
        validated=pb.Validated(**_filled(form, pb.Validated.DESCRIPTOR)),
    )


def tenant_of(form: Mapping[str, Any]) -> pb.Tenant:
    """Return the message of a tenant."""
    return pb.Tenant(**_filled(form, pb.Tenant.DESCRIPTOR))


def status_of(form: Mapping[str, Any]) -> pb.ClusterStatus:
    """Return the message of the cluster's status."""
    return pb.ClusterStatus(**_filled(form, pb.ClusterStatus.DESCRIPTOR))


def event_of(form: Mapping[str, Any]) -> pb.Event:
    """Return the message of an event; its data are strings."""
    filled = _filled(form, pb.Event.DESCRIPTOR)
    filled["data"] = {name: _word(value) for name, value in form["data"].items()}
    return pb.Event(**filled)


def _word(value: Any) -> str:
    if isinstance(value, bool):
        return "true" if value else "false"
    return str(value)


def _plain(message: Message) -> dict[str, Any]:
    """Return the set fields of a message as plain values."""
    return {field.name: _value(field, value) for field, value in message.ListFields()}


def _value(field: FieldDescriptor, value: Any) -> Any:
    if not field.is_repeated:
        return value if field.message_type is None else _plain(value)
    kind = field.message_type
    if kind is None:
        return list(value)
    if kind.GetOptions().map_entry:
        return dict(value)
    return [_plain(one) for one in value]


@cache
def _special(kind: Any) -> dict[str, FieldDescriptor | None]:
    """Return the fields that need conversion: None for timestamps, else the inner message."""
    return {
        field.name: None if field.message_type.full_name == TIMESTAMP else field
        for field in kind.fields
        if field.message_type is not None and not field.message_type.GetOptions().map_entry
    }


def _filled(form: Mapping[str, Any], kind: Any) -> dict[str, Any]:
    """Return the arguments of a message's constructor; unknown fields are left out.

    A standby may forward the response of a newer leader, which has fields that it does not know.
    """
    known = kind.fields_by_name
    filled = {name: value for name, value in form.items() if value is not None and name in known}
    for name, field in _special(kind).items():
        value = filled.get(name)
        if value is None:
            continue
        if field is None:
            filled[name] = datetime.fromisoformat(value)
        elif field.is_repeated:
            filled[name] = [_filled(one, field.message_type) for one in value]
        else:
            filled[name] = _filled(value, field.message_type)
    return filled
