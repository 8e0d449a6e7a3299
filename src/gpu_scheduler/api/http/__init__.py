"""HTTP: the ASGI app, requests and responses, listeners, limits, idempotency, errors, OpenAPI.

No operation of the API lives here; those are in `routes`.
"""
