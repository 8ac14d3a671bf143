"""`dispatcher pipeline`: what a ledger says, computed with Spark."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from dispatcher.cli import options, pipeline_report
from dispatcher.cli.output import print_json
from dispatcher.cli.pipeline_advise import advise
from dispatcher.cli.pipeline_plan import plan
from dispatcher.cli.pipeline_stream import stream
from dispatcher.cli.spark import Master, parse_folder, require_spark

app = typer.Typer(no_args_is_help=True, help="What a ledger says, computed with Spark (docs/pipeline.md).")


@app.callback()
def _pipeline() -> None:
    pass


app.command()(advise)
app.command()(plan)
app.command()(pipeline_report.report)
app.command()(stream)


@app.command()
def run(
    ledger: Annotated[
        str, typer.Option("--input", metavar="LEDGER", help="The directory or URL that `ledger.path` names.")
    ],
    report: Annotated[
        Path, typer.Option(
            "--output", parser=parse_folder, metavar="REPORT", help="The directory for the tables.",
        ),
    ],
    since: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_instant_us, metavar="TIME", show_default=False,
            help=f"Only what happened since then: {options.TIME_HELP}.",
        ),
    ] = None,
    until: Annotated[
        int | None,
        typer.Option(
            parser=options.parse_instant_us, metavar="TIME", show_default=False,
            help=f"Only what happened before then: {options.TIME_HELP}.",
        ),
    ] = None,
    master: Master = None,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Audit the order of every group, and write what became of every message as tables.

    Fails (1) when order was violated. What the ledger does not have makes it unknown, and is named.
    """
    if since is not None and until is not None and since >= until:
        raise typer.BadParameter("must be later than --since", param_hint="--until")
    require_spark()
    # Spark and all that comes with it.
    from dispatcher.pipeline.gaps import Window
    from dispatcher.pipeline.progress import StageProgress, say_stage
    from dispatcher.pipeline.run import fitting, look, stage_shares
    from dispatcher.pipeline.run import run as run_pipeline
    from dispatcher.pipeline.session import spark_session
    from dispatcher.pipeline.summary import as_text

    window = Window(since, until)
    found = look(ledger, window, report)
    began_s = time.monotonic()
    with spark_session(master, fitting(found), keep_classes=True) as spark:
        say_stage("starting Java and Spark", time.monotonic() - began_s)
        stage = StageProgress(spark, stage_shares(found))
        summary = run_pipeline(spark, ledger, found, report, window, stage)
        if as_json:
            print_json(summary)
        else:
            print(as_text(summary), flush=True)
    if summary["verdict"] == "violated":
        raise typer.Exit(1)
