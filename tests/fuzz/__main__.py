"""`python -m tests.fuzz --seconds 300`: feeds what others write, with mistakes, to all that reads it."""

from __future__ import annotations

import argparse
import sys
import time

from tests.fuzz.running import run
from tests.fuzz.targets import TARGETS


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--seconds", type=float, default=60.0, help="for all targets together (60)")
    parser.add_argument(
        "--target", choices=sorted(TARGETS), action="append", help="only this one; repeatable"
    )
    parser.add_argument("--seed", type=int, help="the first input's; a failure names its own")
    given = parser.parse_args()
    targets = given.target or list(TARGETS)
    seed = given.seed if given.seed is not None else time.time_ns() % 10**9
    failed = False
    for target in targets:
        report = run(target, TARGETS[target](), seed, seconds=given.seconds / len(targets))
        print(
            f"{target}: {report.inputs:,} inputs from seed {seed}, {report.refused:,} refused, "
            f"{report.grown_bytes:,} bytes grown",
            flush=True,
        )
        if report.failure is not None:
            print(report.failure, file=sys.stderr)
            failed = True
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
