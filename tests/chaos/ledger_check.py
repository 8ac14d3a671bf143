"""What the ledger of a run says: the pipeline's report of it, and the same tables by SQL of its own."""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import NamedTuple

from bench.pipeline import by_duckdb

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


def check_ledger(ledger: Path, folder: Path, run: Runner = as_program) -> Checked:
    """Run the pipeline over it; the report goes below `folder`.

    Its verdict is no problem of the run: the ledger does not say which servers were hurt, so a message that
    may be repeated after two failures at once looks like disorder there.
    """
    report, database = folder / "pipeline", folder / "duckdb"
    printed, said = run(["pipeline", "run", "--input", str(ledger), "--output", str(report), "--json"])
    if not printed:
        return Checked("none", [f"the pipeline failed: {said[-2_000:]}"])
    by_duckdb.make(ledger, database)
    wrong = by_duckdb.differences(report, database) + by_duckdb.violation_differences(report, database)
    return Checked(json.loads(printed)["verdict"], [f"the report of the ledger: {each}" for each in wrong])
