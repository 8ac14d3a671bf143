"""Quorum queues that RabbitMQ (3.10.8) has left without a leader for good, so that nobody gets what is in
them (docs/guarantees.md, "On a cluster"): no run comes to its end then. What happened until then is judged
all the same."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Iterable, Sequence
from typing import Final

from dispatcher.errors import DispatcherError
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from tests.chaos.lanes import LaneOnStage
from tests.chaos.stage import PREFIX

#: A leader answers at once.
ANSWER_MS = 5_000
#: Between two looks.
LOOK_S: Final = 1.0
#: How the violations begin that say that something is missing, or not settled yet.
_MISSING: Final = ("lost: ", "left in ", "not live: ", "not kept in the history: ")
_NAMES = (
    "[binary_to_list(element(4, amqqueue:get_name(Q))) || Q <- rabbit_amqqueue:list(), "
    "amqqueue:get_type(Q) == rabbit_quorum_queue, "
    f"element(1, ra:members(amqqueue:get_pid(Q), {ANSWER_MS})) =/= ok]"
)


def without_leader(nodes: Iterable[LocalRabbitMQ]) -> list[str]:
    """Their names, as the first of these nodes knows them that answers. Raises DispatcherError."""
    problem = DispatcherError("no node")
    for node in nodes:
        try:
            return re.findall(r'"([^"]+)"', node.evaluate(_NAMES))
        except DispatcherError as failure:
            problem = failure
    raise problem


async def left_without_leader(nodes: Sequence[LocalRabbitMQ], for_s: float) -> list[str]:
    """Those without a leader at each look for so long: an election takes a while. Raises DispatcherError."""
    until = time.monotonic() + for_s
    left = await asyncio.to_thread(without_leader, nodes)
    while left and time.monotonic() < until:
        await asyncio.sleep(LOOK_S)  # sleeps: until the next look
        again = await asyncio.to_thread(without_leader, nodes)
        left = [queue for queue in left if queue in again]
    return left


def of_lanes(queues: Iterable[str], lanes: Iterable[LaneOnStage]) -> list[str]:
    """Those of them that belong to one of these lanes."""
    own, prefixes = set[str](), tuple[str, ...]()
    for lane in lanes:
        own.update(lane.queues)
        prefixes += (f"{PREFIX}.{lane.name}.",)
    return sorted(queue for queue in queues if queue in own or queue.startswith(prefixes))


def told_apart(
    found: Iterable[str], queues: Iterable[str], lanes: Iterable[LaneOnStage]
) -> tuple[list[str], list[str]]:
    """These violations of these lanes: those that count, and those that may follow from it that nobody gets
    what is in `queues`."""
    prefixes, counting, excused = _MISSING if of_lanes(queues, lanes) else (), list[str](), list[str]()
    for text in found:
        (excused if text.startswith(prefixes) else counting).append(text)
    return counting, excused
