"""Prints the TypeScript types of the REST API, from the same operations that the server serves.

Comes in: the OpenAPI document. Goes out: an interface for each schema, and `Responses` and `Bodies`
by method and path, on standard output. `make web` writes them to src/api-types.ts, and a test says
when that file is old.
"""

from __future__ import annotations

import json
import sys
from typing import Any

from gpu_scheduler.api.http.app import DOCUMENTED_OPERATIONS
from gpu_scheduler.api.http.openapi import V1, openapi_document

Schema = dict[str, Any]
PLAIN = {
    "string": "string",
    "integer": "number",
    "number": "number",
    "boolean": "boolean",
    "null": "null",
}


def type_text(schema: Schema) -> str:
    """Return a schema as a TypeScript type."""
    if "$ref" in schema:
        return str(schema["$ref"].rpartition("/")[2])
    if "enum" in schema:
        return " | ".join(json.dumps(value) for value in schema["enum"])
    if "anyOf" in schema:
        return " | ".join(dict.fromkeys(type_text(one) for one in schema["anyOf"]))
    kind = schema.get("type")
    if kind == "array":
        item = type_text(schema.get("items", {}))
        return f"({item})[]" if "|" in item else f"{item}[]"
    if kind == "object":
        values = schema.get("additionalProperties")
        return f"Record<string, {type_text(values) if isinstance(values, dict) else 'unknown'}>"
    return PLAIN.get(str(kind), "unknown")


def interface(name: str, schema: Schema) -> str:
    """Return a component as an interface, or as a name for another type.

    Only requests reject unknown fields, and only in requests may a field be missing.
    """
    if "properties" not in schema:
        return f"export type {name} = {type_text(schema)};\n"
    may_miss = schema.get("additionalProperties") is False
    required = schema.get("required", [])
    lines = [f"export interface {name} {{"]
    for field, kind in schema["properties"].items():
        mark = "?" if may_miss and field not in required else ""
        lines.append(f"  {field}{mark}: {type_text(kind)};")
    return "\n".join([*lines, "}"]) + "\n"


def typescript(document: Schema) -> str:
    """Return all types of the document."""
    parts = ["// Written by `make web` from the OpenAPI document; do not edit.\n"]
    parts += [interface(*each) for each in sorted(document["components"]["schemas"].items())]
    responses, bodies = [], []
    for path, methods in sorted(document["paths"].items()):
        if not path.startswith(V1):
            continue
        for method, operation in sorted(methods.items()):
            key = json.dumps(f"{method.upper()} {path.removeprefix(V1)}")
            done = next(one for status, one in operation["responses"].items() if status < "300")
            responses.append(f"  {key}: {_content(done)};")
            if "requestBody" in operation:
                bodies.append(f"  {key}: {_content(operation['requestBody'])};")
    for name, lines in (("Responses", responses), ("Bodies", bodies)):
        parts.append("\n".join([f"export interface {name} {{", *lines, "}"]) + "\n")
    return "\n".join(parts)


def _content(message: Schema) -> str:
    media = message["content"]
    return (
        type_text(media["application/json"]["schema"]) if "application/json" in media else "string"
    )


if __name__ == "__main__":
    sys.stdout.write(typescript(openapi_document(DOCUMENTED_OPERATIONS, "")))
