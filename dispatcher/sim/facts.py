"""The contents of commits, for checkers of what follows them."""

from __future__ import annotations

from typing import Any, NamedTuple

#: A delivery: the leader, index of the inbound queue, delivery tag.
Tag = tuple[str, int, int]


class DispatchFact(NamedTuple):
    """A decision that a message goes to a consumer."""

    uid: int
    incarnation: str
    consumer: str
    attempt: int
    group: bytes | None  # the key of its group in the lane's map
    seq: int


class StepFacts:
    """Everything that one commit says."""

    __slots__ = (
        "acked", "dispatched", "dropped", "flags", "given_up", "journalled", "left", "results", "taken",
    )  # fmt: skip

    def __init__(self) -> None:
        self.dispatched: list[DispatchFact] = []
        self.dropped: list[int] = []  # uids of what an operator deletes
        self.left: list[tuple[int, str]] = []  # uids of what an operation has sent elsewhere, and its uuid
        self.flags: dict[bytes, dict[str, Any] | None] = {}
        self.results: dict[str, dict[str, Any]] = {}  # of commands
        self.journalled: list[tuple[str, int]] = []  # (incarnation, seq)
        self.taken: list[tuple[str, int]] = []  # (incarnation, n)
        self.given_up: list[int] = []  # uids of what goes to the dead queue
        self.acked: list[Tag] = []  # whose inbound ack was ordered
