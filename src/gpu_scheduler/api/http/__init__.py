"""HTTP: the ASGI application, requests and responses, limits, idempotency, errors, OpenAPI.

No module here knows a REST resource; those are in `routes`.
"""
