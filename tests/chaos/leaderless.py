"""Quorum queues that RabbitMQ (3.10.8) has left without a leader for good, so that nobody gets what is in
them (docs/guarantees.md, "Clusters"): no run comes to its end then."""

from __future__ import annotations

import re

from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ

#: A leader answers at once.
ANSWER_MS = 5_000
_NAMES = (
    "[binary_to_list(element(4, amqqueue:get_name(Q))) || Q <- rabbit_amqqueue:list(), "
    "amqqueue:get_type(Q) == rabbit_quorum_queue, "
    f"element(1, ra:members(amqqueue:get_pid(Q), {ANSWER_MS})) =/= ok]"
)


def without_leader(node: LocalRabbitMQ) -> list[str]:
    """Their names, as this node knows them."""
    return re.findall(r'"([^"]+)"', node.evaluate(_NAMES))
