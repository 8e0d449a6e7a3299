"""Listen: REST, WebSocket, the agents' gRPC service; who is calling; errors to status codes."""
