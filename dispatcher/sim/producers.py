"""A producer: publishes what the scenario says, with confirms, and never twice."""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final

from dispatcher.client import properties as amqp_properties
from dispatcher.client.properties import Properties
from dispatcher.sim.connections import BrokerConnection
from dispatcher.sim.history import Life
from dispatcher.sim.loop import ProcessLoop
from dispatcher.sim.scenario import MessagePlan

if TYPE_CHECKING:
    from dispatcher.sim.world import World

_CHANNEL: Final = 1
_RETRY_MS: Final = 100


class Producer:
    """What it could not publish it publishes later; what may have arrived it does not repeat."""

    def __init__(self, world: World) -> None:
        self._world = world
        self._process = ProcessLoop(world.scheduler, "producer")
        self._connection: BrokerConnection | None = None
        self._published = 0
        self._twins = Counter(plan.twin_of or plan.uid for plan in world.scenario.messages)

    @property
    def finished(self) -> bool:
        return self._published >= len(self._world.scenario.messages)

    def start(self) -> None:
        self._go_on()

    def _go_on(self) -> None:
        world, now_ms = self._world, self._world.scheduler.now_ms
        if self.finished:
            return
        if self._connection is None or self._connection.gone or not self._connection.open:
            if not world.broker.up:
                world.scheduler.after(_RETRY_MS, self._go_on)
                return
            self._connection = world.broker.connect(self._process, "producer", _ignore, lambda _: None)
            self._connection.send(BrokerConnection.open_channel, _CHANNEL, None)
            self._connection.send(BrokerConnection.select_confirms, _CHANNEL, None)
        messages = world.scenario.messages
        begun_at_ms = world.begun_at_ms
        while not self.finished:
            plan = messages[self._published]
            if plan.at_ms + begun_at_ms > now_ms:
                world.scheduler.after(plan.at_ms + begun_at_ms - now_ms, self._go_on)
                return
            self._publish(self._connection, plan)
            self._published += 1

    def _publish(self, connection: BrokerConnection, plan: MessagePlan) -> None:
        world = self._world
        queue = world.scenario.inbounds[plan.inbound][0]
        uid = plan.twin_of or plan.uid
        group = plan.group.encode() if plan.group is not None else None
        twins = self._twins[uid]
        life = Life(uid, queue, group, fails=plan.fails, expires=plan.expires_ms > 0, twins=twins)
        world.history.publishes(life)
        headers: dict[str | bytes, Any] = {}
        if plan.group is not None:
            headers["x-group-id"] = plan.group
        if plan.closes:
            headers["x-group-seq"] = -1
        properties = Properties(
            delivery_mode=2 if plan.persistent else 1, message_id=plan.message_id,
            expiration=str(plan.expires_ms) if plan.expires_ms else None,
        )  # fmt: skip
        connection.send(
            BrokerConnection.publish, _CHANNEL, "", queue, True, amqp_properties.write(properties, headers),
            b"%d!" % uid if plan.fails else b"%d" % uid, uid, plan.expires_ms,
        )  # fmt: skip


def _ignore(_: list[Any]) -> None:
    """Confirms are the broker's to count."""
