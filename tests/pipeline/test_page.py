"""The page of a report that a run has written: the tables have the columns that it reads."""

from __future__ import annotations

from pathlib import Path

import pyarrow.dataset as ds

from dispatcher.pipeline.page import open_report
from dispatcher.pipeline.page.render import render
from tests.page.reports import write_report
from tests.pipeline.conftest import Everything


def test_it_shows_what_a_run_has_found(everything: Everything) -> None:
    with open_report(everything.report.folder) as source:
        text = render(source)
    assert text.index("Order was violated") < text.index("<main>")
    assert text.count('<details class="broken"') == min(50, len(everything.report.rows("violations")))
    assert text.count("<section") == 12
    assert "Shares against weights" in text


def test_reports_made_for_tests_have_the_columns_of_real_ones(everything: Everything, tmp_path: Path) -> None:
    made = write_report(tmp_path / "report", violations=1, gaps=1)
    for folder in (each for each in made.iterdir() if each.is_dir()):
        columns = ds.dataset(folder).schema.names
        real = ds.dataset(everything.report.folder / folder.name, partitioning="hive").schema.names
        assert set(columns) <= set(real), folder.name
    with open_report(made) as mine, open_report(everything.report.folder) as theirs:
        assert mine.summary.keys() <= theirs.summary.keys()
        (_, one), (_, other) = (next(iter(each.summary["lanes"].items())) for each in (mine, theirs))
        assert one.keys() <= other.keys()
