"""What the ledger of a run says: the pipeline's report of it, and the same tables by SQL of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import NamedTuple

import duckdb

from bench.pipeline import by_duckdb
from dispatcher.judge.record import HandlingRecord

#: Runs `dispatcher` with these arguments; what it printed, and what it said of a failure.
Runner = Callable[[list[str]], tuple[str, str]]


class Checked(NamedTuple):
    """The pipeline's verdict on order, and what is wrong with its report."""

    verdict: str
    problems: list[str]


def as_program(arguments: list[str]) -> tuple[str, str]:
    command = [sys.executable, "-m", "dispatcher", *arguments]
    run = subprocess.run(command, capture_output=True, text=True, check=False)
    return run.stdout, run.stderr


def check_ledger(
    ledger: Path, folder: Path, handlings: Iterable[HandlingRecord], run: Runner = as_program
) -> Checked:
    """Run the pipeline over it; the report goes below `folder`. `handlings`: what consumers recorded, but
    those of messages that may be there more than once.

    Its verdict is no problem of the run: the ledger does not say which servers were hurt, so a message that
    may be repeated after two failures at once is disorder there. A step back that the producers' numbers
    deny is one.
    """
    report, database = folder / "pipeline", folder / "duckdb"
    printed, said = run(["pipeline", "run", "--input", str(ledger), "--output", str(report), "--json"])
    if not printed:
        return Checked("none", [f"the pipeline failed: {said[-2_000:]}"])
    by_duckdb.make(ledger, database)
    wrong = by_duckdb.differences(report, database) + by_duckdb.violation_differences(report, database)
    wrong += denied(report, handlings)
    return Checked(json.loads(printed)["verdict"], [f"the report of the ledger: {each}" for each in wrong])


def denied(report: Path, handlings: Iterable[HandlingRecord]) -> list[str]:
    """The violations of order whose two messages have one producer, and were handed over as it sent them.

    Hand-overs are told by the beginning of their incarnation's name, which the record has, and their number.
    The record of those who read a hand-over lane's queue has no such name.
    """
    messages = {(handling.life.rpartition("/")[2], handling.seq): handling.message for handling in handlings}
    told = duckdb.sql(f"""
        select left(incarnation, 8), seq, left(other_incarnation, 8), other_seq
        from read_parquet('{report}/violations/*.parquet', hive_partitioning = false) where rule = 'order'
    """).fetchall()
    found = []
    for incarnation, seq, other_incarnation, other_seq in told:
        later, earlier = messages.get((incarnation, seq)), messages.get((other_incarnation, other_seq))
        if later is None or earlier is None:
            continue
        if later._replace(number=earlier.number) == earlier and later.number > earlier.number:
            found.append(f"told, and denied by its producer: {later} after {earlier}")
    return found
