"""`dispatcher pipeline advise`: what other numbers of consumers, and other options, would do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, TypeVar

import typer

from dispatcher.cli import options
from dispatcher.cli.output import print_json
from dispatcher.cli.spark import Master, parse_folder, require_spark
from dispatcher.settings.units import parse_duration_ms

if TYPE_CHECKING:
    from dispatcher.pipeline.advise.sweeps import Wanted

T = TypeVar("T")
Weights = Annotated[
    bool,
    typer.Option("--weights", help="Try other weights of the inbound queues too, so that they wait alike."),
]
_SAMPLE_MIN, _SAMPLE_MAX = 100, 1_000_000


def _parse_target(text: str) -> int:
    """µs. Raises typer.BadParameter."""
    try:
        found_us = parse_duration_ms(text) * 1_000
    except ValueError as error:
        raise typer.BadParameter(str(error)) from None
    if not found_us:
        raise typer.BadParameter("must be more than 0")
    return found_us


def advise(
    report: Annotated[
        Path, typer.Option(parser=parse_folder, metavar="REPORT", help="The directory that `run` wrote.")
    ],
    lane: Annotated[
        list[str] | None, typer.Option(metavar="LANE", help="Only this lane, or its shards; may be repeated.")
    ] = None,
    consumers: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="To try, 1..64 by default; or 3,4,5.", show_default=False),
    ] = None,
    prefetch: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="To try, 1..1000 by default.", show_default=False),
    ] = None,
    buckets: Annotated[
        str | None,
        typer.Option(metavar="NUMBERS", help="To try, 64..65536 and exact by default.", show_default=False),
    ] = None,
    policy: Annotated[
        str | None,
        typer.Option(metavar="POLICIES", help="To try, all by default.", show_default=False),
    ] = None,
    weights: Weights = False,
    target_us: Annotated[
        int | None,
        typer.Option(
            "--target-p99", parser=_parse_target, metavar="DURATION", show_default=False,
            help="How long 99 % may wait at most; without it, where more consumers hardly help.",
        ),
    ] = None,
    sample: Annotated[
        int,
        typer.Option(
            min=_SAMPLE_MIN, max=_SAMPLE_MAX, metavar="MESSAGES", help="Replay only the busiest ones."
        ),
    ] = 10_000,
    master: Master = None,
    as_json: options.AsJson = False,
) -> None:  # fmt: skip
    """Replay a lane's arrivals with other options, and say which ones to choose.

    Reads what `run` has finished, and writes the table `advise` beside it.
    """
    require_spark()
    wanted = _wanted(consumers, prefetch, buckets, policy, weights=weights)
    # Spark and all that comes with it.
    from dispatcher.pipeline.advise.advice_text import as_json as told
    from dispatcher.pipeline.advise.advice_text import as_text
    from dispatcher.pipeline.advise.run import advise as run_advise
    from dispatcher.pipeline.advise.run import look
    from dispatcher.pipeline.progress import StageProgress
    from dispatcher.pipeline.run import divide_work, fitting_records
    from dispatcher.pipeline.session import spark_session

    lanes, hand_overs = look(report, lane or [])
    with spark_session(master, fitting_records(hand_overs)) as spark:
        divide_work(spark, hand_overs)
        stage = StageProgress(spark)
        found = run_advise(spark, report, lanes, wanted, target_us, stage, messages=sample)
    if as_json:
        print_json(told(found))
    else:
        print(as_text(found))


def _wanted(
    consumers: str | None, prefetch: str | None, buckets: str | None, policy: str | None, *, weights: bool
) -> Wanted:  # fmt: skip
    """What to try. Raises typer.BadParameter."""
    from dispatcher.pipeline.advise import sweeps

    said = {
        "consumers": _parsed("--consumers", consumers, lambda text: sweeps.numbers(text, *sweeps.CONSUMERS)),
        "prefetch": _parsed("--prefetch", prefetch, lambda text: sweeps.numbers(text, *sweeps.PREFETCH)),
        "buckets": _parsed("--buckets", buckets, sweeps.bucket_numbers),
        "policies": _parsed("--policy", policy, sweeps.policies),
    }
    tried = {name: value for name, value in said.items() if value is not None}
    return sweeps.Wanted(**tried, weights=weights)  # type: ignore[arg-type]


def _parsed(option: str, text: str | None, parse: Callable[[str], T]) -> T | None:
    try:
        return parse(text) if text is not None else None
    except ValueError as problem:
        raise typer.BadParameter(str(problem), param_hint=option) from None
