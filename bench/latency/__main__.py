"""Where a message spends its time at a steady rate: `python -m bench.latency`.

From its publish to its arrival at a consumer, as the relay benchmark measures latency, beside the same
without a relay, with automatic acks and with those of the consumers. The dispatcher notes when it has read,
decided, committed and written each message.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Final

from bench.command import Command
from bench.relay.contenders import Contender, Direct, DirectAcking
from bench.relay.meter import Meter
from bench.relay.observed import POLICIES, observed
from bench.relay.rounds import Stage
from bench.relay.shapes import Shape

#: What ends with each of the times that a dispatcher notes, and with the arrival.
STAGES: Final = (
    "RabbitMQ: publish to read",
    "dispatcher: read to decided",
    "Redis: the commit",
    "dispatcher: committed to written",
    "RabbitMQ: written to arrival",
)


def stages_ms(noted: list[list[int]], latencies_ms: dict[int, float]) -> dict[str, list[float]]:
    """How long each message took for each stage; those that did not go straight through are left out."""
    found: dict[str, list[float]] = {stage: [] for stage in STAGES}
    for number, sent, *times in noted:
        if len(times) == len(STAGES) - 1 and number in latencies_ms:
            ends = [(at - sent) / 1e6 for at in times] + [latencies_ms[number]]
            for stage, begin, end in zip(STAGES, [0.0, *ends], ends, strict=False):
                found[stage].append(end - begin)
    return found


def quantiles(values: list[float]) -> tuple[float, float, float]:
    """The 10th, 50th and 99th percentile."""
    cuts = statistics.quantiles(values, n=100)
    return cuts[9], cuts[49], cuts[98]


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.latency", description=__doc__)
    parser.add_argument("--rate", type=int, default=1_000, help="messages/s (1000)")
    parser.add_argument("--seconds", type=int, default=8, help="of each of the three runs (8)")
    parser.add_argument("--policy", choices=tuple(POLICIES), default="exclusive", help="(exclusive)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write the percentiles to FILE")
    options = parser.parse_args(given)
    if min(options.rate, options.seconds) < 1:
        parser.error("--rate and --seconds must be at least 1")
    return options


async def measure(stage: Stage, options: argparse.Namespace, file: Path) -> dict[str, list[float]]:
    """Every latency in ms: by stage, the whole, and those without a relay."""
    kept: list[dict[int, float]] = []

    def keep(meter: Meter) -> None:
        kept.append(meter.latencies_ms or {})

    for kind in (Direct, DirectAcking, observed(options.policy, "bench.latency.timed", file)):
        messages = options.rate * options.seconds
        await stage.latency(kept_by(keep, kind), messages, options.rate, Shape())
    direct, acking, ours = kept
    noted = json.loads(await asyncio.to_thread(file.read_text))
    return {
        **stages_ms(noted, ours), "together": [*ours.values()], Direct.name: [*direct.values()],
        DirectAcking.name: [*acking.values()],
    }  # fmt: skip


def kept_by(keep: Callable[[Meter], None], kind: type[Contender]) -> type[Contender]:
    """The same contender; `keep` gets its meter when it has ended."""

    class Kept(kind):  # type: ignore[misc, valid-type]
        async def close(self) -> None:
            await super().close()
            keep(self._meter)

    return Kept


def main(given: list[str]) -> None:
    options, command = arguments(given), Command("bench.latency")
    with tempfile.TemporaryDirectory(prefix="bench-latency-") as folder:
        file = Path(folder) / "times.json"
        found = command.run(lambda stage: measure(stage, options, file))
    rows = {name: quantiles(values) for name, values in found.items()}
    print("| ms | p10 | p50 | p99 |\n|---|---|---|---|")
    for name, row in rows.items():
        print(f"| {name} | {' | '.join(f'{value:.2f}' for value in row)} |")
    command.end(options.json, {"p10_p50_p99_ms": rows}, [])


if __name__ == "__main__":
    main(sys.argv[1:])
