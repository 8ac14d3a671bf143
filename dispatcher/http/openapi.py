"""The OpenAPI document of the JSON API, made of the resources and their schemas. `python -m
dispatcher.http.openapi` prints it; docs/openapi.json is that."""

from __future__ import annotations

import json
from typing import Any, Final

from dispatcher import __version__
from dispatcher.http.actions import ACTIONS, Action
from dispatcher.http.actions import PATH as ACTIONS_PATH
from dispatcher.http.api import RESOURCES, Parameter, Resource
from dispatcher.http.schemas import SCHEMAS, list_of, ref, string

EVENTS_PATH: Final = "/api/events"
ROLE_PATH: Final = "/api/role"
DOCUMENT_PATH: Final = "/api/openapi.json"
#: Of an event stream: how many resources it may watch.
WATCHED_MAX: Final = 16
_PROBLEMS: Final = {
    "400": "the query can't be understood",
    "404": "there is no such lane or group",
    "409": "the lane is not active here: ask the other replicas",
}


_REFUSALS: Final = {
    "400": "the body can't be understood, or the lane refuses it: nothing was changed",
    "401": "the token is missing or wrong",
    "403": "this token may only read, nobody may act here, or a page of another origin asks",
    "404": "there is no such lane",
    "409": "the lane is not active here: ask the other replicas",
    "413": "the body is too large",
    "415": "the body is not application/json",
    "504": "no answer yet: ask again with the uuid",
}
_TOKEN: Final = "token"


def document() -> dict[str, Any]:
    """OpenAPI 3.1."""
    paths = {resource.path: {"get": _operation(resource)} for resource in RESOURCES}
    paths |= {
        ACTIONS_PATH.replace("{action}", name): {"post": _action(name, action)}
        for name, action in ACTIONS.items()
    }
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "Message groups for RabbitMQ",
            "version": __version__,
            "description": (
                "What the dispatcher's page shows, with GET, and what operators do, with POST. Tokens are "
                "sent as `Authorization: Bearer`; reading needs one if the configuration names one for "
                "viewers, acting needs that of operators."
            ),
            "license": {"name": "Apache-2.0", "identifier": "Apache-2.0"},
        },
        "paths": {
            **paths,
            EVENTS_PATH: {"get": _events()},
            ROLE_PATH: {"get": _role()},
            DOCUMENT_PATH: {"get": _itself()},
        },
        "components": {"schemas": SCHEMAS, "securitySchemes": {_TOKEN: {"type": "http", "scheme": "bearer"}}},
        "security": [{}, {_TOKEN: []}],
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


def _action(name: str, action: Action) -> dict[str, Any]:
    parameters = [_parameter(Parameter("lane", string(), required=True), "path")]
    preview = " Without `apply` it only says what it would do." if action.previews else ""
    problems = {code: _answer(text, "Error") for code, text in _REFUSALS.items()}
    return {
        "summary": action.summary,
        "description": f"The command `{action.command}` of the program, and its result.{preview}",
        "operationId": f"{name}Action",
        "security": [{_TOKEN: []}],
        "parameters": parameters,
        "requestBody": {"required": True, "content": {"application/json": {"schema": action.body()}}},
        "responses": {
            "200": _answer("done, or what would be done", "Outcome"),
            "202": _answer("begun: ask again with its uuid", "Outcome"),
            **problems,
        },
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


def _role() -> dict[str, Any]:
    return {
        "summary": "What the token of this request may do",
        "operationId": "role",
        "responses": {
            "200": _answer("its role, and whether there is a token for operators", "Role"),
            "401": _answer("a token for viewers is needed", "Error"),
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
