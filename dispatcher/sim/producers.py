"""A producer: publishes what the scenario says, with confirms, and nothing twice that it doesn't say."""

from __future__ import annotations

from collections import Counter
from typing import Any, Final

from dispatcher.client import properties as amqp_properties
from dispatcher.client.properties import Properties
from dispatcher.sim.connections import BrokerConnection
from dispatcher.sim.environment import Environment
from dispatcher.sim.life import Life
from dispatcher.sim.loop import ProcessLoop
from dispatcher.sim.scenario import MessagePlan

_CHANNEL: Final = 1
_RETRY_MS: Final = 100
SIGN_OF_LIFE_MS: Final = 500


class Producer:
    """It publishes later what it could not publish, and never repeats what may have arrived."""

    def __init__(self, world: Environment) -> None:
        self._world = world
        self._process = ProcessLoop(world.scheduler, "producer")
        self._connection: BrokerConnection | None = None
        self._published = 0
        self._killers: list[Life] = []
        self._deaths = 0  # of consumers, of these, at the latest look
        self._signs = 0  # messages published beyond the scenario's
        self._twins = Counter(
            plan.twin_of or plan.uid for plan in world.scenario.messages if not plan.repeats
        )
        self._repeated = {plan.uid for plan in world.scenario.messages if plan.repeats}

    @property
    def finished(self) -> bool:
        return self._published >= len(self._world.scenario.messages)

    def start(self) -> None:
        self._go_on()
        self._give_sign_of_life()

    def _give_sign_of_life(self) -> None:
        """While something kills its consumers, others must be settled: else it is never called poison. That
        may be something purged, if Redis has forgotten that since."""
        world, deaths = self._world, sum(life.deaths for life in self._killers)
        kills = any(life.stored and not life.over for life in self._killers) or deaths > self._deaths
        self._deaths = deaths
        if self.finished and world.broker.up and kills:
            self._signs += 1
            uid = max(plan.uid for plan in world.scenario.messages) + self._signs
            self._publish(self._connected(), MessagePlan(0, uid, 0, "sign"))
        world.scheduler.after(SIGN_OF_LIFE_MS, self._give_sign_of_life)

    def _go_on(self) -> None:
        world, now_ms = self._world, self._world.scheduler.now_ms
        if self.finished:
            return
        if not world.broker.up:
            world.scheduler.after(_RETRY_MS, self._go_on)
            return
        connection = self._connected()
        messages = world.scenario.messages
        begun_at_ms = world.begun_at_ms
        while not self.finished:
            plan = messages[self._published]
            if plan.at_ms + begun_at_ms > now_ms:
                world.scheduler.after(plan.at_ms + begun_at_ms - now_ms, self._go_on)
                return
            self._publish(connection, plan)
            self._published += 1

    def _connected(self) -> BrokerConnection:
        connection = self._connection
        if connection is None or connection.gone or not connection.open:
            connection = BrokerConnection(
                self._world.broker, self._process, "producer", _ignore, lambda _: None
            )
            connection.send(BrokerConnection.open_channel, _CHANNEL, None)
            connection.send(BrokerConnection.select_confirms, _CHANNEL, None)
            self._connection = connection
        return connection

    def _publish(self, connection: BrokerConnection, plan: MessagePlan) -> None:
        world = self._world
        queue = world.scenario.inbounds[plan.inbound][0]
        uid = plan.twin_of or plan.uid
        group = plan.group.encode() if plan.group is not None else None
        twins = max(1, self._twins[uid])
        life = Life(
            uid, queue, group, fails=plan.fails, kills=plan.kills, hangs=plan.hangs,
            expires=plan.expires_ms > 0, twins=twins, repeated=uid in self._repeated, number=plan.number,
        )  # fmt: skip
        if plan.kills:
            self._killers.append(life)
        world.history.publishes(life)
        headers: dict[str | bytes, Any] = {}
        if plan.group is not None:
            headers["x-group-id"] = plan.group
        if plan.number:
            headers["x-group-seq"] = plan.number
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
