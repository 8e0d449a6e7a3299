"""The OpenAPI description, made from the operations and forms that the server works with."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from gpu_scheduler.api.http.operations import Operation
from gpu_scheduler.wire.answers import ErrorForm

REFERENCE = "#/components/schemas/{name}"
EVERYWHERE = (400, 401, 403, 429)
MEANINGS = {
    400: "The request cannot be understood or accepted.",
    401: "It is not known who is calling.",
    403: "The caller may not do this, or the quota is too small for it.",
    404: "There is no such thing, or the caller may not see it.",
    408: "The body did not arrive in time.",
    409: "The state of things does not allow it, or the name is taken.",
    413: "More was sent than is taken at once.",
    415: "The body is not JSON.",
    422: "It could never run here, or the idempotency key was used for something else.",
    429: "The caller is too fast, or has too much open at once.",
    503: "Not possible now; try again later.",
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
KEY = {
    "name": "Idempotency-Key",
    "in": "header",
    "description": "Repeating a request with the same key does nothing and gives the first answer.",
    "schema": {"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"},
}


def describe(operations: Iterable[Operation], version: str) -> dict[str, Any]:
    """The whole description."""
    operations = tuple(operations)
    forms = [form for op in operations for form in (*_each(op.body), *_each(op.response))]
    schemas, components = msgspec.json.schema_components(
        [ErrorForm, *forms], ref_template=REFERENCE
    )
    by_form = dict(zip(map(repr, [ErrorForm, *forms]), schemas, strict=True))
    paths: dict[str, Any] = {}
    for operation in operations:
        entry = _operation(operation, by_form)
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


def _each(forms: Any) -> tuple[Any, ...]:
    """A form, or several of which one comes."""
    if forms is None:
        return ()
    return forms if isinstance(forms, tuple) else (forms,)


def _schema(forms: Any, schemas: dict[str, Any]) -> Any:
    found = [schemas[repr(form)] for form in _each(forms)]
    return found[0] if len(found) == 1 else {"anyOf": found}


def _operation(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    entry: dict[str, Any] = {
        "operationId": operation.name,
        "summary": operation.summary,
        "tags": [operation.tag],
        "parameters": _parameters(operation),
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


def _parameters(operation: Operation) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": PATH_PARAMETERS[name]}
        for name in re.findall(r"\{(\w+)\}", operation.path)
    ]
    found += [
        {"name": p.name, "in": "query", "description": p.description, "schema": p.schema}
        for p in operation.query
    ]
    return [*found, KEY] if operation.keyed or operation.repeats else found


def _responses(operation: Operation, schemas: dict[str, Any]) -> dict[str, Any]:
    schema = (
        {"type": "string"} if operation.response is None else _schema(operation.response, schemas)
    )
    responses: dict[str, Any] = {
        str(operation.status): {
            "description": "As asked.",
            "content": {operation.media: {"schema": schema}},
        }
    }
    refusal = {"application/json": {"schema": schemas[repr(ErrorForm)]}}
    slow = () if operation.body is None else (408,)
    reused = (422,) if operation.repeats else ()
    for status in sorted({*EVERYWHERE, *slow, *reused, *operation.errors}):
        content = refusal
        if operation.tag == "cluster" and status == 503 and "health" in operation.name:
            content = {"application/json": {"schema": schema}}
        responses[str(status)] = {"description": MEANINGS[status], "content": content}
    return responses
