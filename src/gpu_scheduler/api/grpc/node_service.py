"""Nodes over the network: they join with a token, and open sessions only with their own key.

A session begins with a challenge of ours; the node's hello must bring its certificate and the
signature of the challenge. What a revoked node says is not heard any more, and it is told nothing.
"""

from __future__ import annotations

import asyncio
import re
import secrets
import time
from collections.abc import AsyncIterator, Callable
from contextlib import suppress
from datetime import timedelta
from typing import Any, Protocol

import grpc
import structlog
from cryptography.exceptions import InvalidSignature

from gpu_scheduler.api.grpc.certificate_authority import NodeAuthority
from gpu_scheduler.api.grpc.errors import host_of, refuse
from gpu_scheduler.api.http.audit import AuditLog
from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.api.nodes.sessions import add_agent_service
from gpu_scheduler.control.access.credentials import check_token
from gpu_scheduler.control.messages import JoinNode, RenewNode
from gpu_scheduler.control.state import NodeKeys
from gpu_scheduler.model.errors import Forbidden, InvalidRequest, NotLeader, SchedulerError
from gpu_scheduler.model.identity import Caller, Role
from gpu_scheduler.store.contract import Store
from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire import nodes_pb2 as nodes
from gpu_scheduler.wire.handshake import (
    CHALLENGE,
    JOIN_METHOD,
    SIGNED_BY,
    JoinText,
    agreed_protocol,
    fingerprint_of,
    not_the_leader,
    read_proof,
    renewal_text,
    secret_hash,
    session_text,
)

CHALLENGE_BYTES = 32
HELLO_S = 60.0
"""Who has not said who it is by then is not a node: nobody else may hold a stream open."""
RENEWAL_WITHIN_MS = 600_000
NODE_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9._-]{0,62}")
ASK_FOR_ONE = "let it join with a new token ('tgpu node token create')"
Handlers = dict[str, "grpc.RpcMethodHandler[Any, Any]"]
Context = grpc.aio.ServicerContext[Any, Any]
log = structlog.get_logger("nodes")


class Door(Protocol):
    """Where sessions go on once it is known whose they are."""

    @property
    def service(self) -> Service | None:
        """The leader's loop; None if this server does not lead."""
        ...

    @property
    def leader_at(self) -> str:
        """Where agents find the leader, if it is another server and known."""
        ...

    def session(
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> AsyncIterator[pb.ServerMessage]:
        """One agent's stream."""
        ...


class Nodes:
    """The door for nodes that come over the network."""

    def __init__(
        self,
        door: Door,
        store: Store,
        authority: Callable[[], NodeAuthority | None],
        *,
        key_days: float,
    ) -> None:
        """Keys are good for so many days, and renewed before. `authority` may come later."""
        self._door = door
        self._store = store
        self._authority = authority
        self._life = timedelta(days=key_days)
        self._refusals: tuple[Service, AuditLog] | None = None

    def _leader(self) -> tuple[Service, NodeAuthority]:
        service, authority = self._door.service, self._authority()
        if service is None or authority is None:
            raise NotLeader(not_the_leader(self._door.leader_at))
        return service, authority

    def _keys(self) -> NodeKeys:
        """What is known of nodes: as the leader knows it, else as it is stored."""
        service = self._door.service
        if service is not None:
            return service.core.state.node_keys
        keys = NodeKeys()
        keys.keep(*self._store.identities())
        return keys

    # --- becoming a node

    async def join(self, asked: nodes.JoinRequest, context: Context) -> nodes.JoinAnswer:
        """Sign the key of a machine that shows a good token."""
        try:
            return await self._join(asked, host_of(context))
        except SchedulerError as error:
            self._note_refusal("join_node", asked.node, context, error)
            await refuse(context, error)
            raise

    async def _join(self, asked: nodes.JoinRequest, origin: str) -> nodes.JoinAnswer:
        service, authority = self._leader()
        keys, now_ms = service.core.state.node_keys, service.now_ms()
        token_id = keys.token_ids.get(secret_hash(JoinText.read(asked.token).secret))
        if token_id is None:
            raise Forbidden("this join token is not known here; it may be of another cluster")
        check_token(keys, token_id, asked.node, now_ms)
        agreed_protocol(asked.protocol, asked.least_protocol, who=f"node '{asked.node[:80]}'")
        if not NODE_NAME.fullmatch(asked.node):
            raise InvalidRequest(
                "a node's name has letters, digits, '.', '_' and '-', at most 63 of them"
            )
        certificate, fingerprint = authority.sign_node(
            asked.request, asked.node, now_ms, self._life
        )
        expires_ms = now_ms + round(self._life.total_seconds() * 1000)
        caller = _as_node(asked.node, origin, f"join token {token_id}")
        await service.apply(JoinNode(asked.node, token_id, fingerprint, expires_ms), caller)
        log.info("a node has joined", node=asked.node, token=token_id)
        return _answer(asked.node, certificate, authority, expires_ms)

    async def renew(self, asked: nodes.RenewRequest, context: Context) -> nodes.JoinAnswer:
        """Sign the next key of a node that shows its present one."""
        try:
            return await self._renew(asked, host_of(context))
        except SchedulerError as error:
            self._note_refusal("renew_node", "", context, error)
            await refuse(context, error)
            raise

    async def _renew(self, asked: nodes.RenewRequest, origin: str) -> nodes.JoinAnswer:
        service, authority = self._leader()
        now_ms = service.now_ms()
        signed = renewal_text(asked.at_ms, asked.request)
        node, former = self._shown(
            service.core.state.node_keys, asked.certificate, asked.signature, signed
        )
        if abs(now_ms - asked.at_ms) > RENEWAL_WITHIN_MS:
            raise Forbidden("the renewal was signed at another time; are the clocks right?")
        certificate, fingerprint = authority.sign_node(asked.request, node, now_ms, self._life)
        expires_ms = now_ms + round(self._life.total_seconds() * 1000)
        caller = _as_node(node, origin, "its key")
        await service.apply(RenewNode(node, former, fingerprint, expires_ms), caller)
        log.info("a node has a new key", node=node)
        return _answer(node, certificate, authority, expires_ms)

    # --- sessions

    async def session(
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> AsyncIterator[pb.ServerMessage]:
        """A session of the node that shows its key, and of no other."""
        first, fingerprint = await self._let_in(requests, context)
        hello = first.hello

        def is_good() -> bool:
            service = self._door.service
            if service is None:
                return True  # nothing is heard or ordered here then
            key = service.core.state.node_keys.nodes.get(hello.node)
            return key is not None and key.is_good(fingerprint)

        async def heard() -> AsyncIterator[pb.AgentMessage]:
            yield first
            async for message in requests:
                if not is_good():
                    return
                yield message

        async for message in self._door.session(heard(), context):
            if not is_good():
                break
            yield message
        if not is_good():
            await context.abort(
                grpc.StatusCode.UNAUTHENTICATED, f"the key of node '{hello.node}' was revoked"
            )

    async def _let_in(
        self, requests: AsyncIterator[pb.AgentMessage], context: Context
    ) -> tuple[pb.AgentMessage, str]:
        """The hello of a node that has shown its key, and that key's fingerprint."""
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
            fingerprint = self._known(keys, first.hello, challenge)
        except SchedulerError as error:
            self._note_refusal("open_session", first.hello.node, context, error)
            code = grpc.StatusCode.UNAUTHENTICATED
            if isinstance(error, NotLeader):
                code = grpc.StatusCode.UNAVAILABLE
            await context.abort(code, str(error))
        first.hello.token = ""
        return first, fingerprint

    def _note_refusal(
        self, action: str, node: str, context: Context, error: SchedulerError
    ) -> None:
        """Somebody tried to be a node: that belongs into the record."""
        log.warning("a node was refused", node=node[:80], error=str(error))
        service = self._door.service
        if service is None:
            return
        if self._refusals is None or self._refusals[0] is not service:
            self._refusals = (service, AuditLog(service))
        who = ("", host_of(context), "")
        self._refusals[1].add(who=who, action=action, target=node, why=(error.code, str(error)))

    def _known(self, keys: NodeKeys, hello: pb.Hello, challenge: bytes) -> str:
        """The fingerprint of the key that was shown; refuses all that is not the node's own."""
        proof = read_proof(hello.token)
        if proof is None:
            raise Forbidden(f"node '{hello.node}' shows no key; {ASK_FOR_ONE}")
        signed = session_text(challenge, hello.node, hello.instance)
        node, fingerprint = self._shown(keys, *proof, signed)
        if node != hello.node:
            raise Forbidden(f"this is the key of node '{node}', and not of '{hello.node}'")
        return fingerprint

    def _shown(
        self, keys: NodeKeys, certificate: bytes, signature: bytes, signed: bytes
    ) -> tuple[str, str]:
        """Whose key this is, if it is good, and its fingerprint."""
        authority = self._authority()
        if authority is None:
            raise NotLeader("this server is not ready yet; try again")
        try:
            node, key = authority.node_of(certificate, time.time_ns() // 1_000_000)
        except ValueError as error:
            raise Forbidden(
                f"the node's certificate is not believed: {error}; {ASK_FOR_ONE}"
            ) from None
        try:
            key.verify(signature, signed, SIGNED_BY)
        except InvalidSignature:
            raise Forbidden("the signature is not by the key of the certificate") from None
        known = keys.nodes.get(node)
        fingerprint = fingerprint_of(key)
        if known is None:
            raise Forbidden(f"node '{node}' is not known here; {ASK_FOR_ONE}")
        if known.revoked_ms:
            raise Forbidden(f"the key of node '{node}' was revoked; {ASK_FOR_ONE}")
        if not known.is_good(fingerprint):
            raise Forbidden(f"node '{node}' has another key now")
        return node, fingerprint


def _as_node(node: str, origin: str, via: str) -> Caller:
    return Caller(user=f"node {node}", role=Role.ADMIN, origin=origin, via=via)


def _answer(
    node: str, certificate: bytes, authority: NodeAuthority, expires_ms: int
) -> nodes.JoinAnswer:
    return nodes.JoinAnswer(
        node=node,
        certificate=certificate,
        authority=authority.certificate,
        expires_ms=expires_ms,
    )


def add_node_service(server: grpc.aio.Server, door: Nodes) -> None:
    """Offer joining, renewing and sessions on a gRPC server."""
    service = JOIN_METHOD.strip("/").split("/")[0]
    methods: Handlers = {
        "Join": grpc.unary_unary_rpc_method_handler(
            door.join,
            request_deserializer=nodes.JoinRequest.FromString,
            response_serializer=nodes.JoinAnswer.SerializeToString,
        ),
        "Renew": grpc.unary_unary_rpc_method_handler(
            door.renew,
            request_deserializer=nodes.RenewRequest.FromString,
            response_serializer=nodes.JoinAnswer.SerializeToString,
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(service, methods),))
    add_agent_service(server, door)
