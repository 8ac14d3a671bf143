"""H-1, H-2, in lanes with `history`: acked messages are in the stream, in the order in which they came."""

from __future__ import annotations

from dispatcher.amqp.history_message import KeptMessage, read_kept
from dispatcher.sim.checkers.checker import Checker
from dispatcher.sim.life import Life
from dispatcher.sim.queues import Queue, Stored
from dispatcher.sim.world import World


class KeptChecker(Checker):
    name = "kept"

    def __init__(self, world: World) -> None:
        super().__init__(world)
        self._copies: dict[int, list[Stored]] = {}  # by uid
        self._refused: set[int] = set()  # by the stream, once
        self._seen = 0  # the last position in the stream that was looked at

    def acked(self, life: Life) -> None:
        """A message that is equal to others in every byte may be any of them."""
        if self.world.scenario.options["history"] is None or life.twins > 1:
            return
        self._look()
        if not any(copy.synced for copy in self._copies.get(life.uid, ())):
            self.violate(f"acked, and not in the history: {life}")

    def nacked(self, queue: Queue, body: bytes) -> None:
        if queue.stream:
            self._refused.add(_read(body)[1])

    def _look(self) -> None:
        """Read new messages of the stream: a kill removes only messages at its end that were not on disk."""
        stream = self.world.broker.queues.get(self.world.names.history)
        new: list[Stored] = []
        for message in reversed(stream.ready if stream is not None else ()):
            if message.position <= self._seen:
                break
            new.append(message)
        for message in reversed(new):
            self._seen = message.position
            kept, uid = _read(message.body)
            self._copies.setdefault(uid, []).append(message)
            self.world.history.met["kept", "again" if kept.redelivered else "first"] += 1

    def at_end(self) -> None:
        """A replay leaves out what it has seen: the first copies have to be in order."""
        stream = self.world.broker.queues.get(self.world.names.history)
        there = set(stream.ready if stream is not None else ())
        first: list[tuple[int, Life]] = []
        for uid, copies in self._copies.items():
            life = self.world.history.lives[uid]
            places = [copy.position for copy in copies if copy in there]
            is_single = life.twins == 1 and life.stored == 1
            if places and is_single and uid not in self._refused:
                first.append((min(places), life))
        last: dict[str, Life] = {}
        for _, life in sorted(first, key=lambda one: one[0]):
            before = last.get(life.inbound)
            if before is not None and before.place > life.place:
                self.violate(f"in the history {life} is behind a later one: {before}")
            last[life.inbound] = life


def _read(body: bytes) -> tuple[KeptMessage, int]:
    """The kept message, and its uid."""
    kept = read_kept(body)
    assert not isinstance(kept, str), "only incoming messages are published to the stream"
    return kept, int(kept.content.body.rstrip(b"!"))
