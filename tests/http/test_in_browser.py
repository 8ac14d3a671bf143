"""The live page in a real browser, with a dispatcher that runs behind it. Skipped where there is no Chromium
and none may be installed."""

from __future__ import annotations

import asyncio
import json
from collections.abc import AsyncIterator, Iterator
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import quote

import pytest
import redis

from dispatcher.errors import ConfigurationError
from dispatcher.http.server import HttpServer
from dispatcher.redis_store.scripts import LaneKeys
from dispatcher.service.lane_runner import LaneRunner
from dispatcher.settings import HttpSettings, TokenSettings
from dispatcher.wire.group_text import format_group
from tests.http.busy_lane import DEAD_REASON, HOSTILE, busy_lane, dead_letters, served
from tests.page.browser import Browser, ensure_chromium, open_browser
from tests.page.test_in_browser import COLOURS, CONTRAST_MIN, OVERFLOWING, PHONE, contrast
from tests.service.harness import Bench, lane
from tests.waiting import eventually

IDS = [format_group(group) for group in HOSTILE]
#: Nothing that could come of an id is there: scripts, pictures, handlers, links to elsewhere, styles.
INJECTED = """
const page = [...document.querySelectorAll("main *")];
return page.filter(e => ["SCRIPT", "IMG", "IFRAME", "STYLE", "OBJECT"].includes(e.tagName)
  || [...e.attributes].some(a => a.name.startsWith("on") || a.name === "style")
  || (e.tagName === "A" && !e.getAttribute("href").startsWith("#/"))).map(e => e.outerHTML);
"""
CELLS = "return [...document.querySelectorAll('main tbody th')].map(e => e.textContent)"
TEXT = "return document.querySelector('main').innerText"
FOLLOW = "[...document.querySelectorAll('main tbody a')].find(e => e.textContent === arguments[0]).click()"
FOLLOW_ANY = FOLLOW.replace("tbody a", "a")
#: What a screen reader could not tell.
UNNAMED = """
const faults = ["table:not(:has(caption))", "th:not([scope])", "svg:not([aria-label])", "input:not([id])",
  ".scroll:not([aria-label])", "tbody tr:not(:has(th))"];
return [...document.querySelectorAll(faults.join(", "))].map(e => e.outerHTML);
"""
TOLD = "return [...document.querySelectorAll('[role=status], [aria-live]')].map(e => e.textContent)"
#: The first ones of the page, by their names.
FACTS = """
const pairs = [...document.querySelector("main dl").children];
return Object.fromEntries(pairs.map(e => [...e.children].map(each => each.textContent)));
"""
SEARCH = """
document.getElementById("search").value = arguments[0];
document.querySelector("form button").click();
"""
LIVE = "return document.getElementById('connection').textContent === 'Live'"


@pytest.fixture(scope="module")
def browser() -> Iterator[Browser]:
    try:
        ensure_chromium()
    except ConfigurationError as missing:
        pytest.skip(f"no browser: {missing}")
    with open_browser() as opened:
        yield opened


class Page:
    """What the browser shows, asked beside the event loop: the dispatcher has to answer meanwhile."""

    def __init__(self, browser: Browser, base: str) -> None:
        self.browser, self.base = browser, base

    async def visit(self, hash: str, **device: Any) -> None:
        url = f"{self.base}/#/{hash}"
        await asyncio.to_thread(self.browser.visit, "about:blank")  # or only the hash would change
        await asyncio.to_thread(partial(self.browser.visit, url, **device))
        await eventually(partial(self.ask, LIVE), what="the page to be live")

    async def ask(self, script: str, *values: Any) -> Any:
        return await asyncio.to_thread(self.browser.ask, script, *values)

    async def shows(self, words: str) -> None:
        async def is_shown() -> bool:
            return words in await self.ask(TEXT)

        await eventually(is_shown, what=f"{words!r} on the page")

    async def has_cells(self, *cells: str) -> None:
        async def are_there() -> bool:
            return set(cells) <= set(await self.ask(CELLS))

        await eventually(are_there, what=f"{cells} in the tables")


def led_before(bench: Bench, dispatcher: str) -> None:
    """As if that one had led the lane, and was killed."""
    row = {"lane_epoch": 1, "dispatcher": dispatcher, "began_ms": 1_000, "ended_ms": None, "why": None}
    with redis.Redis.from_url(bench.vhost.redis_url) as client:
        keys = LaneKeys.of(bench.vhost.redis_prefix, "orders")
        client.hset(keys.replicas, "leaderships", json.dumps([row]))


@pytest.fixture
async def page(browser: Browser, bench: Bench) -> AsyncIterator[Page]:
    led_before(bench, "host-b:77")
    await busy_lane(bench)
    server = await served(bench)
    browser.console(), browser.requests()
    shown = Page(browser, f"http://127.0.0.1:{server.port}")
    yield shown
    await asyncio.to_thread(browser.visit, "about:blank")
    await server.stop()


async def test_a_lane_is_shown_and_ids_of_others_are_nothing_but_text(page: Page) -> None:
    await page.visit("lanes/orders")
    await page.has_cells("in", "low", "c1", "busy", "stopping", *IDS)
    await page.shows("no <b>stock</b>")
    await page.shows("Operations under way")
    await page.shows("stands by")
    await page.shows("Fail-overs")
    await page.has_cells("host-b:77")
    assert await page.ask(INJECTED) == []
    assert await page.ask("return document.title") == "orders – Dispatcher"
    assert (
        await page.ask("return {}.evil === undefined && document.querySelectorAll('svg.spark').length") == 5
    )
    assert await asyncio.to_thread(page.browser.console) == []
    asked = await asyncio.to_thread(page.browser.requests)
    assert [url for url in asked if not url.startswith((page.base, "about:"))] == []


async def test_dead_letters_are_shown_with_groups_and_reasons(browser: Browser, bench: Bench) -> None:
    await dead_letters(bench)
    server = await served(bench)
    page = Page(browser, f"http://127.0.0.1:{server.port}")
    await page.visit("lanes/orders")
    await page.shows("Dead letters")
    await page.shows(DEAD_REASON)
    assert await page.ask(INJECTED) == []
    await page.ask(FOLLOW_ANY, IDS[0])
    await page.shows("dead queue")
    await asyncio.to_thread(browser.visit, "about:blank")
    await server.stop()


async def test_each_group_has_a_page_that_says_why_it_waits(page: Page, bench: Bench) -> None:
    await page.visit("lanes/orders/groups/deepest")
    await page.has_cells(*IDS)
    for group in (*IDS, "busy", "stopping", "paused"):
        why = await bench.ask("groups.why", group=group)
        follow = (
            "[...document.querySelectorAll('main tbody a')].find(e => e.textContent === arguments[0]).click()"
        )
        await page.ask(follow, group)
        await page.shows(why["verdict"])
        if why["reason"] is not None:
            await page.shows(why["reason"])
        assert await page.ask("return document.querySelector('h2 bdi').textContent") == group
        assert await page.ask("return document.activeElement.tagName") == "H2"
        assert await page.ask(INJECTED) == []
        await page.ask("history.back()")
        await page.has_cells(*IDS)
    assert await asyncio.to_thread(page.browser.console) == []


async def test_a_groups_page_tells_what_happened_and_a_consumers_rate_is_shown(page: Page) -> None:
    await page.visit("lanes/orders/group/stopping")
    await page.shows("owner changed")
    await page.shows("no <b>stock</b>")
    assert await page.ask(INJECTED) == []
    await page.visit("lanes/orders")
    rates = "return [...document.querySelectorAll('main td')].some(e => e.textContent.endsWith('/s'))"
    await eventually(partial(page.ask, rates), what="how many messages a second the consumer gets")


async def test_what_changes_is_pushed_and_a_search_finds_ids(page: Page, bench: Bench) -> None:
    await page.visit("lanes/orders/groups/held")
    assert "dead letters" not in await page.ask(TEXT)
    client = await bench.client()
    client.send(bench.names().dead, b"given up")
    await page.shows("dead letters")
    await page.has_cells("paused", "stopping")
    await bench.ask("groups.pause", all=True)
    await page.shows("(lane_paused)")
    await page.ask(SEARCH, "<img")
    await page.has_cells(IDS[1])
    groups = "return [...document.querySelectorAll('[aria-label=Groups] tbody th')].map(e => e.textContent)"
    await eventually(partial(_is, page, groups, [IDS[1]]), what="the group that was searched for, alone")
    assert await page.ask(INJECTED) == []


async def _is(page: Page, script: str, wanted: Any) -> bool:
    return bool(await page.ask(script) == wanted)


async def test_a_lost_connection_is_told_and_made_again(browser: Browser, bench: Bench) -> None:
    await bench.run(orders=lane())
    settings = bench.settings(bills=lane("bills"))
    bench.runners["bills"] = LaneRunner(settings, settings.lanes["bills"])  # not led here
    server = await served(bench)
    page = Page(browser, f"http://127.0.0.1:{server.port}")
    await page.visit("")
    await page.shows("leading")
    await page.shows("This process does not lead the lane")
    await server.stop()
    lost = "return document.getElementById('connection').textContent.startsWith('Connection lost at')"
    await eventually(partial(page.ask, lost))
    again = HttpServer(HttpSettings(listen=f"127.0.0.1:{server.port}"), list(bench.runners.values()))
    await again.start()
    try:
        await eventually(partial(page.ask, LIVE))
    finally:
        await asyncio.to_thread(browser.visit, "about:blank")
        await again.stop()


async def test_it_can_be_read_in_light_and_dark_on_a_phone_and_by_a_screen_reader(page: Page) -> None:
    for scheme in ("light", "dark"):
        await page.visit("lanes/orders", scheme=scheme, **PHONE)
        await page.has_cells("c1", "busy", "stopping", *IDS)
        assert await page.ask("return [document.documentElement.scrollWidth, innerWidth]") == [360, 360]
        assert await page.ask(OVERFLOWING) == []
        texts = await page.ask(COLOURS)
        assert len(texts) > 50
        assert {
            (text, front, back) for text, front, back in texts if contrast(front, back) < CONTRAST_MIN
        } == set()
    for path in ("", "lanes/orders", "lanes/orders/group/busy"):
        await page.visit(path)
        await page.shows("orders")
        assert await page.ask(UNNAMED) == []
        told = set(await page.ask(TOLD))
        assert told <= {"Live", "✓ leading"}, "only states are told aloud, never numbers that change"
        assert "Live" in told


async def test_with_a_token_for_viewers_the_page_asks_for_it(
    browser: Browser, bench: Bench, tmp_path: Path
) -> None:
    await bench.run(orders=lane())
    (tmp_path / "viewer").write_text("viewer-0123456789")
    tokens = TokenSettings(viewer=f"file:{tmp_path / 'viewer'}")
    server = HttpServer(HttpSettings(listen="127.0.0.1:0", tokens=tokens), list(bench.runners.values()))
    await server.start()
    page = Page(browser, f"http://127.0.0.1:{server.port}")
    await asyncio.to_thread(browser.visit, f"{page.base}/#/lanes/orders")
    for token, is_right in (("wrong-0123456789ab", False), ("viewer-0123456789", True)):
        await eventually(partial(page.ask, "return document.getElementById('token') !== null"))
        assert await page.ask(UNNAMED) == []
        await page.ask(
            "document.getElementById('token').value = arguments[0];"
            "document.querySelector('form').requestSubmit()",
            token,
        )
        if is_right:
            await eventually(partial(page.ask, LIVE), what="the page to be live")
    await page.shows("exclusive")
    await asyncio.to_thread(browser.console)
    await asyncio.to_thread(browser.visit, "about:blank")
    await server.stop()


async def test_the_shards_of_a_lane_are_shown_together(browser: Browser, bench: Bench) -> None:
    await bench.run(spread=lane("in", shards=3), bills=lane("bills"))
    settings = bench.settings(spread=lane("in", shards=3))
    await bench.stop("spread@3")
    bench.runners["spread@3"] = LaneRunner(settings, settings.lanes["spread@3"])  # not led here
    client = await bench.client()
    for number, queue in enumerate(("in@1", "in@2"), 1):
        for group in range(number):
            client.send(queue, b"x", f"{queue} {group}")
    await eventually(lambda: [bench.status(f"spread@{n}")["held"] for n in (1, 2)] == [1, 2])
    server = await served(bench)
    page = Page(browser, f"http://127.0.0.1:{server.port}")
    browser.console()
    headings = "return [...document.querySelectorAll('main h2')].map(e => e.textContent)"
    for path, expected in (("", ["bills", "spread"]), ("shards/spread", ["spread"])):
        await page.visit(path)
        await page.has_cells("spread@1", "spread@2", "spread@3")
        assert await page.ask(headings) == expected
        assert await page.ask(UNNAMED) == []
    facts = await page.ask(FACTS)
    assert {name: facts[name] for name in ("shards", "led here", "held here", "groups")} == {
        "shards": "3", "led here": "2", "held here": "3", "groups": "3",
    }  # fmt: skip
    for number in (1, 2):
        await client.delete(bench.names(f"spread@{number}").dead)
    await eventually(lambda: {bench.status(f"spread@{n}")["dead_letters"] for n in (1, 2)} == {None})
    await page.visit("shards/spread")
    await page.has_cells("spread@1")
    assert (await page.ask(FACTS))["dead letters"] == "–"
    for scheme in ("light", "dark"):
        await page.visit("shards/spread", scheme=scheme, **PHONE)
        await page.has_cells("spread@1")
        assert await page.ask(OVERFLOWING) == []
        texts = await page.ask(COLOURS)
        assert [text for text, front, back in texts if contrast(front, back) < CONTRAST_MIN] == []
    await page.ask(FOLLOW, "spread@2")
    await page.has_cells("in@2 0", "in@2 1")
    await page.ask(FOLLOW, "in@2 1")
    await page.shows("Group in@2 1")
    assert await page.ask(
        "return [...document.querySelectorAll('main > nav a')].map(e => e.textContent)"
    ) == ["All lanes", "spread", "spread@2"]
    await page.ask(FOLLOW_ANY, "spread")
    await page.has_cells("spread@1", "spread@2", "spread@3")
    await page.ask(SEARCH, "0")
    await page.has_cells("in@1 0", "in@2 0")
    await page.shows("2 of 2, with “0” in the id")
    await page.shows("Not led here: spread@3")
    assert await page.ask(UNNAMED) == []
    await page.ask(FOLLOW, "in@2 0")
    await page.shows("Group in@2 0")
    assert await page.ask("return location.hash") == "#/lanes/spread%402/group/in%402%200"
    assert await asyncio.to_thread(browser.console) == []
    await asyncio.to_thread(browser.visit, "about:blank")
    await server.stop()


CLICK = """
const button = [...document.querySelectorAll("main button")].find(e => e.textContent === arguments[0]);
button?.click();
return button !== undefined;
"""
GIVE_TOKEN = """
document.querySelector("details")?.setAttribute("open", "");
document.getElementById("token").value = arguments[0];
document.getElementById("token").form.requestSubmit();
"""
OPERATOR = "operator-0123456789"


@pytest.fixture
async def acting(browser: Browser, bench: Bench, tmp_path: Path) -> AsyncIterator[Page]:
    """With a token for operators, and a lane whose consumer holds one of five messages of a hostile group."""
    await bench.run(orders=lane(max_in_flight_per_group=1))
    client, consumer = await bench.client(), await bench.joined("c1", hold=True)
    for number in range(5):
        client.send("in", b"%d" % number, HOSTILE[1])
    await consumer.has(1)
    (tmp_path / "operator").write_text(OPERATOR)
    tokens = TokenSettings(operator=f"file:{tmp_path / 'operator'}")
    server = HttpServer(HttpSettings(listen="127.0.0.1:0", tokens=tokens), list(bench.runners.values()))
    await server.start()
    await asyncio.to_thread(browser.visit, f"http://127.0.0.1:{server.port}/")
    await asyncio.to_thread(browser.ask, "sessionStorage.clear()")
    browser.console(), browser.requests()
    shown = Page(browser, f"http://127.0.0.1:{server.port}")
    yield shown
    await asyncio.to_thread(browser.visit, "about:blank")
    await server.stop()


async def pressed(page: Page, title: str) -> None:
    await eventually(partial(page.ask, CLICK, title), what=f"a button {title!r}")


async def filled(page: Page, field: str, value: str) -> None:
    script = """
    const field = document.getElementById(arguments[0]);
    if (field) field.value = arguments[1];
    return field !== null;
    """
    await eventually(partial(page.ask, script, field, value), what=f"the field {field}")


async def test_an_operator_pauses_and_purges_a_group_and_is_asked_once_more(
    acting: Page, bench: Bench
) -> None:
    group = IDS[1]
    await acting.visit("lanes/orders/groups/deepest")
    await acting.has_cells(group)
    await acting.ask(FOLLOW, group)
    await acting.shows("Act as an operator")
    assert not await acting.ask(CLICK, "Pause"), "without a token the page only shows"
    await acting.ask(GIVE_TOKEN, "wrong-0123456789ab")
    await acting.shows("Act as an operator")
    await acting.ask(GIVE_TOKEN, OPERATOR)

    await pressed(acting, "Pause")
    assert not (await bench.ask("groups.show", group=group))["paused"]
    await pressed(acting, "Pause: yes")
    await eventually(partial(_shown, bench, group, "paused", True), what="a paused group")
    await pressed(acting, "Done")

    await pressed(acting, "Purge")
    await filled(acting, "act-first", "3")
    await pressed(acting, "What would it do?")
    await acting.shows("This would be done")
    assert (await bench.ask("groups.show", group=group))["held"] == 4
    await pressed(acting, "Purge: carry it out")
    await eventually(partial(_shown, bench, group, "held", 1), what="one message that is left")
    assert await acting.ask(INJECTED) == []
    assert await acting.ask(UNNAMED) == []
    errors = [line for line in await asyncio.to_thread(acting.browser.console) if line["level"] == "SEVERE"]
    assert errors == []


async def _shown(bench: Bench, group: str, fact: str, wanted: Any) -> bool:
    return bool((await bench.ask("groups.show", group=group))[fact] == wanted)


async def test_what_an_operator_may_not_do_is_said_and_a_lane_is_paused_and_drained(
    acting: Page, bench: Bench
) -> None:
    await acting.visit("lanes/orders")
    await acting.shows("Act as an operator")
    await acting.ask(GIVE_TOKEN, OPERATOR)
    await pressed(acting, "Pause the lane")
    await pressed(acting, "Pause the lane: yes")
    await acting.shows("(lane_paused)")
    await pressed(acting, "Done")
    await pressed(acting, "Resume the lane")
    await pressed(acting, "Resume the lane: yes")
    await pressed(acting, "Done")
    await pressed(acting, "Drain")
    await pressed(acting, "Drain c1: yes")
    await acting.shows("drained")

    await acting.visit(f"lanes/orders/group/{quote(IDS[1], safe='')}")
    await pressed(acting, "Move to a queue")
    await filled(acting, "act-to", "no-such-queue")
    await pressed(acting, "What would it do?")
    refused = partial(acting.ask, "return document.querySelector('form.act .bad') !== null")
    await eventually(refused, what="why it can't be moved: its consumer is drained")
    await pressed(acting, "Cancel")
    for scheme in ("light", "dark"):
        await acting.visit("lanes/orders", scheme=scheme, **PHONE)
        await pressed(acting, "Rebalance")
        await acting.shows("What would it do?")
        assert await acting.ask(OVERFLOWING) == []
        texts = await acting.ask(COLOURS)
        assert {
            (text, front, back) for text, front, back in texts if contrast(front, back) < CONTRAST_MIN
        } == set()


#: The next request to act is done, and the page never hears of its answer.
LOSE_ANSWER = """
const fetch = window.fetch;
window.fetch = async (path, options) => {
  const answer = await fetch(path, options);
  if (options?.method !== "POST") return answer;
  window.fetch = fetch;
  throw new TypeError("lost");
};
"""


async def test_an_action_whose_answer_was_lost_is_asked_for_again_and_not_done_twice(
    acting: Page, bench: Bench
) -> None:
    group = IDS[1]
    await acting.visit(f"lanes/orders/group/{quote(group, safe='')}")
    await acting.shows("Act as an operator")
    await acting.ask(GIVE_TOKEN, OPERATOR)
    await pressed(acting, "Purge")
    await filled(acting, "act-first", "1")
    await pressed(acting, "What would it do?")
    await acting.shows("This would be done")
    await acting.ask(LOSE_ANSWER)
    await pressed(acting, "Purge: carry it out")
    await acting.shows("whether it was done is not known")
    await eventually(partial(_shown, bench, group, "held", 3), what="one message less")
    await pressed(acting, "Ask again")
    await acting.shows("Done")
    assert await _shown(bench, group, "held", 3)
