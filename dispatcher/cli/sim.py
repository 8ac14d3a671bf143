"""`dispatcher sim`: the deterministic simulator."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Annotated

import typer


def _seeds(text: str) -> range:
    found = re.fullmatch(r"(\d+)(?:\.\.(\d+))?", text)
    if not found:
        raise typer.BadParameter("must be a number or a range like 1..2000", param_hint="--seeds")
    first = int(found[1])
    return range(first, int(found[2] or first) + 1)


def sim(
    seeds: Annotated[str, typer.Option("--seeds", metavar="N..M", help="Seeds to run.")] = "1..200",
    seed: Annotated[
        int | None, typer.Option("--seed", metavar="N", min=0, help="Run this one only; the same every time.")
    ] = None,
    messages: Annotated[
        int | None,
        typer.Option("--messages", metavar="N", min=1, max=10_000, help="Messages per run."),
    ] = None,
    jobs: Annotated[
        int | None, typer.Option("--jobs", metavar="N", min=1, help="Processes; else one per core.")
    ] = None,
    cluster: Annotated[
        bool, typer.Option("--cluster", help="RabbitMQ has three nodes, which are hurt one at a time.")
    ] = False,
    trace: Annotated[
        Path | None,
        typer.Option("--trace", metavar="FILE", help="With --seed: write everything that happened there."),
    ] = None,
    shrink: Annotated[
        bool, typer.Option("--shrink", help="With --seed: find the smallest part that still fails.")
    ] = False,
) -> None:  # fmt: skip
    """Try what may go wrong: the real dispatcher and SDK on virtual time, against modelled servers.

    A seed decides everything: lane, consumers, messages, faults, every latency. Fails (1) when a guarantee
    did not hold; the seed that shows it is printed first.
    """
    if seed is None and (trace is not None or shrink):
        raise typer.BadParameter("name the one to look at", param_hint="--seed")
    from dispatcher.sim import command  # brings the whole service with it

    if seed is not None:
        raise typer.Exit(command.run_one(seed, messages, trace=trace, shrinks=shrink, cluster=cluster))
    raise typer.Exit(command.run_many(_seeds(seeds), messages, jobs, cluster=cluster))
