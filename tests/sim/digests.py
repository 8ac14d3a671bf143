"""Two checkouts on the same events of the simulator: equal digests mean that they behave alike.

    git worktree add ../before COMMIT
    python -m tests.sim.digests 1..10000 --tree ../before > before.txt
    python -m tests.sim.digests 1..10000 > after.txt
    diff before.txt after.txt

A line for each seed: the seed, a hash of everything that a process of that world sends to RabbitMQ and
Redis (what, when, in which order), the steps of the run, and the checker that failed, if one did. Run it
before and after a change that must change nothing.

`--trace FILE` with one seed writes everything that was sent, a line each: look at the first difference of two
traces.
"""

from __future__ import annotations

import argparse
import hashlib
import itertools
import multiprocessing
import os
import random
import re
import sys
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any
from unittest.mock import patch

#: Addresses differ from run to run.
_ADDRESS = re.compile(r" at 0x[0-9a-f]+")


@contextmanager
def _same_random_bytes() -> Iterator[None]:
    """Ids that the product makes of the system's randomness are the same in every run."""
    numbers = itertools.count(1)

    def urandom(size: int) -> bytes:
        return hashlib.shake_128(str(next(numbers)).encode()).digest(size)

    with patch.object(os, "urandom", urandom), patch.object(random, "_urandom", urandom):
        yield


def sent(seed: int, note: Callable[[bytes], object], plants: Sequence[object] = ()) -> str:
    """Run the world of this seed, and call `note` with everything that is sent; returns the run's steps and
    the checker that failed."""
    from dispatcher.sim import campaign, connections, loop, redis, seeds

    clock: list[loop.Scheduler] = []
    begin, send = loop.Scheduler.__init__, connections.BrokerConnection.send
    send_packed = redis.SimRedisConnection.send

    def began(self: loop.Scheduler, *arguments: Any) -> None:
        begin(self, *arguments)
        clock[:] = [self]

    def to_broker(self: Any, operation: Callable[..., Any], *arguments: Any) -> None:
        what = _ADDRESS.sub("", repr((operation.__name__, arguments)))
        note(b"%d RabbitMQ %s" % (clock[0].now_ms, what.encode(errors="backslashreplace")))
        send(self, operation, *arguments)

    def to_redis(self: Any, packed: bytes, on_reply: Callable[[Any], None]) -> None:
        note(b"%d Redis %s" % (clock[0].now_ms, packed))
        send_packed(self, packed, on_reply)

    with (
        _same_random_bytes(),
        patch.object(loop.Scheduler, "__init__", began),
        patch.object(connections.BrokerConnection, "send", to_broker),
        patch.object(redis.SimRedisConnection, "send", to_redis),
    ):
        outcome = campaign.run_scenario(seeds.make_scenario(seed), plants=plants)
    return f"{outcome.steps} {outcome.checker}".rstrip()


def digest(seed: int) -> str:
    """The line of one seed."""
    found = hashlib.sha256()
    end = sent(seed, lambda line: found.update(line + b"\n"))
    return f"{seed} {found.hexdigest()[:24]} {end}"


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawTextHelpFormatter)
    parser.add_argument("seeds", help="N or N..M")
    parser.add_argument("--tree", type=Path, help="another checkout, whose dispatcher is to run")
    parser.add_argument("--jobs", type=int, default=os.cpu_count())
    parser.add_argument("--trace", type=Path)
    chosen = parser.parse_args()
    if chosen.tree is not None:
        sys.path.insert(0, str(chosen.tree.resolve()))
    first, _, last = chosen.seeds.partition("..")
    if chosen.trace is not None:
        with chosen.trace.open("wb") as file:
            sent(int(first), lambda line: file.write(line + b"\n"))
        return
    with multiprocessing.get_context("fork").Pool(chosen.jobs, maxtasksperchild=50) as pool:
        for line in pool.imap(digest, range(int(first), int(last or first) + 1), chunksize=5):
            print(line, flush=True)


if __name__ == "__main__":
    main()
