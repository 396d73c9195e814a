"""Makes the OpenAPI document of the table of addresses and the types in shapes.py."""

from __future__ import annotations

import re
from collections.abc import Iterable
from typing import Any

import msgspec

from runcue import __version__
from runcue.web.shapes import Error
from runcue.web.table import JSON, Line

REF = "#/components/schemas/{name}"
NOT_OURS = re.compile(r":\w+}")
ERRORS = {
    400: "What is given cannot be read.",
    401: "A token is needed.",
    403: "This cannot be done from there, or not at all.",
    404: "There is no such thing.",
    405: "That method is not known here.",
    408: "The body takes too long.",
    409: "The name stands for something else.",
    413: "The body is too large.",
    414: "The address is too long.",
    421: "Another host is meant.",
    429: "Too many wrong tokens.",
    431: "There are too many headers.",
    503: "The queue cannot be read just now, or there are too many connections.",
}


def document(lines: Iterable[Line]) -> dict[str, Any]:
    """The OpenAPI document."""
    table = list(lines)
    kinds = {kind for line in table for kind in (line.answer, line.query, line.body) if kind is not None}
    ordered = [*sorted(kinds, key=repr), Error]
    schemas, components = msgspec.json.schema_components(ordered, ref_template=REF)
    schema_of = dict(zip(ordered, schemas, strict=True))
    paths: dict[str, dict[str, Any]] = {}
    for line in table:
        path = NOT_OURS.sub("}", line.path)
        paths.setdefault(path, {})[line.method.lower()] = _operation(line, schema_of, components)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "runcue",
            "version": __version__,
            "description": "Look at a queue, and operate it.",
        },
        "servers": [{"url": "."}],
        "security": [{"token": []}],
        "paths": paths,
        "components": {
            "schemas": components,
            "securitySchemes": {"token": {"type": "http", "scheme": "bearer"}},
        },
    }


def _operation(line: Line, schema_of: dict[Any, Any], components: dict[str, Any]) -> dict[str, Any]:
    content: dict[str, Any] = {line.kind: {}}
    if line.answer is not None:
        content = {line.kind: {"schema": schema_of[line.answer]}}
    elif line.kind.startswith("text/"):
        content = {line.kind: {"schema": {"type": "string"}}}
    if line.fragment is not None:
        content["text/html"] = {"schema": {"type": "string"}}
    errors = {
        str(status): {"description": text, "content": {JSON: {"schema": schema_of[Error]}}}
        for status, text in ERRORS.items()
    }
    found: dict[str, Any] = {
        "operationId": f"{line.method.lower()}{re.sub(r'[^a-z]+', '_', line.path.lower()).rstrip('_')}",
        "summary": line.summary,
        "parameters": _parameters(line, schema_of, components),
        "responses": {"200": {"description": "The answer.", "content": content}, **errors},
    }
    if line.body is not None:
        found["requestBody"] = {"required": True, "content": {JSON: {"schema": schema_of[line.body]}}}
    return found


def _parameters(line: Line, schema_of: dict[Any, Any], components: dict[str, Any]) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = [
        {"name": name, "in": "path", "required": True, "schema": {"type": "string", "minLength": 1}}
        for name in re.findall(r"{(\w+)", line.path)
    ]
    if line.query is not None:
        name = schema_of[line.query]["$ref"].rpartition("/")[2]
        found += [
            {"name": key, "in": "query", "required": False, "schema": _without_null(schema)}
            for key, schema in components[name]["properties"].items()
        ]
    return found


def _without_null(schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of a query parameter: a query has no null, a value that may be null is left out."""
    plain = {key: value for key, value in schema.items() if key != "default" or value is not None}
    if "enum" in plain:
        plain["enum"] = [value for value in plain["enum"] if value is not None]
    if "anyOf" in plain:
        plain["anyOf"] = [one for one in plain["anyOf"] if one != {"type": "null"}]
    return plain
