"""Messages that the broker took from their producer and does not take again from a dispatcher."""

from __future__ import annotations

from contextlib import suppress

from dispatcher.sim.broker import ConnectionEnd
from dispatcher.sim.environment import Environment
from dispatcher.wire.bundle import split_bundle


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
        if not self._kinds or exchange != names.exchange:
            return None
        history = self._world.history
        for uid in _uids(body):
            kind = self._kinds.get(uid)
            if kind is None or (key == names.dead and (kind != "everywhere" or self._over)):
                continue
            history.note("FAULT", "refuses", connection.name, body, key)
            history.met["refused", kind] += 1
            return "connection" if kind == "connection" else "channel"
        return None


def _uids(body: bytes) -> list[int]:
    """Of the messages that a publish carries: one, those of a bundle, or none."""
    bodies = [body]
    if not body.rstrip(b"!").isdigit():
        with suppress(ValueError):
            bodies = [body for _, body in split_bundle(body)]
    return [int(body.rstrip(b"!")) for body in bodies if body.rstrip(b"!").isdigit()]
