"""What a decision of the core costs as groups and consumers grow: `python -m bench.core_scale`.

One message's whole way through the core (arrival, dispatch, settle, ack) in µs of CPU, for few and many
groups, and for few and many consumers, each pair in turn so that a drift of the machine hits both alike.
The work per step is the same in all cases: 64 arrivals, and settles from as many consumers as there are in
the smaller case, so that only the size of what the core remembers differs.
"""

from __future__ import annotations

import gc
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from itertools import count
from statistics import median
from typing import Final

from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import AcksProven, CopiesConfirmed, MessagesArrived, RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import GroupWindow, LaneOptions, policy
from dispatcher.core.queue_ids import inbound_id
from dispatcher.core.records import Dispatched
from dispatcher.core.views.views import Views
from dispatcher.service.group_listings import GROUPS_AT_A_TIME
from dispatcher.wire.protocol import Join, Settle

INBOUND: Final = inbound_id(0)
ROUNDS: Final = 7
MESSAGES: Final = 30_000  # measured in each round
BATCH: Final = 64
ACTIVE: Final = 4  # consumers that are spoken to in one step
NOW_MS: Final = 1_800_000_000_000


@dataclass(frozen=True, slots=True)
class Case:
    name: str
    groups: int
    consumers: int


class Lanes:
    """One lane with everything in place: all groups owned, all consumers joined."""

    def __init__(self, case: Case) -> None:
        options = LaneOptions(
            policy=policy("exclusive"), inbounds=(("in", 1),), heartbeat_ms=3_600_000,
            group_window=GroupWindow(2, None),
        )  # fmt: skip
        self.lane = Lane(options, Snapshot(lane_epoch=7, complete=True, broker_restarted=False), NOW_MS)
        self.lane.start(NOW_MS)
        self.lane.step([RedeliveriesEnded(INBOUND)], NOW_MS)
        self._tags = count(1)
        joins = (
            Join(consumer=f"c{n}", incarnation=f"u{n}", n=1, queue=f"q{n}", prefetch=1_000)
            for n in range(case.consumers)
        )
        self.lane.step(joins, NOW_MS)
        self._groups = [b"group-%d" % n for n in range(case.groups)]
        for first in range(0, case.groups, BATCH):
            self.turn(self._groups[first : first + BATCH])
        self._hot = self._few_owners()

    def _few_owners(self) -> list[bytes]:
        """Groups of ACTIVE consumers only: a step then speaks to as many, however many there are."""
        groups = self.lane.state.groups
        owners = {groups[g].owner for g in self._groups[:ACTIVE]}
        mine = [g for g in self._groups if groups[g].owner in owners]
        step = max(1, len(mine) // 1_000)
        return mine[::step][:1_000]  # spread over all of them, and as many in every case

    def turn(self, groups: list[bytes]) -> None:
        """One message of each group arrives, goes out, is confirmed, settled and proven."""
        messages = [
            Original(INBOUND, tag, (7, tag), tag.to_bytes(16), group, _CONTENT, 256, NOW_MS)
            for group, tag in zip(groups, self._tags, strict=False)
        ]
        self._answer(self.lane.step([MessagesArrived(messages)], NOW_MS))

    def _answer(self, effects: Effects) -> None:
        copies = [action for action in effects.actions if type(action) is Dispatched]
        seqs: dict[int, list[int]] = {}
        for copy in copies:
            seqs.setdefault(copy.incarnation, []).append(copy.seq)
        by_number = self.lane.state.by_number
        settles = [
            Settle(consumer=by_number[n].id, incarnation=by_number[n].uuid, acked=((s[0], s[-1]),))
            for n, s in seqs.items()
        ]
        confirmed = CopiesConfirmed(len(copies), sum(copy.message.size for copy in copies))
        self.lane.step([confirmed, *settles, AcksProven(INBOUND, len(copies))], NOW_MS)

    def batches(self) -> Iterator[list[bytes]]:
        hot, at = self._hot, 0
        for _ in range(MESSAGES // BATCH):
            yield [hot[(at + n) % len(hot)] for n in range(BATCH)]
            at += BATCH


_CONTENT = object()


def cost_us(lanes: Lanes) -> float:
    """µs of CPU a message."""
    gc.collect()
    began = time.process_time()
    for groups in lanes.batches():
        lanes.turn(groups)
    return (time.process_time() - began) / (MESSAGES // BATCH * BATCH) * 1e6


def compare(small: Case, large: Case, tell: Callable[[str], None] = print) -> float:
    """Median of the ratios large/small of rounds in which both take turns."""
    pair = Lanes(small), Lanes(large)
    ratios, costs = [], []
    for _ in range(ROUNDS):
        low, high = (cost_us(lanes) for lanes in pair)
        ratios.append(high / low)
        costs.append((low, high))
    low, high = (median(column) for column in zip(*costs, strict=True))
    ratio = median(ratios)
    tell(f"{small.name}: {low:.2f} µs   {large.name}: {high:.2f} µs   ratio {ratio:.2f}")
    return ratio


def list_groups(case: Case, tell: Callable[[str], None] = print) -> None:
    """How long `groups list` holds the lane up at a time, and in all, in ms of CPU."""
    views = Views(Lanes(case).lane.state)
    for order in ("depth", "group"):
        gc.collect()
        pauses_s, through = [], False
        began = time.process_time()
        listing = views.listing({"sort": order})
        pauses_s.append(time.process_time() - began)
        while not through:
            part_began = time.process_time()
            through = listing.look_at(GROUPS_AT_A_TIME)
            pauses_s.append(time.process_time() - part_began)
        part_began = time.process_time()
        views.listed(listing)
        pauses_s.append(time.process_time() - part_began)
        tell(
            f"listing {case.name} by {order}: {1e3 * sum(pauses_s):.0f} ms in {len(pauses_s):,} parts, "
            f"median {1e3 * median(pauses_s):.2f} ms, longest {1e3 * max(pauses_s):.1f} ms"
        )


def main() -> None:
    compare(Case("1,000 groups", 1_000, ACTIVE), Case("1,000,000 groups", 1_000_000, ACTIVE))
    list_groups(Case("1,000,000 groups", 1_000_000, ACTIVE))
    compare(Case("4 consumers", 4_000, ACTIVE), Case("1,000 consumers", 250_000, 1_000))


if __name__ == "__main__":
    main()
