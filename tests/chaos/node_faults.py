"""What happens to the nodes of a cluster, one at a time."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Awaitable, Callable, Iterable
from typing import Final

from dispatcher.errors import DispatcherError
from dispatcher.nodes.local_cluster import ClusterNode, LocalCluster
from tests.chaos.cluster import TICKTIME_S
from tests.chaos.commands import Happened, picked
from tests.chaos.lanes import LaneOnStage
from tests.chaos.parts import NodeFault, Outage, Process
from tests.chaos.plan import Fault
from tests.chaos.proxies import Proxies
from tests.chaos.stage import PREFIX, Stage
from tests.waiting import eventually, wait_until

#: In this time nodes that run find each other, or never: then the one that was hurt is started again.
FOUND_WITHIN_S: Final = 20.0
#: How many queues a node takes for down. After a partition that has healed RabbitMQ 3.10 may do so for long
#: with classic queues of a node that is there.
QUEUES_DOWN: Final = 'length(rabbit_amqqueue:list_down(<<"/">>))'
#: Which nodes a node has been apart from, so that their tables of queues may differ until one of them is
#: started again. RabbitMQ's management page asks an operator to do that.
PARTED_FROM: Final = "rabbit_node_monitor:partitions()"
#: The others may have given up a node that stood still for so long.
GIVEN_UP_AFTER_S: Final = 0.75 * TICKTIME_S
#: What is said of a node that is left alone for that reason.
NEEDED: Final = "skipped: a queue needs it"
Hurt = Callable[[ClusterNode, Fault], Awaitable[None]]


class NodeFaults:
    """The part of `Faults` that is about a cluster."""

    _stage: Stage
    _rabbitmq_busy: asyncio.Lock

    def _lane(self, fault: Fault) -> LaneOnStage:
        raise NotImplementedError

    async def _last(self, fault: Fault) -> None:
        raise NotImplementedError

    async def kill_node(self, fault: Fault, happened: Happened) -> None:
        await self._hurt(fault, happened, self._killed, killed=True)

    async def stop_node(self, fault: Fault, happened: Happened) -> None:
        """As its host does it: SIGTERM."""
        await self._hurt(fault, happened, self._stopped)

    async def stop_app(self, fault: Fault, happened: Happened) -> None:
        """As its operator does it: `rabbitmqctl stop_app`, later `start_app`."""
        await self._hurt(fault, happened, self._app_stopped)

    async def freeze_node(self, fault: Fault, happened: Happened) -> None:
        await self._hurt(fault, happened, self._frozen)

    async def part_node(self, fault: Fault, happened: Happened) -> None:
        """It and the others lose sight of each other."""
        await self._hurt(fault, happened, self._parted)

    async def _hurt(self, fault: Fault, happened: Happened, hurt: Hurt, *, killed: bool = False) -> None:
        if self._rabbitmq_busy.locked():
            happened.note = "skipped: one is down already"
            return
        async with self._rabbitmq_busy:
            number, why = await self._node(fault)
            happened.target = f"node {number} ({why})"
            node = self._nodes()[number]
            if not await self._is_spare(node):
                happened.note = NEEDED
                return
            outage = Outage(time.monotonic(), 0.0, killed)
            await hurt(node, fault)
            over = time.monotonic()
            await self._come_back(node, happened)
            outage.until = time.monotonic()
            self._stage.rabbitmq_outages.append(outage)
            self._stage.node_faults.append(
                NodeFault(fault.name, number, outage.since, outage.until, over - outage.since)
            )

    async def _killed(self, node: ClusterNode, fault: Fault) -> None:
        await asyncio.to_thread(node.kill9)
        await self._last(fault)

    async def _stopped(self, node: ClusterNode, fault: Fault) -> None:
        await self.end_in_order(node, node.stop)
        await self._last(fault)

    async def _app_stopped(self, node: ClusterNode, fault: Fault) -> None:
        await self.end_in_order(node, node.stop_app)
        await self._last(fault)
        await asyncio.to_thread(node.start_app)

    async def _frozen(self, node: ClusterNode, fault: Fault) -> None:
        since = time.monotonic()
        await asyncio.to_thread(node.freeze)
        try:
            await self._last(fault)
            if fault.length_s >= GIVEN_UP_AFTER_S:
                self._nothing_counts_since(since, node)
        finally:
            node.thaw()

    async def _parted(self, node: ClusterNode, fault: Fault) -> None:
        others = [other for other in self._nodes() if other is not node]
        await asyncio.to_thread(node.part_from, others)
        since = time.monotonic()
        try:
            await self._last(fault)
        finally:
            self._nothing_counts_since(since, node)
            await asyncio.to_thread(node.meet, others)

    async def end_in_order(self, node: ClusterNode, end: Callable[[], None]) -> None:
        """The node ends its clients' channels, and asks them to close their connections. Who stands still
        does not hear that, and goes on later with what it has in hand."""
        since = time.monotonic()
        await asyncio.to_thread(end)
        self._nothing_counts_since(since, node, [p for p in self._stage.consumers if p.was_silent(since)])

    def _nothing_counts_since(
        self, since: float, node: ClusterNode, consumers: Iterable[Process] | None = None
    ) -> None:
        """The others have given the node up, and with it these consumers, or all that were connected."""
        number = self._nodes().index(node)
        for process in self._stage.consumers if consumers is None else consumers:
            if isinstance(process.proxy, Proxies):
                process.proxy.lost(number, since)

    async def _come_back(self, node: ClusterNode, happened: Happened) -> None:
        if not await self._stage.start_again(node):
            happened.note = "came up at the second attempt"
        try:
            await asyncio.to_thread(self._cluster().wait_for, self._nodes(), FOUND_WITHIN_S)
            await asyncio.to_thread(self._until_all_is_whole)
        except (DispatcherError, AssertionError):
            # `autoheal` restarts others, too, and one that RabbitMQ 4.0 restarts within its process may fail.
            down = [other for other in self._nodes() if not await asyncio.to_thread(other.sees)]
            others = [str(self._nodes().index(other)) for other in down if other is not node]
            happened.note = " ".join(["stayed apart, and was started again", *others])
            for each in dict.fromkeys([node, *down]):
                await asyncio.to_thread(each.stop)
                await self._stage.start_again(each)
            await asyncio.to_thread(self._cluster().wait_for, self._nodes())

    def _until_all_is_whole(self) -> None:
        """Raises DispatcherError, or AssertionError if a node takes queues for down, or has been apart."""

        def is_whole(node: ClusterNode) -> bool:
            return node.evaluate(QUEUES_DOWN) == "0" and node.evaluate(PARTED_FROM) == "[]"

        wait_until(lambda: all(map(is_whole, self._nodes())), FOUND_WITHIN_S)

    async def _node(self, fault: Fault) -> tuple[int, str]:
        """One that the lane needs: with the leader of its lock or of an inbound queue, or that it is led
        through."""
        lane = self._lane(fault)
        lock, inbound = f"{PREFIX}.{lane.name}.lock", lane.queues[0]
        what = picked([lock, inbound, "connection"], Fault(0.0, "", 0.0, fault.pick * 97 % 1))
        leader = self._stage.leader(lane)
        if what == "connection" and leader is not None and isinstance(leader.rabbitmq, Proxies):
            return leader.rabbitmq.used(), f"{lane.name} is led through it"
        queue = inbound if what == "connection" else what
        name = await asyncio.to_thread(self._cluster().leader_of, queue)
        return [node.node for node in self._nodes()].index(name), f"leads {queue}"

    async def _is_spare(self, node: ClusterNode, within_s: float = FOUND_WITHIN_S) -> bool:
        """Whether all quorum queues go on without it, sooner or later. RabbitMQ 4.0 starts no member of a
        queue at a node that is just starting when the queue is declared: with another node away, too, it
        would be two failures."""
        try:
            await eventually(lambda: asyncio.to_thread(node.is_spare), within_s)
        except AssertionError:
            return False
        return True

    def _cluster(self) -> LocalCluster:
        assert self._stage.cluster is not None
        return self._stage.cluster.cluster

    def _nodes(self) -> list[ClusterNode]:
        """In the order of the proxies."""
        assert self._stage.cluster is not None
        return self._stage.cluster.nodes
