"""docs/semantics.md, "Recovery": a new leader reads the journal, and RabbitMQ redelivers the originals."""

from __future__ import annotations

from itertools import count
from typing import Any
from zlib import crc32

import pytest

from dispatcher.core.buckets import Bucket
from dispatcher.core.effects import Effects
from dispatcher.core.events import PingRouted, RedeliveriesEnded
from dispatcher.core.model import GroupState, Original
from dispatcher.core.queue_ids import FIRST_INBOUND
from dispatcher.core.records import Dispatched, OpenEntry, SettledEntries
from dispatcher.core.tables import IncarnationRow, OwnerRow
from dispatcher.wire.protocol import InHand
from tests.spec.lane_bench import LaneBench, clause, names
from tests.spec.parking_bench import ParkingBench

EPOCH = 5


def _fingerprint(name: str) -> bytes:
    return name.encode().ljust(16, b"\0")


class Successor(LaneBench):
    """A leader whose journal names messages of inbound queue 0 that consumer one has. RabbitMQ redelivers
    them when the test says so; inbound queue 1 has only new messages."""

    def __init__(
        self, *in_flight: str, settled: tuple[str, ...] = (), name: str = "exclusive",
        owners: dict[bytes, OwnerRow] | None = None, group_seqs: dict[str, int] | None = None, **options: Any,
    ) -> None:  # fmt: skip
        records: list[Any] = [
            OpenEntry(0, (6, tag), _fingerprint(out), 1, tag, out[:1].encode(), group_seq, EPOCH, 1)
            for tag, out in enumerate(in_flight, 1)
            for group_seq in [(group_seqs or {}).get(out, tag)]
        ]
        rest = enumerate(settled, 1 + len(in_flight))
        records += [SettledEntries(0, False, (((6, tag), _fingerprint(name)),)) for tag, name in rest]
        row = IncarnationRow("one", "one-1", "one-1.1", 1, 10, "live")
        if owners is None:
            owners = {out[:1].encode(): OwnerRow(1, EPOCH) for out in in_flight if name == "exclusive"}
        found = {"incarnations": {1: row}, "records": records, "owners": owners}
        super().__init__(name, weights=(1, 1), snapshot=found, **options)

    def _begin(self) -> None:
        self._take(self.lane.start(self.now_ms))
        self.step(RedeliveriesEnded(1))

    def consumer_lives(self) -> None:
        self.step(PingRouted("one-1.1"))

    def comes_back(self, *wanted: str) -> list[str]:
        """RabbitMQ redelivers these originals; returns the names of what was dispatched then."""
        return names(self.arrive(*wanted, redelivered=True))

    def all_came_back(self) -> list[str]:
        return names(self.step(RedeliveriesEnded(0)))

    @property
    def vanished(self) -> int:
        return int(self.lane.state.counters["vanished"])


class KeepsRows(LaneBench):
    """Remembers the rows of owners that were committed."""

    def __init__(self, *args: Any, **options: Any) -> None:
        self.rows: dict[bytes, OwnerRow] = {}
        super().__init__(*args, **options)

    def _take(self, effects: Effects) -> list[Dispatched]:
        self.rows.update({group: row for group, row in effects.owners.items() if row is not None})
        return super()._take(effects)


class KeepingSuccessor(Successor, KeepsRows):
    """The same of a later leader."""


def test_o7_the_numbers_go_on_at_a_take_over_while_a_message_is_out() -> None:
    """So its consumer misses a copy that is lost when it is sent again."""
    clause("O-7", "under `exclusive`, while messages of the group are out at it, their numbers go on")
    bench = Successor("a1", "a2")
    bench.consumer_lives()
    bench.comes_back("a1", "a2", "a3", "b1")
    assert (bench.latest("a3").epoch, bench.latest("a3").group_seq) == (EPOCH, 3)
    assert bench.latest("b1").epoch > EPOCH


def test_o7_the_numbers_of_each_id_of_a_bucket_go_on() -> None:
    key = b"bucket:%d/4" % (crc32(b"a") % 4)
    bench = Successor("a1", "a2", owners={key: OwnerRow(1, EPOCH)}, buckets=4)
    bench.consumer_lives()
    bench.comes_back("a1", "a2", "a3")
    assert (bench.latest("a3").epoch, bench.latest("a3").group_seq) == (EPOCH, 3)


def test_o7_no_number_is_taken_again_where_one_is_not_known() -> None:
    """Its consumer reported the second message to a leader for which Redis had lost it."""
    bench = Successor("a1", "a2", group_seqs={"a2": 0})
    bench.consumer_lives()
    bench.comes_back("a1", "a2", "a3")
    assert bench.latest("a3").epoch > EPOCH


def test_o5_after_a_take_over_what_is_out_is_settled_first() -> None:
    """Nobody knows whether a number came behind it. So a copy that is lost once more would leave no gap: the
    next one would begin a new epoch."""
    clause("O-5", "After a take-over by another dispatcher it first settles what it held then")
    bench = Successor("a1", name="sequenced", top_up=True)
    bench.consumer_lives()
    assert bench.comes_back("a1", "a2", "a3") == []
    assert names(bench.settle_seqs("one", 1)) == ["a2", "a3"]
    assert bench.latest("a2").epoch > EPOCH
    assert names(bench.arrive("a4")) == ["a4"]  # the next assignment is as ever


def test_o7_the_latest_number_is_not_given_again_once_it_has_ended_before_another() -> None:
    """What has ended leaves the journal. So the owner's row says that the numbers don't go on."""
    clause("O-7", "When the message that was handed over last ends before another of its group")
    bench = KeepsRows()
    bench.join("one")
    bench.arrive("a1", "a2", "a3")
    before = bench.latest("a3").epoch
    bench.settle("one", "a2")
    assert bench.rows[b"a"].epoch == before
    bench.settle("one", "a3")
    last = bench.rows[b"a"]
    assert last.epoch > before
    bench.arrive("a4", "a5")
    assert [(bench.latest(name).epoch, bench.latest(name).group_seq) for name in ("a4", "a5")] == [
        (last.epoch, 1), (last.epoch, 2),
    ]  # fmt: skip


def test_o7_a_bucket_looks_at_the_latest_number_of_each_id() -> None:
    bench = KeepsRows(buckets=1)
    bench.join("one")
    bench.arrive("a1", "b1", "a2", "b2")
    bench.settle("one", "b1")
    before = max(bench.latest(name).epoch for name in ("a2", "b2"))
    assert bench.rows[b"bucket:0/1"].epoch < before
    bench.settle("one", "a2")
    last = bench.rows[b"bucket:0/1"]
    assert last.epoch > before
    bench.arrive("a3", "b3")
    assert [bench.latest(name).group_seq for name in ("a3", "b3")] == [1, 1]
    assert min(bench.latest(name).epoch for name in ("a3", "b3")) > last.epoch


def test_o7_ids_of_a_bucket_go_on_unless_their_numbers_were_to_begin_anew() -> None:
    epochs = count(20)
    bucket = Bucket(b"bucket:0/1", GroupState.RECOVERING, lambda: next(epochs))
    older, newer = (Original(FIRST_INBOUND, n, (1, n), b"", b"ab"[n : n + 1], None, 1, 0) for n in (0, 1))
    older.epoch, older.group_seq, newer.epoch, newer.group_seq = 5, 1, 9, 3
    bucket.count_out(older)
    bucket.count_out(newer)
    bucket.goes_on(newer, assigned_epoch=7)
    bucket.number(older)
    bucket.number(newer)
    assert (older.epoch, older.group_seq) == (20, 1)
    assert (newer.epoch, newer.group_seq) == (9, 4)


def test_o7_a_leader_that_saw_the_latest_end_first_says_so_to_the_next() -> None:
    bench = KeepingSuccessor("a1", "a2")
    bench.consumer_lives()
    bench.settle_seqs("one", 2)
    bench.comes_back("a1", "a2")
    assert bench.rows[b"a"].epoch > EPOCH


def test_o7_an_epoch_never_goes_back() -> None:
    """The group had moved on with nothing awaited, and its new owner is over."""
    bench = Successor("a1", owners={b"a": OwnerRow(2, EPOCH + 1)})
    bench.consumer_lives()
    bench.comes_back("a1", "a3")
    assert bench.latest("a3").epoch > EPOCH + 1


def test_o7_a_number_that_its_consumer_knows_is_replaced() -> None:
    """The application had settled the second message before the first, so no entry of that was open."""
    bench = Successor("a1")
    bench.consumer_lives()
    bench.comes_back("a1", "a3")
    assert (bench.latest("a3").epoch, bench.latest("a3").group_seq) == (EPOCH, 2)
    for n in (2, 3):  # to its consumer that looks as if one was lost
        bench.join("one", n=n, in_hand=(InHand(seq=1, group=b"a", fingerprint=_fingerprint("a1")),))
    again = bench.again[-1]
    assert (again.seq, again.group_seq) == (bench.latest("a3").seq, 1)
    assert again.epoch > EPOCH


def test_o7_a_take_over_begins_a_new_epoch_when_nothing_is_out() -> None:
    clause("O-7", "A take-over by another dispatcher begins a new epoch for the same owner")
    bench = Successor("a1")
    bench.consumer_lives()
    bench.settle_seqs("one", 1)
    bench.comes_back("a1")
    bench.comes_back("a2")
    assert bench.latest("a2").epoch > EPOCH
    assert bench.latest("a2").group_seq == 1


@pytest.mark.parametrize("name", ["exclusive", "sequenced"])
def test_o22_a_group_goes_on_to_where_it_is_pinned(name: str) -> None:
    """The former leader waited for the settle of what is out elsewhere."""
    clause("O-22", "The group changes its owner when its messages in flight at other consumers are settled")
    bench = Successor("a1", name=name, top_up=name == "sequenced", flags={b"group:a": {"pin": "two"}})
    bench.consumer_lives()
    bench.join("two")
    assert bench.comes_back("a1", "a2") == []
    assert names(bench.settle_seqs("one", 1)) == ["a2"]
    assert bench.holder("a2") == "two"


@pytest.mark.parametrize("name", ["exclusive", "sequenced"])
def test_o22_a_pinned_group_waits_for_its_consumer_after_a_take_over(name: str) -> None:
    clause("O-22", "While the named consumer is away, is leaving or is drained, the group waits")
    bench = Successor("a1", name=name, top_up=name == "sequenced", flags={b"group:a": {"pin": "two"}})
    bench.consumer_lives()
    assert bench.comes_back("a1", "a2") == []
    assert bench.settle_seqs("one", 1) == []
    assert names(bench.join("two")) == ["a2"]


def test_o22_a_batch_lane_gives_a_pinned_group_no_owner_without_a_message() -> None:
    bench = Successor("a1", name="sequenced", top_up=True, flags={b"group:a": {"pin": "two"}})
    bench.consumer_lives()
    bench.join("two")
    bench.comes_back("a1")
    bench.settle_seqs("one", 1)
    group = bench.lane.state.groups[b"a"]
    assert (group.owner, group.state) == (None, GroupState.FREE)


def test_o22_a_group_that_redis_has_forgotten_goes_on_to_where_it_is_pinned() -> None:
    """Its consumer reports a message of it; the flag is still known."""
    bench = LaneBench(complete=False, flags={b"group:a": {"pin": "two"}})
    held = InHand(seq=(3 << 20) + 1, group=b"a", fingerprint=_fingerprint("a1"))
    bench.arrive("a1", redelivered=True)
    bench.join("one", n=2, in_hand=(held,))
    bench.join("two", n=2)
    bench.step(after_ms=20_000)
    assert names(bench.arrive("a2")) == []
    assert names(bench.settle_seqs("one", held.seq)) == ["a2"]
    assert bench.holder("a2") == "two"


def test_o13_a_reset_goes_on_at_a_take_over_with_messages_out() -> None:
    """Redis still names the former owner."""
    clause("O-13", "`reset` leaves every group unowned")
    bench = Successor("a1", flags={b"reset": {"until": EPOCH + 3}})
    bench.consumer_lives()
    assert bench.comes_back("a1", "a2") == []
    assert bench.lane.state.groups[b"a"].state is GroupState.DRAINING
    bench.join("two")
    assert names(bench.settle_seqs("one", 1)) == ["a2"]
    assert bench.lane.state.reset_until is None
    assert bench.latest("a2").epoch > EPOCH + 3


def test_r1_a_living_consumers_message_keeps_its_number_and_its_place() -> None:
    clause("R-1", "in flight at its consumer if that lives")
    bench = Successor("a1", "a2")
    bench.consumer_lives()
    assert bench.comes_back("a1", "a2", "a3") == ["a3"]
    assert [(name, copy.seq) for name, copy in zip(names(bench.again), bench.again, strict=True)] == [
        ("a1", 1), ("a2", 2),
    ]  # fmt: skip
    assert bench.latest("a3").seq > 2
    assert bench.holder("a3") == "one"


def test_r1_a_dead_consumers_messages_come_before_everything_newer_of_their_group() -> None:
    clause("R-1", "before everything newer of its group if not")
    bench = Successor("a1", "a2")
    bench.comes_back("a1", "a2", "a3")
    bench.join("two")
    assert bench.sent == []
    bench.step(bench.returned("one"))
    bench.step(after_ms=5_000)
    assert names(bench.step(bench.marker())) == ["a1", "a2", "a3"]
    assert [bench.latest(name).attempt for name in ("a1", "a2", "a3")] == [2, 2, 1]


def test_r1_a_settled_original_is_acked_again() -> None:
    clause("R-1", "acked again if it was settled")
    bench = Successor("a2", settled=("a1",))
    bench.consumer_lives()
    assert bench.comes_back("a1", "a2") == []
    assert bench.acked == [b"a1"]
    assert names(bench.again) == ["a2"]


def test_r2_no_new_message_of_a_group_passes_one_that_has_not_come_back() -> None:
    clause("R-2", "No new message of a group goes out before its open entries have met their originals")
    bench = Successor("a1", "a2")
    bench.consumer_lives()
    assert names(bench.arrive("a3", inbound=1)) == []
    assert bench.comes_back("a1") == [], "a2 has not come back"
    assert bench.comes_back("a2") == ["a3"]


def test_r2_other_groups_do_not_wait() -> None:
    clause("R-2", "Other groups don't wait")
    bench = Successor("a1")
    bench.consumer_lives()
    assert names(bench.arrive("a2", "b1", "-1", inbound=1)) == ["b1", "-1"]


def test_r2_it_goes_on_when_the_open_entry_is_known_to_have_no_original() -> None:
    clause("R-2", "or are known to have none")
    bench = Successor("a1")
    bench.consumer_lives()
    assert names(bench.arrive("a2", inbound=1)) == []
    assert bench.all_came_back() == ["a2"]


def test_r3_a_living_consumers_settle_is_awaited_before_its_original_counts_as_vanished() -> None:
    clause("R-3", "is counted as `vanished`; if its consumer lives, its settle is awaited first")
    bench = Successor("a1")
    bench.consumer_lives()
    bench.all_came_back()
    bench.step(after_ms=60_000)
    assert bench.vanished == 0
    bench.settle_seqs("one", 1)
    assert bench.vanished == 0, "it was done, and acked by the former leader"
    assert bench.lane.state.by_id["one"].in_flight == {}


def test_r3_a_dead_consumers_message_that_others_deleted_is_counted() -> None:
    clause("R-3", "that expired, while it was in flight is counted as `vanished`")
    bench = Successor("a1")
    bench.consumer_lives()
    bench.all_came_back()
    bench.die("one")
    bench.step(after_ms=10_000)
    assert bench.vanished == 1


def test_r3_a_later_arrival_that_comes_back_says_that_it_is_gone() -> None:
    clause(
        "R-3", "doesn't wait for it once an original has come back that arrived after it at the same leader"
    )
    bench = Successor("a1", "b2")
    bench.consumer_lives()
    assert names(bench.arrive("a3", inbound=1)) == []
    assert bench.comes_back("b2") == ["a3"]


def test_r5_numbers_go_on_above_what_consumers_remember_when_redis_forgets_everything() -> None:
    clause("R-5", "Numbers never go back, even if Redis forgets everything")
    bench = ParkingBench()
    bench.join("one")
    bench.arrive("a1", "b1")
    held = bench.in_hand("a1")
    before = bench.latest("b1")
    bench.settle("one", "b1")
    bench.fail_over(forget=True)
    bench.join("one", n=2, in_hand=(held,))
    bench.run(11_000)
    bench.arrive("b2", "a2")
    assert [bench.holder(name) for name in ("b2", "a2")] == ["one", "one"]
    assert min(bench.latest(name).seq for name in ("b2", "a2")) > max(held.seq, before.seq)
    assert min(bench.latest(name).epoch for name in ("b2", "a2")) > before.epoch
