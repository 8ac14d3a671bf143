"""What operators do over HTTP: the commands of the program, with the same arguments and results.

`openapi` describes them. Those that move or delete messages, and `rebalance`, only say what they would do
unless `apply` is true.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Mapping
from typing import Any, Final, NamedTuple

from dispatcher.errors import CommandRefused, NoAnswer
from dispatcher.http import schemas
from dispatcher.http.schemas import Schema
from dispatcher.http.views import LaneView
from dispatcher.wire.json_fields import is_short_string

PATH: Final = "/api/lanes/{lane}/actions/{action}"
BODY_BYTES_MAX: Final = 65_536
_TYPES: Final = {"string": str, "integer": int, "boolean": bool}
_GROUP: Final = {"group": schemas.string("its id, as shown")}
_APPLY: Final = {"apply": schemas.boolean("carry it out; otherwise only say what would be done")}
_FIRST: Final = {"first": schemas.integer("only so many of the messages that wait", minimum=1)}
_CONSUMER: Final = {"consumer": schemas.string("its id")}
_UUID: Final = {
    "uuid": schemas.string("that of an earlier request: it is not done again, but answered with its result")
}


class Action(NamedTuple):
    """One action, as OpenAPI and the core know it."""

    command: str
    summary: str
    fields: dict[str, Schema]  # of the body
    required: tuple[str, ...] = ()
    fixed: Mapping[str, Any] = {}  # never changed: further arguments of the command

    @property
    def previews(self) -> bool:
        """Whether it only says what it would do unless it is told to apply it."""
        return "apply" in self.fields

    def body(self) -> Schema:
        return {
            "type": "object", "properties": {**self.fields, **_UUID}, "additionalProperties": False,
            "required": list(self.required),
        }  # fmt: skip

    def arguments(self, body: dict[str, Any]) -> dict[str, Any]:
        """Those of the command. Raises ValueError."""
        known = self.body()["properties"]
        for name, value in body.items():
            if name not in known:
                raise ValueError(f"{name}: no such field; there are {', '.join(known)}")
            if type(value) is not _TYPES[known[name]["type"]]:
                raise ValueError(f"{name}: must be of type {known[name]['type']}")
        if missing := [name for name in self.required if name not in body]:
            raise ValueError(f"{missing[0]}: is missing")
        said = {name: value for name, value in body.items() if name not in ("apply", "uuid")}
        preview = {"dry_run": not body.get("apply", False)} if self.previews else {}
        return {**self.fixed, **said, **preview}


_NEW: Final = {"new": schemas.boolean("also a group that has had no message yet")}
_WHICH: Final = {**_GROUP, "all": schemas.boolean("the whole lane instead of a group")}
ACTIONS: Final = {
    "pause": Action("groups.pause", "Hand over no more of a group, or of the lane", {**_WHICH, **_NEW}),
    "resume": Action("groups.resume", "Let a paused group, or the paused lane, go on", _WHICH),
    "pin": Action(
        "groups.pin", "Give a group to one consumer only", {**_GROUP, **_CONSUMER}, ("group", "consumer")
    ),
    "unpin": Action("groups.pin", "End that", _GROUP, ("group",), {"undo": True}),
    "close": Action("groups.close", "End a group as a negative sequence does", _GROUP, ("group",)),
    "drain": Action(
        "consumers.drain", "Give a consumer no more messages",
        {**_CONSUMER, "undo": schemas.boolean("end that")}, ("consumer",),
    ),
    "release": Action(
        "dead.release", "A group that has stopped goes on with the failed message", _GROUP, ("group",)
    ),
    "skip": Action(
        "dead.skip", "A group that has stopped goes on behind the failed message: that is a dead letter",
        _GROUP, ("group",),
    ),
    "rebalance": Action(
        "rebalance", "Move groups, as few as make the consumers' numbers of them even",
        {
            **_GROUP, **_APPLY, "to": schemas.string("the consumer that gets the group"),
            "reset": schemas.boolean("take every group from its owner"),
            "pause": schemas.one_of("which messages wait meanwhile", "group", "lane", "none"),
        },
    ),
    "purge": Action(
        "groups.purge", "Delete the waiting messages of a group", {**_GROUP, **_FIRST, **_APPLY}, ("group",)
    ),
    "move": Action(
        "groups.move", "Send the waiting messages of a group to another queue, in order",
        {**_GROUP, "to": schemas.string("the queue"), **_FIRST, **_APPLY}, ("group", "to"),
    ),
}  # fmt: skip


class ActionAnswer(NamedTuple):
    """Of an action: a status of HTTP and a value for JSON."""

    status: int
    body: dict[str, Any]


async def act(lane: LaneView, action: Action, raw: bytes, user: str) -> ActionAnswer:
    """Do it, or say why not."""
    try:
        body = json.loads(raw or b"{}")
        if not isinstance(body, dict):
            raise ValueError("the body must be a JSON object")
        arguments = action.arguments(body)
        command_uuid = body.get("uuid") or str(uuid.uuid4())
        if not is_short_string(command_uuid):
            raise ValueError("uuid: must be of 1 to 255 bytes")
    except (ValueError, RecursionError) as refused:
        return ActionAnswer(400, {"error": str(refused) or "the body can't be read"})
    try:
        result = await lane.command(action.command, arguments, command_uuid, user)
    except CommandRefused as refused:
        return ActionAnswer(400, {"error": str(refused)})
    except NoAnswer as silent:
        return ActionAnswer(504, {"error": str(silent), "uuid": command_uuid})
    if result is None:
        return ActionAnswer(409, {"error": f"not led here: {lane.readiness()[1]}"})
    is_open = bool(result.get("open"))
    applied = bool(result.get("applied", not is_open))
    return ActionAnswer(
        202 if is_open else 200,
        {"uuid": command_uuid, "open": is_open, "applied": applied, "result": result},
    )
