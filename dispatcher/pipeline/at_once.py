"""Parts of a run that do not need each other, at the same time: while Spark plans the jobs of one, its cores
have work of another."""

from __future__ import annotations

from collections.abc import Callable

from pyspark import InheritableThread


def at_once(*parts: Callable[[], object]) -> None:
    """Call these, and return when all of them have ended: the first one here, each other one in a thread of
    its own, as Spark wants threads. Raises what one of them has raised, of several the first in this order;
    what ends the program here does not wait for the others."""
    problems: list[tuple[int, BaseException]] = []

    def call(place: int, part: Callable[[], object]) -> None:
        try:
            part()
        except BaseException as problem:
            problems.append((place, problem))

    others = [
        InheritableThread(call, args=(place, part), daemon=True) for place, part in enumerate(parts[1:], 1)
    ]
    for thread in others:
        thread.start()
    try:
        parts[0]()
    except Exception as problem:
        problems.append((0, problem))
    for thread in others:
        thread.join()
    if problems:
        raise min(problems, key=lambda each: each[0])[1]
