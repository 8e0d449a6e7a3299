"""The operations of the REST API, and the OpenAPI document that is generated from them.

One `Operation` describes a method on a path: its handler, its request and response types, its
possible errors. The app routes requests by this list, and `openapi_document` describes the same
list, so the documentation cannot differ from what is served.
"""

from __future__ import annotations

import re
from collections.abc import Awaitable, Callable, Iterable
from dataclasses import dataclass, field
from typing import Any

import msgspec
from msgspec import Struct

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.errors import ErrorForm
from gpu_scheduler.api.http.request import Request, Response


class Removed(Struct):
    """Something was removed."""

    id: str
    message: str
    status: str = "deleted"


Handler = Callable[[Context, Request], Awaitable[Response]]
V1 = "/api/v1"
READING = frozenset({"GET", "HEAD"})
COMMON_ERRORS = (400, 401, 403, 429)
"""Statuses that every operation may answer with."""
ERROR_DESCRIPTIONS = {
    400: "The request is malformed or not acceptable.",
    401: "The caller is not authenticated.",
    403: "The caller may not do this, or a quota is too small for it.",
    404: "Not found, or not visible to the caller.",
    408: "The body did not arrive in time.",
    409: "The current state does not allow it, or the name is taken.",
    413: "The body is too large.",
    415: "The body is not JSON.",
    422: "The job can never run here, or the idempotency key was used for another request.",
    429: "Too many requests, or too many open connections.",
    503: "Temporarily unavailable; try again later.",
}
PATH_PARAMETERS: dict[str, dict[str, Any]] = {
    "job_id": {"type": "string", "maxLength": 64, "examples": ["job-12"]},
    "tenant_id": {"type": "string", "maxLength": 256, "examples": ["default"]},
    "token_id": {"type": "string", "maxLength": 64, "examples": ["tok-1f2e3d4c"]},
    "reservation_id": {"type": "string", "maxLength": 64, "examples": ["res-1"]},
    "service": {"type": "string", "maxLength": 64, "examples": ["llama"]},
    "node": {"type": "string", "maxLength": 256},
    "target": {"type": "string", "maxLength": 100},
    "index": {"type": "integer", "minimum": 0, "maximum": 99_999},
}
IDEMPOTENCY_KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "A repeated request with the same key changes nothing and returns the first "
    "response.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Parameter:
    """A query parameter."""

    name: str
    description: str
    schema: dict[str, Any] = field(default_factory=lambda: {"type": "string", "maxLength": 256})


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """One method on one path.

    `body` and `response` are message types (None: no message; a tuple: one of these types).
    `errors` are the statuses it may answer with besides `COMMON_ERRORS`. A `public` operation needs
    no authentication from this machine, a `public_everywhere` one none from other machines either.
    With `keyed` the handler itself stores its response under the Idempotency-Key. A `stays_here`
    operation changes only the server that is asked: viewers may call it, and standbys answer it.
    """

    method: str
    path: str
    handler: Handler
    name: str
    summary: str
    tag: str
    body: Any = None
    response: Any = None
    status: int = 200
    query: tuple[Parameter, ...] = ()
    errors: tuple[int, ...] = ()
    media: str = "application/json"
    body_media: tuple[str, ...] = ("application/json",)
    example: Any = None
    keyed: bool = False
    public: bool = False
    public_everywhere: bool = False
    stays_here: bool = False

    @property
    def is_key_optional(self) -> bool:
        """Whether a client may send an Idempotency-Key although the response is not stored.

        Not for operations that return a secret: the secret is shown once and cannot be rebuilt.
        """
        return self.method not in READING and not self.keyed and "token" not in self.name

    def is_retryable(self, *, has_key: bool) -> bool:
        """Whether sending it twice has the same effect as sending it once."""
        return self.method in READING or (has_key and (self.keyed or self.is_key_optional))


class Router:
    """The operations of one resource, in the order in which its handlers are defined.

    The first line of a handler's docstring is the summary of its operation.
    """

    def __init__(self, tag: str) -> None:
        """`tag` groups the operations in the documentation."""
        self.operations: list[Operation] = []
        self._tag = tag

    def operation(
        self, method: str, path: str, *, prefix: str = V1, name: str = "", **details: Any
    ) -> Callable[[Handler], Handler]:
        """Register a handler for a method on a path; `details` are further fields of `Operation`.

        The operation has the name of the handler unless another one is given.
        """

        def register(handler: Handler) -> Handler:
            fields = {
                "name": name or handler.__name__,
                "summary": (handler.__doc__ or "").partition("\n")[0],
                "tag": self._tag,
                **details,
            }
            self.operations.append(
                Operation(method=method, path=f"{prefix}{path}", handler=handler, **fields)
            )
            return handler

        return register


def integer_parameter(
    name: str, description: str, *, least: int = 0, most: int = 2**53
) -> Parameter:
    """Return an integer query parameter with bounds."""
    schema = {"type": "integer", "minimum": least, "maximum": most}
    return Parameter(name=name, description=description, schema=schema)


def boolean_parameter(name: str, description: str) -> Parameter:
    """Return a boolean query parameter."""
    return Parameter(name=name, description=description, schema={"type": "boolean"})


# The OpenAPI document


def openapi_document(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """Describe these operations as an OpenAPI 3.1 document."""
    operations = tuple(operations)
    types = [ErrorForm]
    types += [one for op in operations for one in (*_each(op.body), *_each(op.response))]
    schemas, components = msgspec.json.schema_components(
        types, ref_template="#/components/schemas/{name}"
    )
    by_type = dict(zip(map(repr, types), schemas, strict=True))
    paths: dict[str, Any] = {}
    for operation in operations:
        entry = _operation(operation, by_type)
        paths.setdefault(operation.path, {})[operation.method.lower()] = entry
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "gpu-scheduler",
            "version": version or "0",
            "description": "Jobs on shared GPUs. Errors are JSON with error, code and details.",
        },
        "paths": paths,
        "components": {"schemas": components},
    }


def _each(types: Any) -> tuple[Any, ...]:
    """Return the alternatives of `Operation.body` or `Operation.response`."""
    if types is None:
        return ()
    return types if isinstance(types, tuple) else (types,)


def _schema(types: Any, schemas: dict[str, Any]) -> Any:
    alternatives = [schemas[repr(one)] for one in _each(types)]
    return alternatives[0] if len(alternatives) == 1 else {"anyOf": alternatives}


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    parameters: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    parameters += [
        {"name": p.name, "in": "query", "description": p.description, "schema": p.schema}
        for p in operation.query
    ]
    if operation.keyed or operation.is_key_optional:
        parameters.append(IDEMPOTENCY_KEY)
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": parameters,
        "responses": _responses(operation, schemas),
    }
    if operation.body is not None:
        content: dict[str, Any] = {"schema": _schema(operation.body, schemas)}
        if operation.example is not None:
            content["examples"] = {"usual": {"value": operation.example}}
        lines = {"schema": {"type": "string", "description": "One job in each line."}}
        entry["requestBody"] = {
            "required": True,
            "content": {
                media: content if media == "application/json" else lines
                for media in operation.body_media
            },
        }
    return entry


def _responses(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    schema: Any = {"type": "string"}
    if operation.response is not None:
        schema = _schema(operation.response, schemas)
    responses: dict[str, Any] = {
        str(operation.status): {
            "description": "Success.",
            "content": {operation.media: {"schema": schema}},
        }
    }
    error = {"application/json": {"schema": schemas[repr(ErrorForm)]}}
    slow_body = () if operation.body is None else (408,)
    key_reused = (422,) if operation.is_key_optional else ()
    for status in sorted({*COMMON_ERRORS, *slow_body, *key_reused, *operation.errors}):
        content = error
        if operation.tag == "cluster" and status == 503 and "health" in operation.name:
            content = {"application/json": {"schema": schema}}
        responses[str(status)] = {"description": ERROR_DESCRIPTIONS[status], "content": content}
    return responses
