"""The HTTP server, asked over a real socket."""

from __future__ import annotations

import re
from collections.abc import AsyncIterator
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from prometheus_client.parser import text_string_to_metric_families

from dispatcher.errors import ConfigurationError
from dispatcher.http.server import HttpServer
from dispatcher.http.views import Buckets
from dispatcher.settings import HttpSettings


class Lane:
    """A lane with fixed answers."""

    def __init__(self, name: str, ready: bool = True, why: str = "leading") -> None:
        self.name = name
        self.ready, self.why = ready, why
        self.active = True

    def readiness(self) -> tuple[bool, str]:
        return self.ready, self.why

    def leader(self) -> None:
        return None

    def overview(self) -> dict[str, Any]:
        head = {"lane": self.name, "policy": "exclusive", "state": "active" if self.active else "standing by"}
        if not self.active:
            return head
        inbound = {"queue": "q.<high>", "weight": 4, "share": 0.8, "dispatched": 1234, "held": 5}
        row = {
            **inbound,
            "in_flight": 6,
            "look_ahead": 100,
            "full": True,
            "full_of": "7 messages of group a&b",
            "settled_unacked": 8,
            "settled_unacked_ms": 2_500,
        }
        return {
            **head, "dispatcher": "host:1", "lane_epoch": 17, "consumers": 2, "groups": 3, "held": 5,
            "consumers_frozen": 1, "in_flight": 6, "unconfirmed": 1, "bytes_held": 4096, "inbound": [row],
            "busiest_group": {"group": "<b>", "share": 0.62, "depth": 900, "owner": "c-1"},
            "oldest_in_flight_ms": 4_500, "dead_letters": 12,
        }  # fmt: skip

    def counters(self) -> dict[str, float]:
        return {"settled": 42} if self.active else {}

    def durations(self) -> dict[str, Buckets]:
        return {"wait": Buckets(((0.5, 3), (1.0, 4)), 5, 40.5)} if self.active else {}

    def sample(self) -> None:
        return None


@pytest.fixture
def lanes() -> list[Lane]:
    return [Lane("orders"), Lane("bills")]


@pytest.fixture
async def url(lanes: list[Lane]) -> AsyncIterator[str]:
    server = HttpServer(HttpSettings(listen="127.0.0.1:0"), lanes)
    await server.start()
    yield f"http://127.0.0.1:{server.port}"
    await server.stop()


async def get(url: str, **headers: str) -> tuple[int, str, aiohttp.typedefs.LooseHeaders]:
    async with aiohttp.ClientSession() as session, session.get(url, headers=headers) as answer:
        return answer.status, await answer.text(), answer.headers


async def test_healthz_says_that_the_process_lives(url: str, lanes: list[Lane]) -> None:
    lanes[0].ready = False
    assert (await get(f"{url}/healthz"))[:2] == (200, "ok\n")


async def test_readyz_needs_every_lane_and_says_why(url: str, lanes: list[Lane]) -> None:
    lanes[1].why = "standing by"
    assert (await get(f"{url}/readyz"))[:2] == (200, "orders: leading\nbills: standing by\n")
    lanes[1].ready, lanes[1].why = False, "Redis: connection refused"
    assert (await get(f"{url}/readyz"))[:2] == (503, "orders: leading\nbills: Redis: connection refused\n")


async def test_readyz_has_a_line_for_each_lane_whatever_others_named(url: str, lanes: list[Lane]) -> None:
    lanes[0].why = "no queue 'a\nbills: leading\x9b'"
    _, text, _ = await get(f"{url}/readyz")
    assert text == "orders: no queue 'a\\nbills: leading\\x9b'\nbills: leading\n"


async def test_metrics_have_a_lanes_numbers(url: str, lanes: list[Lane]) -> None:
    lanes[1].active = False
    status, text, headers = await get(f"{url}/metrics")
    assert status == 200
    assert headers["Content-Type"].startswith("text/plain")
    samples = {
        (sample.name, sample.labels.get("lane"), sample.labels.get("queue")): sample.value
        for family in text_string_to_metric_families(text)
        for sample in family.samples
    }
    assert samples["dispatcher_settled_total", "orders", None] == 42
    assert samples["dispatcher_settled_total", "bills", None] == 0
    assert samples["dispatcher_lane_active", "orders", None] == 1
    assert samples["dispatcher_lane_active", "bills", None] == 0
    assert samples["dispatcher_lane_ready", "bills", None] == 1
    assert samples["dispatcher_messages_in_flight", "orders", None] == 6
    assert samples["dispatcher_busiest_group_share", "orders", None] == 0.62
    assert samples["dispatcher_busiest_group_depth", "orders", None] == 900
    assert samples["dispatcher_oldest_in_flight_seconds", "orders", None] == 4.5
    assert samples["dispatcher_frozen_consumers", "orders", None] == 1
    assert samples["dispatcher_dead_letters", "orders", None] == 12
    assert ("dispatcher_busiest_group_share", "bills", None) not in samples
    assert samples["dispatcher_inbound_dispatched_total", "orders", "q.<high>"] == 1234
    assert samples["dispatcher_inbound_look_ahead_full", "orders", "q.<high>"] == 1
    assert samples["dispatcher_inbound_settled_unacked", "orders", "q.<high>"] == 8
    assert samples["dispatcher_inbound_settled_unacked_seconds", "orders", "q.<high>"] == 2.5
    assert ("dispatcher_messages_in_flight", "bills", None) not in samples


async def test_metrics_of_a_shard_have_the_labels_of_its_lane(url: str, lanes: list[Lane]) -> None:
    lanes[1].name = "orders@2"
    _, text, _ = await get(f"{url}/metrics")
    samples = [sample for family in text_string_to_metric_families(text) for sample in family.samples]
    settled = [sample.labels for sample in samples if sample.name == "dispatcher_settled_total"]
    assert settled == [{"lane": "orders"}, {"lane": "orders", "shard": "2"}]
    of_lane = [sample for sample in samples if "lane" in sample.labels]
    assert not any("@" in value for sample in of_lane for value in sample.labels.values())


async def test_metrics_have_a_lanes_histograms(url: str, lanes: list[Lane]) -> None:
    lanes[1].active = False
    _, text, _ = await get(f"{url}/metrics")
    samples = {
        (sample.name, sample.labels["lane"], sample.labels.get("le")): sample.value
        for family in text_string_to_metric_families(text)
        if family.name == "dispatcher_wait_seconds"
        for sample in family.samples
    }
    assert samples == {
        ("dispatcher_wait_seconds_bucket", "orders", "0.5"): 3,
        ("dispatcher_wait_seconds_bucket", "orders", "1.0"): 4,
        ("dispatcher_wait_seconds_bucket", "orders", "+Inf"): 5,
        ("dispatcher_wait_seconds_count", "orders", None): 5,
        ("dispatcher_wait_seconds_sum", "orders", None): 40.5,
    }


async def test_metrics_speak_openmetrics_when_asked(url: str) -> None:
    _, text, headers = await get(f"{url}/metrics", Accept="application/openmetrics-text; version=1.0.0")
    assert headers["Content-Type"].startswith("application/openmetrics-text")
    assert text.endswith("# EOF\n")


class _Tags(HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.seen: list[tuple[str, dict[str, str | None]]] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        self.seen.append((tag, dict(attrs)))


async def test_the_page_has_nothing_inline_and_all_that_it_needs_is_here(url: str) -> None:
    status, html, headers = await get(f"{url}/")
    assert (status, headers["Content-Type"]) == (200, "text/html; charset=utf-8")
    page = _Tags()
    page.feed(html)
    assert not [tag for tag, given in page.seen if tag == "style" or "style" in given]
    assert not [given for _, given in page.seen if any(name.startswith("on") for name in given)]
    assert all("src" in given for tag, given in page.seen if tag == "script")
    links = [given.get("src") or given.get("href") for _, given in page.seen]
    needed = {link for link in links if link is not None and not link.startswith("#")}
    types = {".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}
    assert needed
    while needed:
        link = needed.pop()
        assert link.startswith("/static/"), "nothing is from elsewhere"
        status, text, headers = await get(url + link)
        assert (status, headers["Content-Type"]) == (200, f"{types[Path(link).suffix]}; charset=utf-8"), link
        if link.endswith(".js"):
            needed |= {f"/static/{name}" for name in re.findall(r'from "\./(\w+\.js)"', text)}
            assert "innerHTML" not in text


async def test_browsers_are_told_what_the_page_may_do(url: str) -> None:
    for path in ("/", "/static/page.js", "/api/lanes", "/nothing"):
        _, _, headers = await get(url + path)
        policy = set(headers["Content-Security-Policy"].split("; "))
        assert policy >= {"default-src 'none'", "script-src 'self'", "style-src 'self'", "connect-src 'self'"}
        assert policy >= {"frame-ancestors 'none'", "form-action 'none'", "base-uri 'none'"}
        assert not any("unsafe" in rule for rule in policy)
        assert (headers["X-Frame-Options"], headers["X-Content-Type-Options"]) == ("DENY", "nosniff")


@pytest.mark.parametrize(
    "name", ["nothing.js", "../server.py", "..%2Fserver.py", "%2Fetc%2Fpasswd", "", "static/page.js"]
)
async def test_no_other_file_is_served(url: str, name: str) -> None:
    assert (await get(f"{url}/static/{name}"))[0] == 404


@pytest.mark.parametrize(("method", "path", "status"), [("GET", "/nothing", 404), ("POST", "/readyz", 405)])
async def test_nothing_else_is_served(url: str, method: str, path: str, status: int) -> None:
    async with aiohttp.ClientSession() as session, session.request(method, url + path) as answer:
        assert answer.status == status
        assert answer.headers["Cache-Control"] == "no-store"


async def test_an_address_in_use_is_refused_with_a_clear_line(url: str) -> None:
    taken = url.removeprefix("http://")
    second = HttpServer(HttpSettings(listen=taken), [])
    with pytest.raises(
        ConfigurationError,
        match=rf"http.listen: can't listen on {taken} \(Address already in use\); .* port 0",
    ):
        await second.start()
    await second.stop()
