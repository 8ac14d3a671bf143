"""The job behind `pipeline plan`: reads a finished report, plans one lane, and writes the plan."""

from __future__ import annotations

import json
from datetime import datetime
from pathlib import Path
from typing import Any, NamedTuple

from pyspark.sql import SparkSession
from pyspark.sql import functions as F

from dispatcher.errors import ConfigurationError
from dispatcher.pipeline.few_rows import together
from dispatcher.pipeline.owners import Holder, last_holders, read_told
from dispatcher.pipeline.plan import (
    Cell,
    Planned,
    PlannedLane,
    Wishes,
    as_facts,
    check_policy,
    measured_cells,
    plan,
    plan_file,
    plan_table,
    read_lane,
)
from dispatcher.pipeline.plan_file import write_plan
from dispatcher.pipeline.ranges import Ranges
from dispatcher.pipeline.report_folder import SUMMARY, ReportFolder, finished_report
from dispatcher.pipeline.run import Stage, clear_errors


class WrittenPlan(NamedTuple):
    """A plan that is written: its lane, how its numbers are, and whether the ledger still had the lane's
    options."""

    lane: str
    facts: dict[str, Any]
    options_known: bool


def look_at(report: Path, lane: str | None) -> tuple[str, int]:
    """The lane to plan, and how many hand-overs the report has of it, found without Spark. Raises
    ConfigurationError."""
    with finished_report(report) as folder:
        counts, _ = _summary(folder)
    known = ", ".join(sorted(counts))
    if lane is None:
        if len(counts) != 1:
            raise ConfigurationError(f"{report}: has several lanes ({known}): name one with --lane")
        (lane,) = counts
    if lane not in counts:
        raise ConfigurationError(f"{report}: has nothing of a lane {lane!r} (it has {known})")
    if not counts[lane]:
        raise ConfigurationError(f"lane {lane}: the report has no hand-overs of it")
    return lane, counts[lane]


def make_plan(
    spark: SparkSession, report: Path, lane_name: str, wishes: Wishes, output: Path, stage: Stage
) -> WrittenPlan:
    """Plan, and write the file and the report's table. Raises ConfigurationError."""
    with finished_report(report) as folder, clear_errors("the report"):
        with stage("reading costs"):
            hand_overs = folder.read_finished(spark, "hand_overs").where(F.col("lane") == lane_name)
            options, incarnations, owners = (
                folder.small_finished(name, lane_name) for name in ("options", "incarnations", "owners")
            )
            counts, until = _summary(folder)
            lane = read_lane(lane_name, options.to_pylist(), incarnations.to_pylist(), until)
            check_policy(lane)
            if "pinned_to" not in owners.column_names:
                raise ConfigurationError(
                    f"{report}: says nothing of pinned groups: it was made by another version; run the "
                    "pipeline again"
                )
            found = together({
                "cells": measured_cells(hand_overs, Ranges(counts.get(lane_name, 0))),
                "holders": last_holders(hand_overs),
                "last": hand_overs.agg(F.max(F.coalesce("ended_at", "dispatched_at")).alias("at")),
            })  # fmt: skip
            cells = [Cell(**row) for row in found["cells"].to_pylist()]
            holders = [Holder.of(row) for row in found["holders"].to_pylist()]
            (last,) = found["last"].to_pylist()
        with stage("assignment"):
            planned = plan(lane, cells, holders, read_told(owners.to_pylist()), wishes)
        with stage("writing"):
            folder.note_writer(spark)
            _write(spark, folder, lane, planned)
            facts = as_facts(planned)
            write_plan(output, facts, plan_file(lane, planned, last["at"]))
    return WrittenPlan(lane.name, facts, lane.policy is not None)


def _summary(folder: ReportFolder) -> tuple[dict[str, int], datetime | None]:
    """How many hand-overs each lane has, and where the report's window ends."""
    try:
        told = json.loads((folder.path / SUMMARY).read_bytes())
        counts = {name: int(facts["hand_overs"]) for name, facts in told["lanes"].items()}
        until = told.get("window", {}).get("until")
        return counts, datetime.fromisoformat(until) if until is not None else None
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        raise ConfigurationError(f"{folder.path / SUMMARY}: is damaged: run the pipeline again") from None


def _write(spark: SparkSession, folder: ReportFolder, lane: PlannedLane, planned: Planned) -> None:
    """Other lanes' plans stay as they are."""
    table = plan_table(spark, lane.name, planned)
    writer = table.write.partitionBy("lane").option("compression", "zstd").mode("overwrite")
    writer.option("partitionOverwriteMode", "dynamic").parquet(folder.table("plan"))
