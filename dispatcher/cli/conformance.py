"""`dispatcher conformance`: whether a consumer in any language keeps the protocol."""

from __future__ import annotations

from typing import Annotated

import typer


def conformance(
    command: Annotated[
        list[str],
        typer.Argument(
            metavar="COMMAND...", help="The program and its arguments, behind --.", show_default=False
        ),
    ],
) -> None:
    """Try whether a consumer program in any language keeps the protocol (docs/protocol.md).

    Runs several of it against real dispatchers. Messages fail, programs are cut off and killed, the leader
    is killed, and the record of every call is judged. Starts RabbitMQ and Redis unless
    DISPATCHER_RABBITMQ_URL and DISPATCHER_REDIS_URL name them. Fails (1) when the program does not conform.
    """
    import dispatcher.conformance as suite  # needs far more than the other commands

    raise typer.Exit(suite.run(command))
