"""A lane in which messages wait and nothing is handed over is told, though its order was kept."""

from __future__ import annotations

from tests.pipeline.conftest import Everything
from tests.pipeline.planted_stalls import PAUSED, QUICK, STOOD


def test_a_lane_that_stood_still_is_told(everything: Everything) -> None:
    rows = [r for r in everything.report.rows("stalls") if r["lane"] in (STOOD, PAUSED, QUICK)]
    rows.sort(key=lambda row: (row["lane"], row["since"]))
    lengths = [(r["lane"], (r["until"] - r["since"]).total_seconds(), r["is_paused"]) for r in rows]
    assert lengths == [(STOOD, 30, False), (STOOD, 12, False), (PAUSED, 10, True)]
    assert [(r["waiting"], r["in_flight"]) for r in rows] == [(9, 1), (9, 1), (4, 1)]
    lanes = everything.report.summary["lanes"]
    assert [(lanes[name]["verdict"], lanes[name]["stalls"]) for name in (STOOD, QUICK)] == [
        ("kept", 2), ("kept", 0)
    ]  # fmt: skip
    assert lanes[STOOD]["stalled_s"] == 42


def test_what_was_left_is_that_of_the_last_sample(everything: Everything) -> None:
    lanes = everything.report.summary["lanes"]
    at = {"at": "2026-11-23 00:00:34", "waiting": 9, "in_flight": 1, "is_more": False}
    assert lanes[STOOD]["left"] == at
    assert lanes[PAUSED]["left"]["waiting"] == 0
    assert lanes["plain"]["left"] is None
