"""Lanes that stand still while messages wait, and others that had a reason to, each with its stalls."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from dispatcher.ledger.rows import row
from dispatcher.ledger.schema import Event
from dispatcher.pipeline.stalls import STALL_US
from tests.pipeline.ledgers import MS, HandOver, Leader

SECOND = 1_000 * MS
#: From when until when a lane stood still, in seconds after its start.
Spans = list[tuple[int, int]]
LONG = STALL_US // SECOND


class Sampled:
    """A leadership with a clock, whose samples are of two queues. Nothing ever waits in the second one."""

    def __init__(self, folder: Path, lane: str, lane_epoch: int = 7, **options: Any) -> None:
        self.leader = Leader(folder, lane, lane_epoch, **options)
        self.now_us, self.handed_over = self.leader.now_us, 0

    def tell(self, *events: str, **values: Any) -> None:
        for event in events:
            self.leader.tell(row(self.now_us, event, **values))

    def sample(self, seconds: int, waiting: int = 5, in_flight: int = 0, more: int = 0) -> None:
        """One each second, with `more` hand-overs in each."""
        for _ in range(seconds):
            self.now_us += SECOND
            self.handed_over += more
            counts = {"in": (waiting, in_flight, self.handed_over), "other": (0, 0, 7)}
            for inbound, (waits, out, handed_over) in counts.items():
                self.leader.tell(row(
                    self.now_us, Event.SAMPLED, inbound=inbound, waiting=waits, in_flight=out,
                    messages=handed_over, cost=handed_over, detail='{"full":false}',
                ))  # fmt: skip

    def came(self, incarnation: str = "i1") -> None:
        self.tell(Event.CONSUMER_JOINED, consumer=f"c-{incarnation}", incarnation=incarnation)

    def went(self, incarnation: str = "i1") -> None:
        self.tell(Event.CONSUMER_TAKEN_BACK, consumer=f"c-{incarnation}", incarnation=incarnation)


def works(folder: Path) -> Spans:
    """It hands over, then for as long as is no stall nothing, and goes on."""
    lane = Sampled(folder, "works")
    lane.came()
    lane.sample(30, more=1)
    lane.sample(LONG - 1)
    lane.sample(30, more=1)
    lane.leader.end()
    return []


def stands_still(folder: Path) -> Spans:
    """Twice; what comes between is hand-overs, and a consumer more changes nothing."""
    lane = Sampled(folder, "stands-still")
    lane.came()
    lane.sample(5, 0, more=1)
    lane.sample(10, 190_000, 400)
    lane.came("i2")
    lane.sample(11, 150_000, 300)
    lane.sample(3, more=2)
    lane.sample(LONG)
    for arrival in range(3):
        waits = HandOver(f"g{arrival}", arrival).values()
        waits |= dict.fromkeys(("seq", "incarnation", "consumer", "epoch", "group_seq", "attempt"))
        lane.leader.tell(row(lane.now_us, Event.RECEIVED, received_at=lane.now_us, **waits))
    lane.leader.end()
    return [(6, 26), (29, 29 + LONG)]


def no_wonder(folder: Path) -> Spans:
    """Nobody is there, the lane is paused, or nothing waits; and all this once more for the next leader."""
    lane = Sampled(folder, "no-wonder")
    lane.sample(30)
    lane.came()
    lane.tell("lane_paused")
    lane.sample(30)
    lane.tell("lane_resumed")
    lane.sample(30, 0)
    lane.went()
    lane.sample(30)
    lane.tell("lane_paused")
    lane.came()
    lane.leader.end()
    consumers = [{"consumer": "c-i1", "incarnation": "i1"}]
    later = Sampled(
        folder, "no-wonder", 8, former_epoch=7, started_us=lane.now_us, paused=True, consumers=consumers
    )
    later.sample(30)
    later.tell("lane_resumed")
    later.sample(30, 0)
    later.went()
    later.sample(30)
    later.leader.end()
    return []


def goes_on(folder: Path) -> Spans:
    """Who was there before is there under the next leader; each one's samples count from 0 on."""
    lane = Sampled(folder, "goes-on")
    lane.came()
    lane.sample(6)
    lane.leader.end()
    consumers = [{"consumer": "c-i1", "incarnation": "i1"}]
    later = Sampled(folder, "goes-on", 8, former_epoch=7, started_us=lane.now_us, consumers=consumers)
    later.sample(15)
    later.leader.end()
    return [(7, 21)]


def beginning_gone(folder: Path) -> Spans:
    """The file with the beginning is gone: who has messages in hand is there, of others nothing is known."""
    lane = Sampled(folder, "beginning-gone")
    lane.came()
    lane.leader.close(lane.now_us)
    (first,) = (folder / "lane=beginning-gone").rglob("*.parquet")
    lane.sample(15, 5, 3)
    lane.sample(15, 5, 0)
    lane.leader.end()
    first.unlink()
    return [(1, 15)]


def held(folder: Path) -> Spans:
    """Groups that an operator has paused, or that have stopped, are counted with what waits."""
    lane = Sampled(folder, "held-groups")
    lane.came()
    for event, group in ("group_paused", "a"), ("group_stopped", "b"), ("group_released", "b"):
        lane.tell(event, group=group)
    lane.sample(20)
    lane.tell("group_resumed", group="a")
    lane.sample(1, more=1)
    lane.sample(15, 6)
    lane.leader.end()
    return [(1, 20), (21, 36)]


STALL_CASES = {
    "works": works, "stands-still": stands_still, "no-wonder": no_wonder, "goes-on": goes_on,
    "beginning-gone": beginning_gone, "held-groups": held,
}  # fmt: skip
