"""Bugs that the simulator found, each by the smallest thing that shows it."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from dispatcher.core.bounds import COUNTER_SHIFT
from dispatcher.core.effects import Snapshot
from dispatcher.core.events import MessagesArrived, PingRouted, PublishersBlocked, RedeliveriesEnded
from dispatcher.core.lane import Lane
from dispatcher.core.model import Original
from dispatcher.core.options import GroupWindow, LaneOptions, policy
from dispatcher.core.orders import SendCopy, SendNotice
from dispatcher.core.records import DeadLetterPending, Dispatched, OpenEntry, SettledEntries
from dispatcher.core.tables import IncarnationRow, OwnerRow
from dispatcher.errors import NumbersBehind
from dispatcher.settings import GroupWindowSettings
from dispatcher.sim.campaign import run_scenario
from dispatcher.sim.checkers.independence import IndependenceChecker
from dispatcher.sim.scenario import ConsumerPlan, Fault, MessagePlan, RunScenario
from dispatcher.sim.seeds import draw_scenario, make_scenario
from dispatcher.sim.world import World
from dispatcher.wire.protocol import TYPE_REJOIN, Heartbeat, Join, Settle
from tests.spec.flag_bench import said
from tests.spec.lane_bench import LaneBench

NOW_MS = 1_750_000_000_000
EPOCH = NOW_MS // 1_000
SEQ = EPOCH << COUNTER_SHIFT
ROW = IncarnationRow("c", "uuid", "queue", 1, 10, "live")


def lane(
    name: str = "exclusive", *, inbounds: int = 1, top_up: bool = False, attempts: int = 3,
    buckets: int | None = None, **given: Any,
) -> Lane:  # fmt: skip
    options = LaneOptions(
        policy=policy(name, top_up=top_up), inbounds=tuple((f"in{n}", 1) for n in range(inbounds)),
        attempts=attempts, buckets=buckets,
    )  # fmt: skip
    given = {"complete": True, "broker_restarted": False, **given}
    made = Lane(options, Snapshot(lane_epoch=EPOCH + 1, **given), NOW_MS)
    made.start(NOW_MS)
    return made


def fingerprint(name: str) -> bytes:
    return name.encode().ljust(16, b".")


def original(
    name: str, tag: int, *, group: bytes | None = b"g", inbound: int = 0, again: bool = True
) -> Original:
    return Original(
        inbound, tag, (EPOCH + 1, tag), fingerprint(name), group, name, 1, NOW_MS, redelivered=again
    )  # fmt: skip


def entry(name: str, tag: int, seq: int, group_seq: int, *, inbound: int = 0, holder: int = 1) -> OpenEntry:
    return OpenEntry(
        inbound, (EPOCH, tag), fingerprint(name), holder, SEQ + seq, b"g", group_seq, SEQ + 1, 1
    )  # fmt: skip


def test_a_group_of_one_message_is_forgotten_when_that_is_settled() -> None:
    """Its backlog stood in a list of the delivery pass when it ran empty: remembered for ever."""
    core = lane("sequenced", top_up=True)
    core.step([Join(consumer="c", incarnation="uuid", n=1, queue="queue", prefetch=1)], NOW_MS)
    for tag in range(1, 4):
        effects = core.step(
            [MessagesArrived([original(f"m{tag}", tag, group=b"g%d" % tag, again=False)])], NOW_MS
        )
        (copy,) = [action for action in effects.actions if isinstance(action, Dispatched)]
        core.step([Settle(consumer="c", incarnation="uuid", acked=((copy.seq, copy.seq),))], NOW_MS)
    assert not core.state.groups


def test_what_expired_behind_others_of_its_group_is_no_sign_that_it_vanished() -> None:
    """A new leader met the one before it first, took it for gone, and delivered it although it was dead."""
    ended = DeadLetterPending(0, (EPOCH, 2), fingerprint("expired"), b"g", 0, "expired")
    core = lane(records=[ended])
    effects = core.step([MessagesArrived([original("first", 1), original("expired", 2)])], NOW_MS)
    assert [action.message.content for action in effects.actions if hasattr(action, "reason")] == ["expired"]
    assert core.state.ending


def test_an_original_that_was_acked_twice_is_known_to_the_third_leader() -> None:
    """It was kept as proven and as unproven: two entries, of which a leader trusts neither."""
    settled = ((EPOCH - 5, 1), fingerprint("m"))
    records = [SettledEntries(0, True, (settled,)), SettledEntries(0, False, (settled,))]
    core = lane(records=records, broker_restarted=True)
    core.step([MessagesArrived([original("m", 1)])], NOW_MS)
    assert core.state.counters["acked_again"] == 1


def test_a_group_of_two_inbound_queues_is_sent_again_in_the_order_of_dispatch() -> None:
    """The journal is by inbound queue, so the consumer saw a gap, joined again, and saw it again."""
    records = [entry("b", 1, 2, 2, inbound=0), entry("a", 1, 1, 1, inbound=1)]
    core = lane(inbounds=2, records=records, incarnations={1: ROW})
    core.step([MessagesArrived([original("b", 1)])], NOW_MS)
    core.step([MessagesArrived([original("a", 1, inbound=1)])], NOW_MS)
    join = Join(consumer="c", incarnation="uuid", n=2, queue="new", prefetch=10)
    sent = [a.copy.group_seq for a in core.step([join], NOW_MS).actions if isinstance(a, SendCopy)]
    assert sent == [1, 2]


def test_a_number_is_not_given_again_to_the_one_that_settled_it_out_of_turn() -> None:
    """A consumer settled its second message before the first; the next leader went on behind the first."""
    records = [entry("a", 1, 1, 1), entry("b", 2, 2, 2)]
    owners = {b"g": OwnerRow(1, SEQ + 1)}
    core = lane(records=records, incarnations={1: ROW}, owners=owners)
    second = (SEQ + 2, SEQ + 2)
    core.step([PingRouted("queue"), Settle(consumer="c", incarnation="uuid", acked=(second,))], NOW_MS)
    arrived = MessagesArrived([original("a", 1), original("b", 2), original("c", 3, again=False)])
    effects = core.step([arrived, RedeliveriesEnded(0)], NOW_MS)
    (copy,) = [record for record in effects.records if isinstance(record, Dispatched)]
    assert (copy.message.content, copy.group_seq) == ("c", 1)
    assert copy.epoch > SEQ + 1


def test_a_consumer_is_asked_for_what_nobody_else_has() -> None:
    """Redis had lost its settle and the original was acked: its group waited for ever."""
    core = lane(records=[entry("m", 1, 1, 1)], incarnations={1: ROW})
    effects = core.step([RedeliveriesEnded(0)], NOW_MS)
    asked = [a.type for a in effects.actions if isinstance(a, SendNotice)]
    assert TYPE_REJOIN in asked
    core.step([Join(consumer="c", incarnation="uuid", n=2, queue="queue", prefetch=10)], NOW_MS)
    assert not core.state.by_id["c"].in_flight


@pytest.mark.parametrize("ahead", [0, 1, 100])
def test_numbers_that_consumers_have_seen_are_not_given_again(ahead: int) -> None:
    """Redis forgot them, the clock was behind: the SDK took new messages for known ones and settled them."""
    core = lane(complete=False)
    beat = Heartbeat(
        consumer="c", incarnation="other", queue="q", held=0, last=(EPOCH + 1 + ahead) << COUNTER_SHIFT
    )
    with pytest.raises(NumbersBehind) as behind:
        core.step([beat], NOW_MS)
    assert behind.value.lane_epoch == EPOCH + 2 + ahead


def test_equal_messages_do_not_make_another_one_look_late() -> None:
    """The first of two was settled, its delivery met the entry of the second, and the one between them was
    taken for new because it stands before that: handed over again."""
    settled = (((EPOCH, 1), fingerprint("twin")), ((EPOCH, 2), fingerprint("between")))
    records = [SettledEntries(0, False, settled), entry("twin", 3, 1, 1)]
    core = lane(records=records, incarnations={1: ROW})
    core.step([MessagesArrived([original("twin", 1), original("between", 2, group=b"other")])], NOW_MS)
    assert core.state.counters["acked_again"] == 1
    assert b"other" not in core.state.groups


def test_a_suspect_that_comes_back_before_what_was_listed_is_tried_alone() -> None:
    """Another bucket map put them into one group. The batch that was due began with it, so nothing went out,
    and the group belonged to a consumer that had nothing of it, for ever."""
    suspect = OpenEntry(0, (EPOCH, 1), fingerprint("suspect"), 0, SEQ, b"other", 1, SEQ + 1, 1)
    core = lane("sequenced", records=[suspect], incarnations={1: ROW}, attempts=2, buckets=1)
    core.step([Join(consumer="c", incarnation="uuid", n=2, queue="queue", prefetch=10)], NOW_MS)
    again = [original("new", 1), original("suspect", 2, group=b"other")]
    effects = core.step([MessagesArrived(again)], NOW_MS)
    sent = [a.message.content for a in effects.actions if isinstance(a, Dispatched)]
    assert sent == ["suspect"]


def test_a_suspect_behind_the_first_message_of_a_free_group_is_tried_alone() -> None:
    """The group was listed at its new owner while another message stood in front, and nobody looked again."""
    waiting = [entry("m", 1, 1, 1, holder=0), entry("suspect", 2, 2, 2, holder=0)._replace(attempt=2)]
    core = lane(records=waiting, incarnations={1: ROW})
    core.step([Join(consumer="c", incarnation="uuid", n=2, queue="queue", prefetch=10)], NOW_MS)
    effects = core.step([MessagesArrived([original("m", 1), original("suspect", 2)])], NOW_MS)
    (copy,) = [action for action in effects.actions if isinstance(action, Dispatched)]
    assert copy.message.content == "m"
    effects = core.step([Settle(consumer="c", incarnation="uuid", acked=((copy.seq, copy.seq),))], NOW_MS)
    (copy,) = [action for action in effects.actions if isinstance(action, Dispatched)]
    assert copy.message.content == "suspect"


def test_what_expires_while_an_alarm_keeps_consumers_unheard_waits_for_its_end() -> None:
    """The lane wanted to be called at an instant that had passed: a busy loop as long as the alarm lasted."""
    core = lane(complete=False)
    core.step([PublishersBlocked(True)], NOW_MS)
    late = original("late", 1, again=False)
    late.deadline_at_ms = NOW_MS + 100
    core.step([MessagesArrived([late]), RedeliveriesEnded(0)], NOW_MS)
    later_ms = NOW_MS + 60_000
    core.step([], later_ms)
    deadline_ms = core.next_deadline_ms()
    assert deadline_ms is None or deadline_ms > later_ms
    core.step([PublishersBlocked(False)], later_ms)
    until_ms = core.state.lane_holds.suspended_until_ms
    effects = core.step([], max(later_ms, until_ms))
    assert [action.reason for action in effects.actions if hasattr(action, "reason")] == ["expired"]


@pytest.mark.parametrize(
    "seed",
    [
        2049,  # a killed broker lost a copy on its way to a parking queue, while Redis restarted
        3627,  # what a parking queue had got back came before what was parked meanwhile
        4059,  # the last thing that a number had waited for came back, and nobody looked again
        4895,  # of two messages of one number the broker lost the first
        7277,  # a copy that was sent again was refused, and a newer one behind it was not
        40500,  # a consumer had waited for the end of another one, and was awaited when all was over
        40641,  # two clocks stood two hours apart, and the window of ids was one hour long
        40952,  # of two messages of one id the broker lost the first, and the second was of another group
        41507,  # a message that kills consumers was never stored
        41775,  # what was settled came again when its id was forgotten: nobody had died of it
        41778,  # something was handed over in the millisecond of the question, after it
        44520,  # a number was purged, and Redis forgot that with all the others
        53034,  # Redis forgot what came back, seconds before, in front of what was parked of its group (P-9)
        55436,  # an id was forgotten, and its repetition was of another group
        57550,  # who left was to start again before it had gone, and so never did
        58585,  # an id was forgotten, and both were in hand at once
        59878,  # what a consumer had that died before Redis forgot everything came behind what was parked
        61359,  # a copy was parked, the one before it refused, and Redis forgot that both were on their way
        61557,  # what was to be sent elsewhere, and stayed, waited for no number any more
        63789,  # a number came once more when Redis had forgotten the one before it, which was parked
        64880,  # all capacity was taken by what had been settled, and the look-ahead was full of other things
        65895,  # the broker forgot the ack of a parked copy that was void, and the other one was void then
        70162,  # what a group had stopped at was lost, and what follows it filled the look-ahead
        70378,  # of what was parked one was refused, and the channel closed before that was said
    ],
)
def test_what_was_a_mistake_of_the_simulator_or_of_time_holds(seed: int) -> None:
    """Seeds on which the simulator was wrong, or the product in so rare a moment that few others have it."""
    assert run_scenario(_as_it_was(draw_scenario(seed))).problem is None


@pytest.mark.parametrize(
    "seed",
    [
        3210,  # what waited for its owner was in a parking queue of which Redis had forgotten whose it is
        547,  # who lost the lock in its take-over kept its messages, and the next one got newer ones
    ],
)
def test_what_was_a_mistake_with_windows_and_stealing_holds(seed: int) -> None:
    assert run_scenario(draw_scenario(seed)).problem is None


@pytest.mark.parametrize(
    "seed",
    [
        5018,  # two looks waited for Redis, while less than that was allowed for all of them
        5278,  # Redis forgot the end of an incarnation, which settled what it had read after its end
        40892,  # a consumer's heartbeat was heard behind a later settle, which said what it had begun since
    ],
)
def test_what_was_a_mistake_with_handlers_that_hang_holds(seed: int) -> None:
    assert run_scenario(make_scenario(seed)).problem is None


def test_what_a_former_leader_had_comes_back_while_what_was_given_back_does_not() -> None:
    """RabbitMQ counted as many readers as before, so the parking queue was read too soon, and was empty."""
    assert run_scenario(make_scenario(1152)).problem is None


def test_a_queue_that_delivers_again_for_the_fourth_time_in_a_row_is_noticed() -> None:
    """After three times no count was compared any more, so a whole backlog was taken for new."""
    assert run_scenario(make_scenario(1897)).problem is None


def test_what_goes_back_to_its_parking_queue_has_no_newer_message_behind_it() -> None:
    """That one had come directly, was not parked, and was handed over while the others were read again."""
    assert run_scenario(make_scenario(22927)).problem is None


def test_what_only_redis_has_in_flight_does_not_stop_an_id_at_its_limit() -> None:
    """Its settle was forgotten, and a quorum queue's look-ahead was full of messages of the same ids."""
    assert run_scenario(make_scenario(22968)).problem is None


def test_what_was_sent_again_under_an_epoch_that_redis_forgot_stops_no_group() -> None:
    """The next leader's epochs were lower, and the consumer refused its copies once a second for ever."""
    assert run_scenario(make_scenario(22791)).problem is None


def test_a_run_is_not_over_while_a_handler_has_a_message_that_has_expired() -> None:
    """Its original came back to its queue, was too old, and left the consumer's capacity taken."""
    scenario = make_scenario(13).but(
        consumers=(ConsumerPlan("c0", "c0", prefetch=10, concurrency=10, work_ms=20_000, starts_at_ms=0),),
        messages=(MessagePlan(300, 1, 0, "a", expires_ms=2_000),),
        faults=(Fault(4_000, "cut_leader"),),
    )
    outcome = run_scenario(scenario, verbose=True)
    whats = [event.split(None, 2)[2].strip() for event in outcome.events]
    assert outcome.problem is None
    assert whats.index("expired 1") < whats.index("done 1")


def test_what_was_settled_last_counts_as_usual_for_its_group() -> None:
    """A group was said to stand still that took its usual time: its slow messages had all been settled at
    once, and nothing of it was out when the checker looked."""
    world = World(make_scenario(1))
    checker = IndependenceChecker(world)
    bench = LaneBench(group_window=GroupWindow(2, None), heartbeat_ms=3_600_000)
    bench.join("one")
    checker.leading(bench.lane)
    bench.arrive("a1", "a2", "a3", "a4", "a5")
    said(bench, "groups.pause", all=True)
    bench.now_ms += 10_000
    bench.settle("one", "a1", "a2")
    said(bench, "groups.resume", all=True)
    for _ in range(4):
        bench.step(after_ms=1_000)
    assert not world.scheduler.failures
    assert bench.lane.state.groups[b"a"].window == 2, "it does not stand still: that is its usual time"


def _as_it_was(scenario: RunScenario) -> RunScenario:
    """Without windows and stealing: these seeds are older, and would be other runs."""
    options = {
        **scenario.options,
        "steal_after_ms": None,
        "group_window": GroupWindowSettings(initial=60_000, max=60_000),
    }
    if scenario.policy != "concurrent":
        options["max_in_flight_per_group"] = None
    return replace(scenario, options=options)
