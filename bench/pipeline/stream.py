"""How long after a file is there `dispatcher pipeline stream` tells of a violation in it:
`python -m bench.pipeline.stream`.

Some lanes write a file each, every few seconds, as dispatchers do; in one of them two messages of a group are
swapped. The stream runs in a process of its own, as from the command line. What counts is from a file's
rename to the line on the stream's stdout. The first rounds warm it up and don't count.
"""

from __future__ import annotations

import argparse
import json
import re
import statistics
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import IO, Final

from bench.pipeline.processes import PROGRAM
from dispatcher.ledger.files import FileWriter
from dispatcher.ledger.rows import Row, columns, row
from dispatcher.ledger.schema import Event
from dispatcher.ledger.store import Store

#: From a file to its alert, at most, in s.
LATENCY_MAX_S: Final = 10.0
WARM_UP: Final = 5
PATIENCE_S: Final = 120.0
LANE_EPOCH: Final = 7


class Lane:
    """One that writes its ledger: `groups` in turn, a message each 500 µs."""

    def __init__(self, ledger: Path, name: str, groups: int) -> None:
        self.name, self._groups = name, groups
        writer = f"{LANE_EPOCH}-{LANE_EPOCH:08x}"
        self._files = FileWriter(Store(str(ledger)), lane=name, writer=writer, lane_epoch=LANE_EPOCH)
        self._count, self._now_us = 0, time.time_ns() // 1_000
        detail = {"lane": name, "policy": "exclusive", "inbounds": [{"queue": "in", "weight": 1}]}
        self._add([row(self._now_us, Event.LANE_STARTED, detail=json.dumps(detail))])

    def write(self, rows: int, *, swapped: bool) -> float:
        """A file, and when it was there (monotonic, in s). `swapped`: its last two messages of group 0."""
        first = self._count
        mine = [number for number in range(first, first + rows) if number % self._groups == 0]
        places = {mine[-1]: mine[-2], mine[-2]: mine[-1]} if swapped else {}
        self._add(
            [self._hand_over(number, places.get(number, number)) for number in range(first, first + rows)]
        )
        self._count += rows
        self._files.close()
        return time.monotonic()

    def _hand_over(self, number: int, arrival: int) -> Row:
        group, consumer = number % self._groups, number % self._groups % 16
        self._now_us += 500
        return row(
            self._now_us, Event.SETTLED, inbound="in", arrival_epoch=LANE_EPOCH, arrival=arrival + 1,
            group=f"customer-{group:06d}", group_seq=number // self._groups + 1,
            epoch=(LANE_EPOCH << 20) + group + 1, consumer=f"worker-{consumer:02d}",
            incarnation=f"{self.name}-{consumer}", seq=number + 1, attempt=1, size=500, cost=1,
            received_at=self._now_us - 3_000, dispatched_at=self._now_us - 400,
            committed_at=self._now_us - 300, confirmed_at=self._now_us - 200,
        )  # fmt: skip

    def _add(self, rows: list[Row]) -> None:
        self._files.add(columns(rows), self._now_us)


class Told:
    """Alerts of a stream, as they are printed."""

    def __init__(self, lines: IO[str]) -> None:
        self.count, self.at_s, self._came = 0, 0.0, threading.Condition()
        self._reader = threading.Thread(target=self._read, args=(lines,), daemon=True)
        self._reader.start()

    def _read(self, lines: IO[str]) -> None:
        for line in lines:
            json.loads(line)
            with self._came:
                self.count, self.at_s = self.count + 1, time.monotonic()
                self._came.notify()

    def await_count(self, count: int) -> float:
        """When it was reached (monotonic, in s). Ends the program if it never is."""
        with self._came:
            if not self._came.wait_for(lambda: self.count >= count, PATIENCE_S):
                sys.exit(f"bench.pipeline.stream: alert {count} did not come within {PATIENCE_S:g} s")
            return self.at_s


def latencies(folder: Path, given: argparse.Namespace) -> Iterator[float]:
    """Of each round, in s."""
    ledger = folder / "ledger"
    ledger.mkdir()
    lanes = [Lane(ledger, f"lane-{number}", given.groups) for number in range(given.lanes)]
    command = [
        sys.executable, "-c", PROGRAM, "pipeline", "stream", "--input", str(ledger),
        "--output", str(folder / "live"), *(["--trigger", given.trigger] if given.trigger else []),
    ]  # fmt: skip
    with (folder / "log").open("w") as log:
        process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=log, text=True)
    assert process.stdout is not None
    try:
        told = Told(process.stdout)
        for number in range(WARM_UP + given.rounds):
            for lane in lanes[1:]:
                lane.write(given.rows, swapped=False)
            there_s = lanes[0].write(given.rows, swapped=True)
            spent_s = told.await_count(number + 1) - there_s
            if number >= WARM_UP:
                yield spent_s
            time.sleep(max(0.0, there_s + given.every - time.monotonic()))
        if told.count > WARM_UP + given.rounds:
            sys.exit("bench.pipeline.stream: the stream told of violations that are none")
    finally:
        process.terminate()
        process.wait()


def main() -> int:
    parser = argparse.ArgumentParser(prog="python -m bench.pipeline.stream", description=__doc__)
    parser.add_argument("--rounds", type=int, default=20, help="that count (20)")
    parser.add_argument("--every", type=float, default=3.1, help="seconds between rounds (3.1)")
    parser.add_argument("--lanes", type=int, default=4, help="that write (4)")
    parser.add_argument("--rows", type=int, default=5_000, help="of a file (5000)")
    parser.add_argument("--groups", type=int, default=1_000, help="of a lane (1000)")
    parser.add_argument("--trigger", help="of the stream (its default)")
    given = parser.parse_args()
    if given.rows < 2 * given.groups:
        parser.error("--rows must be at least twice --groups")
    with tempfile.TemporaryDirectory(prefix="bench-stream-") as folder:
        found = list(latencies(Path(folder), given))
        log = (Path(folder) / "log").read_text()
    batches = [float(each) for each in re.findall(r"alerts?, ([0-9.]+) s", log)][-given.rounds :]
    print(
        f"{given.rounds} violations in files of {given.rows:,} records, {given.lanes} lanes: told of after "
        f"{statistics.median(found):.1f} s (median), {max(found):.1f} s at most; a batch takes "
        f"{statistics.median(batches):.1f} s (median), {max(batches):.1f} s at most"
    )
    if max(found) > LATENCY_MAX_S:
        print(f"bench.pipeline.stream: more than {LATENCY_MAX_S:g} s", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
