"""Statistics equal what another engine computes from the same ledger, and what was put into it."""

from __future__ import annotations

import json
from typing import Any

import duckdb
import pytest
from pyspark.sql import SparkSession

from dispatcher.pipeline.report_folder import ADDED
from dispatcher.pipeline.statistics import POINTS_MAX, STAGES, step_ms, timeline, timeline_parts
from dispatcher.pipeline.summary import as_text
from dispatcher.settings.work_file import read_known_work
from tests.pipeline.conftest import Everything, Report
from tests.pipeline.planted_skew import GROUPS, MEAN_MS, SERVICE_MS
from tests.pipeline.planted_skew import LANE as SKEW
from tests.pipeline.planted_traffic import LANE

LEDGER = "read_parquet('{ledger}/lane={lane}/*/*.parquet') where event = 'settled'"
#: What a consumer was busy with each message: since its settle before on the same day, or the hand-over.
WORK = """
(with told as (select *, date_trunc('day', time) as of_day from {ledger}), s as (select *,
    count(*) over at_once as n, min(epoch_us(dispatched_at)) over at_once as begun, max(epoch_us(time)) over (
        partition by incarnation, of_day order by epoch_us(time)
        range between unbounded preceding and 1 preceding) as before
    from told window at_once as (partition by incarnation, time))
select *, greatest(0, epoch_us(time) - greatest(before, begun)) / n as work from s)
"""
STATS = """
select {by}, date_trunc('hour', time)::timestamp as hour, count(*), sum(size), sum(cost),
    quantile_disc(epoch_us(dispatched_at) - epoch_us(received_at), 0.50) as wait_p50_us,
    quantile_disc(epoch_us(dispatched_at) - epoch_us(received_at), 0.95) as wait_p95_us,
    quantile_disc(epoch_us(time) - epoch_us(committed_at), 0.99) as process_p99_us,
    round(sum(work))::bigint as busy_us
from {work} group by {by}, hour
"""
CONCENTRATION = """
with g as (select "group", count(*) as n, round(sum(work)) as busy from {work} group by "group"),
pairs as (select sum(abs(a.n - b.n)) as difference from g a, g b)
select count(*), sum(n), difference / (2 * count(*) * sum(n)),
    (select sum(n) from (select n from g order by n desc limit 10)) / sum(n), sum(busy) / max(busy)
from g, pairs group by difference
"""
TIMELINE = """
select (epoch_us(time) // ({step} * 1000)) * {step}::bigint, count(*), count(*) * 1000 / {step},
    quantile_disc(epoch_us(dispatched_at) - epoch_us(received_at), 0.99),
    quantile_disc(epoch_us(time) - epoch_us(committed_at), 0.50)
from {ledger} group by 1
"""
HOLDERS = """
with g as (select "group", row_number() over (order by count(*) desc, "group") as rank
           from {ledger} group by "group")
select rank, l."group", consumer, count(*), round(sum(work))::bigint
from {work} l join g on l."group" = g."group" where rank <= 20 group by all
"""
COSTS = """
select inbound, type, power(2, ceil(log2(size + 1)))::bigint, count(*), avg(work),
    1.959964 * stddev_samp(work) / sqrt(count(*))
from {work} group by all
"""


@pytest.fixture
def report(everything: Everything) -> Report:
    return everything.report


def rows(report: Report, table: str, lane: str = LANE) -> list[dict[str, Any]]:
    return [each for each in report.rows(table) if each["lane"] == lane]


def ask(report: Report, query: str, lane: str = LANE, **names: str) -> list[tuple[Any, ...]]:
    ledger = LEDGER.format(ledger=report.folder.parent / "ledger", lane=lane)
    engine = duckdb.connect()
    engine.execute("set timezone = 'UTC'")
    names["work"] = WORK.format(ledger=ledger)
    return engine.execute(query.format(ledger=ledger, **names)).fetchall()


@pytest.mark.parametrize(
    ("table", "by"), [("lane_stats", "inbound"), ("consumer_stats", "consumer"), ("group_stats", '"group"')]
)
def test_counts_and_percentiles_by_hour_are_exact(report: Report, table: str, by: str) -> None:
    names = [
        by.strip('"'),
        "hour",
        "hand_overs",
        "bytes",
        "cost",
        "wait_p50_us",
        "wait_p95_us",
        "process_p99_us",
        "busy_us",
    ]
    for lane in LANE, SKEW:
        told = [each | {"hour": each["hour"].replace(tzinfo=None)} for each in rows(report, table, lane)]
        found = [tuple(each[name] for name in names) for each in told]
        assert sorted(found) == sorted(ask(report, STATS, lane, by=by))
    assert len({each["hour"] for each in rows(report, table)}) == 2


def test_what_waits_in_a_prefetch_is_no_work(report: Report) -> None:
    """A message of that lane is in its consumer's hands five times as long as it is worked on."""
    busy_ms: dict[str, float] = {}
    for each in rows(report, "consumer_stats", SKEW):
        busy_ms[each["consumer"]] = busy_ms.get(each["consumer"], 0) + each["busy_us"] / 1_000
    done = {f"c-{name}": sum(groups.values()) * SERVICE_MS[name] for name, groups in GROUPS.items()}
    assert busy_ms == pytest.approx(done)
    for each in rows(report, "consumer_stats", SKEW):
        assert each["speed"] == pytest.approx(each["cost"] * 1e6 / each["busy_us"])
    (lane,) = rows(report, "lanes", SKEW)
    of_groups = [n * SERVICE_MS[name] for name, groups in GROUPS.items() for n in groups.values()]
    assert lane["parallelism_max"] == pytest.approx(sum(of_groups) / max(of_groups))


def test_a_timeline_has_points_of_one_length(report: Report) -> None:
    points = rows(report, "timeline")
    (step,) = {each["step_ms"] for each in points}
    found = [
        (round(each["at"].timestamp() * 1_000), each["hand_overs"], each["per_s"], each["wait_p99_us"],
         each["process_p50_us"])
        for each in points
    ]  # fmt: skip
    assert sorted(found) == sorted(ask(report, TIMELINE, step=str(step)))
    assert 10 < len(points) <= POINTS_MAX


def test_a_point_is_as_long_as_the_time_needs() -> None:
    second = 1_000_000
    assert [step_ms(0), step_ms(9 * second), step_ms(11 * second)] == [100, 100, 200]
    assert step_ms(3_600 * second) == 60_000
    assert step_ms(365 * 86_400 * second) == 4 * 86_400_000


def test_a_point_of_several_days_is_in_one_part(spark: SparkSession) -> None:
    steps_ms = {"days": 3 * 86_400_000, "hours": 3_600_000}
    days = ["2026-11-22", "2026-11-23", "2026-11-24", "2026-11-25"]
    ended = ", ".join(f"timestamp'{day} 07:10:00'" for day in days)
    rows = spark.sql(
        f"select lane, ended_at, 'settled' as outcome, {', '.join(f'1 as {stage}' for stage in STAGES)} "
        f"from (select explode(array('days', 'hours')) as lane), (select explode(array({ended})) as ended_at)"
    )
    found = {(row["lane"], row["at"].isoformat()[:13], row["day"], row["hand_overs"])
             for row in timeline(spark, rows, steps_ms).collect()}  # fmt: skip
    hours = {("hours", f"{day}T07", day, 1) for day in days}
    assert found == hours | {
        ("days", "2026-11-21T00", "2026-11-21_3", 2), ("days", "2026-11-24T00", "2026-11-24_3", 2),
    }  # fmt: skip
    parts = {part for day in days for part in timeline_parts(day, steps_ms.values())}
    assert parts == {day for _, _, day, _ in found}
    assert timeline_parts("2026-11-25", steps_ms.values()) == {"2026-11-25", "2026-11-24_3"}


def test_who_had_the_hottest_groups(report: Report) -> None:
    columns = ("rank", "group", "consumer", "hand_overs", "busy_us")
    found = [tuple(each[name] for name in columns) for each in rows(report, "holders")]
    assert sorted(found) == sorted(ask(report, HOLDERS))
    assert {each[0] for each in found} == set(range(1, 21))


def test_how_uneven_groups_are(report: Report) -> None:
    (lane,) = rows(report, "lanes")
    names = ("groups", "messages", "gini", "top_share", "parallelism_max")
    ((*expected,),) = ask(report, CONCENTRATION)
    assert [lane[name] for name in names] == pytest.approx(expected)
    hot = sorted(rows(report, "hot_groups"), key=lambda each: each["rank"])
    assert [each["messages"] for each in hot] == sorted((each["messages"] for each in hot), reverse=True)
    assert sum(each["share"] for each in hot) == pytest.approx(1)


def test_the_cost_model_is_a_file_with_its_confidence(report: Report) -> None:
    model = json.loads((report.folder / "cost_model.json").read_text())
    found = [
        (inbound, band["type"], band["size_below"], band["messages"], band["mean_us"], band["error_us"])
        for inbound, bands in model["lanes"][LANE].items() for band in bands
    ]  # fmt: skip
    expected = [(*key, round(mean, 1), round(error, 1)) for *key, mean, error in ask(report, COSTS)]
    assert sorted(found, key=str) == sorted(expected, key=str)
    assert len({kind for _, kind, *_ in found}) == 3


def test_a_lane_can_begin_with_the_cost_model(report: Report) -> None:
    known = read_known_work(str(report.folder / "cost_model.json")).lanes[LANE]
    assert {(each.inbound, each.kind) for each in known} == {
        (inbound, kind) for inbound in ("high", "low") for kind in (None, b"invoice", b"\x07")
    }
    bands = json.loads((report.folder / "cost_model.json").read_text())["lanes"][LANE]["low"]
    sure = [each for each in bands if each["type"] == "%07" and each["messages"] >= 30]
    (low,) = (each for each in known if (each.inbound, each.kind) == ("low", b"\x07"))
    assert low.messages == sum(each["messages"] for each in sure)
    assert low.mean_us == pytest.approx(
        sum(each["messages"] * each["mean_us"] for each in sure) / low.messages
    )
    skewed = read_known_work(str(report.folder / "cost_model.json")).lanes[SKEW]
    assert [each.mean_us for each in skewed] == [pytest.approx(MEAN_MS * 1_000, abs=0.1)], "not five times it"


def test_the_summary_names_the_hottest_group_and_the_shares(report: Report) -> None:
    text = as_text(report.summary)
    assert "hottest group g" in text
    assert "low: got 0.67 × its part by weight 1 over 6 s of backlog; starved for 2 s at most" in text
    assert "  groups: 23 kept, 0 violated, 0 unknown" in text


def test_a_report_has_every_table(report: Report) -> None:
    names = {each.name for each in report.folder.iterdir() if not each.name.startswith(".")}
    assert names - set(ADDED) == {
        "files", "gaps", "options", "incarnations", "owners", "hand_overs", "lifecycle", "violations",
        "groups", "lane_stats", "consumer_stats", "group_stats", "timeline", "hot_groups", "holders",
        "lanes", "fairness", "cost_model", "cost_model.json", "summary.json", "kept", "memory.json",
        "stalls",
    }  # fmt: skip
