"""Errors become gRPC statuses: the same codes and sentences as over HTTP, with the same details.

Details travel as a google.rpc.Status in `grpc-status-details-bin`, so that any client reads them.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import grpc
import msgspec
from google.protobuf.any_pb2 import Any as Packed

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.http.errors import error_form
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.wire import scheduler_pb2 as pb
from gpu_scheduler.wire.answers import ErrorForm

DETAILS = "grpc-status-details-bin"
DOMAIN = "gpu-scheduler"
TYPES = "type.googleapis.com/google.rpc."
CODES = {
    400: grpc.StatusCode.INVALID_ARGUMENT,
    401: grpc.StatusCode.UNAUTHENTICATED,
    403: grpc.StatusCode.PERMISSION_DENIED,
    404: grpc.StatusCode.NOT_FOUND,
    405: grpc.StatusCode.UNIMPLEMENTED,
    408: grpc.StatusCode.DEADLINE_EXCEEDED,
    409: grpc.StatusCode.FAILED_PRECONDITION,
    413: grpc.StatusCode.RESOURCE_EXHAUSTED,
    415: grpc.StatusCode.INVALID_ARGUMENT,
    422: grpc.StatusCode.FAILED_PRECONDITION,
    429: grpc.StatusCode.RESOURCE_EXHAUSTED,
    431: grpc.StatusCode.RESOURCE_EXHAUSTED,
    500: grpc.StatusCode.INTERNAL,
    503: grpc.StatusCode.UNAVAILABLE,
}
"""By the status that HTTP would have; what is not here is our own mistake."""
SPECIAL = {
    "already_exists": grpc.StatusCode.ALREADY_EXISTS,
    "quota_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "key_reused": grpc.StatusCode.INVALID_ARGUMENT,
}
Context = grpc.aio.ServicerContext[Any, Any]


async def refuse(context: Context, error: SchedulerError) -> None:
    """End a call with an error that was raised on purpose."""
    await refuse_as(context, *error_form(error))


async def refuse_as(
    context: Context, status: int, form: ErrorForm, retry_after_s: int | None = None
) -> None:
    """End a call as HTTP would answer it."""
    code = SPECIAL.get(form.code) or CODES.get(status, grpc.StatusCode.INTERNAL)
    said = pb.ErrorStatus(code=code.value[0], message=form.error)
    info = pb.ErrorInfo(reason=form.code, domain=DOMAIN, metadata=_texts(form.details))
    said.details.append(Packed(type_url=f"{TYPES}ErrorInfo", value=info.SerializeToString()))
    if retry_after_s is not None:
        retry = pb.RetryInfo()
        retry.retry_delay.seconds = retry_after_s
        said.details.append(Packed(type_url=f"{TYPES}RetryInfo", value=retry.SerializeToString()))
    await context.abort(code, form.error, ((DETAILS, said.SerializeToString()),))


def _texts(details: dict[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in details.items()
    }


# --- Who is at the other end of a gRPC connection, as far as gRPC tells.


def host_of(context: Context) -> str:
    """The address of the other end, without its port."""
    kind, _, rest = context.peer().partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return kind
    return unquote(rest).rpartition(":")[0].strip("[]")


def peer_of_call(context: Context) -> Peer:
    """The other end. Which account it has is not asked: over gRPC callers show a token."""
    return Peer(uid=None, host=host_of(context))
