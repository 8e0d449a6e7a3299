"""The server's API: REST and WebSockets, gRPC, and the agents' service.

Handlers authenticate a caller, parse a request, call the control loop or the store, and render the
result. Scheduling decisions and state changes belong to `control`.
"""
