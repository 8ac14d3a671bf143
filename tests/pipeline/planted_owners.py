"""A lane whose groups changed owners after the last hand-over of them, as only its own records tell."""

from __future__ import annotations

import json
from pathlib import Path

from dispatcher.ledger.rows import row
from dispatcher.ledger.schema import Event
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers

LANE = "owners"
#: By group whose it is in the end; None: nobody's. `closed` is none any more. `pinned` is pinned there, and
#: `stays` was pinned to it for a while.
OWNERS = {
    "stays": "c-a", "pinned": "c-b", "goes-on": "c-a", "reset": None, "given-to-gone": None,
    "reopened": "c-a", "after-reopening": None,
}  # fmt: skip


def plant_owners(folder: Path) -> None:
    """All begin at c-a."""
    leader, numbers = Leader(folder, LANE), Numbers()
    for name in ("a", "b", "gone"):
        detail = json.dumps({"prefetch": 5})
        leader.tell(
            row(START_US, Event.CONSUMER_JOINED, consumer=f"c-{name}", incarnation=name, detail=detail)
        )

    def owner(at_ms: int, group: str, name: str | None) -> None:
        whom = {"consumer": f"c-{name}", "incarnation": name} if name else {}
        leader.tell(row(START_US + at_ms * MS, Event.OWNER_CHANGED, group=group, **whom))

    def hand(at_ms: int, group: str, arrival: int, *, closes: bool = False) -> None:
        at_us = START_US + at_ms * MS
        one = numbers.number(HandOver(group, arrival, "a", at_us, at_us + MS // 2))
        owner(at_ms, group, "a")
        leader.hand(one)
        if closes:
            named = {"inbound": "in", "arrival_epoch": one.arrival_epoch, "arrival": arrival}
            owner(at_ms, group, None)
            leader.tell(row(at_us + MS // 2, Event.CLOSED, group=group, **named))

    for arrival, group in enumerate([*OWNERS, "closed"], 1):
        hand(arrival, group, arrival, closes=group in ("closed", "reopened", "after-reopening"))

    def pin(at_ms: int, event: str, group: str, name: str | None) -> None:
        whom = {"consumer": f"c-{name}", "incarnation": name} if name else {}
        leader.tell(row(START_US + at_ms * MS, event, group=group, **whom))

    pin(18, "group_pinned", "stays", "b")
    pin(19, "group_unpinned", "stays", None)
    pin(20, "group_pinned", "pinned", "b")
    owner(20, "pinned", "b")
    owner(21, "goes-on", "b")
    hand(22, "goes-on", 22)
    owner(23, "reset", None)
    owner(24, "given-to-gone", "gone")
    leader.tell(row(START_US + 25 * MS, Event.CONSUMER_TAKEN_BACK, consumer="c-gone", incarnation="gone"))
    hand(26, "reopened", 26)
    hand(27, "after-reopening", 27)
    owner(28, "after-reopening", None)
    leader.end()
