"""Messages that the broker took from their producer and does not take again from a dispatcher."""

from __future__ import annotations

from dispatcher.sim.broker import ConnectionEnd
from dispatcher.sim.environment import Environment


class PublishRefusals:
    """Decides what a publish of such a message costs its publisher."""

    def __init__(self, world: Environment) -> None:
        self._world = world
        self._kinds = {plan.uid: plan.refused for plan in world.scenario.messages if plan.refused}
        self._over = False

    def stop(self) -> None:
        """The dead queue takes everything from now on."""
        self._over = True

    def cost(self, connection: ConnectionEnd, exchange: str, key: str, body: bytes) -> str | None:
        """The "channel" or the "connection"; None: it is taken."""
        names = self._world.names
        if not self._kinds or exchange != names.exchange or not body.rstrip(b"!").isdigit():
            return None
        kind = self._kinds.get(int(body.rstrip(b"!")))
        if kind is None or (key == names.dead and (kind != "everywhere" or self._over)):
            return None
        history = self._world.history
        history.note("FAULT", "refuses", connection.name, body, key)
        history.met["refused", kind] += 1
        return "connection" if kind == "connection" else "channel"
