"""docs/semantics.md, O-28 to O-30: what waits of a group is sent elsewhere."""

from __future__ import annotations

from typing import Any

import pytest

from dispatcher.core.events import PublishersBlocked
from dispatcher.core.holds import HoldKind
from dispatcher.core.operations.operations import BARRIER_TIMEOUT_MS
from dispatcher.core.operations.orders import Target
from dispatcher.core.operations.transfer import TRANSFERS_UNCONFIRMED_BYTES_MAX, TRANSFERS_UNCONFIRMED_MAX
from tests.spec.flag_bench import BOTH, facts, refused, row, said, says, why
from tests.spec.lane_bench import clause, names
from tests.spec.move_bench import MoveBench, waiting


@BOTH
def test_o28_what_waits_goes_in_order_and_what_is_in_flight_stays(name: str) -> None:
    clause("O-28", "Messages in flight are settled as always")
    bench = waiting("a2", "b1", "a3", name=name)
    bench.order()
    bench.arrive("a4")
    bench.mark()
    bench.takes_all()
    assert bench.target == ["a2", "a3", "a4"]
    assert bench.result() == {
        "operation": "move", "group": "a", "open": False, "applied": True, "messages": 3, "in_flight": 1,
    }  # fmt: skip
    assert bench.lane.state.counters["moved"] == 3
    assert names(bench.settle("one", "a1")) == ["b1"]
    bench.arrive("a5")
    assert names(bench.settle("one", "b1")) == ["a5"]
    assert sorted(set(bench.acked)) == [b"a1", b"a2", b"a3", b"a4", b"b1", b"mark6"]
    assert (bench.flags, bench.closed) == ({}, ["uuid-0"])


@pytest.mark.parametrize(
    ("kind", "target"), [("move", Target("", "elsewhere")), ("reroute", Target("shop", "k"))]
)
def test_o28_nothing_changes_before_the_target_is_found(kind: str, target: Target) -> None:
    clause("O-28", "Nothing is changed before the target was found and the markers are back")
    bench = waiting(opens=None)
    bench.order(kind)
    assert bench.barriers == []
    assert bench.result() == {
        "operation": kind, "group": "a", "open": True, "waits_for": [], "gone": 0, "left": 0,
    }  # fmt: skip
    assert bench.looked_for == [target]


def test_o28_a_target_that_is_not_there_changes_nothing() -> None:
    bench = waiting(opens="there is no queue 'elsewhere'")
    bench.order()
    assert says(bench.error(), "move uuid-0", "'elsewhere'", "nothing was changed")
    assert (bench.flags, bench.barriers, bench.sending()) == ({}, [], [])
    assert names(bench.settle("one", "a1")) == ["a2"]


def test_o28_meanwhile_nothing_of_the_group_goes_to_anybody() -> None:
    clause("O-28", "From then on no message of the group is handed over until the operation is done")
    bench = waiting("a2", "a3", "b1")
    bench.order()
    bench.mark()
    assert bench.sending() == ["a2"]
    assert names(bench.settle("one", "a1")) == ["b1"]
    bench.arrive("a4")
    assert why(bench, "a") is HoldKind.TRANSFERRING
    assert facts(bench, "a")["operation"] == "uuid-0"
    assert bench.settle("one", "b1") == []
    bench.takes()
    assert names(bench.takes_all()) == ["a4"]
    assert (bench.result()["messages"], bench.target) == (2, ["a2", "a3"])


def test_o28_an_original_is_acked_once_the_copy_is_there() -> None:
    clause("O-28", "acknowledged when RabbitMQ has confirmed its copy and that is committed")
    bench = waiting()
    bench.order()
    bench.mark()
    acked = list(bench.acked)
    bench.takes()
    assert bench.acked == [*acked, b"a2"]
    assert bench.sending() == ["a3", "a4"]


def test_o28_the_first_n_and_a_dry_run() -> None:
    clause("O-28", "`--first N` and `--dry-run` mean the same as there")
    bench = waiting()
    bench.order(dry_run=True)
    bench.mark()
    assert (bench.result()["messages"], bench.result()["applied"], bench.sending()) == (3, False, [])
    bench.order(first=2)
    bench.mark()
    bench.takes_all()
    assert (bench.result()["messages"], bench.target) == (2, ["a2", "a3"])
    assert names(bench.settle("one", "a1")) == ["a4"]


def test_o28_of_nothing() -> None:
    bench = waiting("b1")
    bench.order()
    bench.mark()
    assert (bench.result()["messages"], bench.flags) == (0, {})


def test_o28_several_inbound_queues() -> None:
    bench = MoveBench(weights=(1, 1))
    bench.arrive("a1", "a2")
    bench.arrive("a3", inbound=1)
    bench.arrive("a4")
    bench.order(first=3)
    bench.mark(0)
    bench.mark(1)
    bench.takes_all()
    assert bench.target == ["a1", "a2", "a3"]
    assert names(bench.join("one")) == ["a4"]


def test_o28_what_was_taken_back_goes_too_and_what_expires_does_not() -> None:
    bench = MoveBench(reconnect_grace_ms=0)
    bench.join("one", prefetch=1)
    bench.arrive("a1")
    bench.arrive("a2", deadline_at_ms=bench.now_ms + 100)
    bench.arrive("a3")
    bench.die("one")
    bench.order()
    bench.mark()
    bench.step(after_ms=200)
    bench.takes_all()
    assert (bench.target, bench.dead) == (["a1", "a3"], [(b"a2", "expired")])
    assert bench.result()["messages"] == 2
    assert not bench.lane.state.revoked


def test_o28_a_bucket_goes_as_one() -> None:
    bench = MoveBench(buckets=1)
    bench.arrive("a1", "b1")
    bench.order()
    bench.mark()
    bench.takes_all()
    assert (bench.result()["group"], bench.target) == ("bucket:0/1", ["a1", "b1"])


def test_o30_the_first_goes_alone_then_many_at_a_time() -> None:
    clause("O-30", "the first message goes alone, then up to 256 or 2 MiB are on their way at a time")
    bench = waiting(*(f"a{number}" for number in range(2, 400)))
    bench.order()
    bench.mark()
    assert len(bench.sending()) == 1
    bench.takes()
    assert len(bench.sending()) == TRANSFERS_UNCONFIRMED_MAX == 256
    bench.takes(10)
    assert len(bench.sending()) == 256
    bench.takes_all()
    assert bench.target == [f"a{number}" for number in range(2, 400)]


def test_o30_large_ones_are_fewer() -> None:
    bench = MoveBench()
    bench.arrive(*(f"a{number}" for number in range(1, 10)), size=TRANSFERS_UNCONFIRMED_BYTES_MAX // 2)
    bench.order()
    bench.mark()
    bench.takes()
    assert len(bench.sending()) == 2


def test_o30_a_refusal_of_the_first_costs_nothing() -> None:
    clause("O-30", "So a target that accepts nothing changes nothing")
    bench = waiting()
    bench.order()
    bench.mark()
    bench.refuses()
    assert says(bench.error(), "move uuid-0", "'elsewhere'", "nothing was changed")
    assert (bench.flags, bench.closed, bench.target) == ({}, ["uuid-0"], [])
    for left in ("a2", "a3", "a4"):
        assert names(bench.settle("one", f"a{int(left[1]) - 1}")) == [left]
    assert {copy.attempt for copy in bench.sent} == {1}


def test_o30_it_stops_in_the_middle_and_the_rest_stays_in_order() -> None:
    clause(
        "O-30",
        "the operation stops, and says how many went. The other messages wait where they "
        "were, in their order",
    )
    bench = waiting("a2", "a3", "a4", "a5", "b1")
    bench.order()
    bench.mark()
    bench.takes()
    bench.takes()
    bench.arrive("a6")
    assert bench.refuses() == []
    assert bench.result()["open"], "what was published behind it is not answered yet"
    assert bench.refuses() == []
    assert says(bench.error(), "move uuid-0", "'elsewhere'", "2 of its messages went")
    assert bench.target == ["a2", "a3"]
    handed = names(bench.settle("one", "a1"))
    while handed and len(bench.sent) < 10:
        handed = names(bench.settle("one", *handed))
    assert [name for name in bench.handed() if name[0] == "a"] == ["a1", "a4", "a5", "a6"]


def test_o30_what_got_in_behind_a_refused_one_is_gone() -> None:
    clause("O-30", "those that were published together with the refused one and were accepted have gone")
    bench = waiting("a2", "a3", "a4", "a5")
    bench.order()
    bench.mark()
    bench.takes()
    bench.refuses()
    bench.takes_all()
    assert says(bench.error(), "move uuid-0", "'elsewhere'", "3 of its messages went")
    assert bench.target == ["a2", "a4", "a5"]
    assert names(bench.settle("one", "a1")) == ["a3"]


def test_o30_what_is_not_known_stays_and_is_counted() -> None:
    clause("O-30", "it stays, may have gone as well, and is counted")
    bench = waiting()
    bench.order()
    bench.mark()
    bench.takes()
    bench.refuses(2, known=False)
    assert says(bench.error(), "move uuid-0", "1 of its messages went", "2 of the rest may have gone")
    assert names(bench.settle("one", "a1")) == ["a3"]


def test_o30_a_refused_one_survives_the_leader() -> None:
    bench = waiting()
    bench.order()
    bench.mark()
    bench.takes()
    bench.refuses(2)
    bench.fail_over()
    bench.run()
    bench.settle("one", "a1")
    bench.settle("one", "a3")
    bench.settle("one", "a4")
    assert bench.handed() == ["a1", "a3", "a4"]
    assert {copy.attempt for copy in bench.sent} == {1}


def test_o30_it_waits_while_rabbitmq_blocks_publishers() -> None:
    bench = waiting()
    bench.order()
    bench.step(PublishersBlocked(True))
    bench.mark()
    assert bench.sending() == []
    bench.step(PublishersBlocked(False))
    bench.takes_all()
    assert bench.target == ["a2", "a3", "a4"]


def test_o26_a_stop_leaves_it_to_the_next_leader_once_something_goes() -> None:
    bench = waiting()
    bench.order()
    bench.mark()
    bench.lane.suspend()
    bench.takes()
    assert bench.result()["open"]
    assert bench.sending() == []
    bench.fail_over()
    bench.run()
    bench.find()
    bench.mark()
    bench.takes_all()
    assert (bench.result()["messages"], bench.target) == (3, ["a2", "a3", "a4"])


def test_o26_a_stop_before_that_ends_it() -> None:
    bench = waiting(opens=None)
    bench.order()
    bench.lane.suspend()
    bench.step()
    assert says(bench.error(), "move uuid-0", "stops", "nothing was changed")


def test_o26_it_fails_when_nothing_moves() -> None:
    bench = waiting()
    bench.order()
    bench.step(after_ms=BARRIER_TIMEOUT_MS)
    assert says(bench.error(), "in0", "60 s", "nothing was changed")


@pytest.mark.parametrize("kind", ["move", "reroute", "purge"])
def test_o26_two_operators_at_once(kind: str) -> None:
    bench = waiting()
    bench.order()
    arguments = {"move": {"to": "other"}, "reroute": {"exchange": "shop", "key": ""}, "purge": {}}[kind]
    by = "the group is in transition by uuid-0; try again when that is done"
    assert refused(bench, f"groups.{kind}", group="a", **arguments) == by
    bench.mark()
    assert refused(bench, f"groups.{kind}", group="a", **arguments) == by


def test_a_group_that_leaves_is_not_parked() -> None:
    bench = MoveBench(parking=4, look_ahead=10)
    bench.join("one", prefetch=1)
    bench.arrive("a1", *(f"a{number}" for number in range(2, 9)))
    bench.order()
    bench.mark()
    bench.join("two")
    bench.arrive("a9", "a10")
    bench.run(1_000)
    assert bench.moved == []
    bench.takes_all()
    assert bench.result()["messages"] == 7


@pytest.mark.parametrize(
    ("kind", "arguments", "text"),
    [
        ("move", {"to": None}, "to: is missing"),
        ("move", {"to": ""}, "to: must name a queue"),
        ("move", {"to": 5}, "to: must be text"),
        ("move", {"to": "x" * 256}, "to: must be at most 255 bytes"),
        ("move", {"to": "\ud800"}, "to: must be text"),
        (
            "move", {"to": "dispatch.o.dead"},
            "to: 'dispatch.o.dead' is the dispatcher's own; name one of yours",
        ),
        (
            "move", {"to": "in0"},
            "to: 'in0' is an inbound queue of this lane: the messages would come in again, behind others",
        ),
        (
            "move", {"to": "one-1.1"},
            "to: 'one-1.1' is the queue of consumer 'one', which gets only what it can settle; "
            "`dispatcher rebalance --group` gives it the group",
        ),
        ("move", {"group": "b"}, "no group 'b' is known here: it has no waiting messages and no owner"),
        ("reroute", {"key": None}, "key: is missing"),
        (
            "reroute", {"exchange": ""},
            "exchange: must name one (for a queue there is `dispatcher groups move`)",
        ),
        (
            "reroute", {"exchange": "dispatch.o"},
            "exchange: 'dispatch.o' is the dispatcher's own; name one of yours",
        ),
    ],
)  # fmt: skip
def test_o26_bad_targets_change_nothing(kind: str, arguments: dict[str, Any], text: str) -> None:
    clause("O-26b", "one of the dispatcher's own, an inbound queue of the lane or the queue of a consumer")
    bench = waiting()
    target = {"to": "elsewhere"} if kind == "move" else {"exchange": "shop", "key": "k"}
    assert refused(bench, f"groups.{kind}", **{"group": "a", **target, **arguments}) == text
    assert (bench.opened, bench.barriers) == ([], [])


def stopped() -> MoveBench:
    """A group that has stopped at its first message is being moved."""
    bench = MoveBench(stops_failed=True)
    bench.join("one")
    bench.arrive("a1", "a2")
    bench.fail("one", "a1", "broken")
    bench.order()
    bench.mark()
    return bench


def test_a_stopped_group_goes_with_the_message_at_which_it_stopped() -> None:
    bench = stopped()
    bench.takes_all()
    assert (bench.target, bench.flags) == (["a1", "a2"], {})
    assert names(bench.arrive("a3")) == ["a3"]


def test_a_stopped_group_whose_message_is_refused_stays_stopped() -> None:
    bench = stopped()
    bench.refuses()
    assert row(bench, "a")["stopped"] == "broken"
    assert bench.arrive("a3") == []
    said(bench, "dead.release", group="a")
    assert bench.handed() == ["a1", "a1"]
