"""The JSON API of a dispatcher that runs, against its own OpenAPI document."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any
from urllib.parse import quote

import aiohttp
import pytest
from jsonschema import Draft202012Validator

from dispatcher.http.api import RESOURCES
from dispatcher.http.events import REPEATED_AFTER, STREAMS_MAX
from dispatcher.http.openapi import EVENTS_PATH, WATCHED_MAX, document
from dispatcher.http.server import HttpServer
from dispatcher.service.lane_runner import LaneRunner, RunnerState
from dispatcher.settings import HttpSettings
from dispatcher.wire.group_text import format_group
from tests.http.busy_lane import DEAD_REASON, HOSTILE, busy_lane, dead_letters, served
from tests.service.harness import Bench, lane
from tests.waiting import eventually

DOCUMENT = Path(__file__).parents[2] / "docs" / "openapi.json"
GROUP = "/api/lanes/orders/group?id="


@pytest.fixture
async def url(bench: Bench) -> AsyncIterator[str]:
    """Of a server whose lane has something to show everywhere."""
    await busy_lane(bench)
    server = await served(bench)
    yield f"http://127.0.0.1:{server.port}"
    await server.stop()


async def get(url: str) -> tuple[int, Any]:
    async with aiohttp.ClientSession() as session, session.get(url) as answer:
        assert answer.content_type == "application/json"
        assert answer.headers["Cache-Control"] == "no-store"
        assert answer.headers["X-Content-Type-Options"] == "nosniff"
        return answer.status, await answer.json()


def strict(schema: Any) -> Any:
    """The same, without room for a field that is not described."""
    if isinstance(schema, list):
        return [strict(each) for each in schema]
    if not isinstance(schema, dict):
        return schema
    closed = {"additionalProperties": False} if "properties" in schema else {}
    return {**closed, **{key: strict(value) for key, value in schema.items()}}


def check(name: str, value: Any) -> None:
    """The value is what the document says of that schema, and nothing else."""
    whole = strict(document())
    validator = Draft202012Validator(
        {"$ref": f"#/components/schemas/{name}", "components": whole["components"]}
    )
    problems = [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]
    assert problems == []


def test_the_file_is_what_the_code_says() -> None:
    assert json.loads(DOCUMENT.read_text()) == document(), (
        "python -m dispatcher.http.openapi > docs/openapi.json"
    )


def test_every_schema_is_one_and_is_used() -> None:
    text = json.dumps(document())
    for name, schema in document()["components"]["schemas"].items():
        Draft202012Validator.check_schema(schema)
        assert f"#/components/schemas/{name}" in text or name == "Event", name


async def test_every_answer_is_as_the_document_says(url: str) -> None:
    await eventually(lambda: _has_samples(url))
    for resource in RESOURCES:
        path = resource.path.replace("{lane}", "orders")
        if resource.schema == "Group":
            path = f"{GROUP}busy"
        status, body = await get(url + path)
        assert status == 200, body
        check(resource.schema, body)
    assert (await get(f"{url}/api/openapi.json"))[1] == document()


async def _has_samples(url: str) -> bool:
    return "orders" in (await get(f"{url}/api/samples"))[1]["lanes"]


async def test_the_lane_tells_its_state_and_what_is_ready(url: str, bench: Bench) -> None:
    async def ready() -> bool:
        rows = (await get(f"{url}/api/lanes/orders"))[1]["status"]["inbound"]
        return [row["ready"] for row in rows] != [None, None]

    await eventually(ready)
    lanes = (await get(f"{url}/api/lanes"))[1]["lanes"]
    _, lane = await get(f"{url}/api/lanes/orders")
    assert [each["lane"] for each in lanes] == ["orders"]
    assert (lane["state"], lane["readiness"]) == ("active", {"ready": True, "text": "leading"})
    assert [(row["queue"], row["weight"]) for row in lane["status"]["inbound"]] == [("in", 4), ("low", 1)]
    assert (lane["status"]["groups_paused"], lane["status"]["groups_stopped"]) == (1, 1)


async def test_a_replica_that_stands_by_says_who_leads(bench: Bench) -> None:
    await bench.run(orders=lane())
    leader = bench.status()["dispatcher"]
    settings = bench.settings(orders=lane())
    standby = LaneRunner(settings, settings.lanes["orders"])
    task = asyncio.create_task(standby.run())
    server = HttpServer(HttpSettings(listen="127.0.0.1:0"), [standby])
    await server.start()
    url = f"http://127.0.0.1:{server.port}/api/lanes/orders"
    try:
        await eventually(lambda: standby.state is RunnerState.STANDBY)

        async def said() -> bool:
            return (await get(url))[1]["leader"] == leader

        await eventually(said)
        _, body = await get(url)
        assert (body["state"], body["status"]) == ("standing by", None)
        check("Lane", body)
    finally:
        await server.stop()
        await standby.stop()
        task.cancel()


async def test_groups_are_the_busiest_the_oldest_the_held_and_those_searched_for(url: str) -> None:
    async def groups(query: str) -> list[dict[str, Any]]:
        status, body = await get(f"{url}/api/lanes/orders/groups?{query}")
        assert status == 200, body
        check("Groups", body)
        return list(body["groups"])

    busiest = await groups("sort=busiest&limit=3")
    assert busiest[0]["group"] == "busy"
    assert [row["share"] for row in busiest] == sorted((row["share"] for row in busiest), reverse=True)
    assert next(row["group"] for row in await groups("sort=age")) == "stopping"
    held = {row["group"]: row["reason"] for row in await groups("reason=any&sort=age")}
    assert held.items() >= {("stopping", "stopped"), ("paused", "paused")}
    assert None not in held.values()
    assert not set(held) & {format_group(group) for group in HOSTILE}, "they are out, and nothing waits"
    assert [row["group"] for row in await groups("match=*aus*")] == ["paused"]
    assert {row["group"] for row in await groups("sort=depth&limit=1000")} >= set(map(format_group, HOSTILE))


async def test_the_name_of_a_lane_with_shards_stands_for_those_that_are_led_here(bench: Bench) -> None:
    await bench.run(spread=lane("in", shards=3))
    settings = bench.settings(spread=lane("in", shards=3))
    await bench.stop("spread@3")
    bench.runners["spread@3"] = LaneRunner(settings, settings.lanes["spread@3"])  # not led here
    client = await bench.client()
    for group, queue, messages in (
        ("a 1", "in@1", 1),
        ("a 2", "in@2", 3),
        ("a 3", "in@1", 2),
        ("b", "in@2", 4),
    ):
        for _ in range(messages):
            client.send(queue, b"x", group)
    await eventually(lambda: [bench.status(f"spread@{n}")["held"] for n in (1, 2)] == [3, 7])
    server = await served(bench)
    url = f"http://127.0.0.1:{server.port}/api/lanes/spread/groups"
    status, body = await get(f"{url}?match=a*&limit=2")
    assert status == 200, body
    check("Groups", body)
    assert [(row["lane"], row["group"]) for row in body["groups"]] == [
        ("spread@2", "a 2"),
        ("spread@1", "a 3"),
    ]
    assert (body["total"], body["not_led_here"]) == (3, ["spread@3"])
    for strange in ("sort=busiest", "sort=age", "offset=1", "after=a"):
        status, body = await get(f"{url}?{strange}")
        assert (status, body["error"].partition(":")[0]) == (400, strange.partition("=")[0])
    assert (await get(f"http://127.0.0.1:{server.port}/api/lanes/spread"))[0] == 404
    await server.stop()


async def test_a_groups_page_says_why_it_waits_as_the_command_does(url: str, bench: Bench) -> None:
    for group in ("busy", "paused", "stopping", *map(format_group, HOSTILE)):
        status, body = await get(url + GROUP + quote(group, safe=""))
        assert status == 200, (group, body)
        check("Group", body)
        why = await bench.ask("groups.why", group=group)
        assert [body["why"][key] for key in ("group", "reason", "verdict")] == [
            why[key] for key in ("group", "reason", "verdict")
        ]
        assert (body["show"]["group"], body["show"]["reason"]) == (group, why["reason"])
        assert all("headers" not in message for message in body["show"]["messages"])
    assert (await get(f"{url}{GROUP}busy"))[1]["why"]["blocking"]["consumer"] == "c1"


async def test_a_groups_page_has_what_happened_to_it_lately(url: str, bench: Bench) -> None:
    async def events(group: str) -> list[tuple[str, str | None]]:
        _, body = await get(url + GROUP + quote(group, safe=""))
        check("Group", body)
        at = [each["at"] for each in body["history"]]
        assert at == sorted(at, reverse=True)
        return [(each["event"], each["consumer"]) for each in body["history"]]

    paused = [("operator_command", None), ("group_paused", None), ("owner_changed", "c1")]
    assert await events("paused") == paused
    stopping = await events("stopping")
    assert stopping[-1] == ("owner_changed", "c1")
    assert {"message_failed", "group_stopped"} <= {event for event, _ in stopping}
    assert await events(format_group(HOSTILE[0])) == [("owner_changed", "c1")]
    await bench.ask("groups.resume", group="paused")
    assert (await events("paused"))[:2] == [("operator_command", None), ("group_resumed", None)]
    _, body = await get(url + GROUP + "stopping")
    assert any("no <b>stock</b>" in each["detail"] for each in body["history"])


async def test_stopped_groups_and_operations_are_listed(url: str) -> None:
    _, stopped = await get(f"{url}/api/lanes/orders/stopped")
    assert [(row["group"], row["reason"]) for row in stopped["groups"]] == [("stopping", "no <b>stock</b>")]
    _, operations = await get(f"{url}/api/lanes/orders/operations")
    assert [(row["operation"], row["group"]) for row in operations["operations"]] == [("purge", "busy")]
    _, consumers = await get(f"{url}/api/lanes/orders/consumers")
    (row,) = consumers["consumers"]
    assert (row["consumer"], row["in_flight"]) == ("c1", len(HOSTILE) + 2)
    assert row["oldest_in_flight_ms"] >= 0


async def test_the_latest_dead_letters_have_groups_and_reasons(bench: Bench) -> None:
    await dead_letters(bench)
    server = await served(bench)
    try:
        _, found = await get(f"http://127.0.0.1:{server.port}/api/lanes/orders/dead")
        check("DeadLetters", found)
        told = [(row["group"], row["reason"], row["attempt"]) for row in found["messages"]]
        assert told == [(None, DEAD_REASON, 1), (format_group(HOSTILE[0]), DEAD_REASON, 1)]
    finally:
        await server.stop()


#: A request, and what is wrong with it.
WRONG = [
    ("/api/lanes/nolane", 404, "no lane 'nolane'"),
    ("/api/lanes/%3Cb%3E/consumers", 404, "no lane '<b>'"),
    ("/api/samples?lane=nolane", 404, "no lane 'nolane'"),
    (f"{GROUP}nobody", 404, "no group 'nobody'"),
    ("/api/lanes/orders/group", 400, "id: is missing"),
    ("/api/lanes?x=1", 400, "x: no such parameter"),
    ("/api/lanes/orders/groups?limit=0", 400, "limit: must be from 1 to 1000"),
    ("/api/lanes/orders/groups?sort=busiest&limit=1001", 400, "limit: must be from 1 to 1000"),
    ("/api/lanes/orders/groups?limit=x", 400, "limit: must be a whole number"),
    ("/api/lanes/orders/groups?limit=%D9%A1", 400, "limit: must be a whole number"),
    ("/api/lanes/orders/groups?sort=size", 400, "sort: must be one of busiest, depth, age, group"),
    ("/api/lanes/orders/groups?sort=busiest&match=a", 400, "goes with limit alone, not with match"),
    ("/api/lanes/orders/groups?state=odd", 400, "no group state 'odd'"),
    ("/api/lanes/orders/groups?reason=odd", 400, "no reason 'odd'"),
]  # fmt: skip


async def test_what_can_not_be_answered_is_an_error_in_json(url: str) -> None:
    for path, status, problem in WRONG:
        found, body = await get(url + path)
        check("Error", body)
        assert found == status, (path, body)
        assert problem in body["error"]


async def test_a_lane_that_is_not_led_here_has_no_details(bench: Bench) -> None:
    settings = bench.settings(orders=lane())
    bench.runners["orders"] = LaneRunner(settings, settings.lanes["orders"])
    server = await served(bench)
    base = f"http://127.0.0.1:{server.port}"
    try:
        _, found = await get(f"{base}/api/lanes/orders")
        check("Lane", found)
        assert (found["state"], found["status"]) == ("connecting", None)
        for what in (
            "consumers",
            "groups",
            "groups?sort=busiest",
            "group?id=g",
            "stopped",
            "dead",
            "operations",
        ):
            status, body = await get(f"{base}/api/lanes/orders/{what}")
            check("Error", body)
            assert (status, body["error"]) == (409, "not led here: connecting")
    finally:
        await server.stop()


class Stream:
    """An event stream that is read."""

    def __init__(self, answer: aiohttp.ClientResponse) -> None:
        self._answer = answer

    async def event(self) -> dict[str, Any]:
        async with asyncio.timeout(10 * REPEATED_AFTER):
            while True:
                line = (await self._answer.content.readline()).decode()
                assert line, "the stream has ended"
                if line.startswith("data: "):
                    return dict(json.loads(line.removeprefix("data: ")))


async def test_events_push_what_a_get_answers_and_what_has_changed(url: str, bench: Bench) -> None:
    group = GROUP + quote(format_group(HOSTILE[4]), safe="")
    watched = ["/api/lanes", group, "/api/lanes/nolane"]
    query = "&".join(f"watch={quote(path, safe='')}" for path in watched)
    async with aiohttp.ClientSession() as session, session.get(f"{url}{EVENTS_PATH}?{query}") as answer:
        assert answer.status == 200
        assert answer.content_type == "text/event-stream"
        assert answer.headers["Cache-Control"] == "no-store"
        stream = Stream(answer)
        events = [await stream.event() for _ in watched]
        by_path = {event["path"]: event for event in events}
        assert set(by_path) == set(watched)
        assert [by_path[path]["status"] for path in watched] == [200, 200, 404]
        for path, schema in zip(watched, ("Lanes", "Group", "Error"), strict=True):
            event = by_path[path]
            check("Event", {**event, "body": {}})
            check(schema, event["body"])
        await bench.ask("groups.pause", all=True)

        async def is_told() -> bool:
            event = await stream.event()
            return event["path"] == "/api/lanes" and event["body"]["lanes"][0]["status"]["paused"]

        await eventually(is_told)


async def test_streams_are_bounded_and_end_with_the_server(bench: Bench) -> None:
    server = await served(bench)
    base = f"http://127.0.0.1:{server.port}{EVENTS_PATH}"
    async with aiohttp.ClientSession(connector=aiohttp.TCPConnector(limit=0)) as session:
        for query in ("", "?watch=/healthz", "?" + "&".join(["watch=/api/lanes"] * (WATCHED_MAX + 1))):
            assert (await get(base + query))[0] == 400
        opened = [await session.get(f"{base}?watch=/api/lanes") for _ in range(STREAMS_MAX)]
        assert (await get(f"{base}?watch=/api/lanes"))[0] == 503
        opened[0].close()

        async def has_room() -> bool:
            async with session.get(f"{base}?watch=/api/lanes") as again:
                return again.status == 200

        await eventually(has_room)
        await server.stop()
        for answer in opened[1:]:
            await asyncio.wait_for(answer.content.read(), 5)
