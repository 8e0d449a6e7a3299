"""`TraceJob` to the flat record of text that `job_fields` reads: only what differs from a default.

A job that the flat form cannot say is refused; no job is written as another one.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import NORMAL_PRIORITY, Array, Job, Pool, over_nodes
from gpu_scheduler.model.request import Request, Topology
from gpu_scheduler.simulator.traces.job_fields import read_request
from gpu_scheduler.simulator.traces.values import as_decimal
from gpu_scheduler.simulator.workload import TraceJob


class JobWriter:
    """Turns jobs into flat records. Equal members are described once."""

    def __init__(self, *, lists_members: bool) -> None:
        """`lists_members`: whether the file can hold a record for each member of a gang."""
        self._lists_members = lists_members
        self._known: dict[tuple[Request, ...], tuple[dict[str, str], list[dict[str, str]]]] = {}

    def record(self, trace_job: TraceJob) -> tuple[dict[str, str], list[dict[str, str]]]:
        """The record of a job, and one for each member if the members differ."""
        job = trace_job.job
        _refuse_what_has_no_column(job)
        known = self._known.get(job.members)
        if known is None:
            known = self._known[job.members] = self._members(job)
        request, members = known
        record = {
            "id": job.id,
            "submit_s": as_decimal(job.submit_ms),
            "run_s": as_decimal(trace_job.run_ms),
            **request,
            **_options(job),
        }
        if job.is_gang and job.min_members != len(job.members):
            record["min_members"] = str(job.min_members)
        return record, members

    def _members(self, job: Job) -> tuple[dict[str, str], list[dict[str, str]]]:
        first = job.members[0]
        if all(member == first for member in job.members):
            record = _request_record(first)
            if len(job.members) > 1:
                record["members"] = str(len(job.members))
            return record, []
        if self._lists_members:
            return {}, [_request_record(member) for member in job.members]
        return _split_record(job), []


def _refuse_what_has_no_column(job: Job) -> None:
    for name in ("hold", "command"):
        if getattr(job, name):
            raise InvalidRequest(
                f"job {job.id} has {name} set, which a trace cannot hold; leave it away"
            )
    if any(";" in dependency.job_id for dependency in job.dependencies):
        raise InvalidRequest(f"job {job.id} depends on an id with ';' in it; use another id")


def _request_record(request: Request) -> dict[str, str]:
    """One member. Read again, because only an equal request is a faithful record."""
    record = {
        "gpus": as_decimal(_gpus_milli(request)),
        **_written(
            {
                "gpu_models": "|".join(request.gpu_models),
                "mig_profile": request.mig_profile,
                "device_ids": ";".join(map(str, request.device_ids)),
                "cpu_cores": as_decimal(request.cpu_milli) if request.cpu_milli else "",
                "memory_mb": _number(request.memory_mb),
                "node_labels": ";".join(f"{key}={value}" for key, value in request.node_labels),
                "topology": ""
                if request.topology is Topology.PREFER_ISLAND
                else str(request.topology),
                "contiguous": _flag(request.contiguous),
                "min_bandwidth_gbps": _number(request.min_bandwidth_gbps),
            }
        ),
    }
    for column, amount in _memory_candidates(request):
        candidate = {**record, column: str(amount)} if amount else record
        if read_request(candidate) == request:
            return candidate
    raise InvalidRequest(f"a trace cannot hold the request {request}; ask for it in another form")


def _memory_candidates(request: Request) -> Iterator[tuple[str, int]]:
    """Ways to write the GPU memory. Each device may have been rounded up by less than 1 MiB."""
    yield "gpu_memory_mb_per_gpu", request.gpu_memory_mb
    for rounded_up in range(request.device_count + 1):
        yield "gpu_memory_mb", max(0, request.gpu_memory_total_mb - rounded_up)


def _split_record(job: Job) -> dict[str, str]:
    """Members of different size as one large request, if that gives them back."""
    first = job.members[0]
    whole = Request(
        gpu_count=sum(member.gpu_count for member in job.members),
        gpu_memory_mb=first.gpu_memory_mb,
        gpu_models=first.gpu_models,
        cpu_milli=sum(member.cpu_milli for member in job.members),
        memory_mb=sum(member.memory_mb for member in job.members),
        node_labels=first.node_labels,
        topology=first.topology,
        min_bandwidth_gbps=first.min_bandwidth_gbps,
    )
    if over_nodes(whole, first.gpu_count) != job.members or job.min_members != len(job.members):
        raise InvalidRequest(
            f"job {job.id} is a gang of different members, which CSV cannot hold; write JSON"
        )
    return _request_record(whole)


def _options(job: Job) -> Mapping[str, str]:
    return _written(
        {
            "tenant": "" if job.tenant == "default" else job.tenant,
            "user": job.user,
            "name": job.name,
            "priority": "" if job.priority == NORMAL_PRIORITY else str(job.priority),
            "pool": "" if job.pool is Pool.BATCH else str(job.pool),
            "preemptible": "" if job.preemptible else "false",
            "interactive": _flag(job.interactive),
            "limit_s": _seconds(job.max_runtime_ms),
            "estimate_s": _seconds(job.estimate_ms),
            "deadline_s": _seconds(job.deadline_ms),
            "begin_s": _seconds(job.begin_ms),
            "after": ";".join(f"{other.kind}:{other.job_id}" for other in job.dependencies),
            "array": _array_text(job.array),
            "retries": _number(job.retries),
            "same_rack": _flag(job.same_rack),
            "requeue_on_node_loss": _flag(job.requeue_on_node_loss),
        }
    )


def _gpus_milli(request: Request) -> int:
    if request.mig_profile:
        return request.gpu_count * 1000
    return request.gpu_count * request.gpu_share_milli + request.gpu_extra_milli


def _array_text(array: Array | None) -> str:
    if array is None:
        return ""
    return f"{array.tasks}%{array.max_running}" if array.max_running else str(array.tasks)


def _written(record: dict[str, str]) -> dict[str, str]:
    return {column: text for column, text in record.items() if text}


def _number(amount: int) -> str:
    return str(amount) if amount else ""


def _seconds(milliseconds: int) -> str:
    return as_decimal(milliseconds) if milliseconds else ""


def _flag(value: bool) -> str:
    return "true" if value else ""
