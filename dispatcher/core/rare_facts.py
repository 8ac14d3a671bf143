"""What capabilities remember of a message or a group, and what they ask of it."""

from __future__ import annotations

from typing import Any, Final

from dispatcher.core.queue_ids import QueueId, is_parking

#: In the place of how much a lane had settled when a message's first consumer died.
NO_DEATH: Final = -1


class RareFacts:
    """Most messages never have another value of these, so the class has it for them."""

    __slots__ = ("__dict__",)  # made only for a message that has one of them

    arrival: tuple[int, int]
    attempt: int
    queue: QueueId
    is_marker = False  # of an operation (operations/events.py): never work
    origin_arrival: tuple[int, int] | None = None  # in the first queue that it was in, if that is not this
    term = 0  # of a parked copy: in which round of publishes it was made
    relocation: Any = None  # its way to a parking queue: parking/queue.py has the type
    message_id: bytes | None = None  # 16 bytes made of it, where the lane drops repeated messages
    number: int | None = None  # its producer's, in its group, where the lane checks that
    rank_override: tuple[int, ...] | None = None  # where it ranks, if others that came before it wait for it
    deliveries = 0  # how often its queue has delivered it before, if that counts: a quorum queue
    unbegun = 0  # hand-overs to consumers that died and had not begun it, as far as this leader knows
    calls = 0  # of its handler, by the consumer that has failed it
    overdue = False  # its consumer has had it for longer than the lane's ack_timeout
    #: How much the lane's consumers had settled when the first consumer died with it; 0 if that was before
    #: this leader's start, which settles count from; NO_DEATH: it has only failed so far.
    settles_at_death = 0

    @property
    def is_parked(self) -> bool:
        """Its original is in a parking queue."""
        return is_parking(self.queue)

    @property
    def first_arrival(self) -> tuple[int, int]:
        """Its arrival in the first queue that it was in: its place among the messages of its group that came
        through the same inbound queue."""
        return self.origin_arrival or self.arrival

    @property
    def rank(self) -> tuple[int, ...]:
        """Its place in its backlog: its `first_arrival`, if its producer's numbers say nothing else."""
        return self.rank_override or self.origin_arrival or self.arrival

    @property
    def deaths(self) -> int:
        """Consumers that may have died of it, while it waits: every hand-over ends in a settle or a death."""
        return self.attempt - self.unbegun


class RareGroupFacts:
    """Most groups never have another value of these."""

    __slots__ = ("__dict__",)  # made only for a group that has one of them

    flags: Any  # it is in Group, and asked for here
    route: tuple[QueueId, ...] = ()  # parking queues that its messages pass, by rising index
    demand: Any = None  # who waits for its parked messages: parking/queue.py has the type
    unresolved = 0  # open entries whose original has not come back yet

    @property
    def pin(self) -> str | None:
        """The id of the consumer that alone may get it, as operators have said; None: any may."""
        pin: str | None = self.flags.pin if self.flags is not None else None
        return pin
