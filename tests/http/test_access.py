"""Who may read and who may act over HTTP, asked over a real socket."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog
from jsonschema import Draft202012Validator

from dispatcher.errors import CommandRefused, ConfigurationError, NoAnswer
from dispatcher.http.access import Access
from dispatcher.http.actions import ACTIONS
from dispatcher.http.openapi import document
from dispatcher.http.server import HttpServer
from dispatcher.settings import HttpSettings, TokenSettings
from tests.http.test_server import Lane as Shown

VIEWER, OPERATOR = "viewer-0123456789", "operator-0123456789"
PAUSE = "/api/lanes/orders/actions/pause"


class Lane(Shown):
    """Carries out what it is told."""

    def __init__(self) -> None:
        super().__init__("orders")
        self.done: list[tuple[str, dict[str, Any], str, str]] = []
        self.answer: dict[str, Any] | Exception | None = {"changed": True}

    async def command(
        self, name: str, arguments: dict[str, Any], uuid: str, user: str
    ) -> dict[str, Any] | None:
        self.done.append((name, arguments, uuid, user))
        if isinstance(self.answer, Exception):
            raise self.answer
        return self.answer


class Site:
    def __init__(self, url: str, lane: Lane) -> None:
        self.url, self.lane = url, lane

    async def ask(
        self, method: str, path: str, token: str | None = None, body: Any = None, **headers: str
    ) -> tuple[int, Any]:
        given = {name.replace("_", "-"): value for name, value in headers.items()}
        if token is not None:
            given["Authorization"] = f"Bearer {token}"
        sent = {"data": body} if isinstance(body, bytes) else {"json": body} if body is not None else {}
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, self.url + path, headers=given, **sent) as answer,
        ):
            assert answer.headers["Cache-Control"] == "no-store"
            assert "frame-ancestors 'none'" in answer.headers["Content-Security-Policy"]
            is_json = answer.content_type == "application/json"
            return answer.status, await answer.json() if is_json else await answer.text()

    async def act(self, action: str, token: str | None = OPERATOR, /, **body: Any) -> tuple[int, Any]:
        return await self.ask("POST", f"/api/lanes/orders/actions/{action}", token, body)


@contextlib.asynccontextmanager
async def served(folder: Path, *roles: str) -> AsyncIterator[Site]:
    tokens = {"viewer": VIEWER, "operator": OPERATOR}
    for role in roles:
        (folder / role).write_text(tokens[role] + "\n")
    sources = TokenSettings(**{role: f"file:{folder / role}" for role in roles})
    lane = Lane()
    server = HttpServer(HttpSettings(listen="127.0.0.1:0", tokens=sources), [lane])
    await server.start()
    try:
        yield Site(f"http://127.0.0.1:{server.port}", lane)
    finally:
        await server.stop()


@pytest.fixture
async def site(tmp_path: Path) -> AsyncIterator[Site]:
    async with served(tmp_path, "viewer", "operator") as made:
        yield made


@pytest.mark.parametrize(
    "path", ["/api/lanes", "/api/lanes/orders", "/api/events", "/api/role", "/api/openapi.json", "/metrics"]
)
async def test_reading_needs_a_token_where_one_is_set(site: Site, path: str) -> None:
    for token in (None, "wrong-0123456789ab", "", VIEWER[:-1]):
        status, body = await site.ask("GET", path, token)
        assert (status, "error" in body) == (401, True)
    for token in (VIEWER, OPERATOR):
        status, _ = await site.ask("GET", path, token)
        assert status == (400 if path == "/api/events" else 200), "events want to know of what"


@pytest.mark.parametrize("path", ["/", "/static/page.js", "/healthz", "/readyz"])
async def test_probes_and_the_page_itself_need_none(site: Site, path: str) -> None:
    assert (await site.ask("GET", path))[0] == 200


async def test_without_tokens_everybody_reads_and_nobody_acts(tmp_path: Path) -> None:
    async with served(tmp_path) as site:
        assert (await site.ask("GET", "/api/lanes"))[0] == 200
        status, body = await site.act("pause", all=True)
        assert (status, "http.tokens.operator is not set" in body["error"]) == (403, True)
        assert site.lane.done == []


@pytest.mark.parametrize(("token", "status"), [(None, 401), ("wrong-0123456789ab", 401), (VIEWER, 403)])
async def test_acting_needs_the_operators_token(site: Site, token: str | None, status: int) -> None:
    with structlog.testing.capture_logs() as logs:
        assert (await site.act("pause", token, all=True))[0] == status
    assert site.lane.done == []
    (told,) = logs
    assert (told["event"], told["status"], told["remote"]) == ("http_refused", status, "127.0.0.1")
    assert "wrong" not in str(told)


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://evil.example"}, 403),
        ({"Origin": "null"}, 403),
        ({"Sec_Fetch_Site": "cross-site"}, 403),
        ({"Sec_Fetch_Site": "same-site"}, 403),
        ({"Content_Type": "text/plain"}, 415),
        ({"Content_Type": "application/x-www-form-urlencoded"}, 415),
        ({"Sec_Fetch_Site": "same-origin"}, 200),
    ],
)
async def test_a_page_of_others_does_not_act(site: Site, headers: dict[str, str], status: int) -> None:
    headers = {"Content_Type": "application/json", **headers}
    assert (await site.ask("POST", PAUSE, OPERATOR, b'{"all": true}', **headers))[0] == status
    assert len(site.lane.done) == (status == 200)
    own = {"Content_Type": "application/json", "Origin": site.url}
    assert (await site.ask("POST", PAUSE, OPERATOR, b'{"all": true}', **own))[0] == 200


@pytest.mark.parametrize(
    ("action", "body", "command", "arguments"),
    [
        ("pause", {"all": True}, "groups.pause", {"all": True}),
        ("pause", {"group": "g", "new": True}, "groups.pause", {"group": "g", "new": True}),
        ("resume", {"group": "g"}, "groups.resume", {"group": "g"}),
        ("pin", {"group": "g", "consumer": "c"}, "groups.pin", {"group": "g", "consumer": "c"}),
        ("unpin", {"group": "g"}, "groups.pin", {"group": "g", "undo": True}),
        ("close", {"group": "g"}, "groups.close", {"group": "g"}),
        ("drain", {"consumer": "c"}, "consumers.drain", {"consumer": "c"}),
        ("release", {"group": "g"}, "dead.release", {"group": "g"}),
        ("skip", {"group": "g"}, "dead.skip", {"group": "g"}),
        ("rebalance", {}, "rebalance", {"dry_run": True}),
        ("rebalance", {"reset": True, "apply": True}, "rebalance", {"reset": True, "dry_run": False}),
        ("purge", {"group": "g"}, "groups.purge", {"group": "g", "dry_run": True}),
        ("purge", {"group": "g", "first": 2, "apply": True}, "groups.purge",
         {"group": "g", "first": 2, "dry_run": False}),
        ("move", {"group": "g", "to": "q"}, "groups.move", {"group": "g", "to": "q", "dry_run": True}),
    ],
)  # fmt: skip
async def test_each_action_is_a_command(
    site: Site, action: str, body: dict[str, Any], command: str, arguments: dict[str, Any]
) -> None:
    with structlog.testing.capture_logs() as logs:
        status, answer = await site.act(action, **body)
    assert status == 200
    ((name, said, uuid, user),) = site.lane.done
    assert (name, said, user) == (command, arguments, "http operator from 127.0.0.1")
    assert answer == {"uuid": uuid, "open": False, "applied": True, "result": {"changed": True}}
    schema = {"$ref": "#/components/schemas/Outcome", "components": document()["components"]}
    Draft202012Validator(schema).validate(answer)
    (told,) = logs
    assert (told["event"], told["action"], told["uuid"]) == ("http_action", action, uuid)


async def test_a_request_with_a_uuid_is_that_of_before(site: Site) -> None:
    await site.act("purge", group="g", apply=True, uuid="one-and-the-same")
    assert site.lane.done[0][2] == "one-and-the-same"


@pytest.mark.parametrize(
    ("action", "body", "problem"),
    [
        ("pause", b"", ""),
        ("pause", b"{", "JSON"),
        ("pause", b"[]", "object"),
        ("pause", b"[" * 10_000, "read"),
        ("pause", b'{"group": 7}', "group: must be of type string"),
        ("pause", b'{"group": "g", "dry_run": false}', "dry_run: no such field"),
        ("pause", b'{"group": ["g"]}', "group"),
        ("close", b"{}", "group: is missing"),
        ("purge", b'{"group": "g", "first": true}', "first: must be of type integer"),
        ("purge", b'{"group": "g", "apply": 1}', "apply: must be of type boolean"),
        ("purge", b'{"group": "g", "uuid": ""}', ""),
        ("purge", b'{"group": "g", "uuid": "%s"}' % (b"x" * 300), "uuid"),
        ("move", b'{"group": "g"}', "to: is missing"),
    ],
)
async def test_a_body_that_is_not_understood_does_nothing(
    site: Site, action: str, body: bytes, problem: str
) -> None:
    path = f"/api/lanes/orders/actions/{action}"
    status, answer = await site.ask("POST", path, OPERATOR, body, Content_Type="application/json")
    if problem:
        assert (status, site.lane.done) == (400, [])
        assert "error" in answer
    else:
        assert status == 200


@pytest.mark.parametrize(
    ("answer", "status", "is_open"),
    [
        (CommandRefused("no group 'g' is known here"), 400, None),
        (NoAnswer("may be done"), 504, None),
        (None, 409, None),
        ({"open": True, "waits_for": ["in"]}, 202, True),
        ({"applied": False, "messages": 3}, 200, False),
    ],
)
async def test_what_becomes_of_it(
    site: Site, answer: dict[str, Any] | Exception | None, status: int, is_open: bool | None
) -> None:
    site.lane.answer = answer
    found, body = await site.act("purge", group="g", apply=True)
    assert found == status
    if is_open is None:
        assert "error" in body
    else:
        assert (body["open"], body["applied"]) == (is_open, False)


@pytest.mark.parametrize("path", ["/api/lanes/bills/actions/pause", "/api/lanes/orders/actions/explode"])
async def test_no_other_lane_or_action(site: Site, path: str) -> None:
    assert (await site.ask("POST", path, OPERATOR, {}))[0] == 404


async def test_a_large_body_is_refused(site: Site) -> None:
    assert (await site.ask("POST", PAUSE, OPERATOR, {"group": "x" * 100_000}))[0] == 413
    assert site.lane.done == []


def test_every_action_is_documented() -> None:
    paths = document()["paths"]
    for name in ACTIONS:
        operation = paths[f"/api/lanes/{{lane}}/actions/{name}"]["post"]
        assert operation["security"] == [{"token": []}]


@pytest.mark.parametrize(
    ("viewer", "operator", "problem"),
    [
        ("env:NONE", None, "http.tokens.viewer: the environment has no NONE"),
        ("file:/nothing/there", None, "http.tokens.viewer: /nothing/there can't be read (No such file"),
        (None, "env:SHORT", "http.tokens.operator: must be 16 or more characters"),
        (None, "env:SPACED", "http.tokens.operator: must be 16 or more characters"),
        ("env:ONE", "env:ONE", "http.tokens.operator: is the viewer's too"),
    ],
)
def test_a_token_that_can_not_be_used_is_named_and_not_shown(
    viewer: str | None, operator: str | None, problem: str
) -> None:
    environ = {"SHORT": "hunter2", "SPACED": "hunter2 hunter2 hunter2", "ONE": "hunter2-hunter2-hunter2"}
    with pytest.raises(ConfigurationError) as refused:
        Access.of(TokenSettings(viewer=viewer, operator=operator), environ)
    assert problem in str(refused.value)
    assert "hunter2" not in str(refused.value)


async def test_a_request_hears_what_its_token_may_do(tmp_path: Path) -> None:
    async with served(tmp_path, "viewer", "operator") as site:
        for token, role in ((VIEWER, "viewer"), (OPERATOR, "operator")):
            assert await site.ask("GET", "/api/role", token) == (200, {"role": role, "acts": True})
        assert (await site.ask("GET", "/api/role"))[0] == 401
    async with served(tmp_path) as site:
        assert await site.ask("GET", "/api/role") == (200, {"role": "viewer", "acts": False})
