"""`dispatcher pipeline report`: a finished report as one page."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli.spark import require_modules


def report(
    folder: Annotated[
        Path, typer.Option("--report", metavar="REPORT", help="The directory that `pipeline run` wrote.")
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="The page; report.html in the report's directory otherwise."
        ),
    ] = None,
) -> None:  # fmt: skip
    """Write one HTML page of a finished report, that needs nothing else: no network, no Spark."""
    require_modules("pyspark", "pyarrow", "jinja2")
    from dispatcher.pipeline.page import open_report, write_page
    from dispatcher.pipeline.report_folder import PAGE

    path = output or folder / PAGE
    with open_report(folder) as source:
        write_page(source, path)
    print(f"Report: {path}")
