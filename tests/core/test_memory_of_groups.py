"""A group that has an owner and nothing in flight costs little memory, however many there are."""

from __future__ import annotations

import gc
import tracemalloc
from collections import deque

from bench.core_scale import BATCH, Case, Lanes

#: Just behind the number at which Python's dicts grow: when they are at their emptiest.
GROUPS = 11_000
BYTES_MAX = 400


def test_a_tracked_group_takes_at_most_400_bytes() -> None:
    lanes = Lanes(Case("few", 1, 4))
    for inbound in lanes.lane.state.inbounds:
        inbound.settled.proven = deque(maxlen=0)  # bounded, and not of groups
    gc.collect()
    tracemalloc.start(1)
    try:
        before, _ = tracemalloc.get_traced_memory()
        for first in range(0, GROUPS, BATCH):
            lanes.turn([b"%036d" % number for number in range(first, first + BATCH)])
        gc.collect()
        after, _ = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    tracked = len(lanes.lane.state.groups)
    assert tracked >= GROUPS
    print(f"{(after - before) / tracked:.0f} bytes for each of {tracked} groups")
    assert (after - before) / tracked <= BYTES_MAX
