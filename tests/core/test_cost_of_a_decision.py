"""What one message costs the core does not depend on how many groups and consumers there are.

Counted in calls, of Python and of C, which are the same on every machine; `python -m bench.core_scale`
measures the time.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from types import FrameType
from typing import Any

import pytest

from dispatcher.core.events import CopiesConfirmed, MessagesArrived
from dispatcher.core.model import Original
from dispatcher.wire.protocol import Settle
from tests.spec.lane_bench import LaneBench

CALLS = ("call", "c_call")
MESSAGES = 20


def calls(act: Callable[[], None]) -> int:
    """How many calls it makes."""
    count = 0

    def seen(_frame: FrameType, event: str, _argument: Any) -> None:
        nonlocal count
        count += event in CALLS

    sys.setprofile(seen)
    try:
        act()
    finally:
        sys.setprofile(None)
    return count


def name_of(number: int) -> str:
    return "g" + "".join(chr(97 + int(digit)) for digit in f"{number:05}")


def cost_of_messages(policy: str, groups: int, consumers: int) -> int:
    """Calls for the whole way of some messages: arrival, dispatch, confirm, settle. All groups wait for more
    than is handed out, so that there is something to look for."""
    bench = LaneBench(policy, weights=(3, 1), look_ahead=60_000)
    for number in range(consumers):
        bench.join(f"c{number}", prefetch=2)
    for number in range(groups):
        bench.arrive(f"{name_of(number)}1", f"{name_of(number)}2", inbound=number % 2)
    lane, total = bench.lane, 0
    for number in range(MESSAGES):
        holder = next(c for c in lane.state.by_id.values() if c.in_flight)
        seq, tag = next(iter(holder.in_flight)), 1_000_000 + number
        settle = Settle(consumer=holder.id, incarnation=holder.uuid, acked=((seq, seq),))
        message = Original(
            0, tag, (7, tag), b"%16d" % number, name_of(number).encode(), object(), 100, bench.now_ms
        )
        sent: list[int] = []

        def act(message: Original = message, settle: Settle = settle, sent: list[int] = sent) -> None:
            effects = lane.step([MessagesArrived([message]), settle], bench.now_ms)
            sent.append(sum(type(action).__name__ == "Dispatched" for action in effects.actions))

        total += calls(act)
        lane.step([CopiesConfirmed(sent[0], 100 * sent[0])], bench.now_ms)
    return total


@pytest.mark.parametrize("policy", ["exclusive", "sequenced", "concurrent"])
def test_of_groups(policy: str) -> None:
    few, many = cost_of_messages(policy, 100, 4), cost_of_messages(policy, 5_000, 4)
    assert many <= 1.1 * few


@pytest.mark.parametrize("policy", ["exclusive", "sequenced", "concurrent"])
def test_of_consumers(policy: str) -> None:
    few, many = cost_of_messages(policy, 1_000, 4), cost_of_messages(policy, 1_000, 200)
    assert many <= 1.1 * few
