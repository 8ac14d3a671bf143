"""The verdict on a lane with shards finds a group that was in the wrong one, or in two."""

from __future__ import annotations

import pytest

from tests.chaos.doctored import ONE, THREE, TWO, Doctored
from tests.chaos.evidence import NOTHING
from tests.chaos.lanes import LaneOnStage
from tests.chaos.verdict import _judged

FIRST, SECOND = (LaneOnStage(f"spread@{number}", "exclusive", 2) for number in (1, 2))


@pytest.fixture
def sharded(doctored: Doctored) -> Doctored:
    """A consumer in each shard, and a group that belongs to the first."""
    stage = doctored.stage
    for lane in (FIRST, SECOND):
        stage.moves[lane.name], stage.decisions[lane.name] = [], []
    doctored.a.lane, doctored.b.lane, stage.producers[0].lane = FIRST, SECOND, SECOND
    stage.shard_of = {"g": FIRST.name}
    return doctored


def found(sharded: Doctored, lane: LaneOnStage) -> list[str]:
    return [line.partition(":")[0] for line in _judged(sharded.stage, lane, NOTHING)[1]]


def test_a_group_in_its_shard_is_no_violation(sharded: Doctored) -> None:
    sharded.write(sharded.a, ONE, TWO, THREE)
    assert (found(sharded, FIRST), found(sharded, SECOND)) == ([], [])


def test_a_group_that_was_in_two_shards_is_found_in_both(sharded: Doctored) -> None:
    sharded.write(sharded.a, ONE, TWO)
    sharded.write(sharded.b, THREE)
    assert found(sharded, FIRST) == ["lost"]
    assert f"in {SECOND.name}, but its group belongs to {FIRST.name}" in found(sharded, SECOND)


def test_a_group_that_was_in_the_other_shard_alone_is_found(sharded: Doctored) -> None:
    sharded.write(sharded.b, ONE, TWO, THREE)
    assert set(found(sharded, FIRST)) == {"lost"}
    assert len(found(sharded, SECOND)) == 3
