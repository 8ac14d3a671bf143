"""The life of one message of a simulated world."""

from __future__ import annotations

from dispatcher.client import properties as amqp_properties
from dispatcher.client.sending import GROUP_HEADER, SEQUENCE_HEADER
from dispatcher.sim.queues import Stored


class Life:
    """One message that a producer published."""

    __slots__ = (
        "acked", "acked_places", "again_in", "buried", "came_back_ms", "confirmed", "dead_reason", "deaths",
        "done_by", "expired", "expires", "failed", "fails", "fresh", "given_up", "group", "handed",
        "hangs", "inbound", "is_again", "kills", "last", "lost", "moved", "number", "parked", "place",
        "purges", "repeated", "risks", "settled", "starts", "stored", "twins", "uid", "unsure", "was_parked",
    )  # fmt: skip

    def __init__(
        self,
        uid: int,
        inbound: str,
        group: bytes | None,
        *,
        fails: bool = False,
        kills: bool = False,
        hangs: bool = False,
        expires: bool = False,
        twins: int = 1,
        repeated: bool = False,
        number: int = 0,
    ) -> None:
        self.uid = uid
        self.inbound = inbound
        self.group = group
        self.fails = fails
        self.kills = kills  # the consumer that works on it dies
        self.deaths = 0  # consumers that died of it
        self.hangs = hangs  # its handler does, the first time
        self.expires = expires  # it may end at any time while it waits
        self.twins = twins  # messages that are equal in every byte, this one included
        self.stored = 0  # times that the broker took it (twins share one life)
        self.repeated = repeated  # it is published again, and the lane is to drop that
        self.number = number  # its producer's in its group; 0: none
        self.place = 0  # in its inbound queue
        self.last: Stored | None = None  # the last one of these, if it was published again
        self.confirmed = False
        self.lost = False  # the broker lost it, as it may
        self.expired = False
        self.acked = 0
        self.acked_places: set[int] = set()  # a killed broker may forget an ack, and get it again
        self.parked: dict[Stored, None] = {}  # copies in parking queues
        self.was_parked = False
        self.is_again = False  # RabbitMQ has forgotten that it had ended
        self.again_in = 0  # the leadership that took it for new, the how manieth
        self.handed = 0  # copies that hand-over consumers' queues got
        self.buried = 0  # copies in the dead queue
        self.dead_reason = ""
        self.given_up = False  # that it goes to the dead queue is committed
        self.purges = 0  # committed ones, and that it was dropped, or sent elsewhere
        self.moved: dict[Stored, int] = {}  # copies where operators sent it, and the how manieth there
        self.risks = 0  # twins: crashes after which one may have been taken for another
        self.fresh = 0  # twins: acked ones that had not been delivered before
        #: Who settled it in words that may count: a kill lost them after they were read, or Redis forgot that
        #: their incarnation had ended.
        self.unsure: set[str] = set()
        self.starts: list[tuple[str, int, int]] = []  # (incarnation, seq, attempt)
        self.done_by: dict[str, int] = {}  # incarnation → seq
        self.settled: dict[str, int] = {}  # incarnation → place of its settle in the control queue
        self.failed: dict[tuple[str, int], int] = {}  # the same by (incarnation, seq): it stopped its group
        self.came_back_ms: int | None = None  # the last time, from a consumer that failed it, or had ended

    def again(self, message: Stored, *, is_parked: bool) -> Life:
        """The same message once more, in the queue from which it comes. What was before counts no more."""
        life = Life(
            self.uid, self.inbound, self.group, fails=self.fails, expires=self.expires,
            repeated=self.repeated, number=self.number,
        )  # fmt: skip
        life.is_again, life.confirmed = True, self.confirmed
        life.stored, life.place, life.last = self.stored, self.place, self.last
        if is_parked:
            life.acked, life.acked_places = self.acked, self.acked_places
            life.parked[message], life.was_parked = None, True
        return life

    def count_from(self, message: Stored) -> None:
        """The lane hands that one over. Of two of the same id the broker may have lost the first, or never
        had it, and the second may be of another group, with another number."""
        self.place = message.position
        if self.repeated:
            headers = amqp_properties.read(message.properties)[1]
            group, number = headers.get(GROUP_HEADER), headers.get(SEQUENCE_HEADER)
            self.group = None if group is None else str(group).encode()
            self.number = number if isinstance(number, int) and number > 0 else 0

    @property
    def is_behind_newer(self) -> bool:
        """RabbitMQ gives it back behind newer ones: it forgot acks, so more came back than was delivered."""
        return self.last is not None and self.last.is_behind_newer

    @property
    def over(self) -> bool:
        """Whether the message is done with: settled, dead, lost, expired, or taken out by an operator."""
        if self.settled or self.buried > 0 or self.lost or self.expired or self.purges:
            return True
        return self.acked > 0 and bool(self.unsure)

    def is_let_go_by(self, incarnation: str) -> bool:
        """Whether it has settled the latest hand-over to it, or may have."""
        failed = [start[:2] in self.failed for start in self.starts if start[0] == incarnation]
        return any(failed[-1:]) or incarnation in self.settled or incarnation in self.unsure

    def __repr__(self) -> str:
        return (
            f"message {self.uid} of {self.group!r} in {self.inbound}#{self.place} (acked {self.acked}, "
            f"handed over {self.starts}, done by {self.done_by}, settled by {list(self.settled)}, "
            f"dead {self.buried}, parked {len(self.parked)})"
        )
