"""A consumer's life, from its join to its end.

Membership leads it from state to state. The delivery pass asks only whether it `receives` and `is_open`.
What a single capability remembers of a consumer is in a class of its own, see `note`.
"""

from __future__ import annotations

from enum import Enum
from typing import Any, Final, TypeVar, cast

from dispatcher.core.tables import IncarnationRow
from dispatcher.errors import InvalidTransition
from dispatcher.wire.protocol import Join

N = TypeVar("N")


class ConsumerState(Enum):
    EXPECTED = "expected"  # known from the journal; our ping to its queue has not been answered yet
    LIVE = "live"
    FROZEN = "frozen"  # heartbeats are missing: keeps what it has, gets no new group
    REFUSING = "refusing"  # its queue is full: gets nothing until it has joined again and there is room
    LEAVING = "leaving"  # said so: gets nothing more, settles what it holds
    LOST = "lost"  # its queue is gone; it may come back until `lost_until_ms`
    MARKED = "marked"  # our marker is on its way through the control queue behind its last settles
    REVOKED = "taken"  # ended


_S = ConsumerState
CONSUMER_TRANSITIONS: Final[dict[ConsumerState, frozenset[ConsumerState]]] = {
    _S.EXPECTED: frozenset({_S.LIVE, _S.REFUSING, _S.LEAVING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.LIVE: frozenset({_S.FROZEN, _S.REFUSING, _S.LEAVING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.FROZEN: frozenset({_S.LIVE, _S.REFUSING, _S.LEAVING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.REFUSING: frozenset({_S.LIVE, _S.LEAVING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.LEAVING: frozenset({_S.REFUSING, _S.LOST, _S.MARKED, _S.REVOKED}),
    _S.LOST: frozenset({_S.LIVE, _S.LEAVING, _S.MARKED, _S.REVOKED}),
    _S.MARKED: frozenset({_S.LIVE, _S.LEAVING, _S.REVOKED}),
    _S.REVOKED: frozenset(),
}
#: States in which its queue is thought to exist and gets copies.
REACHABLE: Final = frozenset({_S.EXPECTED, _S.LIVE, _S.FROZEN, _S.LEAVING})
#: States in which its queue is thought to exist.
PRESENT: Final = REACHABLE | {_S.REFUSING}
#: States in which it gets new messages of the groups that it owns.
RECEIVING: Final = frozenset({_S.LIVE, _S.FROZEN})


class Ending(Enum):
    """What the end of an incarnation says of the messages that it had."""

    DEATH = "death"  # it may have died of one of them
    MEANT = "meant"  # it was to end, so it died of none; each of them has gone through an end more
    NOTHING = "nothing"  # operators have ended it: it counts for none of them


class ConsumerLife:
    """One incarnation: its ids and queues, its state, and what several parts of a lane know about it."""

    __slots__ = (
        "state", "bundle", "depth", "drained", "evicted_by", "id", "last_heard_ms", "last_sent_ms",
        "lost_until_ms", "n", "_notes", "number", "ping_unanswered", "prefetch", "queue",
        "readers", "receives", "reclaiming", "refusals", "refused_n", "refused_until_ms", "resumes_as",
        "user", "uuid", "waiting", "waiting_heard_ms", "waiting_told",
    )  # fmt: skip

    def __init__(self, number: int, row: IncarnationRow, now_ms: int) -> None:
        self.number = number
        self.id = row.consumer
        self.uuid = row.uuid
        self.user = row.user
        self.bundle = row.bundle
        self.queue = row.queue
        self.n = row.n  # its latest join
        self.prefetch = row.prefetch
        self.state = ConsumerState.EXPECTED  # `become` alone changes it
        #: Whether its state is one of RECEIVING: asked for every message, where hashing an enum shows.
        self.receives = False
        #: What it becomes when it is found again: LIVE, or LEAVING if it had said so.
        self.resumes_as = ConsumerState.LEAVING if row.state == "leaving" else ConsumerState.LIVE
        # Membership: liveness …
        self.last_heard_ms = self.last_sent_ms = now_ms
        self.ping_unanswered = False
        self.lost_until_ms = 0
        self.refused_until_ms = 0  # REFUSING: when it may get something, or is asked again to join
        self.refused_n = 0  # its latest join when its queue was found full
        self.refusals = 0  # since it settled something
        # … another incarnation of this id that asked to join, when it last did, which one the log has named …
        self.waiting: Join | None = None
        self.waiting_heard_ms = 0
        self.waiting_told = ""
        # … and its end before its time.
        self.evicted_by: Any = None  # who ends it: membership/evictions.py has the type
        # Operators
        self.drained = False  # it gets nothing more
        # Forwarding: how many messages wait in its queue, as far as is known. None: it speaks the protocol.
        self.depth: int | None = None
        self.readers = 0  # of that queue, when it was last looked at
        self.reclaiming = False  # the queue is being read back
        self._notes: dict[type, Any] = {}

    def become(self, state: ConsumerState) -> None:
        """Move to `state`. Raises InvalidTransition for a move that the table doesn't have."""
        if state not in CONSUMER_TRANSITIONS[self.state]:
            raise InvalidTransition(f"consumer {self.id} can't go from {self.state.value} to {state.value}")
        self.state = state
        self.receives = state in RECEIVING

    def note(self, kind: type[N]) -> N:
        """What the capability that has this class remembers of the consumer; made when it is first asked
        for."""
        note = self._notes.get(kind)
        if note is None:
            note = self._notes[kind] = kind()
        return cast(N, note)

    @property
    def is_open(self) -> bool:
        """It is live and may be given something new."""
        return self.state is ConsumerState.LIVE and not self.drained

    @property
    def stays(self) -> bool:
        """It may own groups: it has not ended, and has not said that it leaves."""
        gets_nothing = self.state is ConsumerState.REVOKED or self.evicted_by is not None or self.drained
        return not gets_nothing and self.resumes_as is ConsumerState.LIVE
