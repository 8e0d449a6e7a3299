"""AgentService on a gRPC server, whoever takes the sessions."""

from __future__ import annotations

from collections.abc import AsyncIterator
from typing import Protocol

import grpc

from gpu_scheduler.wire import agent_pb2 as pb
from gpu_scheduler.wire.orders import SESSION_METHOD


class Sessions(Protocol):
    """Whoever takes the streams of agents."""

    def session(
        self,
        requests: AsyncIterator[pb.AgentMessage],
        context: grpc.aio.ServicerContext[pb.AgentMessage, pb.ServerMessage],
    ) -> AsyncIterator[pb.ServerMessage]:
        """One agent's stream, from hello to its end."""
        ...


def add_agent_service(server: grpc.aio.Server, agents: Sessions) -> None:
    """Offer the agents' service on a gRPC server."""
    service, method = SESSION_METHOD.strip("/").split("/")
    handler = grpc.stream_stream_rpc_method_handler(
        agents.session,
        request_deserializer=pb.AgentMessage.FromString,
        response_serializer=pb.ServerMessage.SerializeToString,
    )
    server.add_generic_rpc_handlers(
        (grpc.method_handlers_generic_handler(service, {method: handler}),)
    )
