"""What the ledger costs a message: `python -m bench.ledger`.

The core hands over messages at a steady rate and tells the ledger of them. What counts is the CPU of the
calls and of the ledger's threads in the dispatcher; that of the process which writes the files is told apart.
They are written, with fsync, into a directory that is deleted afterwards.
"""

from __future__ import annotations

import argparse
import gc
import hashlib
import resource
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from statistics import median
from typing import Any, Final, NamedTuple

from dispatcher.amqp.pricing import kind_of
from dispatcher.amqp.relay import Content
from dispatcher.core.effects import Effects, Snapshot
from dispatcher.core.events import AcksProven, CopiesConfirmed, MessagesArrived, RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import LaneOptions, policy
from dispatcher.core.queue_ids import inbound_id
from dispatcher.core.records import Dispatched
from dispatcher.errors import ConfigurationError
from dispatcher.ledger.opening import open_ledger
from dispatcher.ledger.recorder import Recorder
from dispatcher.ledger.writer import Ledger
from dispatcher.service.process import GC_THRESHOLDS
from dispatcher.settings import LedgerSettings
from dispatcher.wire.protocol import Join, Settle

#: Contract of docs/architecture.md.
INBOUND: Final = inbound_id(0)
COST_US_MAX: Final = 3.0
LANE: Final = "bench"
GROUPS: Final = 5_000
CONSUMERS: Final = 4
#: As a producer may send them, one with a `type`: delivery mode and message id are before it.
_PROPERTIES: Final = (
    b"\x30\x80\x00\x00\x00\x00\x02\x04id-1", b"\x30\xa0\x00\x00\x00\x00\x02\x04id-1\x07invoice",
)  # fmt: skip
_CONTENTS: Final = [
    Content(b"g", False, None, b"", b"", b"in", properties, 6, 6, b"") for properties in _PROPERTIES
]


class Cost(NamedTuple):
    """µs of CPU a message, and bytes on disk."""

    core_us: float
    ledger_us: float
    writer_us: float
    size: float


class Timed(Recorder):
    """Adds up what the calls of another one take of this thread's CPU."""

    def __init__(self, recorder: Recorder) -> None:
        self.spent_s = 0.0
        self.now_us = recorder.now_us  # type: ignore[method-assign]
        self._arrived = recorder.arrived
        self.arrived = self._timed(self._read_types)  # type: ignore[method-assign]
        for name in ("began", "decided", "confirmed"):
            setattr(self, name, self._timed(getattr(recorder, name)))
        self.ended = recorder.ended  # type: ignore[method-assign]

    def _read_types(self, messages: list[Original]) -> None:
        """As they are read for a ledger: half of the messages have one."""
        for message in messages:
            message.kind = kind_of(message.content)
        self._arrived(messages)

    def _timed(self, call: Callable[..., None]) -> Callable[..., None]:
        def timed(*arguments: Any) -> None:
            began_s = time.thread_time()
            call(*arguments)
            self.spent_s += time.thread_time() - began_s

        return timed


class Traffic:
    """One lane, told of in a recorder."""

    def __init__(self, recorder: Recorder, batch: int) -> None:
        self._recorder, self._batch = recorder, batch
        now_ms = time.time_ns() // 1_000_000
        options = LaneOptions(policy=policy("exclusive"), inbounds=(("in", 1),), heartbeat_ms=3_600_000)
        snapshot = Snapshot(lane_epoch=7, complete=True, broker_restarted=False)
        self._lane = Lane(options, snapshot, now_ms)
        recorder.began(self._lane, snapshot)
        self._decide(self._lane.start(now_ms))
        self._decide(self._lane.step([RedeliveriesEnded(INBOUND)], now_ms))
        joins = (
            Join(consumer=f"c{n}", incarnation=f"{n:08d}-0000-4000-8000-00000000cafe", n=1, queue=f"q{n}",
                 prefetch=1_000)
            for n in range(CONSUMERS)
        )  # fmt: skip
        self._decide(self._lane.step(joins, now_ms))
        self._tag = 0

    def _decide(self, effects: Effects) -> Effects:
        self._recorder.decided(effects, self._recorder.now_us())
        return effects

    def run(self, messages: int, rate: int) -> None:
        """They arrive, go out, are confirmed and settled, some at a time."""
        due_s = time.monotonic()
        for _ in range(messages // self._batch):
            now_ms = time.time_ns() // 1_000_000
            arrived = [self._message(now_ms) for _ in range(self._batch)]
            self._recorder.arrived(arrived)
            self._answer(self._decide(self._lane.step([MessagesArrived(arrived)], now_ms)), now_ms)
            due_s += self._batch / rate
            time.sleep(max(0.0, due_s - time.monotonic()))

    def _message(self, now_ms: int) -> Original:
        self._tag += 1
        tag = self._tag
        fingerprint = hashlib.blake2b(b"%d" % tag, digest_size=16).digest()
        group = b"order-%d" % (tag * 7919 % GROUPS)
        return Original(
            INBOUND, tag, (7, tag), fingerprint, group, _CONTENTS[tag % 2], 200 + tag % 100, now_ms
        )

    def _answer(self, effects: Effects, now_ms: int) -> None:
        copies = [action for action in effects.actions if type(action) is Dispatched]
        self._recorder.confirmed(copies)
        confirmed = CopiesConfirmed(len(copies), sum(copy.message.size for copy in copies))
        by_number = self._lane.state.by_number
        seqs: dict[int, list[int]] = {}
        for copy in copies:
            seqs.setdefault(copy.incarnation, []).append(copy.seq)
        settles = [
            Settle(consumer=by_number[n].id, incarnation=by_number[n].uuid, acked=((s[0], s[-1]),))
            for n, s in seqs.items()
        ]
        self._decide(self._lane.step([confirmed, *settles, AcksProven(INBOUND, len(copies))], now_ms))


def cost(messages: int, batch: int, rate: int, ledger: Ledger) -> tuple[float, float]:
    """What the core and the ledger took of this process's CPU, in s."""
    gc.collect()
    timed = Timed(ledger.recorder(LANE))
    traffic = Traffic(timed, batch)
    ledger.start()
    process_s, loop_s, timed.spent_s = time.process_time(), time.thread_time(), 0.0
    traffic.run(messages, rate)
    timed.ended(None)
    if not ledger.stop(60):
        sys.exit("bench.ledger: the ledger did not finish")
    process_s, loop_s = time.process_time() - process_s, time.thread_time() - loop_s
    return loop_s - timed.spent_s, process_s - loop_s + timed.spent_s


def _writer_s() -> float:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return used.ru_utime + used.ru_stime


def round_of(messages: int, batch: int, rate: int) -> Cost:
    with tempfile.TemporaryDirectory(prefix="bench-ledger-") as folder:
        writer_s = _writer_s()
        ledger = open_ledger(LedgerSettings(path=folder, memory=1 << 30))
        core_s, ledger_s = cost(messages, batch, rate, ledger)
        writer_s = _writer_s() - writer_s
        size = sum(path.stat().st_size for path in Path(folder).rglob("*.parquet"))
    counted = ledger.counters(LANE)
    if counted["ledger_records"] < messages or counted["ledger_records_dropped"]:
        sys.exit(f"bench.ledger: not everything was written: {counted}")
    return Cost(*(value / messages for value in (core_s * 1e6, ledger_s * 1e6, writer_s * 1e6, size)))


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.ledger", description=__doc__)
    parser.add_argument("--messages", type=int, default=50_000, help="in each round (50000)")
    parser.add_argument("--rounds", type=int, default=5, help="medians of so many (5)")
    parser.add_argument("--batch", type=int, default=32, help="messages that arrive at a time (32)")
    parser.add_argument("--rate", type=int, default=20_000, help="messages/s (20000)")
    given = parser.parse_args()
    if min(given.messages, given.rounds, given.batch, given.rate) < 1 or given.batch > given.messages:
        parser.error("all must be at least 1, and --batch at most --messages")
    gc.set_threshold(*GC_THRESHOLDS)
    try:
        rounds = [round_of(given.messages, given.batch, given.rate) for _ in range(given.rounds)]
    except ConfigurationError as problem:
        print(f"bench.ledger: {problem}", file=sys.stderr)
        return 1
    core_us, ledger_us, writer_us, size = (median(column) for column in zip(*rounds, strict=True))
    print(
        f"the ledger takes {ledger_us:.2f} µs of the dispatcher's CPU a message (at most {COST_US_MAX:g}; "
        f"the core takes {core_us:.2f}), its writer {writer_us:.2f}, its start included, and {size:.0f} "
        f"bytes on disk; medians of {given.rounds} rounds of {given.messages:,} messages, "
        f"{given.batch} at a time"
    )
    return int(round(ledger_us, 2) > COST_US_MAX)


if __name__ == "__main__":
    sys.exit(main())
