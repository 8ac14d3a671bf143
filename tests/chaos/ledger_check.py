"""What the ledger of a run says: the pipeline's report of it, and the same tables by SQL of its own."""

from __future__ import annotations

import json
from pathlib import Path
from typing import NamedTuple

from typer.testing import CliRunner

from bench.pipeline import by_duckdb
from dispatcher.cli import app


class Checked(NamedTuple):
    """The pipeline's verdict on order, and what is wrong with its report."""

    verdict: str
    problems: list[str]


def check_ledger(ledger: Path, folder: Path) -> Checked:
    """Run the pipeline over it, with the Spark of this process if it has one; the report goes below `folder`.

    Its verdict is no problem of the run: the ledger does not say which servers were hurt, so a message that
    may be repeated after two failures at once looks like disorder there.
    """
    report, database = folder / "pipeline", folder / "duckdb"
    command = ["pipeline", "run", "--input", str(ledger), "--output", str(report), "--json"]
    run = CliRunner().invoke(app, command)
    if not run.stdout:
        return Checked("none", [f"the pipeline failed: {run.stderr[-2_000:]} {run.exception}"])
    by_duckdb.make(ledger, database)
    wrong = by_duckdb.differences(report, database) + by_duckdb.violation_differences(report, database)
    return Checked(json.loads(run.stdout)["verdict"], [f"the report of the ledger: {each}" for each in wrong])
