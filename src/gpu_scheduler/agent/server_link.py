"""The agent's link to its servers: gRPC channels, the stream, the leader term and the messages.

Over a network a server must present a certificate of the cluster's authority, and the agent answers
the server's challenge with its own key. A program that runs server and agent in one process passes
a stream of its own instead. An agent obeys only the leader with the newest term that it has seen.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import AbstractAsyncContextManager, asynccontextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol, TypeVar, cast

import grpc
from google.protobuf.message import Message

from gpu_scheduler.agent.devices.source import NodeInventory
from gpu_scheduler.agent.launcher.journal import sync_directory
from gpu_scheduler.agent.launcher_protocol import Began, Container, Over, Prepared, Report, Saved
from gpu_scheduler.agent.machine import Machine, replace_file
from gpu_scheduler.model.errors import ClusterError
from gpu_scheduler.model.measurements import NodeReadings
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.handshake import CHALLENGE, SERVER_NAME, leader_in_reason
from gpu_scheduler.wire.orders import SESSION_METHOD

if TYPE_CHECKING:
    from gpu_scheduler.agent.enrollment import Identity, KeyRenewer

M = TypeVar("M", bound=Message)
MESSAGE_BYTES = 64 << 20
OPTIONS = (
    ("grpc.max_receive_message_length", MESSAGE_BYTES),
    ("grpc.max_send_message_length", MESSAGE_BYTES),
    # A connection that an earlier process of this pid left behind must not be used again.
    ("grpc.use_local_subchannel_pool", 1),
)
OVER_NETWORK = (
    *OPTIONS,
    # Detects a server that is frozen or whose machine is down.
    ("grpc.keepalive_time_ms", 4_000),
    ("grpc.keepalive_timeout_ms", 4_000),
    ("grpc.http2.max_pings_without_data", 0),
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """The authority that must have signed the server's certificate, and our own key (PEM)."""

    authority: bytes = b""
    key: bytes = b""
    certificate: bytes = b""
    plain: bool = False


def open_channel(target: str, credentials: Credentials | None = None) -> grpc.aio.Channel:
    """Open a channel to one server. Without credentials the target must be on this machine."""
    if target.startswith("unix:"):
        return grpc.aio.insecure_channel(target, options=OPTIONS)
    if credentials is None or credentials.plain:
        return grpc.aio.insecure_channel(target, options=OVER_NETWORK)
    secure = grpc.ssl_channel_credentials(
        credentials.authority, credentials.key or None, credentials.certificate or None
    )
    server_name = ("grpc.ssl_target_name_override", SERVER_NAME)
    return grpc.aio.secure_channel(target, secure, options=(*OVER_NETWORK, server_name))


BROKEN = (grpc.aio.AioRpcError, asyncio.InvalidStateError)
"""Errors of a stream whose server is gone; InvalidStateError is raised by a write."""


class Stream(Protocol):
    """An open stream to a server; iterating gives the server's messages until it ends."""

    async def write(self, message: pb.AgentMessage) -> None:
        """Send a message to the server."""
        ...

    def __aiter__(self) -> AsyncIterator[pb.ServerMessage]: ...


Connect = Callable[[], AbstractAsyncContextManager[Stream]]
"""Opens a stream that is closed at the end of the `async with` block."""


class ServerRejected(ClusterError):
    """The server rejects this agent; the message says why.

    `is_final` means that a retry is pointless; `leader` is the address of the leader, if named.
    """

    code = "agent_refused"

    def __init__(self, reason: str, *, is_final: bool = False) -> None:
        super().__init__(reason or "the server rejects this agent without a reason")
        self.is_final = is_final
        self.leader = leader_in_reason(reason)


class ServerConnector:
    """Opens streams to the servers of a cluster in turn."""

    def __init__(self, targets: Sequence[str], key_renewer: KeyRenewer | None = None) -> None:
        """At least one gRPC address. Over a network `key_renewer` holds the node's identity."""
        self._targets = tuple(targets)
        self._next_index = 0
        self._redirect = ""
        self._key_renewer = key_renewer

    def __call__(self) -> AbstractAsyncContextManager[Stream]:
        """Open a stream to the next server."""
        return grpc_stream(self._next(), self._key_renewer)

    def _next(self) -> str:
        if self._redirect:
            target, self._redirect = self._redirect, ""
            return target
        target = self._targets[self._next_index]
        self._next_index = (self._next_index + 1) % len(self._targets)
        return target

    def prefer(self, target: str) -> None:
        """Try this server next, if it is configured or must prove that it is of our cluster.

        A server may not redirect the agent to an arbitrary address. A redirect that is not in the
        configuration holds for one try.
        """
        if target in self._targets:
            self._next_index = self._targets.index(target)
        elif self._key_renewer is not None and self._key_renewer.identity.may_redirect_to(target):
            self._redirect = target

    async def handle_failure(self, error: Exception) -> str:
        """Describe why a stream failed; if the server refused the node's key, try to rejoin."""
        text = error_text(error)
        if self._key_renewer is None:
            return text
        code = error.code() if isinstance(error, grpc.aio.AioRpcError) else None
        is_refused = code is grpc.StatusCode.UNAUTHENTICATED
        result = await self._key_renewer.rejoin(is_refused=is_refused)
        return f"{text}; {result}" if result else text


def error_text(error: Exception) -> str:
    """The message of a stream's error, without gRPC's debugging details."""
    if isinstance(error, grpc.aio.AioRpcError):
        return error.details() or error.code().name.lower()
    return str(error)


@asynccontextmanager
async def grpc_stream(target: str, key_renewer: KeyRenewer | None = None) -> AsyncIterator[Stream]:
    """A stream to the server at a gRPC address such as `unix:/path` or `host:port`."""
    identity = None if key_renewer is None else key_renewer.identity
    credentials = None if identity is None else identity.channel_credentials()
    async with open_channel(target, credentials) as channel:
        call: Any = channel.stream_stream(
            SESSION_METHOD,
            request_serializer=pb.AgentMessage.SerializeToString,
            response_deserializer=pb.ServerMessage.FromString,
        )()
        try:
            yield call if identity is None else _AuthenticatedStream(call, identity)
        except asyncio.InvalidStateError:
            # A write after the end of the stream: raise the error that ended it.
            raise grpc.aio.AioRpcError(
                await call.code(), grpc.aio.Metadata(), grpc.aio.Metadata(), await call.details()
            ) from None


class _AuthenticatedStream:
    """A stream whose hello answers the server's challenge with the node's key."""

    def __init__(self, call: Any, identity: Identity) -> None:
        self._call = call
        self._identity = identity

    async def write(self, message: pb.AgentMessage) -> None:
        if message.WhichOneof("message") == "hello":
            challenge = dict(await self._call.initial_metadata()).get(CHALLENGE)
            if challenge is not None:
                hello = message.hello
                hello.token = self._identity.proof(challenge, hello.node, hello.instance)
        await self._call.write(message)

    def __aiter__(self) -> AsyncIterator[pb.ServerMessage]:
        return cast(AsyncIterator[pb.ServerMessage], aiter(self._call))


class LeaderTerm:
    """The newest leader term that this node has obeyed; orders of an older leader are rejected.

    A new term is on disk before its first order is carried out, so that a restarted agent still
    rejects a former leader that was frozen meanwhile.
    """

    def __init__(self, directory: Path | None) -> None:
        """Read the term from the directory; without one nothing is stored."""
        self._file = None if directory is None else directory / "term"
        self.newest = 0
        if self._file is not None and self._file.exists():
            text = self._file.read_text(encoding="ascii", errors="replace").strip()
            self.newest = int(text) if text.isdecimal() else 0

    def check(self, term: int) -> None:
        """Reject an older term and store a newer one; raises `ServerRejected`."""
        if term < self.newest:
            raise ServerRejected(
                f"the server leads in term {term}, and this node has obeyed term {self.newest}; if "
                f"that leader no longer exists, remove {self._file}"
            )
        if term > self.newest:
            try:
                self._store(term)
            except OSError as error:
                raise ServerRejected(
                    f"term {term} cannot be written to {self._file}: {error}"
                ) from error
            self.newest = term

    def _store(self, term: int) -> None:
        if self._file is None:
            return
        replace_file(self._file, f"{term}\n", sync=True)
        sync_directory(str(self._file.parent))


# The messages to the server, made from the agent's values


def _message(kind: type[M], value: object, **others: Any) -> M:
    """A message with the fields that a value has under the same names, and with `others`."""
    names = kind.DESCRIPTOR.fields_by_name.keys() - others.keys()
    return kind(**{name: getattr(value, name) for name in names}, **others)


def fact_from(report: Report, machine: Machine) -> pb.Fact:
    """The message for a report, with its age.

    The age of an end is measured by the boot-time clock, unless the machine was booted meanwhile.
    """
    fact = pb.Fact(at_ms=report.at_ms, allocation_id=report.allocation_id, member=report.member)
    ago_ms = max(0, machine.wall_ms() - report.at_ms)
    if isinstance(report, Over) and report.boot_id and report.boot_id == machine.boot_id():
        ago_ms = max(0, machine.boot_ms() - report.boot_ms)
    match report:
        case Prepared():
            fact.prepared.CopyFrom(pb.Prepared(port=report.port))
        case Began():
            fact.began.CopyFrom(pb.Began(pid=report.pid))
        case Over():
            fact.over.CopyFrom(_message(pb.Over, report, ago_ms=ago_ms))
        case Saved():
            fact.saved.CopyFrom(pb.Saved(ago_ms=ago_ms))
        case Container():
            fact.container.CopyFrom(pb.Container(phase=report.phase))
    return fact


def add_report(known: list[Report], report: Report) -> bool:
    """Add a report to those of a member, in the order to send them; True if it is new.

    Each kind of report occurs once; of checkpoints (`Saved`) and `Container` the newest is kept.
    """
    last = next((old for old in known if type(old) is type(report)), None)
    if last is not None:
        is_newer = isinstance(report, Saved) and report.at_ms > last.at_ms
        if not is_newer and not (isinstance(report, Container) and report != last):
            return False
        known.remove(last)
    known.append(report)
    known.sort(key=lambda one: isinstance(one, Over))
    return True


def reports_to_repeat(reports: list[Report]) -> list[Report]:
    """The reports for a server that may know none of them; `Prepared` is obsolete after a start."""
    has_started = any(not isinstance(report, Prepared) for report in reports)
    return [report for report in reports if not (has_started and isinstance(report, Prepared))]


def inventory_of(found: NodeInventory, unfit: str = "") -> pb.Inventory:
    """The message for an inventory; `unfit` says why no job can start on the node now."""
    return _message(
        pb.Inventory,
        found,
        labels=dict(found.labels),
        numa_nodes=found.fabric.numa_nodes,
        direct_storage=found.fabric.direct_storage,
        adapters=[_message(pb.Adapter, adapter) for adapter in found.fabric.adapters],
        unfit=unfit,
        devices=[
            _message(
                pb.Device,
                device,
                mig_slices=[
                    pb.MigSlice(profile=piece.profile, count=len(piece.uuids), uuids=piece.uuids)
                    for piece in device.mig_slices
                ],
            )
            for device in found.devices
        ],
    )


def lost_slice_message(node: str, index: int, profile: str) -> str:
    """The warning for a job whose MIG slice was destroyed, in the words of a lost GPU."""
    return (
        f"GPU {index} of {node} cannot be trusted any more: its MIG slice {profile} is not there "
        "any more"
    ).replace("  ", " ")


def telemetry_of(telemetry: NodeReadings) -> pb.Telemetry:
    """The message for one reading of all devices."""
    readings = [
        _message(
            pb.DeviceReading,
            reading,
            processes=[_message(pb.DeviceProcess, process) for process in reading.processes],
        )
        for reading in telemetry.readings
    ]
    return pb.Telemetry(at_ms=telemetry.at_ms, problem=telemetry.problem, readings=readings)
