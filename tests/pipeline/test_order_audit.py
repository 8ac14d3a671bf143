"""Planted violations are found: each of them, no other, with both hand-overs as evidence."""

from __future__ import annotations

import duckdb
import pyarrow as pa
import pyarrow.compute as pc
from pyspark.sql import SparkSession

from bench.pipeline.ledger import LANES
from dispatcher.pipeline.order_audit import QUEUES_MAX, judged, screened
from dispatcher.pipeline.ranges import Ranges
from dispatcher.pipeline.report_folder import HAND_OVERS, ReportFolder
from dispatcher.pipeline.summary import as_text
from tests.pipeline.conftest import Everything, Report
from tests.pipeline.planted_violations import Violation


def found(report: Report) -> set[Violation]:
    rows = report.rows("violations")
    assert len({tuple(sorted((key, str(value)) for key, value in each.items())) for each in rows}) == len(
        rows
    )
    return {(r["lane"], r["group"], r["rule"], r["arrival"], r["other_arrival"]) for r in rows}


def test_planted_violations_are_found_and_no_others(everything: Everything) -> None:
    report, violations = everything.report, everything.violations
    made = everything.made.violations
    assert {each for each in found(report) if each[0] not in LANES} == violations
    broken = {name for name, *_ in violations} | {name for name, *_ in made}
    lanes = report.summary["lanes"]
    assert {name for name in lanes if lanes[name]["verdict"] == "violated"} == broken
    assert {name for name in lanes if lanes[name]["verdict"] == "kept"} >= everything.kept
    assert report.summary["verdict"] == "violated"


def test_evidence_names_both_hand_overs_over_files_and_days(everything: Everything) -> None:
    rows = everything.report.rows("violations")
    (found,) = (r for r in rows if r["lane"] == "days" and r["rule"] == "overlap")
    names = ("consumer", "seq", "other_consumer", "other_seq")
    assert [found[name] for name in names] == ["c-i2", 1, "c-i1", 1]
    assert (found["other_ended_at"] - found["dispatched_at"]).days == 1
    text = as_text(everything.report.summary)
    assert "overlap: lane days, group g: arrival 2 of in to c-i2 (seq 1) was handed over at" in text
    broken = {each[:2] for each in everything.violations} | {each[:2] for each in everything.made.violations}
    assert text.splitlines()[-1].startswith(f"Verdict: VIOLATED in {len(broken)} groups")


#: The rules of docs/ledger.md word for word, pair by pair.
PAIRS = """
with hand as (
    select *, (turn, coalesce(if(turn % 2 = 1, ended.time, ended_at), timestamptz '9999-01-01')) as until,
        (began_turn, coalesce(dispatched_at, began.time)) as since
    from hand_overs where "group" is not null and group_seq > 0
), pair as (
    select a.lane, a."group", a.arrival as early_arrival, b.arrival as late_arrival,
        a.inbound = b.inbound and (a.epoch, a.group_seq) < (b.epoch, b.group_seq)
        and (a.arrival_epoch, a.arrival) > (b.arrival_epoch, b.arrival)
        and not (a.outcome = 'taken_back' and a.until <= b.since)
        and not (a.outcome = 'failed' and b.attempt > 1 and exists (select 1 from hand f where f.lane = a.lane
            and f.inbound = a.inbound and f.arrival = a.arrival and f.since >= a.until))
        and not exists (select 1 from hand f where f.lane = b.lane and f.inbound = b.inbound
            and f.arrival = b.arrival and f.outcome = 'failed' and f.until <= b.since) as disorder,
        a.incarnation <> b.incarnation and a.since <= b.since and b.since < a.until as overlap
    from hand a join hand b on a.lane = b.lane and a."group" = b."group"
    where not exists (select 1 from read_parquet(?) m where m.event = 'groups_moving' and m.lane = a.lane)
)
select distinct lane, "group", 'order', late_arrival from pair where disorder
union select distinct lane, "group", 'overlap', late_arrival from pair where overlap
"""


def test_every_pair_compared_by_another_engine_says_the_same(everything: Everything) -> None:
    report, violations = everything.report, everything.violations
    ledger = report.folder.parent / "ledger"
    expected = {each[:4] for each in violations} | everything.made.violations
    lanes = [*everything.kept, *{name for name, *_ in expected}]
    files = [str(path) for lane in lanes for path in ledger.glob(f"lane={lane}/*/*.parquet")]
    table = report.table("hand_overs")
    engine = duckdb.connect()
    engine.register("hand_overs", table.filter(pc.is_in(table["lane"], pa.array(lanes))))
    assert set(engine.execute(PAIRS, [files]).fetchall()) == expected


def test_many_queues_of_a_lane_say_the_same_as_few(spark: SparkSession, everything: Everything) -> None:
    rows = judged(ReportFolder(everything.report.folder).read(spark, HAND_OVERS))
    queues: dict[str, list[str | None]] = {}
    for row in rows.select("lane", "inbound").distinct().collect():
        queues.setdefault(row["lane"], []).append(row["inbound"])
    assert 1 < max(map(len, queues.values())) <= QUEUES_MAX
    many = queues | {"another": [str(n) for n in range(QUEUES_MAX + 1)]}
    told = [screened(rows, Ranges(0), queues=each).collect() for each in (queues, many)]
    assert sorted(map(str, told[0])) == sorted(map(str, told[1]))
    for fact in "is_remarkable", "is_repeated":
        assert any(row[fact] for row in told[0]), fact
