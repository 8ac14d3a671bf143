"""`dispatcher pipeline plan`: which consumer should own which group."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer

from dispatcher.cli import options
from dispatcher.cli.output import console, counted, print_json, table
from dispatcher.cli.spark import Master, parse_folder, require_spark

_COLUMNS = ("consumer", "speed", "busy now (s)", "planned (s)", "groups now", "planned")


def plan(
    report: Annotated[
        Path, typer.Option(
            "--report", parser=parse_folder, metavar="REPORT",
            help="The directory that `pipeline run` wrote.",
        )
    ],
    output: Annotated[
        Path, typer.Option("--output", metavar="FILE", help="The plan, for `dispatcher rebalance --plan`.")
    ],
    lane: Annotated[
        str | None, typer.Option(metavar="LANE", help="Which lane; not needed if the report has one.")
    ] = None,
    consumer: Annotated[
        list[str] | None,
        typer.Option(
            metavar="CONSUMER", show_default="those at the ledger's end",
            help="A consumer for the groups; may be repeated.",
        ),
    ] = None,
    max_moves: Annotated[
        int | None, typer.Option(metavar="N", min=0, help="How many groups to move at most.")
    ] = None,
    tolerance: Annotated[
        float, typer.Option(metavar="PERCENT", min=0, max=100, help="Difference that is not worth a move.")
    ] = 5.0,
    equal_speeds: Annotated[
        bool, typer.Option("--equal-speeds", help="Take all consumers for equally fast.")
    ] = False,
    master: Master = None,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Plan which consumer should own which group, so that the busiest one has as little work as possible.

    Nothing changes before `dispatcher rebalance LANE --plan FILE`.
    """
    if output.is_dir():
        raise typer.BadParameter("is a directory: name the file to write", param_hint="--output")
    if not output.parent.is_dir():
        raise typer.BadParameter(f"there is no directory {output.parent}", param_hint="--output")
    require_spark()
    # Spark and all that comes with it.
    from dispatcher.pipeline.plan import Wishes
    from dispatcher.pipeline.planning import look_at, make_plan
    from dispatcher.pipeline.progress import StageProgress
    from dispatcher.pipeline.run import divide_work, fitting_records
    from dispatcher.pipeline.session import spark_session

    name, hand_overs = look_at(report, lane)
    wishes = Wishes(consumer, max_moves, tolerance / 100, equal_speeds)
    with spark_session(master, fitting_records(hand_overs)) as spark:
        divide_work(spark, hand_overs)
        made = make_plan(spark, report, name, wishes, output, StageProgress(spark))
    if as_json:
        print_json({"lane": made.lane, "plan": str(output), **made.facts})
        return
    _show(made.lane, made.facts, output)
    if not made.options_known:
        print(
            f"The ledger does not have the options of lane {made.lane} any more: it was taken for an "
            "exclusive lane without buckets."
        )


def _show(lane: str, facts: dict[str, Any], output: Path) -> None:
    rows = [
        (each["consumer"], each["speed"], each["now_us"] / 1e6, each["planned_us"] / 1e6, each["groups_now"],
         each["groups_planned"])
        for each in facts["consumers"]
    ]  # fmt: skip
    out = console()
    out.print(table(_COLUMNS, rows, numbers=_COLUMNS[1:]))
    for line in _lines(lane, facts, output):
        out.print(line)


def _lines(lane: str, facts: dict[str, Any], output: Path) -> Iterator[str]:
    now, planned, bound = (facts["makespan_us"][name] / 1e6 for name in ("now", "planned", "lower_bound"))
    yield (
        f"The busiest consumer had {now:,.3f} s of work, and has {planned:,.3f} s as planned; no plan can be "
        f"below {bound:,.3f} s ({facts['lower_bound_is']})."
    )
    if facts["groups_given"]:
        verb = "gets" if facts["groups_given"] == 1 else "get"
        yield f"{counted(facts['groups_given'], 'group')} without an owner {verb} one."
    if facts["groups_pinned"]:
        verb = "is pinned and stays where it is" if facts["groups_pinned"] == 1 else "are pinned and stay"
        yield f"{counted(facts['groups_pinned'], 'group')} {verb}."
    moved, groups = facts["groups_moved"], facts["groups"]
    if moved or facts["groups_given"]:
        verb = "moves" if moved == 1 else "move"
        yield (
            f"{counted(moved, 'group')} of {groups:,} {verb}: `dispatcher rebalance {lane} --plan {output}` "
            "does that"
        )
    else:
        yield f"0 of {counted(groups, 'group')} move: nothing is to be gained"
