"""Which leadership came before which, by what Redis knew (no Spark)."""

from __future__ import annotations

import pytest

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.leaderships import Fact, RecordedLeadership


def _led(lane_epoch: int, *, epoch_max: int = 0, former_epoch: int | None = None) -> RecordedLeadership:
    detail = {"former_epoch": former_epoch}
    started = Fact("orders", f"{lane_epoch}-a", 1, 0, Event.LANE_STARTED, None, None, detail)
    return RecordedLeadership(
        "orders", 2, f"{lane_epoch}-a", lane_epoch, 0, 1, epoch_max, [(1, 2)], started, None, [started]
    )


@pytest.mark.parametrize(
    ("former_epoch", "epoch_max", "follows"),
    [
        (7, 0, True),
        (6, 0, True),  # Redis lost the former one's epoch, and that began no epoch of a group
        (9, 9, True),
        (9, 0, False),  # another one led between them
        (None, 0, False),
    ],
)
def test_what_was_before(former_epoch: int | None, epoch_max: int, follows: bool) -> None:
    assert _led(10, former_epoch=former_epoch).follows(_led(7, epoch_max=epoch_max)) is follows
