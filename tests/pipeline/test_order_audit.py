"""Planted violations are found: each of them, no other, with both hand-overs as evidence.

Each lane of the ledger is a case of its own, so that Spark runs once.
"""

from __future__ import annotations

import json
from pathlib import Path

import duckdb
import pytest
from pyspark.sql import SparkSession

from dispatcher.ledger.rows import row
from dispatcher.pipeline.summary import as_text
from tests.pipeline.conftest import Report, run_pipeline
from tests.pipeline.ledgers import MS, START_US, HandOver, Leader, Numbers, in_order

#: Lane, group, rule, arrival, arrival of the other.
Violation = tuple[str, str, str, int, int]


def numbered(*hands: HandOver) -> list[HandOver]:
    numbers = Numbers()
    return [numbers.number(hand) for hand in hands]


def hand(arrival: int, at: int, until: int | None, incarnation: str = "i1", **values: object) -> HandOver:
    """Of group g; times in ms since the ledger begins."""
    ended = START_US + until * MS if until is not None else None
    return HandOver(
        "g",
        arrival,
        incarnation,
        dispatched=START_US + at * MS,
        ended=ended,
        **values,  # type: ignore[arg-type]
    )


def lane(folder: Path, name: str, hands: list[HandOver], **options: object) -> None:
    leader = Leader(folder, name, **options)  # type: ignore[arg-type]
    leader.hand(*(each for each in hands if each.ended is not None))
    leader.tell(*(each.begun() for each in hands if each.ended is None))
    leader.end()


def found(report: Report) -> set[Violation]:
    rows = report.rows("violations")
    assert len({tuple(sorted((key, str(value)) for key, value in each.items())) for each in rows}) == len(
        rows
    )
    return {(r["lane"], r["group"], r["rule"], r["arrival"], r["other_arrival"]) for r in rows}


def plant_kept(folder: Path) -> None:
    lane(folder, "plain", numbered(*in_order("g", 5), *in_order("h", 5, first=9)))
    # Taken back before others got it.
    lane(folder, "taken-back", numbered(
        hand(1, 0, 9, outcome="taken_back"), hand(2, 1, 9, outcome="taken_back"),
        hand(1, 9, 12, "i2", attempt=2), hand(2, 10, 13, "i2", attempt=2),
    ))  # fmt: skip
    # Every queue has an order of its own.
    lane(folder, "two-queues", numbered(
        hand(5, 0, 5, inbound="high"), hand(1, 1, 5, inbound="low"), hand(6, 2, 5, inbound="high"),
        hand(2, 3, 5, inbound="low"),
    ))  # fmt: skip
    # An operator released what had failed, long after what followed.
    lane(folder, "released", numbered(
        hand(1, 0, 1, outcome="failed", reason="no"), hand(2, 1, 2), hand(1, 5, 6, attempt=2),
    ))  # fmt: skip
    # The next one begins in the step that ends the one before.
    lane(folder, "same-step", numbered(hand(1, 0, 5), hand(2, 5, 7, "i2"), hand(3, 7, 8, "i1")))
    ungrouped = [hand(2, 0, 5), hand(1, 1, 5, "i2")]
    for each in numbered(*ungrouped):
        each.group = None
    lane(folder, "ungrouped", ungrouped)
    concurrent = numbered(hand(2, 0, 5), hand(1, 1, 5, "i2"))
    for each in concurrent:
        each.group_seq = 0
    lane(folder, "concurrent", concurrent, policy="concurrent")
    moved = numbered(hand(1, 0, 9), hand(2, 4, 6, "i2"))
    leader = Leader(folder, "moved")
    leader.tell(row(START_US + 3 * MS, "groups_moving", detail=json.dumps({"groups": 1, "pause": "none"})))
    leader.hand(*moved)
    leader.end()


def plant_violated(folder: Path) -> set[Violation]:
    lane(folder, "swapped", numbered(hand(1, 0, 1), hand(3, 1, 2), hand(2, 2, 3), hand(4, 3, 4)))
    lane(folder, "settled-before", numbered(
        hand(1, 0, 9, outcome="taken_back"), hand(2, 1, 8), hand(1, 9, 12, "i2", attempt=2),
    ))  # fmt: skip
    lane(folder, "overlap", numbered(hand(1, 0, 9), hand(2, 4, 6, "i2"), hand(3, 9, 10, "i2")))
    # i1's long one hides i2's, which is the one that i1's next one overlaps with.
    lane(folder, "hidden-rival", numbered(
        hand(1, 0, 20), hand(2, 5, 15, "i2"), hand(3, 10, 12, "i1"), hand(4, 16, 17, "i1"),
    ))  # fmt: skip
    # Never ended, and the ledger is whole.
    lane(folder, "still-held", numbered(hand(1, 0, None), hand(2, 4, 6, "i2")))
    lane(folder, "within-one-queue", numbered(
        hand(5, 0, 1, inbound="high"), hand(2, 1, 2, inbound="low"), hand(6, 2, 3, inbound="high"),
        hand(1, 3, 4, inbound="low"),
    ))  # fmt: skip
    days(folder)
    return {
        ("swapped", "g", "order", 2, 3), ("settled-before", "g", "order", 1, 2),
        ("overlap", "g", "overlap", 2, 1), ("hidden-rival", "g", "overlap", 2, 1),
        ("hidden-rival", "g", "overlap", 3, 2), ("still-held", "g", "overlap", 2, 1),
        ("within-one-queue", "g", "order", 1, 2), ("days", "g", "overlap", 2, 1),
        ("days", "g", "order", 1, 3),
    }  # fmt: skip


def days(folder: Path) -> None:
    """The records of one message lie in three files, of two leaders and three days."""
    day = 86_400_000
    long, rival = numbered(hand(1, 0, 2 * day), hand(2, day, day + 5, "i2"))
    long.outcome = "taken_back"
    first = Leader(folder, "days", lane_epoch=7)
    first.tell(long.begun())
    first.close(START_US + day * MS)
    first.hand(rival)
    first.end("the connection was lost")
    second = Leader(folder, "days", 8, 7, START_US + 2 * day * MS - MS)
    second.tell(long.over(by_another_leader=True))
    numbers = Numbers(epoch=8 << 20)
    second.hand(*map(numbers.number, [
        hand(3, 2 * day, 2 * day + 1, "i3"), hand(1, 2 * day + 1, 2 * day + 2, "i3", attempt=2),
    ]))  # fmt: skip
    second.end()


@pytest.fixture(scope="module")
def planted(spark: SparkSession, tmp_path_factory: pytest.TempPathFactory) -> tuple[Report, set[Violation]]:
    """A ledger with these violations, and what the pipeline made of it."""
    folder = tmp_path_factory.mktemp("planted")
    plant_kept(folder / "ledger")
    violations = plant_violated(folder / "ledger")
    return run_pipeline(spark, folder), violations


def test_planted_violations_are_found_and_no_others(planted: tuple[Report, set[Violation]]) -> None:
    report, violations = planted
    assert found(report) == violations
    broken = {name for name, *_ in violations}
    lanes = report.summary["lanes"]
    assert {name for name in lanes if lanes[name]["verdict"] == "violated"} == broken
    assert {name for name in lanes if lanes[name]["verdict"] == "kept"} == lanes.keys() - broken
    assert report.summary["verdict"] == "violated"


def test_evidence_names_both_hand_overs_over_files_and_days(
    planted: tuple[Report, set[Violation]],
) -> None:
    rows = planted[0].rows("violations")
    (found,) = (r for r in rows if r["lane"] == "days" and r["rule"] == "overlap")
    names = ("consumer", "seq", "other_consumer", "other_seq")
    assert [found[name] for name in names] == ["c-i2", 1, "c-i1", 1]
    assert (found["other_ended_at"] - found["dispatched_at"]).days == 1
    text = as_text(planted[0].summary)
    assert "overlap: lane days, group g: arrival 2 of in to c-i2 (seq 1) was handed over at" in text
    assert text.splitlines()[-1].startswith("Verdict: VIOLATED in 7 groups")


#: The rules of docs/ledger.md word for word, pair by pair.
PAIRS = """
with hand as (
    select *, (turn, coalesce(ended_at, timestamptz '9999-01-01')) as until,
        (began_turn, dispatched_at) as since from hand_overs where "group" is not null and group_seq > 0
), pair as (
    select a.lane, a."group", a.arrival as early_arrival, b.arrival as late_arrival,
        a.inbound = b.inbound and (a.epoch, a.group_seq) < (b.epoch, b.group_seq)
        and (a.arrival_epoch, a.arrival) > (b.arrival_epoch, b.arrival)
        and not (a.outcome = 'taken_back' and a.until <= b.since)
        and not exists (select 1 from hand f where f.lane = b.lane and f.inbound = b.inbound
            and f.arrival = b.arrival and f.outcome = 'failed' and f.until <= b.since) as disorder,
        a.incarnation <> b.incarnation and a.since <= b.since and b.since < a.until as overlap
    from hand a join hand b on a.lane = b.lane and a."group" = b."group"
    where not exists (select 1 from read_parquet(?) m where m.event = 'groups_moving' and m.lane = a.lane)
)
select distinct lane, "group", 'order', late_arrival from pair where disorder
union select distinct lane, "group", 'overlap', late_arrival from pair where overlap
"""


def test_every_pair_compared_by_another_engine_says_the_same(
    planted: tuple[Report, set[Violation]],
) -> None:
    report, violations = planted
    ledger = str(report.folder.parent / "ledger" / "*" / "*" / "*.parquet")
    engine = duckdb.connect()
    engine.register("hand_overs", report.table("hand_overs"))
    assert set(engine.execute(PAIRS, [ledger]).fetchall()) == {each[:4] for each in violations}
