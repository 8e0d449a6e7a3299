"""Errors as gRPC statuses, with the same codes, messages and details as over HTTP.

Details are sent as a google.rpc.Status in `grpc-status-details-bin`, which any client can read.
"""

from __future__ import annotations

from typing import Any
from urllib.parse import unquote

import grpc
import msgspec
from google.protobuf.any_pb2 import Any as Packed

from gpu_scheduler.api.auth.peer_credentials import Peer
from gpu_scheduler.api.http.errors import ErrorForm, error_form
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.wire import scheduler_pb2 as pb

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
"""By HTTP status; any other status is an internal error."""
CODES_BY_ERROR = {
    "already_exists": grpc.StatusCode.ALREADY_EXISTS,
    "quota_exceeded": grpc.StatusCode.RESOURCE_EXHAUSTED,
    "key_reused": grpc.StatusCode.INVALID_ARGUMENT,
}
Context = grpc.aio.ServicerContext[Any, Any]


async def abort(context: Context, error: SchedulerError) -> None:
    """End a call with an error."""
    await abort_with(context, *error_form(error))


async def abort_with(
    context: Context, status: int, form: ErrorForm, retry_after_s: int | None = None
) -> None:
    """End a call with the gRPC status for an HTTP status."""
    code = CODES_BY_ERROR.get(form.code) or CODES.get(status, grpc.StatusCode.INTERNAL)
    status_message = pb.ErrorStatus(code=code.value[0], message=form.error)
    info = pb.ErrorInfo(reason=form.code, domain=DOMAIN, metadata=_texts(form.details))
    status_message.details.append(
        Packed(type_url=f"{TYPES}ErrorInfo", value=info.SerializeToString())
    )
    if retry_after_s is not None:
        retry = pb.RetryInfo()
        retry.retry_delay.seconds = retry_after_s
        status_message.details.append(
            Packed(type_url=f"{TYPES}RetryInfo", value=retry.SerializeToString())
        )
    await context.abort(code, form.error, ((DETAILS, status_message.SerializeToString()),))


def _texts(details: dict[str, Any]) -> dict[str, str]:
    return {
        name: value if isinstance(value, str) else msgspec.json.encode(value).decode()
        for name, value in details.items()
    }


def host_of(context: Context) -> str:
    """Return the address of the peer, without its port."""
    kind, _, rest = context.peer().partition(":")
    if kind not in {"ipv4", "ipv6"}:
        return kind
    return unquote(rest).rpartition(":")[0].strip("[]")


def peer_of_call(context: Context) -> Peer:
    """Return the peer. Its account is unknown: callers of gRPC authenticate with a token."""
    return Peer(uid=None, host=host_of(context))
