"""A private cluster of RabbitMQ nodes, which can be stopped, killed, frozen, lost and replaced one by one."""

from __future__ import annotations

import os
import secrets
import signal
import time
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from contextlib import ExitStack, suppress
from pathlib import Path
from types import TracebackType
from typing import Final, Self

from dispatcher.errors import DispatcherError
from dispatcher.nodes.installed import epmd
from dispatcher.nodes.local import START_TIMEOUT_S
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.nodes.process import POLL_S, GuardedProcess

#: What every cluster should have: a part that has lost sight of the others does nothing on its own.
PAUSE_MINORITY: Final = "pause_minority"
#: A thread for Erlang's processes of each node: several nodes share a test machine.
_ONE_SCHEDULER: Final = "+S 1:1"
#: The nodes that decide on streams; RabbitMQ looks every half a minute which nodes there are.
_STREAM_MEMBERS: Final = (
    "case ra:members({rabbit_stream_coordinator, node()}) of {ok, M, _} -> [N || {_, N} <- M]; _ -> [] end"
)


class ClusterNode(LocalRabbitMQ):
    """One node of a cluster, with the cluster's port mapper and cookie."""

    def __init__(
        self, config: Iterable[str], plugins: Iterable[str], epmd_port: int, cookie: str, ticktime_s: int,
        name: str | None = None,
    ) -> None:  # fmt: skip
        super().__init__(config, plugins)
        self._node = name or self._node
        self._epmd_port = epmd_port
        self._cookie = cookie
        self._ticktime_s = ticktime_s
        self._frozen = False

    @property
    def node(self) -> str:
        """Its name in the cluster."""
        return self._node

    def freeze(self) -> None:
        """SIGSTOP: it does nothing, and no connection of it ends."""
        self._signal(signal.SIGSTOP)
        self._frozen = True

    def thaw(self) -> None:
        """SIGCONT. If the others have given it up meanwhile, it may stay apart from them until it is started
        again."""
        self._signal(signal.SIGCONT)
        self._frozen = False

    def stop_app(self) -> None:
        """`rabbitmqctl stop_app`: RabbitMQ ends in order, its Erlang goes on. Raises DispatcherError."""
        # It answers before its start has ended. A stop before that ends its Erlang, too (seen with 4.0.5).
        _wait_until(self._has_started, f"{self.node} has started")
        self.evaluate("rabbit:stop()")

    def _has_started(self) -> bool:
        return self.evaluate("element(1, init:get_status())") == "started"

    def start_app(self) -> None:
        """`rabbitmqctl start_app`. Raises DispatcherError."""
        self._start_at_last(lambda: self.evaluate("rabbit:start()"))

    def knows_streams(self) -> bool:
        """A node that has joined takes up to a minute for that. Before that RabbitMQ 3.10 confirms nothing
        that is published to a stream through it."""
        return self.evaluate("whereis(rabbit_stream_coordinator)") != "undefined"

    def join(self, other: ClusterNode) -> None:
        """`rabbitmqctl stop_app`, `reset`, `join_cluster`, `start_app`. Raises DispatcherError."""
        self.stop_app()
        self.evaluate("rabbit_mnesia:reset()")
        self.evaluate(f"ok = rabbit_mnesia:join_cluster('{other.node}', disc)")
        self.start_app()

    def drain(self) -> None:
        """`rabbitmq-upgrade drain`: clients are sent away, other nodes lead its queues. A start ends that."""
        self.evaluate("rabbit_maintenance:drain()")

    def is_spare(self) -> bool:
        """One look of `rabbitmq-upgrade await_online_quorum_plus_one`: no quorum queue needs this node."""
        return self.evaluate("rabbit_upgrade_preparation:await_online_quorum_plus_one(1)") == "true"

    def part_from(self, others: Iterable[ClusterNode]) -> None:
        """Lose these nodes from sight, both ways and at once, until `meet`. Clients still reach all nodes.

        Erlang's cookie is what nodes let each other in by, and each may have one of its own for another.
        """
        others = list(others)
        parted = "[begin erlang:set_cookie(N, parted), erlang:disconnect_node(N) end || N <- {}]"
        # Erlang parts them one by one. If one of them asked meanwhile, another that is not parted yet would
        # still see this node: to RabbitMQ a partial partition, for which `pause_minority` pauses more nodes.
        with ExitStack() as looking_again:
            for node in (self, *others):
                node._look_at_others("suspend")
                looking_again.callback(node._look_at_others, "resume")
            self.evaluate(parted.format(_names(others)))

    def _look_at_others(self, change: str) -> None:
        """Let RabbitMQ go on noting which nodes are gone (resume), or put that off (suspend)."""
        with suppress(DispatcherError):  # it is down
            self.evaluate(f"sys:{change}(rabbit_node_monitor)")

    def meet(self, others: Iterable[ClusterNode]) -> None:
        """Let these nodes in again. With `ignore` RabbitMQ 3.10 stays apart until this node is started again.

        With `pause_minority` RabbitMQ 3.10.8 starts again by itself as a rule; now and then it waits
        for Mnesia's tables in vain, and needs to be started again as well.
        """
        self.evaluate(f"[erlang:set_cookie(N, erlang:get_cookie()) || N <- {_names(others)}]")

    def is_paused(self) -> bool:
        """Whether `pause_minority` has stopped RabbitMQ here, and has ended doing so; its Erlang goes on."""
        try:
            return self.evaluate("mnesia:system_info(is_running)") == "no"
        except DispatcherError:  # it was too busy to answer
            return False

    def sees(self) -> set[str]:
        """The names of the running nodes of the cluster, as this one says; none until it has started."""
        if self.pid is None or self._frozen:
            return set()
        try:
            said = self.evaluate("case rabbit:is_booted() of true -> rabbit_nodes:all_running(); _ -> [] end")
        except DispatcherError:  # it is starting
            return set()
        return {name.strip(" '") for name in said.strip("[]").split(",") if name}

    def _signal(self, number: signal.Signals) -> None:
        if self.pid is not None:
            os.kill(self.pid, number)

    def _lay_out(self, process: GuardedProcess) -> None:
        super()._lay_out(process)
        cookie = process.directory / "home" / ".erlang.cookie"
        cookie.write_text(self._cookie)
        cookie.chmod(0o400)  # Erlang reads no other

    def _environment(self, process: GuardedProcess) -> dict[str, str]:
        environment = super()._environment(process)
        key = "RABBITMQ_SERVER_ADDITIONAL_ERL_ARGS"
        more = f"{environment[key]} {_ONE_SCHEDULER} -kernel net_ticktime {self._ticktime_s}"
        return environment | {"ERL_EPMD_PORT": str(self._epmd_port), key: more}


def _names(nodes: Iterable[ClusterNode]) -> str:
    atoms = ",".join(f"'{node.node}'" for node in nodes)
    return f"[{atoms}]"


def _wait_until(happens: Callable[[], bool], what: str) -> None:
    deadline = time.monotonic() + START_TIMEOUT_S
    while not happens():
        if time.monotonic() >= deadline:
            raise DispatcherError(f"not within {START_TIMEOUT_S:.0f} s: {what}")
        time.sleep(POLL_S)


def _peers(first: ClusterNode, node: ClusterNode) -> list[str]:
    """Lets a node join the first one at its very first start: afterwards would be one more start of it."""
    peers = enumerate((first.node, node.node), start=1)
    return [f"cluster_formation.classic_config.nodes.{number} = {name}" for number, name in peers]


class LocalCluster:
    """Nodes on loopback that form one cluster; all have user guest/guest.

    `ticktime_s` is Erlang's net_ticktime: a node that stands still is given up between three and five
    quarters of it later (RabbitMQ's own is 60). `partition_handling`: what nodes do that lose sight of
    others. URLs are valid from `start` on.
    """

    def __init__(
        self, size: int = 3, config: Iterable[str] = (), plugins: Iterable[str] = (), ticktime_s: int = 6,
        partition_handling: str = PAUSE_MINORITY,
    ) -> None:  # fmt: skip
        (self._epmd_port,) = free_ports(1)
        self._cookie = secrets.token_hex(16)
        self._config = [f"cluster_partition_handling = {partition_handling}", *config]
        self._plugins = tuple(plugins)
        self._ticktime_s = ticktime_s
        self._mapper = GuardedProcess("epmd")
        self.nodes: list[ClusterNode] = []
        for _ in range(size):
            self._lay_out_another()

    def _lay_out_another(self, name: str | None = None) -> ClusterNode:
        node = ClusterNode(self._config, self._plugins, self._epmd_port, self._cookie, self._ticktime_s, name)
        if self.nodes and name is None:
            node.config += _peers(self.nodes[0], node)
        self.nodes.append(node)
        return node

    @property
    def amqp_urls(self) -> list[str]:
        return [node.amqp_url for node in self.nodes]

    def start(self) -> None:
        """Start all nodes, which are one cluster then. Raises what LocalNode.start raises; then none runs."""
        try:
            self._start_mapper()
            # One after the other: each start is seconds of a processor.
            for node in self.nodes:
                node.start()
            self.wait_for(self.nodes)
        except BaseException:
            self.close()
            raise

    def _start_mapper(self) -> None:
        """Nodes would start one themselves, which would end with the node that was first."""
        environment = {"PATH": os.defpath, "ERL_EPMD_ADDRESS": LOOPBACK}
        self._mapper.start([str(epmd()), "-port", str(self._epmd_port)], environment)

    def leader_of(self, queue: str, vhost: str = "/") -> str:
        """The name of the node that leads a quorum queue, or has a classic one; as far as a node that runs
        knows. Raises DispatcherError when there is no such queue."""
        name = f'rabbit_misc:r(<<"{vhost}">>, queue, <<"{queue}">>)'
        said = self.ask(f"{{ok, Q}} = rabbit_amqqueue:lookup({name}), amqqueue:qnode(Q)")
        return said.strip(" '")

    def forget(self, lost: ClusterNode) -> None:
        """`rabbitmqctl forget_cluster_node`: this one was killed, and never comes back. Its data is removed,
        no quorum queue counts its member any more. Raises DispatcherError."""
        lost.close()
        self.nodes.remove(lost)
        self.ask(f"rabbit_mnesia:forget_cluster_node('{lost.node}', false)")
        self._until_none_is_left(f"rabbit_quorum_queue:shrink_all('{lost.node}')")

    def add(self, name: str | None = None) -> ClusterNode:
        """A new node joins; it has no queue. The first of the others runs. `name`: of one that was forgotten,
        whose replicas of streams it gets. Raises what LocalNode.start raises."""
        if name is not None:
            _wait_until(lambda: name not in self.ask(_STREAM_MEMBERS), "streams go without it")
        node = self._lay_out_another(name)
        node.start()
        if name is not None:
            # RabbitMQ may give it a replica before it looks for its peers. Then it is not empty, and does not
            # join by itself (seen with 3.10).
            node.join(self.nodes[0])
            _wait_until(node.knows_streams, "it knows streams")
        self.wait_for(self.nodes)
        return node

    def grow(self, node: ClusterNode, vhost: str = "/") -> None:
        """`rabbitmq-queues grow`: every quorum queue of the vhost gets a member on this node. Raises
        DispatcherError."""
        queues = f'<<"^{vhost}$">>, <<".*">>'
        self._until_none_is_left(f"rabbit_quorum_queue:grow('{node.node}', {queues}, all)")

    def _until_none_is_left(self, change: str) -> None:
        """Evaluate it again and again: it returns the queues that were not changed before. RabbitMQ refuses a
        change of a queue that is electing a leader, or that has not ended another change."""
        _wait_until(lambda: self.ask(change) == "[]", change)

    def ask(self, expression: str) -> str:
        """Evaluate it on a node that runs. Raises DispatcherError."""
        return next(node for node in self.nodes if node.sees()).evaluate(expression)

    def wait_for(self, nodes: Iterable[ClusterNode], timeout_s: float = START_TIMEOUT_S) -> None:
        """Wait until these see each other, and no other one. Raises DispatcherError."""
        waited_for = list(nodes)
        names = {node.node for node in waited_for}
        deadline = time.monotonic() + timeout_s
        while not all(node.sees() == names for node in waited_for):
            if time.monotonic() >= deadline:
                raise DispatcherError(f"they did not find each other: {[node.sees() for node in waited_for]}")
            time.sleep(POLL_S)

    def logs(self) -> list[Path]:
        """The log files of all nodes; `close` removes them."""
        return [log for node in self.nodes for log in node.logs()]

    def close(self) -> None:
        """End all nodes and remove their data."""
        with ThreadPoolExecutor(len(self.nodes)) as pool:
            list(pool.map(ClusterNode.close, self.nodes))
        self._mapper.close()

    def __enter__(self) -> Self:
        self.start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()
