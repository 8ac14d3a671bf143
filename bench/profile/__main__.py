"""Where the dispatcher's CPU time for a message goes, by layer: `python -m bench.profile`.

A filled queue is worked off as in `python -m bench.relay`, while the kernel interrupts the dispatcher at
every tick of its CPU time. What Python calls in between (the event loop, system calls, the collection of
garbage) counts for the file of the dispatcher that called it, or is called next.
"""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from pathlib import Path
from typing import Any

from bench.command import Command
from bench.profile.layers import by_layer
from bench.relay.observed import POLICIES, observed
from bench.relay.rounds import Stage
from bench.relay.shapes import Shape
from dispatcher import form


def layers_us(measured: dict[str, Any], messages: int) -> dict[str, float]:
    """µs of CPU a message, of each layer."""
    each_us = measured["cpu_s"] / messages * 1e6
    return {layer: share * each_us for layer, share in by_layer(measured["samples"]).items()}


def table(now: dict[str, float], before: dict[str, float] | None) -> str:
    """Lines of a Markdown table, with the sum at last; another run's column stands first."""
    columns = [now] if before is None else [before, now]
    head = ["layer", "µs"] if before is None else ["layer", "µs before", "µs after"]
    rows = [[layer, *(f"{column.get(layer, 0.0):.1f}" for column in columns)] for layer in now]
    rows.append(["together", *(f"{sum(column.values()):.1f}" for column in columns)])
    return "\n".join(f"| {' | '.join(row)} |" for row in (head, ["---"] * len(head), *rows))


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.profile", description=__doc__)
    parser.add_argument("--messages", type=int, default=200_000, help="in the queue at first (200000)")
    parser.add_argument("--policy", choices=tuple(POLICIES), default="exclusive", help="(exclusive)")
    parser.add_argument("--groups", type=int, default=1_000, help="of the messages (1000)")
    parser.add_argument("--before", type=Path, metavar="FILE", help="what --json wrote earlier, to compare")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    if min(options.messages, options.groups) < 1:
        parser.error("--messages and --groups must be at least 1")
    return options


def main(given: list[str]) -> None:
    options = arguments(given)
    command = Command("bench.profile")
    if form() != "interpreted":
        print("bench.profile: compiled modules have no frames to look at", file=sys.stderr)
        sys.exit(1)
    try:
        before = json.loads(options.before.read_text())["layers_us"] if options.before else None
    except (OSError, ValueError, KeyError) as error:
        print(f"bench.profile: {options.before}: {error}", file=sys.stderr)
        sys.exit(1)
    with tempfile.TemporaryDirectory(prefix="bench-profile-") as folder:
        file = Path(folder) / "samples.json"

        async def measure(stage: Stage) -> None:
            kind = observed(options.policy, "bench.profile.sampled", file)
            await stage.throughput(kind, options.messages, Shape(options.groups))

        command.run(measure)
        measured = json.loads(file.read_text())
    layers = layers_us(measured, options.messages)
    print(table(layers, before))
    print(f"{sum(measured['samples'].values()):,} samples, {options.messages:,} messages, {options.policy}")
    command.end(options.json, {"layers_us": layers, **measured}, [])


if __name__ == "__main__":
    main(sys.argv[1:])
