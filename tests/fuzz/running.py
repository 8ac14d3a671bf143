"""Runs a target on inputs made from seeds, and watches time and memory."""

from __future__ import annotations

import faulthandler
import gc
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from random import Random
from typing import Final, NamedTuple

from tests.fuzz.targets import EXPECTED

#: An input that takes longer hangs: the process ends, and says where it was.
HANGS_S: Final = 20
#: After the first part of a run its memory stays within this.
GROWTH_BYTES_MAX: Final = 64 << 20
_WARM_UP: Final = 1 / 3
_PAGE_BYTES: Final = 4_096


class Report(NamedTuple):
    """What a run has shown. `failure`: the input's seed and the traceback."""

    inputs: int
    refused: int
    grown_bytes: int
    failure: str | None


def run(
    target: str, take: Callable[[Random], None], seed: int, *, inputs: int | None = None,
    seconds: float | None = None,
) -> Report:  # fmt: skip
    """So many inputs, or for so long, from this seed on; the first failure ends it."""
    begun = time.monotonic()
    done = refused = memory = 0

    def part() -> float:
        """How much of the run is done."""
        by_time = (time.monotonic() - begun) / seconds if seconds else 0.0
        return max(by_time, done / inputs if inputs else 0.0)

    try:
        while part() < 1:
            faulthandler.dump_traceback_later(HANGS_S, exit=True)
            try:
                take(Random(f"{target} {seed + done}"))
            except EXPECTED:
                refused += 1
            except Exception:
                return Report(done, refused, 0, f"{target}, seed {seed + done}:\n{traceback.format_exc()}")
            done += 1
            if not memory and part() >= _WARM_UP:
                memory = _resident_bytes()
    finally:
        faulthandler.cancel_dump_traceback_later()
    grown = _resident_bytes() - memory
    failure = f"{target} has grown by {grown:,} bytes" if grown > GROWTH_BYTES_MAX else None
    return Report(done, refused, grown, failure)


def _resident_bytes() -> int:
    gc.collect()
    return int(Path("/proc/self/statm").read_text().split()[1]) * _PAGE_BYTES
