"""What has become dearer between two runs: `python -m bench.relay.compare`.

Both are files that `python -m bench.relay --json` wrote, with the same options. Judged is CPU time per
message, of the relay and of the broker: rates depend on what else the machine does. Exit code 1 when any of
it grew by more than the limit.
"""

from __future__ import annotations

import argparse
import json
import sys
from pathlib import Path
from typing import Any, Final, NamedTuple

#: Rounds of the same program differ by less where others use the cores, too.
LIMIT: Final = 1.3
JUDGED: Final = {"own_cpu_us": "own CPU", "broker_cpu_us": "broker CPU"}


class Change(NamedTuple):
    """What a message of one contender costs, in µs of CPU."""

    contender: str
    what: str
    before_us: float
    after_us: float

    @property
    def ratio(self) -> float:
        return self.after_us / self.before_us


def changes(before: dict[str, Any], after: dict[str, Any]) -> list[Change]:
    """Of every contender that both runs have, what was measured in both of them."""
    rows = {row["contender"]: row for row in before["results"]}
    return [
        Change(row["contender"], what, rows[row["contender"]][key], row[key])
        for row in after["results"]
        if row["contender"] in rows
        for key, what in JUDGED.items()
        if rows[row["contender"]][key] and row[key]
    ]


def main(given: list[str]) -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.relay.compare", description=__doc__)
    parser.add_argument("before", type=Path, help="what `python -m bench.relay --json` wrote")
    parser.add_argument("after", type=Path, help="the same, of the program to judge")
    parser.add_argument("--limit", type=float, default=LIMIT, help=f"dearer than this is too dear ({LIMIT})")
    options = parser.parse_args(given)
    try:
        found = changes(*(json.loads(path.read_text()) for path in (options.before, options.after)))
    except (OSError, ValueError) as error:
        print(f"bench.relay.compare: {error}", file=sys.stderr)
        return 1
    if not found:
        print("bench.relay.compare: the two runs have nothing in common", file=sys.stderr)
        return 1
    for change in found:
        verdict = "  DEARER" if change.ratio > options.limit else ""
        print(
            f"{change.contender:40} {change.what:10} {change.before_us:7.1f} µs {change.after_us:7.1f} µs "
            f"{change.ratio:5.2f} ×{verdict}"
        )
    return int(any(change.ratio > options.limit for change in found))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
