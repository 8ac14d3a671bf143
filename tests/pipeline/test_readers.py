"""Hand-over lanes: settled is what a queue has, and only what was surely kept is called so."""

from __future__ import annotations

import pytest

from tests.pipeline.conftest import Everything
from tests.pipeline.planted_readers import READER_CASES


@pytest.mark.parametrize("lane", READER_CASES)
def test_a_group_is_kept_only_if_nothing_else_can_be(everything: Everything, lane: str) -> None:
    groups = {r["group"]: r["verdict"] for r in everything.report.rows("groups") if r["lane"] == lane}
    assert groups == everything.readers[lane]


def test_what_was_read_back_and_rejected_is_no_longer_settled(everything: Everything) -> None:
    def of_lane(table: str) -> list[dict[str, object]]:
        rows = [row for row in everything.report.rows(table) if row["lane"] == "readers-back"]
        return sorted(rows, key=lambda row: (row["arrival"], row.get("attempt")))

    hands = [(row["arrival"], row["outcome"], row["consumer"]) for row in of_lane("hand_overs")]
    assert hands == [
        (1, "settled", "c-i1"), (2, "settled", "c-i1"), (3, "taken_back", "c-i1"), (3, "settled", "c-i2"),
        (4, "taken_back", "c-i1"), (4, "settled", "c-i2"),
    ]  # fmt: skip
    messages = [(r["arrival"], r["outcome"], r["reason"], r["hand_overs"]) for r in of_lane("lifecycle")]
    assert messages == [
        (1, "settled", None, 1), (2, "dead_lettered", "rejected", 1), (3, "settled", None, 2),
        (4, "settled", None, 2),
    ]  # fmt: skip
    back = next(row for row in of_lane("hand_overs") if row["outcome"] == "taken_back")
    again = next(row for row in of_lane("hand_overs") if row["attempt"] == 2)
    assert back["ended_at"] == again["dispatched_at"]
