"""What becomes of a group's end when the dispatcher dies around it."""

from __future__ import annotations

from tests.core.world import World, world


def closed_group() -> World:
    """The closing message of group a is out at consumer one; a second consumer has come since."""
    lane = world()
    lane.join("one")
    lane.publish("a", closing=True)
    lane.run()
    lane.join("two")
    return lane.run()


def test_a_close_counts_although_its_settle_is_read_before_its_original_returns() -> None:
    lane = closed_group()
    lane.members[0].ack(list(lane.members[0].in_hand))
    lane.fail_over()
    lane.read_control()
    lane.step()  # the settle comes first: nobody can see any more that this message closed the group
    lane.run()
    assert lane.lane is not None
    assert b"a" not in lane.lane.state.groups
    assert b"a" not in lane.store.owners


def test_a_close_in_flight_survives_a_fail_over() -> None:
    lane = closed_group()
    one, two = lane.members
    lane.fail_over()
    lane.publish("a")
    lane.run()
    assert not two.in_hand, "what follows waits until it is settled"
    one.ack(list(one.in_hand))
    lane.run()
    (copy,) = [*one.in_hand.values(), *two.in_hand.values()]
    assert copy.first, "it was given to somebody anew"
