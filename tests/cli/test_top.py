"""`dispatcher top` at 80 × 24: what it shows, and the commands that its keys give."""

from __future__ import annotations

import os
import pty
import re
import subprocess
import sys
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest
import yaml
from textual.pilot import Pilot
from textual.widgets import DataTable, Input, Static

from dispatcher.cli import options
from dispatcher.cli.top import shown
from dispatcher.cli.top_app import TopApp
from dispatcher.cli.top_dialogs import Confirm, Tell
from dispatcher.cli.top_rows import COLUMNS, consumer_lines, lane_lines
from dispatcher.cli.top_source import LaneNow, LeaderSource, LookRequest, Rates, Seen, View
from dispatcher.cli.verbs import Verb
from dispatcher.errors import CommandRefused, ConfigurationError
from dispatcher.settings import file as config
from tests.cli.conftest import Run
from tests.cli.test_with_service import Service, service
from tests.service.harness import document, lane
from tests.waiting import eventually

__all__ = ["service"]

SIZE = (80, 24)
STATUS: dict[str, Any] = {
    "lane": "orders", "policy": "exclusive", "state": "active", "dispatcher": "mq-1:77", "since_ms": 61_000,
    "lane_epoch": 5, "held": 1_200, "in_flight": 60, "parked": 34, "consumers": 2, "groups": 3,
    "groups_paused": 1, "counters": {"settled": 1_000}, "inbound": [{"queue": "in", "dispatched": 1_060}],
}  # fmt: skip
GROUPS = [
    {"group": "a", "state": "owned", "owner": "c-1", "held": 7, "in_flight": 1, "parked": 0,
     "oldest_ms": 1_500, "reason": "consumer_full"},
    {"group": "b[red]\x1b", "state": "owned", "owner": "c-2", "held": 5, "in_flight": 0, "parked": 34,
     "oldest_ms": 900, "reason": "paused", "paused": True},
    {"group": "pinned", "state": "owned", "owner": "c-2", "held": 1, "in_flight": 0, "parked": 0,
     "oldest_ms": 900, "reason": None, "pin": "c-2"},
]  # fmt: skip
CONSUMERS = [
    {"consumer": "c-1", "state": "live", "prefetch": 50, "in_flight": 50, "groups": 2,
     "oldest_in_flight_ms": 61_000, "last_heartbeat_ms": 340},
    {"consumer": "c-2", "state": "live", "prefetch": 50, "in_flight": 10, "groups": 1, "drained": True,
     "oldest_in_flight_ms": None, "last_heartbeat_ms": 340},
]  # fmt: skip


@dataclass
class Recorded:
    """Answers of a dispatcher, and what it was asked."""

    lanes: tuple[str, ...] = ("orders", "bills")
    problem: str | None = None
    refusal: str | None = None
    looked: list[LookRequest] = field(default_factory=list)
    verbs: list[tuple[str, str, dict[str, Any]]] = field(default_factory=list)
    closed: bool = False

    def look(self, wanted: LookRequest) -> Seen:
        self.looked.append(wanted)
        rows = {View.LANES: [], View.GROUPS: GROUPS, View.CONSUMERS: CONSUMERS}[wanted.view]
        lanes = {"orders": LaneNow("orders", STATUS, 66, 1.25, 3_000.0), "bills": LaneNow("bills")}
        return Seen(lanes, [] if self.problem else rows, 1_001, self.problem)

    def why(self, lane: str, group: str) -> dict[str, Any]:
        if self.refusal:
            raise CommandRefused(self.refusal)
        return {"group": group, "verdict": "Its consumer has its whole prefetch.", "behind": 6}

    def carry_out(self, lane: str, verb: Verb) -> dict[str, Any]:
        self.verbs.append((lane, verb.command, verb.arguments))
        if self.refusal:
            raise CommandRefused(self.refusal)
        return {"group": verb.arguments.get("group"), "changed": True, "in_flight": 1, "groups": 2,
                "applied": True}  # fmt: skip

    def close(self) -> None:
        self.closed = True


def _text(app: TopApp, name: str) -> str:
    return str(app.screen_stack[0].query_one(f"#{name}", Static).render())


def _ids(app: TopApp) -> list[str]:
    table = app.screen_stack[0].query_one(DataTable)
    return [str(table.get_row_at(at)[0]) for at in range(table.row_count)]


async def _press(pilot: Pilot[None], *keys: str) -> None:
    """Keys, and then a look that began after them: the second one, for another may be under way."""
    app = pilot.app
    assert isinstance(app, TopApp)
    looks = app.looks
    await pilot.press(*keys)
    await eventually(lambda: app.looks > looks + 1)
    await pilot.pause()


async def _opened(app: TopApp, pilot: Pilot[None], screen: type[Any]) -> Any:
    await eventually(lambda: isinstance(app.screen, screen))
    await pilot.pause()
    return app.screen


async def test_lanes_groups_and_consumers_fit_into_80_columns() -> None:
    source = Recorded()
    app = TopApp(source, None, period_s=0.2)
    async with app.run_test(size=SIZE) as pilot:
        await eventually(lambda: app.looks > 0)
        await pilot.pause()
        assert _ids(app) == ["bills", "orders"]
        row = [str(cell) for cell in app.screen_stack[0].query_one(DataTable).get_row_at(1)]
        assert row == ["orders", "active", "1.2", "3,000", "1,300", "60", "2", "3", "1 group paused"]
        assert all(line.cells[1] == "no answer" for line in lane_lines([LaneNow("bills")], "lane", None))

        await pilot.press("down")
        await eventually(lambda: "1 group paused" in _text(app, "summary"))
        await _press(pilot, "enter")
        assert source.looked[-1] == LookRequest(View.GROUPS, "orders", "depth", None)
        assert _ids(app) == ["a", r"b[red]\x1b", "pinned"]
        assert "exclusive, active at mq-1:77 for 1 m 1 s" in _text(app, "summary")
        assert "3 of 1,001 groups are shown" in _text(app, "summary")
        screen = app.export_screenshot()
        for word in ("consumer_full", "rebalance", "settled"):
            assert word in screen

        await _press(pilot, "c")
        assert _ids(app) == ["c-1", "c-2"]
        assert [len(COLUMNS[view]) for view in View] == [9, 8, 7]
        await pilot.press("q")
    await eventually(lambda: source.closed)


PICTURE = Path(__file__).parents[2] / "docs" / "top.svg"
#: A picture in a page gets nothing from elsewhere: a viewer has a font of that kind.
FONT = re.compile(r"@font-face \{.*?\}", re.DOTALL)


class Pictured(Recorded):
    """With ids as one's own are."""

    def look(self, wanted: LookRequest) -> Seen:
        rows = [{**row, "group": f"order-{place}"} for place, row in enumerate(GROUPS, 17)]
        return super().look(wanted)._replace(rows=rows, total=len(rows))


def test_shards_are_in_the_order_of_their_numbers() -> None:
    names = ["spread@10", "tasks", "spread@2", "orders"]
    lines = lane_lines([LaneNow(name) for name in names], "lane", None)
    assert [line.key for line in lines] == ["orders", "spread@2", "spread@10", "tasks"]


async def test_the_documents_have_a_picture_of_it() -> None:
    """Make it anew with DISPATCHER_PICTURES=1."""
    app = TopApp(Pictured(), "orders", period_s=0.2)
    async with app.run_test(size=SIZE) as pilot:
        await eventually(lambda: app.looks > 0)
        await pilot.pause()
        picture = FONT.sub("", app.export_screenshot(title="dispatcher top orders"))
        await pilot.press("q")
    if os.environ.get("DISPATCHER_PICTURES"):
        PICTURE.write_text(picture)
    kept = PICTURE.read_text()
    assert not re.search(r"(?:url\(|href=|src=)\W*http", kept)
    said, shown = (re.findall(r">([^<>\s][^<>]*)</text>", each) for each in (picture, kept))
    assert said == shown, "it shows something else now: DISPATCHER_PICTURES=1"


async def test_sort_and_filter_are_asked_of_the_leader() -> None:
    source = Recorded()
    app = TopApp(source, "orders", period_s=0.2)
    async with app.run_test(size=SIZE) as pilot:
        await eventually(lambda: app.looks > 0)
        await _press(pilot, "s")
        assert source.looked[-1] == LookRequest(View.GROUPS, "orders", "age", None)
        await pilot.press("slash")
        await eventually(lambda: isinstance(app.focused, Input))
        await _press(pilot, "a", "asterisk", "enter")
        assert source.looked[-1] == LookRequest(View.GROUPS, "orders", "age", "a*")
        assert "only a*" in _text(app, "summary")


async def test_why_says_what_groups_why_says() -> None:
    source = Recorded()
    app = TopApp(source, "orders", period_s=0.2)
    async with app.run_test(size=SIZE) as pilot:
        await eventually(lambda: app.looks > 0)
        await pilot.press("w")
        told = await _opened(app, pilot, Tell)
        assert told.text == "a: Its consumer has its whole prefetch.\nWaiting: 6 messages"
        await pilot.press("escape")
        source.refusal = "there is no group 'a'"
        await pilot.press("w")
        await eventually(lambda: _text(app, "said") == "there is no group 'a'")


@pytest.mark.parametrize(
    ("keys", "command", "arguments"),
    [
        (["p"], "groups.pause", {"group": "a", "all": False}),
        (["r"], "groups.resume", {"group": "a", "all": False}),
        (["x"], "groups.close", {"group": "a"}),
        (["b"], "rebalance", {"group": None, "to": None, "reset": False, "dry_run": False, "pause": None}),
        (["down", "down", "n"], "groups.pin", {"group": "pinned", "consumer": None, "undo": True}),
    ],
)
async def test_a_key_asks_and_then_gives_the_command(
    keys: list[str], command: str, arguments: dict[str, Any]
) -> None:
    source = Recorded()
    app = TopApp(source, "orders", period_s=0.2)
    async with app.run_test(size=SIZE) as pilot:
        await eventually(lambda: app.looks > 0)
        await pilot.press(*keys)
        await _opened(app, pilot, Confirm)
        await pilot.press("n")
        await eventually(lambda: _text(app, "said") == "nothing was changed")
        assert source.verbs == []
        await pilot.press(keys[-1])
        await _opened(app, pilot, Confirm)
        await _press(pilot, "y")
        assert source.verbs == [("orders", command, arguments)]
        source.refusal = "not now"
        await pilot.press(keys[-1])
        await _opened(app, pilot, Confirm)
        await pilot.press("y")
        await eventually(lambda: _text(app, "said") == "not now")


async def test_a_lane_is_paused_from_the_lanes_and_a_consumer_drained_from_the_consumers() -> None:
    source = Recorded()
    app = TopApp(source, None, period_s=0.2)
    async with app.run_test(size=SIZE) as pilot:
        await eventually(lambda: app.looks > 0)
        await pilot.press("down", "p")
        await _opened(app, pilot, Confirm)
        await _press(pilot, "y")
        await _press(pilot, "c")
        await pilot.press("p")  # there is no group here
        await pilot.press("d")
        await _opened(app, pilot, Confirm)
        await _press(pilot, "y")
        await pilot.press("down", "d")
        await _opened(app, pilot, Confirm)
        await _press(pilot, "y")
    assert source.verbs == [
        ("orders", "groups.pause", {"group": None, "all": True}),
        ("orders", "consumers.drain", {"consumer": "c-1", "undo": False}),
        ("orders", "consumers.drain", {"consumer": "c-2", "undo": True}),
    ]


async def test_a_leader_that_does_not_answer_is_told_and_the_rows_stay() -> None:
    source = Recorded()
    app = TopApp(source, "orders", period_s=0.2)
    async with app.run_test(size=SIZE) as pilot:
        await eventually(lambda: app.looks > 0)
        await pilot.pause()
        source.problem = "no dispatcher answered"
        await _press(pilot, "s")
        assert _text(app, "said") == "no dispatcher answered"
        assert _ids(app)[0] == "a"


def test_rates_are_those_between_two_looks_at_one_leadership() -> None:
    rates, lane = Rates(), LaneNow("orders", STATUS)
    rates.add(lane, 10.0)
    assert (lane.settled_per_s, lane.dispatched_per_s) == (None, None)
    later = {
        **STATUS,
        "counters": {"settled": 1_500},
        "inbound": [{"dispatched": 1_000}, {"dispatched": 160}],
    }
    lane = LaneNow("orders", later)
    rates.add(lane, 12.0)
    assert (lane.settled_per_s, lane.dispatched_per_s) == (250.0, 50.0)
    lane = LaneNow("orders", {**later, "lane_epoch": 6})
    rates.add(lane, 14.0)
    assert (lane.settled_per_s, lane.dispatched_per_s) == (None, None)


def test_a_consumers_rate_is_that_between_two_looks_at_its_incarnation() -> None:
    rates = Rates()

    def look(at_s: float, uuid: str, total: int) -> str:
        rows = [{**CONSUMERS[0], "incarnation": uuid, "handed_over": total}]
        rates.add_consumers(rows, at_s)
        return consumer_lines(rows, "consumer", None)[0].cells[2]

    assert [look(10.0, "u1", 100), look(12.0, "u1", 150), look(14.0, "u2", 7)] == ["-", "25", "-"]


def test_without_a_terminal_it_says_what_to_do(run: Run) -> None:
    result = run("top")
    assert (result.exit_code, result.stdout) == (1, "")
    assert result.stderr.startswith("dispatcher: top needs a terminal; `dispatcher status --watch`")


def test_the_name_of_a_lane_with_shards_stands_for_these() -> None:
    lanes = {"orders": lane("a", shards=2), "bills": lane("b")}
    settings = config.parse(yaml.safe_dump(document("amqp://h/", "redis://h/", "p", lanes)), {})
    assert shown(settings, "orders") == (["orders@1", "orders@2"], None)
    assert shown(settings, "bills") == ([*settings.lanes], "bills")
    with pytest.raises(ConfigurationError):
        shown(settings, "other")


def test_without_the_extra_it_says_what_to_install(config_file: Path) -> None:
    hidden = (
        "import importlib.util as u, sys; found = u.find_spec\n"
        "u.find_spec = lambda name: None if name == 'textual' else found(name)\n"
        f"from dispatcher.cli import main; sys.argv[1:] = ['top', '-c', {str(config_file)!r}]; main()"
    )
    ours, theirs = pty.openpty()
    try:
        ended = subprocess.run(
            [sys.executable, "-c", hidden], stdin=theirs, stdout=theirs, stderr=subprocess.PIPE, text=True
        )
    finally:
        os.close(ours)
        os.close(theirs)
    assert ended.returncode == 1
    assert "pip install 'rabbitmq-group-dispatcher[top]'" in ended.stderr


@pytest.mark.slow
async def test_a_live_dispatcher_is_shown_and_obeys(service: Service, config_file: Path) -> None:
    settings = options.load_settings(config_file)
    source = LeaderSource(settings, list(settings.lanes), 10_000)
    app = TopApp(source, None, period_s=0.2)
    async with app.run_test(size=SIZE) as pilot:
        await eventually(lambda: "30" in _cells(app, "orders"))
        await pilot.press("down", "enter")
        await eventually(lambda: _ids(app) == ["g0", "g1", "g2"])
        await pilot.press("p")
        await _opened(app, pilot, Confirm)
        await pilot.press("y")
        await eventually(lambda: "paused" in _cells(app, "g0"))
        assert _text(app, "said") == "g0: paused; 0 messages in flight"
        await pilot.press("w")
        told = await _opened(app, pilot, Tell)
        assert "(paused)" in told.text
        await pilot.press("escape")
        service.process.kill()
        source._timeout_ms = 100
        await eventually(lambda: "no dispatcher answered" in _text(app, "said"))
        assert _ids(app) == ["g0", "g1", "g2"]


def _cells(app: TopApp, name: str) -> list[str]:
    table = app.screen_stack[0].query_one(DataTable)
    rows = [[str(cell) for cell in table.get_row_at(at)] for at in range(table.row_count)]
    return next((row for row in rows if row[0] == name), [])
