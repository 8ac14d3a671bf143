"""Lanes whose inbound queues compete: for what one consumer can take, and for whoever is free."""

from __future__ import annotations

from pathlib import Path
from random import Random

from dispatcher.ledger.rows import row
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers

SECOND = 1_000 * MS
OWNED, SHARED, STARVED = "shares", "shares-of-all", "starved"
INBOUNDS = [{"queue": "high", "weight": 3}, {"queue": "low", "weight": 1}]
#: How many of each queue i1 gets, second by second. In the first and the last one not all of it waits.
GIVEN = {"high": (3, 30, 30, 40, 40, 30, 30, 1), "low": (1, 10, 10, 0, 0, 10, 10, 1)}


def plant_shares(folder: Path) -> None:
    plant_owned(folder)
    plant_for_all(folder)
    plant_starved(folder)


def plant_owned(folder: Path) -> None:
    """i1 has a backlog of both queues; i2 of one only: what it gets of low was paused, and could not go."""
    leader, numbers = Leader(folder, OWNED, inbounds=INBOUNDS), Numbers()
    hands = []
    for queue, given in GIVEN.items():
        for second, count in enumerate(given):
            for place in range(count):
                at = START_US + second * SECOND + place * 20 * MS + len(queue)
                hands.append(HandOver(f"{queue}-1", 0, "i1", at, at + MS, inbound=queue, wait_cause="window"))
    for second in range(8):
        for queue, cause in ("high", "turn"), ("low", "paused"):
            for place in range(9 if queue == "high" else 1):
                at = START_US + second * SECOND + place * 50 * MS + len(queue)
                hands.append(HandOver(f"{queue}-2", 0, "i2", at, at + MS, inbound=queue, wait_cause=cause))
    for arrival, hand in enumerate(sorted(hands, key=lambda hand: hand.dispatched), 1):
        hand.arrival, hand.received = arrival, START_US
        leader.hand(numbers.number(hand))
    leader.end()


def plant_starved(folder: Path) -> None:
    """To the end i1 gets of high alone. Of low something waits that is its own, and something that is
    nobody's; of lower only what an operator has paused."""
    inbounds = [*INBOUNDS, {"queue": "lower", "weight": 1}]
    leader, numbers = Leader(folder, STARVED, inbounds=inbounds), Numbers()
    leader.tell(row(START_US, "group_paused", group="paused"))
    first = HandOver("own", 1, "i1", START_US, START_US + MS, inbound="low", received=START_US)
    leader.hand(numbers.number(first))
    for arrival in range(60):
        at = START_US + arrival * 100 * MS
        leader.hand(numbers.number(HandOver(
            "g", arrival, "i1", at, at + MS, inbound="high", received=START_US, wait_cause="window"
        )))  # fmt: skip
    for arrival, (group, queue) in enumerate([("own", "low"), ("new", "low"), ("paused", "lower")], 2):
        leader.tell(row(
            START_US + arrival * SECOND, "received", inbound=queue, arrival_epoch=7, arrival=arrival,
            group=group, received_at=START_US + arrival * SECOND, size=1, cost=1,
        ))  # fmt: skip
    leader.close()


def plant_for_all(folder: Path) -> None:
    """Of a group one batch is out at a time, and anybody may get it."""
    inbounds = [*INBOUNDS, {"queue": "lowest", "weight": 2}]
    leader, numbers = Leader(folder, SHARED, policy="sequenced", inbounds=inbounds), Numbers()
    random, free = Random(7), dict.fromkeys(range(12), START_US)
    hands = []
    for arrival in range(1, 401):
        group, received = random.randrange(12), START_US + arrival * 40 * MS
        could = max(received, free[group])
        waits = random.random() < 0.7
        at = could + random.randrange(1, 4_000) * MS * waits
        free[group] = at + random.randrange(1, 300) * MS
        cause = random.choice(("turn", "window")) if waits else "group" if could > received else None
        hands.append(HandOver(
            f"g{group}", arrival, f"i{random.randrange(3)}", at, free[group], received=received,
            inbound=random.choice(inbounds)["queue"], wait_cause=cause, cost=random.randrange(1, 9),
        ))  # fmt: skip
    for hand in sorted(hands, key=lambda hand: hand.dispatched):
        leader.hand(numbers.number(hand))
    leader.end()
