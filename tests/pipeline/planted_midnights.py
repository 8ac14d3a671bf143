"""Random lanes over three dates, busiest around midnight, right and wrong in all ways that an audit sees."""

from __future__ import annotations

from pathlib import Path
from random import Random

from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers

DAY = 86_400_000 * MS
#: START_US is ten seconds before midnight.
MIDNIGHT = START_US + 10_000 * MS
LANES = 3
#: Each has its own groups, queues and consumers; a lane costs a run more than what is in it.
_STORIES = 4
_HAND_OVERS = 60
_GROUPS, _INBOUNDS, _INCARNATIONS = "fgh", ("high", "low"), ("i1", "i2", "i3")


class Midnights:
    """Written date by date: `tell` writes the next one."""

    def __init__(self, folder: Path) -> None:
        self._lanes = [
            (Leader(folder, f"midnight-{lane}"), [
                hand for story in range(_STORIES) for hand in _hand_overs(lane * _STORIES + story)
            ])
            for lane in range(LANES)
        ]  # fmt: skip
        self._until = [MIDNIGHT, MIDNIGHT + DAY, MIDNIGHT + 3 * DAY]

    def tell(self) -> None:
        until = self._until.pop(0)
        for leader, hands in self._lanes:
            over = [hand for hand in hands if hand.ended is not None and leader.now_us <= hand.ended < until]
            leader.hand(*sorted(over, key=lambda hand: hand.ended or 0))
            # Of some it is not told that they are in hand: they turn up before what is known of their group.
            is_new = [hand for hand in hands if until - DAY <= hand.dispatched < until and hand.arrival % 3]
            leader.tell(*(hand.begun() for hand in is_new if hand.ended is None or hand.ended >= until))
            if self._until:
                leader.close(until)
            else:
                leader.end()


def _hand_overs(seed: int) -> list[HandOver]:
    """In the order of their numbers."""
    random, numbers, arrival, made = Random(seed), Numbers(), 0, list[HandOver]()
    holders = dict.fromkeys(_GROUPS, "i1")
    times = sorted(
        MIDNIGHT + random.randrange(2) * DAY + random.randrange(-40, 40) * MS for _ in range(_HAND_OVERS)
    )
    for dispatched in times:
        group, arrival = random.choice(_GROUPS), arrival + 1
        if random.random() < 0.2:
            holders[group] = random.choice(_INCARNATIONS)
        ended: int | None = dispatched + random.randrange(1, 15) * MS
        if random.random() < 0.04:
            ended = random.choice([None, dispatched + DAY])
        hand = HandOver(
            group, arrival - random.choice([0] * 12 + [3]), holders[group], dispatched, ended,
            random.choice(["settled"] * 10 + ["taken_back", "failed"]), inbound=random.choice(_INBOUNDS),
        )  # fmt: skip
        made.append(numbers.number(hand))
        if random.random() < 0.03:
            numbers.number(HandOver(group, arrival, holders[group]))  # nobody has told of it
    for hand in made:
        hand.group, hand.inbound = f"{hand.group}{seed}", f"{hand.inbound}{seed}"
        hand.incarnation += f"-{seed}"
    return made
