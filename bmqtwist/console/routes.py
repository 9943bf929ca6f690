"""Routes of the JSON API, and their OpenAPI description.

`server.py` adds each route of `ROUTES` to its paths; the operations are in `documents_api.py` and `actions.py`, pages in
`server.py`.
"""

from __future__ import annotations

import re
from typing import Any

from bmqtwist import __version__
from bmqtwist.console import actions
from bmqtwist.console import documents_api as reads
from bmqtwist.console.documents import Document
from bmqtwist.console.operation import ApiCall, OperationContext, Route, get


@get("openapi.json")
def description(context: OperationContext, call: ApiCall) -> Document:
    """OpenAPI description of this API."""
    return openapi(context.prefix)


ROUTES = (description, *(each for module in (reads, actions) for each in vars(module).values() if isinstance(each, Route)))


def openapi(prefix: str = "") -> Document:
    paths: dict[str, dict[str, Any]] = {}
    for route in ROUTES:
        if not route.between_nodes:
            path, names = _path(route.path)
            paths.setdefault(path, {})[route.method.lower()] = _operation(route, names)
    return {"openapi": "3.1.0", "info": {"title": "bmqtwist console", "version": __version__},
            "servers": [{"url": prefix or "/"}], "paths": paths,
            "components": {"securitySchemes": {"login": {"type": "apiKey", "in": "cookie", "name": "bmq_session"},
                                               "csrf": {"type": "apiKey", "in": "header", "name": "X-CSRF-Token"}},
                           "schemas": {"Error": {"type": "object", "required": ["error"], "properties": {
                               "error": {"type": "string"}, "field": {"type": "string"}}}}}}


def _path(path: str) -> tuple[str, list[tuple[str, str]]]:
    """Return a path in OpenAPI form, and its arguments with their types."""
    names = [(name, "integer" if kind == "int:" else "string") for kind, name in re.findall(r"<(int:)?(\w+)>", path)]
    return re.sub(r"<(?:int:)?(\w+)>", r"{\1}", path), names


def _operation(route: Route, names: list[tuple[str, str]]) -> Document:
    refused = {"description": "Refused", "content": {"application/json": {"schema": {"$ref": "#/components/schemas/Error"}}}}
    made: Document = {
        "operationId": route.name, "summary": route.text, "x-role": route.role.label,
        "security": [{"login": []} if route.method == "GET" else {"login": [], "csrf": []}],
        "parameters": [{"name": name, "in": "path", "required": True, "schema": {"type": kind}} for name, kind in names],
        "responses": {"200": {"description": "Done", "content": _answer(route)},
                      **dict.fromkeys(("400", "401", "403", "409"), refused)}}
    if route.method == "GET":
        made["parameters"] += [{"name": each.name, "in": "query", "required": each.required, "description": each.text,
                                "schema": {"type": each.kind}} for each in route.arguments]
    else:
        made["requestBody"] = {"required": True, "content": {"application/json": {"schema": {
            "type": "object", "required": [each.name for each in route.arguments if each.required],
            "properties": {each.name: {"type": [each.kind, "null"] if each.nullable else each.kind, "description": each.text}
                           for each in route.arguments}}}}}
    return made


def _answer(route: Route) -> Document:
    if route.download:
        return {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}
    return {"application/json": {"schema": {"type": "object", "required": list(route.answer),
                                            "properties": {name: {"type": kind} for name, kind in route.answer.items()}}}}
