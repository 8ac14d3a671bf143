"""docs/semantics.md, O-31: what is sent elsewhere over the deaths of leaders."""

from __future__ import annotations

from dispatcher.core.operations.operation import TRANSFERRED_BY
from dispatcher.core.records import DeadLetterPending
from tests.spec.lane_bench import clause, names
from tests.spec.move_bench import MoveBench, waiting


def taken_over() -> MoveBench:
    """A group is moved: a2 has gone, a3 and a4 are on their way, a1 is in hand; another leader leads."""
    bench = waiting("a2", "a3", "a4")
    bench.order()
    bench.mark()
    bench.takes()
    bench.fail_over()
    bench.run()
    return bench


def test_o31_the_next_leader_goes_on_and_what_was_under_way_goes_twice() -> None:
    clause("O-31", "sends again the messages that were on their way: at most 256")
    bench = waiting("a2", "a3", "a4", "a5", "b1")
    bench.order(first=3)
    bench.mark()
    bench.takes()
    assert bench.sending() == ["a3", "a4"]
    row_ = {
        "kind": "move",
        "group": "a",
        "first": 3,
        "dry_run": False,
        "target": ["", "elsewhere"],
        "gone": 1,
    }
    assert bench.flags == {b"operation:uuid-0": row_}
    assert bench.lane.checkpoint(everything=True).operator_rows == bench.flags
    bench.fail_over()
    bench.run()
    assert bench.sending() == []
    assert names(bench.settle("one", "a1")) == ["b1"], "its group is held"
    bench.find()
    bench.takes_all()
    assert bench.target == ["a2", "a3", "a4", "a3", "a4"]
    assert bench.result()["messages"] == 3
    assert names(bench.settle("one", "b1")) == ["a5"]
    assert bench.flags == {}


def test_o31_without_a_number_the_next_leader_counts_what_waits_anew() -> None:
    clause("O-31", "Every later leader goes on")
    bench = taken_over()
    bench.find()
    bench.arrive("a5")
    bench.takes_all()
    assert bench.result()["waits_for"] == ["in0"]
    bench.mark()
    bench.takes_all()
    assert bench.target == ["a2", "a3", "a4", "a3", "a4", "a5"]
    assert bench.result()["messages"] == 4


def test_o31_what_its_consumer_gives_back_under_the_next_leader_goes_last() -> None:
    clause("O-31", "go as well, behind those that have gone before")
    bench = taken_over()
    bench.die("one")
    bench.find()
    bench.takes_all()
    bench.mark()
    bench.takes_all()
    assert bench.target == ["a2", "a3", "a4", "a3", "a4", "a1"]
    assert (bench.handed(), bench.result()["messages"]) == (["a1"], 4)


def test_o31_its_target_is_gone_under_the_next_leader() -> None:
    bench = waiting("a2", "a3", "a4")
    bench.order()
    bench.mark()
    bench.takes()
    bench.fail_over()
    bench.opens = "there is no queue 'elsewhere'"
    bench.find()
    bench.run()
    assert bench.error().endswith("1 of its messages went, the rest stays in order")
    bench.settle("one", "a1")
    bench.settle("one", "a3")
    assert bench.handed() == ["a1", "a3", "a4"]


def test_o31_what_others_deleted_meanwhile_is_not_waited_for() -> None:
    bench = waiting("a2", "a3")
    bench.order()
    bench.mark()
    del bench.inbound_unacked[0, 2]
    bench.fail_over()
    bench.find()
    bench.run()
    bench.mark()
    bench.takes_all()
    assert (bench.result()["messages"], bench.target) == (1, ["a2", "a3"])


def test_o31_not_where_groups_are_others_now() -> None:
    row_ = {"kind": "move", "group": "a", "first": None, "dry_run": False, "target": ["", "q"], "gone": 2}
    bench = MoveBench(flags={b"operation:u1": row_}, buckets=3)
    bench.command_uuids.append("u1")
    text = "the lane groups otherwise since it began: 2 of its messages went, the rest stays in order"
    assert (bench.error(), bench.flags) == (text, {})


def test_o31_what_leaves_by_no_operation_waits_again() -> None:
    bench = MoveBench()
    bench.arrive("a1", "a2")
    bench.order()
    bench.mark()
    ended = next(record for record in bench.journal if isinstance(record, DeadLetterPending))
    assert ended.reason == TRANSFERRED_BY + "uuid-0"
    bench.flags.clear()
    bench.fail_over()
    bench.run()
    assert names(bench.join("one")) == ["a1", "a2"]
    assert bench.dead == []
