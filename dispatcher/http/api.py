"""The JSON API: every resource by its path, and what it answers. It changes nothing.

`openapi` describes it, `events` pushes it.
"""

from __future__ import annotations

import asyncio
import heapq
import inspect
from collections.abc import Awaitable, Callable, Mapping, Sequence
from typing import Any, Final, NamedTuple
from urllib.parse import parse_qsl, unquote

from dispatcher import __version__
from dispatcher.core.bounds import GROUPS_PER_PAGE_MAX
from dispatcher.errors import CommandRefused
from dispatcher.http import schemas
from dispatcher.http.samples import Samples
from dispatcher.http.schemas import Schema
from dispatcher.http.views import LaneView
from dispatcher.wire.shards import lane_order, whole_name

GROUPS_SHOWN: Final = 50
#: As `sort` of groups: by their part of what came in lately. The other orders are those of `groups list`.
BUSIEST: Final = "busiest"

#: The parameters of a request by their names, those of the path among them.
Given = Mapping[str, Any]
_Found = dict[str, Any] | None


class ApiAnswer(NamedTuple):
    """Of a request: a status of HTTP and a value for JSON."""

    status: int
    body: dict[str, Any]


class Parameter(NamedTuple):
    """What may stand in the query."""

    name: str
    schema: Schema
    required: bool = False


class Resource(NamedTuple):
    """One path, as OpenAPI writes it."""

    path: str
    summary: str
    schema: str  # its name in `schemas.SCHEMAS`
    answer: Callable[[Api, Given], _Found | Awaitable[_Found]]
    parameters: tuple[Parameter, ...] = ()


class _NotFound(Exception):
    """There is no such lane or group."""


class Api:
    """Answers for these lanes."""

    def __init__(self, lanes: Sequence[LaneView], samples: Samples) -> None:
        self._lanes = lanes
        self.samples = samples

    async def answer(self, target: str) -> ApiAnswer:
        """What a GET of this path, with its query, answers."""
        path, _, query = target.partition("?")
        try:
            resource, given = _find(path)
            given |= _read(resource, query)
            found = resource.answer(self, given)
            body = await found if inspect.isawaitable(found) else found
        except _NotFound as missing:
            return ApiAnswer(404, {"error": str(missing)})
        except (CommandRefused, ValueError) as refused:
            return ApiAnswer(400, {"error": str(refused)})
        if body is None:
            return ApiAnswer(409, {"error": f"not led here: {self.lane(given).readiness()[1]}"})
        return ApiAnswer(200, body)

    def lane(self, given: Given) -> LaneView:
        """Raises _NotFound."""
        lane = next((lane for lane in self._lanes if lane.name == given["lane"]), None)
        if lane is None:
            raise _NotFound(f"no lane {given['lane']!r} is configured here")
        return lane

    def lanes(self, _: Given) -> dict[str, Any]:
        return {"version": __version__, "lanes": [_lane(lane) for lane in self._lanes]}

    async def groups(self, given: Given) -> dict[str, Any] | None:
        limit = given.get("limit", GROUPS_SHOWN)
        if limit not in range(1, GROUPS_PER_PAGE_MAX + 1):
            raise ValueError(f"limit: must be from 1 to {GROUPS_PER_PAGE_MAX}")
        if shards := [lane for lane in self._lanes if whole_name(lane.name) == given["lane"] != lane.name]:
            return await _groups_of(shards, given, limit)
        if given.get("sort") == BUSIEST:
            if beside := given.keys() - {"lane", "sort", "limit"}:
                raise ValueError(f"sort by {BUSIEST} goes with limit alone, not with {min(beside)}")
            return self.lane(given).busiest_groups(limit)
        arguments = {name: value for name, value in given.items() if name != "lane"}
        return await self.lane(given).groups({**arguments, "limit": limit})

    def group(self, given: Given) -> dict[str, Any] | None:
        try:
            return self.lane(given).group(given["id"])
        except CommandRefused as unknown:
            raise _NotFound(str(unknown)) from None

    def history(self, given: Given) -> dict[str, Any]:
        if "lane" in given:
            self.lane(given)
        return self.samples.table(given.get("lane"))


async def _groups_of(shards: list[LaneView], given: Given, limit: int) -> dict[str, Any]:
    """Those of all shards that are active here, the deepest first. Raises ValueError, CommandRefused."""
    arguments = {name: value for name, value in given.items() if name != "lane"} | {"limit": limit}
    if beside := arguments.keys() & {"sort", "offset", "after"}:
        raise ValueError(f"{min(beside)}: not of a lane with shards, whose deepest groups come first")
    shards = sorted(shards, key=lambda shard: lane_order(shard.name))
    answers = await asyncio.gather(*(shard.groups(arguments) for shard in shards))
    found = {shard.name: answer for shard, answer in zip(shards, answers, strict=True) if answer is not None}
    rows = ({"lane": name, **row} for name, answer in found.items() for row in answer["groups"])
    return {
        "total": sum(answer["total"] for answer in found.values()),
        "groups": heapq.nsmallest(
            limit, rows, key=lambda row: -row["held"] - row["in_flight"] - row["parked"]
        ),
        "not_led_here": [shard.name for shard in shards if shard.name not in found],
    }


def _lane(lane: LaneView) -> dict[str, Any]:
    overview, (ready, text) = lane.overview(), lane.readiness()
    return {
        "lane": lane.name,
        "policy": overview["policy"],
        "state": overview["state"],
        "readiness": {"ready": ready, "text": text},
        "leader": overview.get("dispatcher") or lane.leader(),
        "status": overview if "lane_epoch" in overview else None,
    }


_LIMIT: Final = Parameter("limit", schemas.integer("at most so many", minimum=1, maximum=GROUPS_PER_PAGE_MAX))
_GROUPS: Final = (
    Parameter("sort", schemas.one_of("the order; busiest: by its part of the last minute's messages",
                                     BUSIEST, "depth", "age", "group")),
    _LIMIT,
    Parameter("offset", schemas.integer("leave out so many", minimum=0)),
    Parameter("after", schemas.string("with sort=group: those behind this one")),
    Parameter("state", schemas.string("only groups in this state")),
    Parameter("owner", schemas.string("only groups of this consumer")),
    Parameter("match", schemas.string("only ids that match, as shown; * and ? stand for any")),
    Parameter("reason", schemas.string("only groups that this reason holds; any: whatever holds them")),
)  # fmt: skip

RESOURCES: Final = (
    Resource("/api/lanes", "Every lane: its state and its status", "Lanes", Api.lanes),
    Resource("/api/lanes/{lane}", "One lane", "Lane", lambda api, given: _lane(api.lane(given))),
    Resource(
        "/api/lanes/{lane}/consumers", "Its consumers", "Consumers",
        lambda api, given: api.lane(given).consumers(),
    ),
    Resource(
        "/api/lanes/{lane}/groups",
        "Its groups, perhaps as of a moment ago; of a lane with shards those of all that are active here",
        "Groups", Api.groups, _GROUPS,
    ),
    Resource(
        "/api/lanes/{lane}/group", "One group, its first messages, and why it waits", "Group", Api.group,
        (Parameter("id", schemas.string("the group's id, as shown"), required=True),),
    ),
    Resource(
        "/api/lanes/{lane}/stopped", "Groups that have stopped at a message that failed", "Stopped",
        lambda api, given: api.lane(given).stopped(given.get("after")),
        (Parameter("after", schemas.string("those behind this group")),),
    ),
    Resource(
        "/api/lanes/{lane}/dead", "The latest messages that it sent to the dead queue", "DeadLetters",
        lambda api, given: api.lane(given).dead_letters(),
    ),
    Resource(
        "/api/lanes/{lane}/operations", "Operations on groups that are under way", "Operations",
        lambda api, given: api.lane(given).operations(),
    ),
    Resource(
        "/api/samples", "The last ten minutes in numbers, the newest last", "Samples", Api.history,
        (Parameter("lane", schemas.string("only this lane")),),
    ),
)  # fmt: skip


def is_resource(target: str) -> bool:
    """Whether that path, with or without a query, is one of these."""
    try:
        _find(target.partition("?")[0])
    except _NotFound:
        return False
    return True


def _find(path: str) -> tuple[Resource, dict[str, Any]]:
    """The resource of that path, and the parameters in it. Raises _NotFound."""
    parts = path.split("/")
    for resource in RESOURCES:
        names = resource.path.split("/")
        if len(names) != len(parts):
            continue
        pairs = list(zip(names, parts, strict=True))
        if all(name == part or name.startswith("{") for name, part in pairs):
            return resource, {name.strip("{}"): unquote(part) for name, part in pairs if name != part}
    raise _NotFound(f"there is no {path}")


def _read(resource: Resource, query: str) -> dict[str, Any]:
    """The parameters of a query. Raises ValueError."""
    known = {parameter.name: parameter for parameter in resource.parameters}
    given = dict(parse_qsl(query, keep_blank_values=True))
    if unknown := [name for name in given if name not in known]:
        raise ValueError(f"{unknown[0]}: no such parameter; there are {', '.join(known) or 'none'}")
    if missing := [name for name, parameter in known.items() if parameter.required and name not in given]:
        raise ValueError(f"{missing[0]}: is missing")
    return {name: _value(known[name], text) for name, text in given.items()}


def _value(parameter: Parameter, text: str) -> Any:
    schema = parameter.schema
    if schema["type"] != "integer":
        if text not in schema.get("enum", (text,)):
            raise ValueError(f"{parameter.name}: must be one of {', '.join(schema['enum'])}")
        return text
    if not (text.isascii() and text.isdigit() and len(text) < 10):
        raise ValueError(f"{parameter.name}: must be a whole number")
    return int(text)  # the lane says which ones it takes
