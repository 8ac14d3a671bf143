"""How long a lane stands still when its leader is killed, stopped, frozen or all are restarted in turn:
`python -m bench.failover`.
"""

from __future__ import annotations

import argparse
import asyncio
import statistics
import sys
import tempfile
import uuid
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Final

from rich.console import Console
from rich.table import Table

from bench.failover.harm import HARMS, Measured, measure
from bench.relay.report import machine
from dispatcher.errors import DispatcherError
from dispatcher.nodes import Management, Servers, open_servers, with_vhost
from tests.conftest import Vhost
from tests.recovery.scene import scene_of

DEFAULT: Final = "kill,stop,freeze,rolling"
TABLE_WIDTH: Final = 110
#: Of the consumers.
KINDS: Final = ("async", "async", "async", "blocking")


def arguments(given: list[str]) -> argparse.Namespace:
    parser = argparse.ArgumentParser(prog="python -m bench.failover", description=__doc__)
    parser.add_argument("--policy", choices=("exclusive", "sequenced"), default="exclusive")
    parser.add_argument("--replicas", type=int, default=3, help="dispatchers (3)")
    parser.add_argument("--rounds", type=int, default=5, help="of each harm (5)")
    parser.add_argument("--harms", default=DEFAULT, help=f"some of {DEFAULT}")
    parser.add_argument("--rate", type=int, default=400, help="messages/s (400)")
    parser.add_argument("--heartbeat", type=int, default=2, help="rabbitmq.heartbeat in seconds (2)")
    options = parser.parse_args(given)
    unknown = set(options.harms.split(",")) - set(HARMS)
    if unknown:
        parser.error(f"--harms: unknown: {', '.join(sorted(unknown))}")
    if options.replicas < 2 or min(options.rounds, options.rate, options.heartbeat) < 1:
        parser.error("--replicas must be at least 2, --rounds, --rate and --heartbeat at least 1")
    return options


@contextmanager
def own_vhost(servers: Servers) -> Iterator[Vhost]:
    api = Management(servers.management_url)
    name = f"bench-failover-{uuid.uuid4().hex[:8]}"
    api.create_vhost(name)
    try:
        yield Vhost(name, with_vhost(servers.amqp_url, name), servers.redis_url, name, api)
    finally:
        api.delete_vhost(name)


async def run(vhost: Vhost, folder: Path, options: argparse.Namespace, console: Console) -> list[Measured]:
    """Raises AssertionError with what was lost, doubled or out of order."""
    async with scene_of(vhost, folder, options.policy, seed=1, rate=options.rate) as scene:
        scene.kinds = KINDS
        await scene.begin(options.replicas, heartbeat=f"{options.heartbeat}s")
        found = []
        for name in options.harms.split(","):
            for number in range(1, options.rounds + 1):
                measured = await measure(scene, name)
                console.print(f"{name} {number}: {measured}")
                found.append(measured)
        await scene.verify()
        console.print(f"{len(scene.record()):,} handlings: none lost, doubled, out of order or overlapping")
        return found


def print_table(console: Console, found: list[Measured], caption: str) -> None:
    table = Table(caption=caption, caption_justify="left")
    for title in ("harm", "times", "until led: median", "worst", "a group's longest wait: median", "worst"):
        table.add_column(title, justify="left" if title == "harm" else "right")
    for name in dict.fromkeys(m.harm for m in found):
        rounds = [m for m in found if m.harm == name]
        led = [seconds for m in rounds for seconds in m.led_s]
        waits = [seconds for m in rounds for seconds in m.waits_s]
        cells = [f"{f(of):.3f} s" if of else "–" for of in (led, waits) for f in (statistics.median, max)]
        table.add_row(name, str(len(rounds)), *cells)
    console.print(table)


def main() -> int:
    options = arguments(sys.argv[1:])
    console = Console()
    if not console.is_terminal:
        console.width = TABLE_WIDTH
    try:
        with ExitStack() as running:
            vhost = running.enter_context(own_vhost(running.enter_context(open_servers())))
            folder = Path(running.enter_context(tempfile.TemporaryDirectory(prefix="bench-failover-")))
            found = asyncio.run(run(vhost, folder, options, console))
    except (DispatcherError, AssertionError) as error:
        print(f"bench.failover: {error}", file=sys.stderr)
        return 1
    except KeyboardInterrupt:
        return 130
    shape = machine()
    caption = (
        f"{options.policy}, {options.replicas} replicas, {options.rate} messages/s, rabbitmq.heartbeat "
        f"{options.heartbeat}s\n{shape['date']}, {shape['cores']} cores of {shape['cpu']}, "
        f"Python {shape['python']}"
    )
    print_table(console, found, caption)
    return 0


if __name__ == "__main__":
    sys.exit(main())
