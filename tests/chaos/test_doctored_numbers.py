"""The verdict finds what a lane should not have said of its producers' numbers."""

from __future__ import annotations

import json

import pytest

from tests.chaos import numbers
from tests.chaos.doctored import LANE, Doctored


def _told(doctored: Doctored, *said: tuple[str, int, int]) -> list[str]:
    """By the log of a dispatcher: event, number and what was due."""
    doctored.led_at(0.2)
    records = [
        {"event": event, "lane": LANE.name, "group": "g", "number": number, "due": due}
        for event, number, due in said
    ]
    with (doctored.folder / "dispatcher0.log").open("a") as log:
        log.writelines(f"{json.dumps(record)}\n" for record in records)
    return numbers.told_wrongly(doctored.stage, LANE)


def test_true_reports_are_no_violation(doctored: Doctored) -> None:
    doctored.configure(checking=("exclusive",))
    assert not _told(doctored, (numbers.GAP, 3, 2), (numbers.REPEATED, 1, 2))


@pytest.mark.parametrize(
    ("said", "word"),
    [
        ((numbers.GAP, 9, 2), "nobody gave"),
        ((numbers.GAP, 2, 3), "is not what"),
        ((numbers.REPEATED, 3, 2), "is not what"),
        ((numbers.REPEATED, 2, 2), "is not what"),
    ],
)
def test_a_false_report_is_found(doctored: Doctored, said: tuple[str, int, int], word: str) -> None:
    doctored.configure(checking=("exclusive",))
    (found,) = _told(doctored, said)
    assert word in found


def test_silence_is_found(doctored: Doctored) -> None:
    doctored.configure(checking=("exclusive",))
    doctored.published(*range(1, numbers.SURELY_CROSSED + 1))
    (found,) = _told(doctored)
    assert "none was reported" in found


def test_a_lane_that_checks_nothing_reports_nothing(doctored: Doctored) -> None:
    (found,) = _told(doctored, (numbers.GAP, 3, 2))
    assert "nobody checks" in found
