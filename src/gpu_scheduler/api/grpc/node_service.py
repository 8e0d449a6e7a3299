"""Nodes over the network: they join with a token, and open sessions with their own key.

A session begins with a challenge of the server; the node's hello must contain its certificate and
the signed challenge. The session of a node whose key is revoked ends.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager, suppress
from datetime import timedelta
from typing import Any, Protocol

import grpc
import structlog
from cryptography.exceptions import InvalidSignature

from gpu_scheduler.api.grpc.certificate_authority import NodeAuthority
from gpu_scheduler.api.grpc.errors import abort, host_of
from gpu_scheduler.api.http.rejected_requests_audit import AuditLog
from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.api.nodes.sessions import add_agent_service
from gpu_scheduler.control.access.credentials import check_token
from gpu_scheduler.control.messages import JoinNode, RenewNode
from gpu_scheduler.control.state import NodeKeys
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, NotLeader, SchedulerError
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.store.interface import Store
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire import nodes_pb2 as nodes
from gpu_scheduler.wire.handshake import (
    CHALLENGE,
    JOIN_METHOD,
    SIGNED_BY,
    JoinText,
    key_fingerprint,
    negotiate_protocol,
    not_leader_reason,
    read_proof,
    renewal_payload,
    secret_hash,
    session_payload,
)

CHALLENGE_BYTES = 32
HELLO_S = 60.0
"""A stream without a hello within this time is closed: it is not an agent."""
RENEWAL_MAX_AGE_MS = 600_000
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
JOIN_AGAIN = "let it join with a new token ('tgpu node token create')"
Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]
Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger("nodes")


class SessionEndpoint(Protocol):
    """Serves sessions once their node is authenticated."""

    @property
    def service(self) -> Service | None:
        """The control loop; None if this server is not the leader."""
        ...

    @property
    def leader_at(self) -> str:
        """The address of the leader for agents, if it is another server and known."""
        ...

    def session(
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> AsyncIterator[pb.ServerMessage]:
        """Serve one agent's stream."""
        ...


class NodeService:
    """Authenticates nodes that connect over the network."""

    def __init__(
        self,
        endpoint: SessionEndpoint,
        store: Store,
        authority: Callable[[], NodeAuthority | None],
        *,
        key_days: float,
    ) -> None:
        """Keys are valid for `key_days`. `authority` returns None until this server is ready."""
        self._endpoint = endpoint
        self._store = store
        self._authority = authority
        self._life = timedelta(days=key_days)
        self._audit_log: tuple[Service, AuditLog] | None = None

    def _leader(self) -> tuple[Service, NodeAuthority]:
        service, authority = self._endpoint.service, self._authority()
        if service is None or authority is None:
            raise NotLeader(not_leader_reason(self._endpoint.leader_at))
        return service, authority

    def _keys(self) -> NodeKeys:
        """Return the node keys: the leader's, or on a standby those in the store."""
        service = self._endpoint.service
        if service is not None:
            return service.core.state.node_keys
        keys = NodeKeys()
        keys.keep(*self._store.identities())
        return keys

    # Joining

    async def join(self, message: nodes.JoinRequest, context: Context) -> nodes.JoinAnswer:
        """Sign the key of a machine that has a valid join token."""
        async with self._auditing("join_node", message.node, context):
            service, authority = self._leader()
            keys, now_ms = service.core.state.node_keys, service.now_ms()
            token_id = keys.token_ids.get(secret_hash(JoinText.read(message.token).secret))
            if token_id is None:
                raise Forbidden("this join token is unknown; it may belong to another cluster")
            check_token(keys, token_id, message.node, now_ms)
            negotiate_protocol(
                message.protocol, message.least_protocol, who=f"node '{message.node[:80]}'"
            )
            if not NODE_NAME.fullmatch(message.node):
                raise InvalidRequest(
                    "a node's name has letters, digits, '.', '_' and '-', at most 63 of them"
                )
            certificate, fingerprint = authority.sign_node(
                message.request, message.node, now_ms, self._life
            )
            expires_ms = now_ms + round(self._life.total_seconds() * 1000)
            caller = _node_caller(message.node, host_of(context), f"join token {token_id}")
            await service.apply(JoinNode(message.node, token_id, fingerprint, expires_ms), caller)
            log.info("node joined", node=message.node, token=token_id)
            return _join_answer(message.node, certificate, authority, expires_ms)

    async def renew(self, message: nodes.RenewRequest, context: Context) -> nodes.JoinAnswer:
        """Sign the next key of a node that proves its current one."""
        async with self._auditing("renew_node", "", context):
            service, authority = self._leader()
            now_ms = service.now_ms()
            signed = renewal_payload(message.at_ms, message.request)
            node, former = self._verify_key(
                service.core.state.node_keys, message.certificate, message.signature, signed
            )
            if abs(now_ms - message.at_ms) > RENEWAL_MAX_AGE_MS:
                raise Forbidden("the renewal is too old or from the future; are the clocks right?")
            certificate, fingerprint = authority.sign_node(
                message.request, node, now_ms, self._life
            )
            expires_ms = now_ms + round(self._life.total_seconds() * 1000)
            caller = _node_caller(node, host_of(context), "its key")
            await service.apply(RenewNode(node, former, fingerprint, expires_ms), caller)
            log.info("node key renewed", node=node)
            return _join_answer(node, certificate, authority, expires_ms)

    @asynccontextmanager
    async def _auditing(self, action: str, node: str, context: Context) -> AsyncIterator[None]:
        """Audit an error that is raised in the block, and end the call with it."""
        try:
            yield
        except SchedulerError as error:
            self._audit_rejection(action, node, context, error)
            await abort(context, error)
            raise

    # Sessions

    async def session(
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> AsyncIterator[pb.ServerMessage]:
        """Serve the session of a node that has proved its key."""
        first, fingerprint = await self._authenticate(requests, context)
        hello = first.hello

        def is_valid() -> bool:
            service = self._endpoint.service
            if service is None:
                return True  # a standby handles no messages and sends no orders
            key = service.core.state.node_keys.nodes.get(hello.node)
            return key is not None and key.is_good(fingerprint)

        async def valid_requests() -> AsyncIterator[pb.AgentMessage]:
            yield first
            async for message in requests:
                if not is_valid():
                    return
                yield message

        async for message in self._endpoint.session(valid_requests(), context):
            if not is_valid():
                break
            yield message
        if not is_valid():
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, f"the key of node '{hello.node}' was revoked"
            )

    async def _authenticate(
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> tuple[pb.AgentMessage, str]:
        """Return the hello of a node that has proved its key, and the key's fingerprint."""
        challenge = secrets.token_bytes(CHALLENGE_BYTES)
        await context.send_initial_metadata(((CHALLENGE, challenge),))
        first = None
        with suppress(TimeoutError):
            async with asyncio.timeout(HELLO_S):
                first = await anext(aiter(requests), None)
        if first is None or first.WhichOneof("message") != "hello":
            await context.abort(grpc.StatusCode.INVALID_ARGUMENT, "the first message must be hello")
        try:
            keys = await asyncio.to_thread(self._keys)
            fingerprint = self._verify_hello(keys, first.hello, challenge)
        except SchedulerError as error:
            self._audit_rejection("open_session", first.hello.node, context, error)
            code = grpc.StatusCode.UNAUTHENTICATED
            if isinstance(error, NotLeader):
                code = grpc.StatusCode.UNAVAILABLE
            await context.abort(code, str(error))
        first.hello.token = ""
        return first, fingerprint

    def _audit_rejection(
        self, action: str, node: str, context: Context, error: SchedulerError
    ) -> None:
        log.warning("node rejected", node=node[:80], error=str(error))
        service = self._endpoint.service
        if service is None:
            return
        if self._audit_log is None or self._audit_log[0] is not service:
            self._audit_log = (service, AuditLog(service))
        who = ("", host_of(context), "")
        self._audit_log[1].add(who=who, action=action, target=node, why=(error.code, str(error)))

    def _verify_hello(self, keys: NodeKeys, hello: pb.Hello, challenge: bytes) -> str:
        """Return the fingerprint of the node's key; reject any other key."""
        proof = read_proof(hello.token)
        if proof is None:
            raise Forbidden(f"node '{hello.node}' sent no key; {JOIN_AGAIN}")
        signed = session_payload(challenge, hello.node, hello.instance)
        node, fingerprint = self._verify_key(keys, *proof, signed)
        if node != hello.node:
            raise Forbidden(f"this is the key of node '{node}', not of '{hello.node}'")
        return fingerprint

    def _verify_key(
        self, keys: NodeKeys, certificate: bytes, signature: bytes, signed: bytes
    ) -> tuple[str, str]:
        """Return the node of a valid key, and the key's fingerprint."""
        authority = self._authority()
        if authority is None:
            raise NotLeader("this server is not ready yet; try again")
        try:
            node, key = authority.node_of(certificate, time.time_ns() // 1_000_000)
        except ValueError as error:
            raise Forbidden(f"the node's certificate is not valid: {error}; {JOIN_AGAIN}") from None
        try:
            key.verify(signature, signed, SIGNED_BY)
        except InvalidSignature:
            raise Forbidden("the signature does not match the key of the certificate") from None
        known = keys.nodes.get(node)
        fingerprint = key_fingerprint(key)
        if known is None:
            raise Forbidden(f"node '{node}' is not known here; {JOIN_AGAIN}")
        if known.revoked_ms:
            raise Forbidden(f"the key of node '{node}' was revoked; {JOIN_AGAIN}")
        if not known.is_good(fingerprint):
            raise Forbidden(f"node '{node}' has another key now")
        return node, fingerprint


def _node_caller(node: str, origin: str, via: str) -> Caller:
    return Caller(user=f"node {node}", role=Role.ADMIN, origin=origin, via=via)


def _join_answer(
    node: str, certificate: bytes, authority: NodeAuthority, expires_ms: int
) -> nodes.JoinAnswer:
    return nodes.JoinAnswer(
        node=node,
        certificate=certificate,
        authority=authority.certificate,
        expires_ms=expires_ms,
    )


def add_node_service(server: grpc.aio.Server, service: NodeService) -> None:
    """Add joining, renewing and sessions to a gRPC server."""
    name = JOIN_METHOD.strip("/").split("/")[0]
    methods: Handlers = {
        "Join": grpc.unary_unary_rpc_method_handler(
            service.join,
            request_deserializer=nodes.JoinRequest.FromString,
            response_serializer=nodes.JoinAnswer.SerializeToString,
        ),
        "Renew": grpc.unary_unary_rpc_method_handler(
            service.renew,
            request_deserializer=nodes.RenewRequest.FromString,
            response_serializer=nodes.JoinAnswer.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(name, methods),))
    add_agent_service(server, service)
