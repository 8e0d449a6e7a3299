"""SchedulerService: each gRPC call becomes a request to the REST app in the same process.

So authentication, permissions, rate limits, idempotency, audit and error messages exist once, for
both. The responses are translated back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from datetime import datetime
from functools import cache
from typing import Any, TypeVar
from urllib.parse import quote, urlencode

import grpc
import msgspec
from google.protobuf.descriptor import FieldDescriptor
from google.protobuf.message import Message

from gpu_scheduler.api.grpc.errors import Context, abort_with, peer_of_call
from gpu_scheduler.api.http.errors import ErrorForm, internal_error_form
from gpu_scheduler.api.http.openapi import V1
from gpu_scheduler.api.http.request import AsgiApp
from gpu_scheduler.wire import scheduler_pb2 as pb
from gpu_scheduler.wire.tenants import LIMITS, USER_LIMITS

SERVICE = "gpu_scheduler.v1.SchedulerService"
FORWARDED_METADATA = ("authorization", "idempotency-key")
"""Metadata with the meaning of the headers of the same names."""
REPLAYED = "idempotency-replayed"
WAITING_EVENTS = 256
TOO_SLOW = 1013
TIMESTAMP = "google.protobuf.Timestamp"
REMOVABLE_LIMITS = {name for name, _, _ in (*LIMITS, *USER_LIMITS)} | {"budget_period"}
"""The limits of a tenant that can be removed."""
AnyMessage = TypeVar("AnyMessage", bound=Message)
_ERROR = msgspec.json.Decoder(ErrorForm)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


@dataclass(slots=True)
class Reply:
    """A response of the app: status, headers, body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_good(self) -> bool:
        """Whether it is a success."""
        return 200 <= self.status < 300

    @property
    def error(self) -> ErrorForm:
        """The error of a response that is not a success."""
        try:
            return _ERROR.decode(self.body)
        except msgspec.MsgspecError:
            return internal_error_form("")


class SchedulerService:
    """The gRPC service on top of the REST app."""

    def __init__(self, app: AsgiApp) -> None:
        """`app` is the REST API (ASGI)."""
        self._app = app

    # RPC methods

    async def submit_job(
        self, message: pb.SubmitJobRequest, context: Context
    ) -> pb.SubmitJobAnswer:
        """Submit a job, or validate it."""
        body = _encode(job_form(message.job))
        if message.dry_run:
            reply = await self._post(context, f"{V1}/jobs/validate", body)
            form = _decode(reply.body)
            return pb.SubmitJobAnswer(
                status=form["status"],
                message="The job would be accepted; nothing was stored",
                tasks=form["tasks"],
                validated=message_of(pb.Validated, form),
            )
        reply = await self._post(context, f"{V1}/jobs", body)
        return pb.SubmitJobAnswer(**_decode(reply.body))

    async def submit_jobs(
        self, message: pb.SubmitJobsRequest, context: Context
    ) -> pb.SubmitJobsAnswer:
        """Submit many jobs: all of them, or none."""
        body = _encode([job_form(job) for job in message.jobs])
        reply = await self._post(context, f"{V1}/jobs/bulk", body)
        return pb.SubmitJobsAnswer(**_decode(reply.body))

    async def cancel_job(
        self, message: pb.CancelJobRequest, context: Context
    ) -> pb.CancelJobAnswer:
        """Cancel a job, a task, or some tasks."""
        query = {"tasks": message.tasks} if message.tasks else {}
        path = await _path(context, "jobs", message.job_id)
        reply = await self._request(context, "DELETE", path, query=query)
        return pb.CancelJobAnswer(**_decode(reply.body))

    async def get_job_status(self, message: pb.GetJobStatusRequest, context: Context) -> pb.Job:
        """Return one job, or one task."""
        path = await _path(context, "jobs", message.job_id)
        reply = await self._request(context, "GET", path)
        return message_of(pb.Job, _decode(reply.body))

    async def list_jobs(self, message: pb.ListJobsRequest, context: Context) -> pb.ListJobsAnswer:
        """Return a page of jobs."""
        reply = await self._request(context, "GET", f"{V1}/jobs", query=list_query(message))
        page = _decode(reply.body)
        return pb.ListJobsAnswer(
            jobs=[message_of(pb.Job, job) for job in page["jobs"]],
            total=page["total"],
            next_cursor=page["next_cursor"] or "",
        )

    async def update_tenant_quota(
        self, message: pb.UpdateTenantQuotaRequest, context: Context
    ) -> pb.Tenant:
        """Change the limits of a tenant."""
        path = await _path(context, "tenants", message.tenant_id)
        try:
            body = _encode(quota_form(message))
        except ValueError as error:
            form = ErrorForm(error=f"Invalid request: {error}", code="invalid_request")
            await abort_with(context, 400, form)
            raise
        reply = await self._request(context, "PATCH", path, body=body)
        return message_of(pb.Tenant, _decode(reply.body))

    async def get_metrics(
        self,
        message: pb.GetMetricsRequest,  # noqa: ARG002 - it has no fields
        context: Context,
    ) -> pb.GetMetricsAnswer:
        """Return the metrics in Prometheus format."""
        reply = await self._request(context, "GET", "/metrics")
        return pb.GetMetricsAnswer(text=reply.body.decode())

    async def get_cluster_status(
        self, message: pb.GetClusterStatusRequest, context: Context
    ) -> pb.ClusterStatus:
        """Return the cluster status."""
        query = {"detailed": "true"} if message.detailed else {}
        reply = await self._request(context, "GET", f"{V1}/cluster/status", query=query)
        return message_of(pb.ClusterStatus, _decode(reply.body))

    async def watch_events(
        self, message: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.Event]:
        """Yield events after a sequence number, then new ones."""
        query = {"after": str(message.after)} if message.HasField("after") else {}
        socket = _Socket()
        scope = _scope(context, "websocket", "GET", f"{V1}/events", query)
        serving = asyncio.ensure_future(self._app(scope, socket.receive, socket.send))
        serving.add_done_callback(socket.end)
        try:
            async for text in socket.texts():
                yield event_of(_decode(text))
            if socket.rejection is not None:
                await _abort(context, socket.rejection)
            form = ErrorForm(
                error=socket.reason or "the stream has ended; resume behind the last event",
                code="stream_ended",
            )
            await abort_with(context, 429 if socket.code == TOO_SLOW else 503, form)
        finally:
            socket.leave()
            serving.cancel()
            await asyncio.gather(serving, return_exceptions=True)

    # Requests to the app

    async def _post(self, context: Context, path: str, body: bytes) -> Reply:
        reply = await self._request(context, "POST", path, body=body)
        if REPLAYED in reply.headers:
            context.set_trailing_metadata(((REPLAYED, reply.headers[REPLAYED]),))
        return reply

    async def _request(
        self,
        context: Context,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Reply:
        """Send a request to the app; an error ends the call."""
        scope = _scope(context, "http", method, path, query or {}, body)
        reply = Reply()
        given = False

        async def receive() -> dict[str, Any]:
            nonlocal given
            if given:
                await asyncio.get_running_loop().create_future()  # until the call is cancelled
            given = True
            return {"type": "http.request", "body": body, "more_body": False}

        async def send(message: dict[str, Any]) -> None:
            if message["type"] == "http.response.start":
                reply.status = message["status"]
                reply.headers = _texts(message.get("headers", ()))
            else:
                reply.body += message.get("body", b"")

        await self._app(scope, receive, send)
        if not reply.is_good:
            await _abort(context, reply)
        return reply


class _Socket:
    """The client's end of an in-process WebSocket; the app waits while nothing is read."""

    def __init__(self) -> None:
        self.rejection: Reply | None = None
        self.code = 0
        self.reason = ""
        self._texts: asyncio.Queue[str | None] = asyncio.Queue(WAITING_EVENTS)
        self._gone = asyncio.Event()
        self._is_open = False

    async def receive(self) -> dict[str, Any]:
        if not self._is_open:
            self._is_open = True
            return {"type": "websocket.connect"}
        await self._gone.wait()
        return {"type": "websocket.disconnect", "code": 1000}

    async def send(self, message: dict[str, Any]) -> None:
        match message["type"]:
            case "websocket.send":
                await self._texts.put(message["text"])
            case "websocket.close":
                self.code, self.reason = message.get("code", 1000), message.get("reason", "")
            case "websocket.http.response.start":
                self.rejection = Reply(message["status"], _texts(message.get("headers", ())))
            case "websocket.http.response.body" if self.rejection is not None:
                self.rejection.body += message.get("body", b"")

    def end(self, _: object) -> None:
        """End the stream: the app has finished."""
        self._gone.set()
        with contextlib.suppress(asyncio.QueueFull):
            self._texts.put_nowait(None)

    def leave(self) -> None:
        """Tell the app that the client has disconnected."""
        self._gone.set()

    async def texts(self) -> AsyncIterator[str]:
        while not (self._gone.is_set() and self._texts.empty()):
            text = await self._texts.get()
            if text is None:
                return
            yield text


def _scope(
    context: Context,
    kind: str,
    method: str,
    path: str,
    query: Mapping[str, str],
    body: bytes = b"",
) -> dict[str, Any]:
    headers = [(b"host", b"localhost")]
    for name, value in context.invocation_metadata() or ():
        if name in FORWARDED_METADATA:
            content = value if isinstance(value, bytes) else value.encode("latin-1", "replace")
            headers.append((name.encode(), content))
    if body:
        headers += [
            (b"content-type", b"application/json"),
            (b"content-length", str(len(body)).encode()),
        ]
    return {
        "type": kind,
        "method": method,
        "path": path,
        "raw_path": quote(path).encode(),
        "query_string": urlencode(query).encode(),
        "headers": headers,
        "state": {"peer": peer_of_call(context)},
    }


async def _path(context: Context, things: str, name: str) -> str:
    """Return the path of one object; an impossible name ends the call."""
    if not name or "/" in name or name in {".", ".."}:
        form = ErrorForm(
            error=f"Invalid request: '{name[:80]}' is not a valid name in {things}",
            code="invalid_request",
        )
        await abort_with(context, 400, form)
    return f"{V1}/{things}/{name}"


async def _abort(context: Context, reply: Reply) -> None:
    retry = reply.headers.get("retry-after", "")
    await abort_with(context, reply.status, reply.error, int(retry) if retry.isdigit() else None)


def _texts(headers: Any) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


# Conversion between messages and JSON
#
# Field names are the same on both sides, so only types are converted: unset fields are left out,
# and times are text in JSON and timestamps in messages.


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
        if name not in REMOVABLE_LIMITS:
            known = ", ".join(sorted(REMOVABLE_LIMITS))
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


def message_of(kind: type[AnyMessage], form: Mapping[str, Any]) -> AnyMessage:
    """Return the message of a JSON object."""
    return kind(**_filled(form, kind.DESCRIPTOR))


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
    for name, inner in _special(kind).items():
        value = filled.get(name)
        if value is None:
            continue
        if inner is None:
            filled[name] = datetime.fromisoformat(value)
        elif inner.is_repeated:
            filled[name] = [_filled(one, inner.message_type) for one in value]
        else:
            filled[name] = _filled(value, inner.message_type)
    return filled


def add_scheduler_service(server: grpc.aio.Server, scheduler: SchedulerService) -> None:
    """Add SchedulerService to a gRPC server."""
    described = pb.DESCRIPTOR.services_by_name["SchedulerService"]
    methods: dict[str, Any] = {
        "SubmitJob": scheduler.submit_job,
        "SubmitJobs": scheduler.submit_jobs,
        "CancelJob": scheduler.cancel_job,
        "GetJobStatus": scheduler.get_job_status,
        "ListJobs": scheduler.list_jobs,
        "WatchEvents": scheduler.watch_events,
        "UpdateTenantQuota": scheduler.update_tenant_quota,
        "GetMetrics": scheduler.get_metrics,
        "GetClusterStatus": scheduler.get_cluster_status,
    }
    handlers: dict[str, grpc.RpcMethodHandler[Any, Any]] = {}
    for method in described.methods:
        make: Any = grpc.unary_unary_rpc_method_handler
        if method.server_streaming:
            make = grpc.unary_stream_rpc_method_handler
        handlers[method.name] = make(
            methods[method.name],
            request_deserializer=getattr(pb, method.input_type.name).FromString,
            response_serializer=getattr(pb, method.output_type.name).SerializeToString,
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
