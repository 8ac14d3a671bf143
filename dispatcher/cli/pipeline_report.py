"""`dispatcher pipeline report`: a finished report as one page, as text, or as JSON."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli import options
from dispatcher.cli.output import console, print_json
from dispatcher.cli.spark import parse_folder, require_modules


def report(
    folder: Annotated[
        Path, typer.Option(
            "--report", parser=parse_folder, metavar="REPORT",
            help="The directory that `pipeline run` wrote.",
        )
    ],
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="FILE", help="The page; report.html in the report's directory otherwise."
        ),
    ] = None,
    text: Annotated[bool, typer.Option("--text", help="Print the tables, and write no page.")] = False,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Write one HTML page of a finished report, that needs nothing else: no network, no Spark."""
    if output is not None and (text or as_json):
        raise typer.BadParameter(
            "does not go with --text or --json: no page is written", param_hint="--output"
        )
    require_modules("pyspark", "pyarrow", "jinja2")
    from dispatcher.cli.pipeline_report_text import parts
    from dispatcher.pipeline.page import as_numbers, open_report, view_of, write_page
    from dispatcher.pipeline.report_folder import PAGE

    with open_report(folder) as source:
        if as_json:
            print_json(as_numbers(source))
        elif text:
            out = console()
            for part in parts(view_of(source)):
                out.print(part)
        else:
            path = output or folder / PAGE
            write_page(source, path)
            print(f"Report: {path}")
