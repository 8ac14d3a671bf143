"""Actions over HTTP on a lane that runs: they do what the program's commands do, and the log says who."""

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import aiohttp
import pytest
import structlog

from dispatcher.http.server import HttpServer
from dispatcher.settings import HttpSettings, TokenSettings
from tests.service.clients import Client
from tests.service.harness import Bench, lane
from tests.waiting import eventually

TOKEN = "operator-0123456789"


@pytest.fixture
async def url(bench: Bench, tmp_path: Path) -> AsyncIterator[str]:
    """Of a lane whose consumer holds one message of group g; four more of it wait."""
    await bench.run(orders=lane(max_in_flight_per_group=1))
    (tmp_path / "token").write_text(TOKEN)
    tokens = TokenSettings(operator=f"file:{tmp_path / 'token'}")
    server = HttpServer(HttpSettings(listen="127.0.0.1:0", tokens=tokens), list(bench.runners.values()))
    await server.start()
    yield f"http://127.0.0.1:{server.port}/api/lanes/orders/actions"
    await server.stop()


async def act(url: str, action: str, **body: Any) -> tuple[int, Any]:
    headers = {"Authorization": f"Bearer {TOKEN}"}
    async with (
        aiohttp.ClientSession(headers=headers) as session,
        session.post(f"{url}/{action}", json=body) as answer,
    ):
        return answer.status, await answer.json()


async def sent(bench: Bench) -> Client:
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    for number in range(5):
        client.send("in", b"%d" % number, "g")
    await consumer.has(1)
    await eventually(lambda: bench.status()["held"] == 4)
    return client


async def test_a_pause_holds_and_the_log_says_who(url: str, bench: Bench) -> None:
    await sent(bench)
    with structlog.testing.capture_logs() as logs:
        status, answer = await act(url, "pause", group="g")
    assert (status, answer["result"]["changed"]) == (200, True)
    assert (await bench.ask("groups.show", group="g"))["paused"]
    (told,) = (line for line in logs if line["event"] == "operator_command")
    assert (told["user"], told["uuid"]) == ("http operator from 127.0.0.1", answer["uuid"])
    assert (await act(url, "resume", group="g"))[1]["result"]["changed"]
    assert not (await bench.ask("groups.show", group="g"))["paused"]


async def test_a_purge_counts_first_and_is_done_once(url: str, bench: Bench) -> None:
    await sent(bench)

    async def purged(**body: Any) -> dict[str, Any]:
        answer: dict[str, Any] = {}

        async def is_done() -> bool:
            nonlocal answer
            status, answer = await act(url, "purge", group="g", **body)
            assert status in (200, 202), answer
            body["uuid"] = answer["uuid"]
            return not answer["open"]

        await eventually(is_done)
        return answer

    preview = await purged()
    assert (preview["applied"], preview["result"]["messages"], bench.status()["held"]) == (False, 4, 4)
    done = await purged(apply=True)
    assert (done["applied"], done["result"]["messages"], bench.status()["held"]) == (True, 4, 0)
    assert (await purged(apply=True, uuid=done["uuid"]))["result"] == done["result"]


@pytest.mark.parametrize(
    ("action", "body", "problem"),
    [
        ("pause", {"group": "nobody"}, "no group 'nobody' is known here"),
        ("pin", {"group": "g", "consumer": "c9"}, "no consumer 'c9'"),
        ("release", {"group": "g"}, ""),
        ("move", {"group": "g", "to": "dispatch.orders.dead\r\nx: y", "apply": True}, ""),
    ],
)
async def test_a_refusal_is_the_lanes(
    url: str, bench: Bench, action: str, body: dict[str, Any], problem: str
) -> None:
    await sent(bench)
    status, answer = await act(url, action, **body)
    while status == 202:
        status, answer = await act(url, action, **body, uuid=answer["uuid"])
    assert (status, problem in answer["error"]) == (400, True)
    assert bench.status()["held"] == 4


async def test_a_lane_that_is_led_elsewhere_says_so(url: str, bench: Bench) -> None:
    await bench.stop()
    assert (await act(url, "pause", all=True))[0] == 409
