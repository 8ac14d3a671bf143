"""Lanes in which messages wait while none is handed over, and lanes in which that is ordinary."""

from __future__ import annotations

from pathlib import Path

from dispatcher.ledger.rows import row
from dispatcher.ledger.schema import Event
from tests.pipeline.ledgers import MS, START_US, Leader, Numbers, in_order

SECOND = 1_000 * MS
STOOD, PAUSED, QUICK = "stood", "stood-paused", "stood-not"


def _sample(leader: Leader, second: int, handed: int, waiting: int, inbound: str = "in") -> None:
    leader.tell(row(
        START_US + second * SECOND, Event.SAMPLED, inbound=inbound, waiting=waiting, in_flight=1,
        messages=handed, cost=handed, detail='{"full":false}',
    ))  # fmt: skip


def plant_stalls(folder: Path) -> None:
    """STOOD stands still for 30 s, and after some messages for 12 s to its end. In QUICK nothing waits for a
    minute, or something for 9 s, and one of two queues goes on."""
    leader = Leader(folder, STOOD)
    leader.hand(*map(Numbers().number, in_order("g", 3)))
    for second in range(1, 31 + 13 + 1):
        _sample(leader, second, 3 if second <= 31 else 5, min(second, 9))
    leader.close()
    paused = Leader(folder, PAUSED)
    paused.hand(*map(Numbers().number, in_order("g", 3)))
    paused.tell(row(START_US + SECOND, "lane_paused"))
    for second in range(2, 13):
        _sample(paused, second, 3, 4)
    paused.tell(row(START_US + 13 * SECOND, "lane_resumed"))
    for second in range(14, 16):
        _sample(paused, second, 7, 0)
    paused.end()
    quick = Leader(folder, QUICK, inbounds=[{"queue": name, "weight": 1} for name in ("in", "other")])
    quick.hand(*map(Numbers().number, in_order("g", 3)))
    for second in range(1, 100):
        _sample(quick, second, 3, int(second % 60 >= 51))
        _sample(quick, second, second if second > 70 else 0, 0, "other")
    quick.end()
