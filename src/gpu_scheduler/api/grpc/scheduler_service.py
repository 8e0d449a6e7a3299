"""SchedulerService: each call becomes the request that the REST API has for it.

Calls come in, requests of the same application go through the same door: who calls, what that one
may do, how often, what is repeated, what goes into the record and what a refusal says are settled
there, once, for both. Answers are translated back.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from typing import Any
from urllib.parse import quote, urlencode

import grpc
import msgspec

from gpu_scheduler.api.grpc.errors import Context, peer_of_call, refuse_as
from gpu_scheduler.api.http.errors import internal_error_form
from gpu_scheduler.api.http.operations import V1
from gpu_scheduler.wire import scheduler_pb2 as pb
from gpu_scheduler.wire.answers import ErrorForm
from gpu_scheduler.wire.scheduler_forms import (
    event_of,
    job_form,
    job_of,
    list_query,
    quota_form,
    status_of,
    tenant_of,
    validated_of,
)

SERVICE = "gpu_scheduler.v1.SchedulerService"
PASSED_ON = ("authorization", "idempotency-key")
"""Metadata that mean what the headers of the same names mean."""
REPLAYED = "idempotency-replayed"
WAITING_EVENTS = 256
TOO_SLOW = 1013
AsgiApp = Callable[[Any, Any, Any], Awaitable[None]]
_ERROR = msgspec.json.Decoder(ErrorForm)
_encode = msgspec.json.Encoder().encode
_decode = msgspec.json.decode


@dataclass(slots=True)
class Reply:
    """What an application answers: status, headers, body."""

    status: int = 0
    headers: dict[str, str] = field(default_factory=dict)
    body: bytes = b""

    @property
    def is_good(self) -> bool:
        """Tell whether it is a success."""
        return 200 <= self.status < 300

    @property
    def error(self) -> ErrorForm:
        """What a refusal says."""
        try:
            return _ERROR.decode(self.body)
        except msgspec.MsgspecError:
            return internal_error_form("")


class Scheduler:
    """The service, on top of an application that may be exchanged while it serves."""

    def __init__(self, application: AsgiApp) -> None:
        """`application` is the REST API (ASGI)."""
        self._application = application

    # --- calls

    async def submit_job(self, asked: pb.SubmitJobRequest, context: Context) -> pb.SubmitJobAnswer:
        """One job."""
        body = _encode(job_form(asked.job))
        if asked.dry_run:
            reply = await self._post(context, f"{V1}/jobs/validate", body)
            return validated_of(_decode(reply.body))
        reply = await self._post(context, f"{V1}/jobs", body)
        return pb.SubmitJobAnswer(**_decode(reply.body))

    async def submit_jobs(
        self, asked: pb.SubmitJobsRequest, context: Context
    ) -> pb.SubmitJobsAnswer:
        """Many jobs: all of them, or none."""
        body = _encode([job_form(job) for job in asked.jobs])
        reply = await self._post(context, f"{V1}/jobs/bulk", body)
        return pb.SubmitJobsAnswer(**_decode(reply.body))

    async def cancel_job(self, asked: pb.CancelJobRequest, context: Context) -> pb.CancelJobAnswer:
        """End a job, a task, or some tasks."""
        query = {"tasks": asked.tasks} if asked.tasks else {}
        path = await _path(context, "jobs", asked.job_id)
        reply = await self._ask(context, "DELETE", path, query=query)
        return pb.CancelJobAnswer(**_decode(reply.body))

    async def get_job_status(self, asked: pb.GetJobStatusRequest, context: Context) -> pb.Job:
        """One job, or one task."""
        path = await _path(context, "jobs", asked.job_id)
        reply = await self._ask(context, "GET", path)
        return job_of(_decode(reply.body))

    async def list_jobs(self, asked: pb.ListJobsRequest, context: Context) -> pb.ListJobsAnswer:
        """A page of jobs."""
        reply = await self._ask(context, "GET", f"{V1}/jobs", query=list_query(asked))
        page = _decode(reply.body)
        return pb.ListJobsAnswer(
            jobs=[job_of(job) for job in page["jobs"]],
            total=page["total"],
            next_cursor=page["next_cursor"] or "",
        )

    async def update_tenant_quota(
        self, asked: pb.UpdateTenantQuotaRequest, context: Context
    ) -> pb.Tenant:
        """Change the limits of a tenant."""
        path = await _path(context, "tenants", asked.tenant_id)
        try:
            body = _encode(quota_form(asked))
        except ValueError as error:
            form = ErrorForm(error=f"Invalid request: {error}", code="invalid_request")
            await refuse_as(context, 400, form)
            raise
        reply = await self._ask(context, "PATCH", path, body=body)
        return tenant_of(_decode(reply.body))

    async def get_metrics(
        self,
        asked: pb.GetMetricsRequest,  # noqa: ARG002 - it says nothing
        context: Context,
    ) -> pb.GetMetricsAnswer:
        """What Prometheus would read."""
        reply = await self._ask(context, "GET", "/metrics")
        return pb.GetMetricsAnswer(text=reply.body.decode())

    async def get_cluster_status(
        self, asked: pb.GetClusterStatusRequest, context: Context
    ) -> pb.ClusterStatus:
        """The cluster in numbers."""
        query = {"detailed": "true"} if asked.detailed else {}
        reply = await self._ask(context, "GET", f"{V1}/cluster/status", query=query)
        return status_of(_decode(reply.body))

    async def watch_events(
        self, asked: pb.WatchEventsRequest, context: Context
    ) -> AsyncIterator[pb.Event]:
        """Events behind a number, then as they happen."""
        query = {"after": str(asked.after)} if asked.HasField("after") else {}
        socket = _Socket()
        scope = _scope(context, "websocket", "GET", f"{V1}/events", query)
        serving = asyncio.ensure_future(self._application(scope, socket.receive, socket.send))
        serving.add_done_callback(socket.end)
        try:
            async for text in socket.texts():
                yield event_of(_decode(text))
            if socket.refusal is not None:
                await _refuse(context, socket.refusal)
            form = ErrorForm(
                error=socket.reason or "the stream has ended; resume behind the last event",
                code="stream_ended",
            )
            await refuse_as(context, 429 if socket.code == TOO_SLOW else 503, form)
        finally:
            socket.leave()
            serving.cancel()
            with contextlib.suppress(asyncio.CancelledError, Exception):
                await serving

    # --- the application

    async def _post(self, context: Context, path: str, body: bytes) -> Reply:
        reply = await self._ask(context, "POST", path, body=body)
        if REPLAYED in reply.headers:
            context.set_trailing_metadata(((REPLAYED, reply.headers[REPLAYED]),))
        return reply

    async def _ask(
        self,
        context: Context,
        method: str,
        path: str,
        *,
        query: Mapping[str, str] | None = None,
        body: bytes = b"",
    ) -> Reply:
        """Ask the application; a refusal ends the call."""
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

        await self._application(scope, receive, send)
        if not reply.is_good:
            await _refuse(context, reply)
        return reply


class _Socket:
    """The client's end of a WebSocket without a network; the sender waits when nobody reads."""

    def __init__(self) -> None:
        self.refusal: Reply | None = None
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
                self.refusal = Reply(message["status"], _texts(message.get("headers", ())))
            case "websocket.http.response.body" if self.refusal is not None:
                self.refusal.body += message.get("body", b"")

    def end(self, _: object) -> None:
        """The application is done."""
        self._gone.set()
        with contextlib.suppress(asyncio.QueueFull):
            self._texts.put_nowait(None)

    def leave(self) -> None:
        """The client has gone."""
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
        if name in PASSED_ON:
            said = value if isinstance(value, bytes) else value.encode("latin-1", "replace")
            headers.append((name.encode(), said))
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
    """The path of one thing; what could not be a name ends the call."""
    if not name or "/" in name or name in {".", ".."}:
        form = ErrorForm(
            error=f"Invalid request: '{name[:80]}' names nothing among {things}",
            code="invalid_request",
        )
        await refuse_as(context, 400, form)
    return f"{V1}/{things}/{name}"


async def _refuse(context: Context, reply: Reply) -> None:
    retry = reply.headers.get("retry-after", "")
    await refuse_as(context, reply.status, reply.error, int(retry) if retry.isdigit() else None)


def _texts(headers: Any) -> dict[str, str]:
    return {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}


def add_scheduler_service(server: grpc.aio.Server, scheduler: Scheduler) -> None:
    """Offer the service on a gRPC server."""
    described = pb.DESCRIPTOR.services_by_name["SchedulerService"]
    behaviours: dict[str, Any] = {
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
            behaviours[method.name],
            request_deserializer=getattr(pb, method.input_type.name).FromString,
            response_serializer=getattr(pb, method.output_type.name).SerializeToString,
        )
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(SERVICE, handlers),))
