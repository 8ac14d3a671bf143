"""RabbitMQ's replies come in the order in which the service asked: it asks for nothing on a channel while a
queue has still to answer there."""

from __future__ import annotations

from dispatcher.sim.checkers.checker import Checker


class RepliesChecker(Checker):
    """A reply in another order costs the connection, and so the leadership."""

    name = "replies"

    def at_end(self) -> None:
        for problem in self.world.broker.misread:
            self.violate(problem)
            return
