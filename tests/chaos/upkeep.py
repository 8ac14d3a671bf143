"""What an operator of a cluster does, as docs/operations.md tells it: replace a node that is lost for good,
and upgrade one node after the other."""

from __future__ import annotations

import asyncio
import re
import time
from collections.abc import Callable
from typing import Final

from dispatcher.errors import DispatcherError
from dispatcher.nodes.local_cluster import ClusterNode
from tests.chaos.commands import Happened, picked
from tests.chaos.leaderless import without_leader
from tests.chaos.node_faults import NEEDED, NodeFaults
from tests.chaos.parts import NodeFault, Outage
from tests.chaos.plan import Fault
from tests.chaos.proxies import Proxies

#: The nodes with durable classic queues: what is in them is nowhere else. A lane declares its witness anew.
HAVE_CLASSIC: Final = (
    "[amqqueue:qnode(Q) || Q <- rabbit_amqqueue:list(), amqqueue:get_type(Q) == rabbit_classic_queue, "
    "amqqueue:get_exclusive_owner(Q) == none, "
    'not lists:suffix(".witness", binary_to_list(element(4, amqqueue:get_name(Q))))]'
)
#: An operator gives up an upgrade when a queue still needs the node then.
SPARE_WITHIN_S: Final = 60.0


class Upkeep(NodeFaults):
    """The part of `Faults` in which nodes are replaced and upgraded. Each waits until all nodes are well: it
    is rarer than what hurts nodes, and takes longer."""

    def _now_s(self) -> float:
        raise NotImplementedError

    async def _led(self) -> bool:
        raise NotImplementedError

    async def lose_node(self, fault: Fault, happened: Happened) -> None:
        """For good, with its data. The others forget it, and after that a new one takes its place."""
        async with self._rabbitmq_busy:
            happened.since_s = self._now_s()
            chosen = await self._replicated(fault)
            if chosen is None:
                happened.note = "skipped: each node has something that is nowhere else"
                return
            number, why = chosen
            happened.target = f"node {number} ({why})"
            lost = self._nodes()[number]
            if not await self._is_spare(lost):
                happened.note = NEEDED
                return
            since = time.monotonic()
            await asyncio.to_thread(lost.kill9)
            await self._last(fault)
            await self._all_queues(happened, self._forget, lost)
            forgotten_at = time.monotonic()
            self._was_hurt("lose_node", number, since, forgotten_at)
            await self._replace(lost, happened)
            self._was_hurt("replace_node", number, forgotten_at, time.monotonic())
            self._stage.rabbitmq_outages.append(Outage(since, forgotten_at))

    async def upgrade_nodes(self, fault: Fault, happened: Happened) -> None:
        """One after the other: drained, stopped and started again, as soon as no queue needs it and all lanes
        are led."""
        async with self._rabbitmq_busy:
            happened.since_s = self._now_s()
            for number, node in enumerate(self._nodes()):
                await self._led()
                if not await self._is_spare(node, SPARE_WITHIN_S):
                    happened.note = f"given up: a queue needs node {number}"
                    return
                await self._upgrade(number, node, fault, happened)
                happened.target = f"nodes 0 to {number}"

    async def _upgrade(self, number: int, node: ClusterNode, fault: Fault, happened: Happened) -> None:
        since = time.monotonic()
        await self.end_in_order(node, node.drain)
        await self.end_in_order(node, node.stop)
        await self._last(fault)
        await self._come_back(node, happened)
        self._was_hurt("upgrade_node", number, since, time.monotonic())
        self._stage.rabbitmq_outages.append(Outage(since, time.monotonic()))

    async def _replicated(self, fault: Fault) -> tuple[int, str] | None:
        """A node that the lane needs and of which nothing is lost; or another one of these."""
        number, why = await self._node(fault)
        nodes = self._nodes()
        said = await asyncio.to_thread(self._cluster().ask, HAVE_CLASSIC)
        keep = set(re.findall(r"[\w@]+@[\w]+", said))
        others = [index for index, node in enumerate(nodes) if node.node not in keep]
        if number in others or not others:
            return (number, why) if others else None
        return picked(others, fault), "what it has is elsewhere, too"

    def _forget(self, lost: ClusterNode) -> None:
        self._stage.keep_logs(lost, f"lost-{lost.node}-")
        self._cluster().wait_for(node for node in self._nodes() if node is not lost)
        self._cluster().forget(lost)

    async def _replace(self, lost: ClusterNode, happened: Happened) -> None:
        assert self._stage.cluster is not None
        number = self._nodes().index(lost)
        # A stream has no other way to a replica there with RabbitMQ 3.10.
        name = lost.node if any(map(self._stage.keeps, self._stage.lanes)) else None
        node = await asyncio.to_thread(self._stage.cluster.replace, lost, name)
        proxies = [replica.rabbitmq for replica in self._stage.replicas]
        proxies += [process.proxy for process in (*self._stage.consumers, *self._stage.producers)]
        for proxy in proxies:
            if isinstance(proxy, Proxies):
                proxy.lead_to(number, node.amqp_url)
        await self._all_queues(happened, self._cluster().grow, node)
        await self._come_back(node, happened)

    async def _all_queues(
        self, happened: Happened, change: Callable[[ClusterNode], None], node: ClusterNode
    ) -> None:
        """A queue that RabbitMQ has left without a leader can't be changed: that is judged at the end."""
        try:
            await asyncio.to_thread(change, node)
        except DispatcherError:
            if not await asyncio.to_thread(without_leader, self._stage.nodes):
                raise
            happened.note = "a queue has no leader"

    def _was_hurt(self, name: str, number: int, since: float, until: float) -> None:
        self._stage.node_faults.append(NodeFault(name, number, since, until, until - since))
