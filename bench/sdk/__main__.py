"""What a message costs a consumer with an empty handler: `python -m bench.sdk`.

This SDK's two consumers get the messages of a lane, plain aio-pika and pika those of a queue, and ack each.
Exit code 1 when the SDK's CPU time a message is more than its limit.
"""

from __future__ import annotations

import argparse
import asyncio
import json
import statistics
import sys
from pathlib import Path
from typing import Final, NoReturn

from rich.console import Console
from rich.table import Table

from bench.command import Command
from bench.memory import Subject, fill
from bench.relay.contenders import Place
from bench.relay.rounds import Stage
from bench.sdk.consume import KINDS
from dispatcher.errors import DispatcherError

#: Without the last message for so long a consumer has failed.
STUCK_S: Final = 120.0
#: µs of CPU a message: 20,000 messages a second on one core, and 10,000.
LIMITS_US: Final = {"sdk": 50.0, "sdk-blocking": 100.0}

Measured = dict[str, list[dict[str, float]]]


async def measure(stage: Stage, options: argparse.Namespace) -> Measured:
    """Raises DispatcherError."""
    measured: Measured = {kind: [] for kind in KINDS}
    for _ in range(options.rounds):
        for kind in KINDS:
            async with stage.place() as place:
                await fill(place, options.messages, options.groups, options.body)
                if kind not in LIMITS_US:
                    measured[kind].append(await _consumed(place, kind, options.messages))
                else:
                    subject = Subject(place)
                    with subject.running():
                        measured[kind].append(await _consumed(place, kind, options.messages))
    return measured


async def _consumed(place: Place, kind: str, messages: int) -> dict[str, float]:
    process = await asyncio.create_subprocess_exec(
        sys.executable, "-m", "bench.sdk.consume", kind, place.amqp_url, place.redis_prefix, str(messages),
        stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE,
    )  # fmt: skip
    try:
        out, err = await asyncio.wait_for(process.communicate(), STUCK_S)
    except TimeoutError:
        process.kill()
        await process.wait()
        raise DispatcherError(f"{kind}: the last of {messages:,} messages did not come") from None
    if process.returncode or not out:
        raise DispatcherError(f"{kind}: {err.decode().strip()[-500:]}")
    took = json.loads(out)
    return {"per_second": messages / took["seconds"], "cpu_us": took["cpu_s"] / messages * 1e6}


def medians(measured: Measured) -> dict[str, dict[str, float]]:
    return {
        kind: {key: statistics.median(found[key] for found in rounds) for key in rounds[0]}
        for kind, rounds in measured.items()
    }


def exceeded(costs: dict[str, dict[str, float]]) -> list[str]:
    """What costs too much."""
    return [
        f"{kind}: {costs[kind]['cpu_us']:.1f} µs of CPU a message, more than {limit:.0f}"
        for kind, limit in LIMITS_US.items()
        if costs[kind]["cpu_us"] > limit
    ]


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.sdk", description=__doc__)
    parser.add_argument("--messages", type=int, default=40_000, help="of each consumer and round (40000)")
    parser.add_argument("--groups", type=int, default=1_000, help="of them (1000)")
    parser.add_argument("--body", type=int, default=256, help="bytes of a body (256)")
    parser.add_argument("--rounds", type=int, default=3, help="of all consumers in turn (3)")
    parser.add_argument("--json", type=Path, metavar="FILE", help="write everything measured to FILE")
    options = parser.parse_args(given)
    if min(options.messages, options.groups, options.rounds) < 1 or options.body < 16:
        parser.error("--messages, --groups and --rounds must be at least 1, --body at least 16")
    return options


def main() -> NoReturn:
    options = arguments(sys.argv[1:])
    command = Command("bench.sdk")
    measured = command.run(lambda stage: measure(stage, options))
    costs = medians(measured)
    table = Table(caption=f"medians of {options.rounds} rounds of {options.messages:,} messages")
    table.add_column("consumer")
    for title in ("CPU µs a message", "messages/s here"):
        table.add_column(title, justify="right")
    for kind, cost in costs.items():
        table.add_row(kind, f"{cost['cpu_us']:.1f}", f"{cost['per_second']:,.0f}")
    Console().print(table)
    command.end(options.json, {"medians": costs, "rounds": measured}, exceeded(costs))


if __name__ == "__main__":
    main()
