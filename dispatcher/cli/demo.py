"""`dispatcher demo`: the main job on real input, verified."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer


def demo(
    git: Annotated[
        Path | None,
        typer.Option(
            "--git", metavar="PATH", exists=True, file_okay=False,
            help="Git repository whose history is replayed; without it, the one that the program lies in.",
        ),
    ] = None,
    orders: Annotated[
        int | None,
        typer.Option("--orders", metavar="N", min=1, help="Replay N generated events of an order book."),
    ] = None,
    output: Annotated[
        Path | None,
        typer.Option(
            "--output", metavar="DIR", file_okay=False,
            help="Empty directory for the ledger and its report; otherwise a new one among temporary files.",
        ),
    ] = None,
    no_pipeline: Annotated[
        bool, typer.Option("--no-pipeline", help="Leave out what the pipeline says of the ledger.")
    ] = False,
) -> None:  # fmt: skip
    """Replay a repository's history through a lane, kill consumers and dispatcher, and verify the outcome.

    Starts RabbitMQ and Redis unless DISPATCHER_RABBITMQ_URL and DISPATCHER_REDIS_URL name them. Fails (1)
    when anything was lost, doubled, out of order or overlapped, also when only the ledger shows it.
    """
    if git is not None and orders is not None:
        raise typer.BadParameter("does not go with --git", param_hint="--orders")
    if output is not None and no_pipeline:
        raise typer.BadParameter("does not go with --no-pipeline", param_hint="--output")
    import dispatcher.demo as demonstration  # needs far more than the other commands

    raise typer.Exit(demonstration.run(git=git, orders=orders, output=output, pipeline=not no_pipeline))
