"""Advice from a report: what is read of it, what is tried, what is recommended, and what is refused."""

from __future__ import annotations

import json
from contextlib import AbstractContextManager, nullcontext
from dataclasses import replace
from pathlib import Path

import pytest
from pyspark.sql import SparkSession
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.advise.advice_text import as_json, as_text, measured
from dispatcher.pipeline.advise.run import AdviceResult, Advised, advise, look
from dispatcher.pipeline.advise.sweeps import Option, Wanted
from tests.pipeline.conftest import Everything, Report
from tests.pipeline.planted_load import LANE, PASSED_ON, QUIET, SCENARIO, planted

WANTED = Wanted(consumers=(2, 4, 8), prefetch=(1, 2, 8), buckets=(64, None), policies=("sequenced", "none"))
ONE = Wanted(consumers=(4,), prefetch=(2,), buckets=(None,), policies=("exclusive",))
MORE = replace(ONE, consumers=(8,))


def stage(name: str) -> AbstractContextManager[None]:
    return nullcontext()


@pytest.fixture(scope="module")
def advised(spark: SparkSession, everything: Everything) -> Advised:
    (found,), _ = advise(spark, everything.report.folder, [LANE], WANTED, None, stage)
    return found


@pytest.fixture
def report(everything: Everything) -> Report:
    return everything.report


def test_what_was_put_into_the_ledger_is_read_from_it(advised: Advised) -> None:
    load, traffic = planted(), advised.advice.traffic
    assert advised.advice.current == SCENARIO
    assert traffic.delays == load.delays
    assert traffic.is_whole
    assert [a._replace(size=100, demand_us=0, type=b"order") for a in load.arrivals] == [
        a._replace(demand_us=0, at_us=a.at_us + load.arrivals[0].at_us) for a in traffic.arrivals
    ]
    assert set(traffic.speeds) == {1.0}
    demands = [(a.demand_us, b.demand_us) for a, b in zip(load.arrivals, traffic.arrivals, strict=True)]
    assert sum(abs(put - got) > 1 for put, got in demands) <= 0.02 * len(demands)


def test_what_it_runs_with_is_simulated_as_the_ledger_measured_it(advised: Advised) -> None:
    now = advised.advice.found[advised.advice.current]
    p50_us, p99_us = measured(advised.sample)
    assert now.dispatch_p50_us == pytest.approx(p50_us, rel=0.02)
    assert now.dispatch_p99_us == pytest.approx(p99_us, rel=0.02)


def test_the_table_has_the_curves_and_what_is_recommended(advised: Advised, report: Report) -> None:
    rows = report.rows("advise")
    assert rows == as_json(AdviceResult([advised], []))["lanes"][LANE]["rows"]
    tried = [(each["option"], each["value"], each["number"]) for each in rows]
    assert tried == [
        *(("consumers", str(n), n) for n in (2, 4, 8)),
        *(("prefetch", str(n), n) for n in (1, 2, 8)),
        ("buckets", "64", 64),
        ("buckets", "exact", None),
        *(("policy", name, None) for name in ("exclusive", "sequenced", "none")),
        ("recommended", "consumers=8 prefetch=2 policy=sequenced buckets=exact", None),
    ]
    assert {(r["option"], r["value"]) for r in rows if r["is_current"]} == {
        ("consumers", "4"), ("prefetch", "2"), ("buckets", "exact"), ("policy", "exclusive"),
    }  # fmt: skip
    assert {(r["option"], r["value"]) for r in rows if r["is_recommended"]} == {
        ("consumers", "8"), ("prefetch", "2"), ("buckets", "exact"), ("policy", "sequenced"),
        ("recommended", "consumers=8 prefetch=2 policy=sequenced buckets=exact"),
    }  # fmt: skip
    too_few, *others = rows
    assert too_few["is_overloaded"]
    assert too_few["utilisation"] == 1
    assert too_few["wait_p99_us"] is None
    for each in others:
        assert 0 < each["wait_p50_us"] < each["wait_p95_us"] < each["wait_p99_us"] < each["total_p99_us"]
        assert each["wait_p99_low_us"] < each["wait_p99_us"] < each["wait_p99_high_us"]
        assert each["utilisation"] < 1


def test_people_read_a_curve_and_what_to_expect(advised: Advised) -> None:
    text = as_text(AdviceResult([advised], [])).splitlines()
    assert text[0].startswith("lane busy: all its 1,500 messages replayed, 2026-11-22 23:59:50 to ")
    assert text[1].startswith("  now: consumers=4 prefetch=2 policy=exclusive buckets=exact; waits p99 ")
    assert any("2 " in line and "grows without bound" in line for line in text)
    assert any(line.startswith(" *8 ") for line in text)
    assert any(line.startswith("  recommended: consumers 8 (now 4): waits p99 ") for line in text)
    assert any(line.startswith("  recommended: buckets exact (as it is): ") for line in text)


def test_a_long_ledger_is_replayed_where_it_is_busiest(
    spark: SparkSession, everything: Everything, advised: Advised
) -> None:
    lanes = [LANE, LANE]  # who names one twice is told once
    (found,), _ = advise(spark, everything.report.folder, lanes, MORE, 2_000_000, stage, messages=200)
    sample, all_messages = found.sample, advised.advice.traffic.arrivals
    assert not found.advice.traffic.is_whole
    assert sample.warm_up <= 20
    assert len(sample.messages) - sample.warm_up == 200
    counted = found.advice.traffic.arrivals[sample.warm_up :]
    spans = [b.at_us - a.at_us for a, b in zip(all_messages, all_messages[199:], strict=False)]
    assert counted[-1].at_us - counted[0].at_us <= 1.02 * min(spans)
    assert "the busiest 200 of its 1,500 messages replayed" in as_text(AdviceResult([found], []))
    assert everything.report.rows("advise")[0]["value"] == "4"  # in place of what was there
    assert found.advice.recommended[Option.CONSUMERS].value == "8"


def test_lanes_that_can_not_be_advised_are_refused(spark: SparkSession, report: Report) -> None:
    with pytest.raises(ConfigurationError, match="has nothing of a lane 'oders'"):
        look(report.folder, ["oders"])
    with pytest.raises(ConfigurationError, match="is no finished report"):
        look(report.folder / "lifecycle", [])
    assert look(report.folder, [LANE]) == look(report.folder, [LANE, LANE]) == ([LANE], 1_500)
    with pytest.raises(ConfigurationError, match=f"lane {QUIET}: nothing was handed over and settled"):
        advise(spark, report.folder, [QUIET], ONE, None, stage)
    with pytest.raises(ConfigurationError, match=f"lane {PASSED_ON}: hands over"):
        advise(spark, report.folder, [PASSED_ON], ONE, None, stage)


def test_a_lane_stands_for_its_shards(tmp_path: Path) -> None:
    counts = {"spread@10": 10, "other": 1, "spread@2": 2, "spread@x": 4}
    lanes = {lane: {"hand_overs": count} for lane, count in counts.items()}
    (tmp_path / "summary.json").write_text(json.dumps({"lanes": lanes}))
    assert look(tmp_path, ["spread", "spread@2"]) == (["spread@2", "spread@10"], 12)
    assert look(tmp_path, ["spread@10", "other"]) == (["spread@10", "other"], 11)
    assert look(tmp_path, []) == ([], 17)


def test_a_report_of_another_version_is_refused(spark: SparkSession, tmp_path: Path) -> None:
    (tmp_path / "summary.json").write_text('{"lanes": {"busy": {"hand_overs": 1}}}')
    with pytest.raises(ConfigurationError, match="has no table hand_overs: it was made by another version"):
        advise(spark, tmp_path, [], ONE, None, stage)
    (tmp_path / "summary.json").write_text("{")
    with pytest.raises(ConfigurationError, match=r"summary\.json: is damaged"):
        look(tmp_path, [])


@pytest.mark.parametrize(
    ("option", "value", "problem"),
    [
        ("--consumers", "0", "'0' is not a whole number from 1 to 64"),
        ("--consumers", "1..65", "'65' is not a whole number from 1 to 64"),
        ("--consumers", "8..4", "'8..4': begins above its end"),
        ("--prefetch", "many", "'many' is not a whole number from 1 to 1,000"),
        ("--buckets", "63", "'63' is not a whole number from 64 to 65,536"),
        ("--policy", "fair", "'fair' is none of exclusive, sequenced, concurrent, none"),
        ("--target-p99", "soon", "must be a duration such as 500ms"),
        ("--target-p99", "0", "must be more than 0"),
        ("--sample", "5", "greater than or equal to 100"),
    ],
)
def test_options_out_of_range_are_refused(tmp_path: Path, option: str, value: str, problem: str) -> None:
    result = CliRunner().invoke(app, ["pipeline", "advise", "--report", str(tmp_path), option, value])
    assert result.exit_code == 2
    assert problem in plain(result.output)


def test_a_report_that_is_not_finished_is_refused_before_spark_starts(tmp_path: Path) -> None:
    result = CliRunner().invoke(app, ["pipeline", "advise", "--report", str(tmp_path)])
    assert result.exit_code == 1
    assert "is no finished report" in plain(result.output)


def plain(output: str) -> str:
    """Without the box around it."""
    return " ".join(output.replace("│", " ").split())
