"""The OpenAPI document of the JSON API, made of the resources and their schemas. `python -m
dispatcher.http.openapi` prints it; docs/openapi.json is that."""

from __future__ import annotations

import json
from typing import Any, Final

from dispatcher import __version__
from dispatcher.http.api import RESOURCES, Parameter, Resource
from dispatcher.http.schemas import SCHEMAS, list_of, ref, string

EVENTS_PATH: Final = "/api/events"
DOCUMENT_PATH: Final = "/api/openapi.json"
#: Of an event stream: how many resources it may watch.
WATCHED_MAX: Final = 16
_PROBLEMS: Final = {
    "400": "the query can't be understood",
    "404": "there is no such lane or group",
    "409": "the lane is not active here: ask the other replicas",
}


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths = {resource.path: {"get": _operation(resource)} for resource in RESOURCES}
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Message groups for RabbitMQ",
            "version": __version__,
            "description": "What the dispatcher's page shows. Everything is read-only.",
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {**paths, EVENTS_PATH: {"get": _events()}, DOCUMENT_PATH: {"get": _itself()}},
        "components": {"schemas": SCHEMAS},
    }


def _operation(resource: Resource) -> dict[str, Any]:
    in_path = [part.strip("{}") for part in resource.path.split("/") if part.startswith("{")]
    parameters = [_parameter(Parameter(name, string(), required=True), "path") for name in in_path]
    parameters += [_parameter(parameter, "query") for parameter in resource.parameters]
    problems = {code: _answer(text, "Error") for code, text in _PROBLEMS.items()}
    return {
        "summary": resource.summary,
        "operationId": resource.schema[0].lower() + resource.schema[1:],
        "parameters": parameters,
        "responses": {"200": _answer(resource.summary, resource.schema), **problems},
    }


def _events() -> dict[str, Any]:
    text = f"a path of this API with its query; up to {WATCHED_MAX} times"
    watch = Parameter("watch", {**list_of(string()), "minItems": 1, "maxItems": WATCHED_MAX}, required=True)
    stream = {
        "description": (
            "Server-sent events. The data of each is an Event in JSON: a watched path and what it answers. "
            "It comes at once, then every second if that has changed, else every five seconds."
        ),
        "content": {"text/event-stream": {"schema": string()}},
    }
    return {
        "summary": "What the watched resources answer, again and again",
        "operationId": "events",
        "parameters": [{**_parameter(watch, "query"), "description": text}],
        "responses": {
            "200": stream,
            "400": _answer("no such resource, or too many", "Error"),
            "503": _answer("too many streams are open", "Error"),
        },
    }


def _itself() -> dict[str, Any]:
    content = {"application/json": {"schema": {"type": "object"}}}
    return {
        "summary": "This document",
        "operationId": "openapi",
        "responses": {"200": {"description": "OpenAPI 3.1", "content": content}},
    }


def _parameter(parameter: Parameter, place: str) -> dict[str, Any]:
    return {
        "name": parameter.name, "in": place, "required": parameter.required, "schema": parameter.schema
    }  # fmt: skip


def _answer(text: str, schema: str) -> dict[str, Any]:
    return {"description": text, "content": {"application/json": {"schema": ref(schema)}}}


if __name__ == "__main__":
    print(json.dumps(document(), indent=1))
