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
import multiprocessing
import os
import re
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

#: Ids that the product makes of the system's randomness: they differ from run to run.
_ID = re.compile(rb"[0-9a-f]{32}|[0-9a-f]{8}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{4}-[0-9a-f]{12}")
#: So do addresses of objects.
_ADDRESS = re.compile(rb" at 0x[0-9a-f]+")


def sent(seed: int, note: Callable[[bytes], object], plants: Sequence[object] = ()) -> str:
    """Run the world of this seed, and call `note` with everything that is sent; returns the run's steps and
    the checker that failed. An id is told by its number: the first one that is sent is 0."""
    from dispatcher.sim import campaign, seeds

    ids: dict[bytes, int] = {}

    def number(found: re.Match[bytes]) -> bytes:
        return b"#%d" % ids.setdefault(found[0], len(ids))

    def on_sent(now_ms: int, item: Any) -> None:
        if isinstance(item, tuple):
            operation, arguments = item
            what = b"RabbitMQ " + repr((operation.__name__, arguments)).encode(errors="backslashreplace")
        else:
            what = b"Redis " + b" ".join(item)
        note(b"%d %s" % (now_ms, _ID.sub(number, _ADDRESS.sub(b"", what))))

    outcome = campaign.run_scenario(seeds.make_scenario(seed), plants=plants, on_sent=on_sent)
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
