"""A member with a clock, for the tests of the machine."""

from __future__ import annotations

from dataclasses import dataclass
from itertools import count
from typing import Any

from dispatcher.client.begun import BegunMessages
from dispatcher.client.member import Member
from dispatcher.client.orders import MemberOrder, OpenQueue, Publish

OFFLINE_LIMIT_MS = 30_000


@dataclass(eq=False)
class Copy:
    seq: int
    group: bytes | None = None
    group_seq: int = 0
    epoch: int = 0
    fingerprint: bytes = b"\0" * 16

    def note_in(self, begun: BegunMessages) -> None:
        self.begun = begun

    def begin(self) -> None:
        self.begun.add(self.seq)


class Subject:
    """A member with a clock, and what it ordered last."""

    def __init__(self, prefetch: int = 10, left_out: float = 0) -> None:
        self.now_ms = 1_000
        self.member: Member[Copy] = Member(
            "c1", "uuid-1", prefetch, tokens=count(1), offline_limit_ms=OFFLINE_LIMIT_MS, now_ms=self.now_ms,
            chance=lambda: left_out,
        )  # fmt: skip

    def poll(self, after_ms: int = 0) -> list[MemberOrder]:
        self.now_ms += after_ms
        return self.member.poll(self.now_ms)

    def said(self, after_ms: int = 0) -> list[Any]:
        """Control messages that it publishes now; each is confirmed at once."""
        said = []
        for order in self.poll(after_ms):
            if isinstance(order, Publish):
                said.append(order.message)
                self.member.confirmed(order.token)
        return said

    def open(self, queue: str = "q1") -> None:
        assert isinstance(self.poll()[0], OpenQueue)
        self.member.queue_opened(queue, self.now_ms)

    def notice(self, kind: str, **body: Any) -> None:
        self.member.notice_received(f"dispatch.{kind}", body, self.now_ms)

    def join(self) -> None:
        self.open()
        self.said()
        self.welcome()
        self.said()  # the first heartbeat

    def welcome(self, **body: Any) -> None:
        self.notice("welcome", n=self.member.n, incarnation="uuid-1", heartbeat=200, **body)

    def receive(self, *copies: Copy) -> list[bool]:
        return [self.member.copy_received(copy, self.now_ms) for copy in copies]

    def ack(self, *seqs: int) -> None:
        for seq in seqs:
            assert self.member.acked(seq, self.now_ms)

    def lose_connection(self) -> None:
        self.member.connection_lost("cut", self.now_ms)


def ordered(group: bytes, *numbers: int, epoch: int = 7, first_seq: int = 100) -> list[Copy]:
    return [Copy(first_seq + number, group, number, epoch) for number in numbers]
