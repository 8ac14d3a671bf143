"""A report that a newer dispatcher has laid out is refused by every command, and left as it is."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from dispatcher.cli import app
from dispatcher.pipeline.report_folder import LAYOUT, SUMMARY, report_folder
from tests.pipeline.ledgers import Leader


@pytest.fixture
def ledger(tmp_path: Path) -> Path:
    Leader(tmp_path / "ledger").end()
    return tmp_path / "ledger"


@pytest.mark.parametrize("file", [SUMMARY, "memory.json"])
@pytest.mark.parametrize(
    "command",
    ["run --input {ledger} --output {report}", "plan --report {report} --output plan.json",
     "advise --report {report}", "report --report {report}", "report --report {report} --text",
     "report --report {report} --json"],
)  # fmt: skip
def test_no_command_reads_or_replaces_it(command: str, file: str, ledger: Path, tmp_path: Path) -> None:
    report = tmp_path / "report"
    with report_folder(report) as folder:
        folder.finish({"lanes": {"orders": {"hand_overs": 1}}})
    content = json.dumps({"layout": LAYOUT + 1, "of": "another form"})
    (report / file).write_text(content)
    arguments = command.format(ledger=ledger, report=report).split()
    result = CliRunner().invoke(app, ["pipeline", *arguments])
    assert result.exit_code == 1
    said = f"{result.output}{result.exception}"
    assert f"{report}: was made by a newer version of the dispatcher (layout {LAYOUT + 1} of reports" in said
    assert (report / file).read_text() == content
    assert (report / SUMMARY).exists()


def test_the_layout_is_in_what_a_run_writes(tmp_path: Path) -> None:
    with report_folder(tmp_path) as folder:
        folder.finish({"lanes": {}})
    assert json.loads((tmp_path / SUMMARY).read_text())["layout"] == LAYOUT
