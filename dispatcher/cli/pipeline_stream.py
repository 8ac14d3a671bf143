"""`dispatcher pipeline stream`: a ledger followed while it is written."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Final

import typer

from dispatcher.cli.spark import Master, parse_folder, require_spark
from dispatcher.settings.units import parse_duration_ms

_TRIGGER_MS: Final = 2_000
_FORGET_MS: Final = 3_600_000
_KEEP_MS: Final = 86_400_000
#: With files of 10 s this is more than an hour of a lane; a batch of full files fits on the disk.
_BATCH_FILES: Final = 500


def _parse_duration(value: str | int) -> int:
    """Milliseconds above 0; for options. Raises typer.BadParameter."""
    try:
        duration_ms = parse_duration_ms(value) if isinstance(value, str) else value  # the default is a number
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if duration_ms <= 0:
        raise typer.BadParameter("must be above 0")
    return duration_ms


def stream(
    ledger: Annotated[
        str, typer.Option("--input", metavar="LEDGER", help="The directory or URL that `ledger.path` names.")
    ],
    live: Annotated[
        Path, typer.Option(
            "--output", parser=parse_folder, metavar="LIVE", help="The directory for the tables.",
        ),
    ],
    checkpoint: Annotated[
        Path | None,
        typer.Option(
            parser=parse_folder, metavar="DIR", help="Where Spark notes how far it is.",
            show_default="LIVE/checkpoint"
        ),
    ] = None,
    master: Master = None,
    trigger_ms: Annotated[
        int,
        typer.Option(
            "--trigger", parser=_parse_duration, metavar="DURATION", show_default="2s",
            help="How often to look for new files.",
        ),
    ] = _TRIGGER_MS,
    until_caught_up: Annotated[
        bool, typer.Option("--until-caught-up", help="End when everything that is there now was read.")
    ] = False,
    forget_after_ms: Annotated[
        int,
        typer.Option(
            "--forget-after", parser=_parse_duration, metavar="DURATION", show_default="1h",
            help="How long a group without messages in flight is remembered.",
        ),
    ] = _FORGET_MS,
    keep_ms: Annotated[
        int,
        typer.Option(
            "--keep", parser=_parse_duration, metavar="DURATION", show_default="1d",
            help="How long minutes stay in the tables. Alerts stay until they are deleted.",
        ),
    ] = _KEEP_MS,
    batch_files: Annotated[
        int, typer.Option(min=1, metavar="COUNT", help="How many files are read at once while catching up.")
    ] = _BATCH_FILES,
) -> None:  # fmt: skip
    """Follow a ledger: live tables, and an alert for each violation of order, within seconds.

    Alerts are lines of JSON on stdout. Goes on where it was, also after a kill; ends after the batch in
    hand on SIGINT and SIGTERM.
    """
    require_spark()
    # Spark and all that comes with it.
    from dispatcher.pipeline.live_folder import live_folder
    from dispatcher.pipeline.session import java_process, spark_session
    from dispatcher.pipeline.stream import SESSION, Stream, StreamOptions
    from dispatcher.pipeline.stream_batch import RetentionLimits
    from dispatcher.pipeline.stream_reading import LedgerLocation

    place = LedgerLocation(ledger)
    options = StreamOptions(
        trigger_ms, until_caught_up, batch_files, RetentionLimits(forget_after_ms * 1_000, keep_ms * 1_000)
    )
    with live_folder(live, checkpoint, place.url) as folder, spark_session(master, SESSION) as spark:
        folder.note_java(java_process(spark))
        Stream(spark, place, folder, options).run()
