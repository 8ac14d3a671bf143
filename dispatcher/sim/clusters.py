"""The lane of a seed on a RabbitMQ cluster: with its messages and consumers, and with faults of nodes."""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from dispatcher.settings import QueueKind
from dispatcher.sim.nodes import HANDLINGS
from dispatcher.sim.scenario import Fault, RunScenario

#: What happens to nodes; one at a time.
NODE_FAULTS: Final = (
    "kill_node",
    "stop_node",
    "freeze_node",
    "freeze_node",
    "part_node",
    "part_node",
    "lose_node",
)
#: In how many clusters members of quorum queues are slow.
_SLOW_MEMBERS: Final = 0.5
#: All that can happen on clusters alone.
CLUSTER_FAULTS: Final = frozenset({*NODE_FAULTS, "slow_members"})
#: What happens beside that. Redis loses nothing: that would be two failures at once.
_OTHERS: Final = (
    "kill_leader", "cut_leader", "freeze_leader", "kill_dispatcher", "late_commits", "kill_after_commit",
    "kill_at_publish", "cut_redis_after_commit", "slow_redis", "restart_redis", "slow_link",
    "kill_consumer", "cut_consumer", "freeze_consumer", "leave_consumer", "slow_consumer", "rebalance",
)  # fmt: skip
#: Whether the inbound queues are quorum queues, and which ones the lane wants for itself.
_KINDS: Final = (
    *(((True, QueueKind.AUTO),) * 6), (True, QueueKind.CLASSIC), (False, QueueKind.AUTO),
)  # fmt: skip
#: About how far apart nodes are hurt.
_APART_MS: Final = 6_000
_PATIENT: Final = 0.7
#: How many times longer the messages are published than on a single node: nodes take their time.
_SLOWER: Final = (1, 2, 4, 4)


def on_cluster(random: Random, scenario: RunScenario) -> RunScenario:
    """The same lane on a cluster."""
    is_quorum, own = random.choice(_KINDS)
    slower, hands_over = random.choice(_SLOWER), scenario.hands_over
    messages = tuple(plan._replace(at_ms=plan.at_ms * slower) for plan in scenario.messages)
    return replace(
        scenario, theme="cluster", partitions=random.choice(HANDLINGS), messages=messages,
        inbounds=tuple((name, weight, is_quorum) for name, weight, _ in scenario.inbounds),
        options={**scenario.options, "queue_type": own},
        redis_ms=tuple(random.choice(scenario.redis_ms) for _ in range(random.choice((1, 2, 2, 3)))),
        faults=_faults(
            random, 1_000 + max(plan.at_ms for plan in messages), may_lose=is_quorum and not hands_over,
            others=tuple(kind for kind in _OTHERS if not (hands_over and kind == "rebalance")),
        ),
    )  # fmt: skip


def _faults(random: Random, busy_ms: int, *, may_lose: bool, others: tuple[str, ...]) -> tuple[Fault, ...]:
    """Nodes are hurt one after the other, and the rest happens at any time. `may_lose`: for good."""

    def fault(kind: str, at_ms: float) -> Fault:
        target, amount = random.randrange(60), random.randrange(10_000)
        return Fault(int(at_ms), kind, target, amount, random.random() < _PATIENT)

    at_ms, faults = random.random() * busy_ms / 2, []
    for kind in random.choices(NODE_FAULTS, k=random.choice((1, 1, 2, 3))):
        faults.append(fault(kind if may_lose or kind != "lose_node" else "kill_node", at_ms))
        at_ms += random.expovariate(1 / _APART_MS)
    for kind in random.choices(others, k=random.choice((0, 1, 2, 4))):
        faults.append(fault(kind, random.random() * max(busy_ms, at_ms)))
    if random.random() < _SLOW_MEMBERS:
        faults.append(fault("slow_members", 0)._replace(patient=False))
    return tuple(sorted(faults))
