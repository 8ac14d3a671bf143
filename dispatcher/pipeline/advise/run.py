"""`pipeline advise`: reads a finished report, has scenarios simulated, and writes their results."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

import pyarrow as pa
from pyspark.sql import SparkSession

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.advise.advice import AdviceRow, LaneAdvice
from dispatcher.pipeline.advise.calibration import current_of, traffic_of
from dispatcher.pipeline.advise.sample import Sample, read_options, read_sample
from dispatcher.pipeline.advise.spreading import simulate_all, workers
from dispatcher.pipeline.advise.sweeps import Wanted
from dispatcher.pipeline.report_folder import ReportFolder, finished_report
from dispatcher.pipeline.run import Stage, clear_errors
from dispatcher.pipeline.whole_lanes import named

#: Messages of a lane that are replayed by default: a scenario takes about a second.
MESSAGES: Final = 10_000
#: The table, and its columns.
ADVISE: Final = "advise"
SCHEMA: Final = pa.schema([
    ("lane", pa.string()), ("option", pa.string()), ("value", pa.string()), ("number", pa.float64()),
    ("wait_p50_us", pa.float64()), ("wait_p95_us", pa.float64()), ("wait_p99_us", pa.float64()),
    ("wait_p99_low_us", pa.float64()), ("wait_p99_high_us", pa.float64()),
    ("dispatch_p50_us", pa.float64()), ("dispatch_p99_us", pa.float64()), ("total_p99_us", pa.float64()),
    ("queue_p99_us", pa.float64()), ("utilisation", pa.float64()), ("throughput_per_s", pa.float64()),
    ("waiting_max", pa.int64()), ("is_overloaded", pa.bool_()), ("is_current", pa.bool_()),
    ("is_recommended", pa.bool_()), ("replayed", pa.int64()), ("of_messages", pa.int64()),
])  # fmt: skip


class Advised(NamedTuple):
    """A lane: the replayed sample, and the advice."""

    sample: Sample
    advice: LaneAdvice


class AdviceResult(NamedTuple):
    """Of a report."""

    lanes: list[Advised]
    left_out: list[str]  # lanes, each with the reason


def look(report: Path, lanes: list[str]) -> tuple[list[str], int]:
    """These lanes, or the shards of one, as the report names them, and how many hand-overs it has of them, or
    of all, found without Spark. Raises ConfigurationError."""
    with finished_report(report) as folder:
        counts = folder.hand_overs_by_lane()
    found = {lane: named(lane, counts) for lane in lanes}
    for lane, names in found.items():
        if not names:
            known = ", ".join(sorted(counts)) or "none"
            raise ConfigurationError(f"{report}: has nothing of a lane {lane!r} (it has {known})")
    chosen = [*dict.fromkeys(name for names in found.values() for name in names)]
    return chosen, sum(counts[name] for name in chosen or counts)


def advise(
    spark: SparkSession, report: Path, lanes: Iterable[str], wanted: Wanted, target_us: int | None,
    stage: Stage, *, messages: int = MESSAGES,
) -> AdviceResult:  # fmt: skip
    """Simulate and recommend, for these lanes of a report or for all that can be; writes the table `advise`.

    Raises ConfigurationError.
    """
    with finished_report(report) as folder, clear_errors("the report"), workers(spark):
        with stage("arrivals"):
            samples, left_out = _samples(spark, folder, [*dict.fromkeys(lanes)], messages)
        advised = []
        for sample in samples:
            traffic = traffic_of(sample)
            advice = LaneAdvice(traffic, current_of(sample, traffic), wanted, target_us)
            advised.append(Advised(sample, advice))
        with stage("simulations"):
            _simulate(spark, [each.advice for each in advised])
        with stage("advice"):
            _write(folder, advised)
    return AdviceResult(advised, left_out)


def _samples(
    spark: SparkSession, folder: ReportFolder, lanes: list[str], messages: int
) -> tuple[list[Sample], list[str]]:
    """What can be replayed, and why something can't. Raises ConfigurationError where that was asked for."""
    known = read_options(spark, folder)
    samples, left_out = [], []
    for lane in lanes or sorted(known):
        if any(told.options.get("handover") for told in known.get(lane, [])):
            left_out.append(
                f"lane {lane}: hands over, so the ledger does not say when its consumers are done: "
                "advice is not possible"
            )
        elif (sample := read_sample(spark, folder, lane, known.get(lane, []), messages)) is None:
            left_out.append(f"lane {lane}: nothing was handed over and settled: there is nothing to replay")
        else:
            samples.append(sample)
    if (lanes and left_out) or not samples:
        raise ConfigurationError(left_out or ["the report has no lane"])
    return samples, left_out


def _simulate(spark: SparkSession, advices: list[LaneAdvice]) -> None:
    """All lanes' rounds at the same time."""
    rounds = [(advice, advice.rounds()) for advice in advices]
    while rounds:
        asked = [(advice, going, next(going, None)) for advice, going in rounds]
        rounds = [(advice, going) for advice, going, scenarios in asked if scenarios is not None]
        work = [(advice, scenario) for advice, _, scenarios in asked for scenario in scenarios or []]
        found = simulate_all(spark, [(advice.traffic, scenario) for advice, scenario in work])
        for (advice, scenario), measures in zip(work, found, strict=True):
            advice.found[scenario] = measures


def _write(folder: ReportFolder, advised: list[Advised]) -> None:
    rows = [row(each.sample, line) for each in advised for line in each.advice.lines()]
    folder.write_rows(ADVISE, pa.Table.from_pylist(rows, SCHEMA))


def row(sample: Sample, line: AdviceRow) -> dict[str, object]:
    """As the table has it."""
    point, found = line.point, line.measures._asdict()
    queues = found.pop("queues_p99_us")
    return {
        "lane": sample.lane, "option": point.option.value, "value": point.value, "number": point.number,
        **found, "queue_p99_us": max(queues, default=None), "is_current": line.is_current,
        "is_recommended": line.is_recommended, "replayed": len(sample.messages) - sample.warm_up,
        "of_messages": sample.all_messages,
    }  # fmt: skip
