"""Reports of finished messages to the dispatcher: coalesced, confirmed, repeated when in doubt."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Final

from dispatcher.client.ranges import SeqRanges
from dispatcher.wire.protocol import Begun, FailedMessage, Settle

#: A finished message waits at most this long for company.
COALESCE_MS: Final = 5
#: Failures carry texts: this many stay far below the 16 MiB that RabbitMQ takes in one message.
FAILED_PER_SETTLE_MAX: Final = 1_000


class Settling:
    """The finished messages of one incarnation, until the broker has confirmed the settle that names them.

    Ranges hold only finished numbers, so no gap is ever closed. A settle whose confirm did not come before
    the connection was lost is taken again, unchanged: applying it twice does nothing.
    """

    def __init__(self, consumer: str, incarnation: str, *, full_count: int) -> None:
        self._consumer = consumer
        self._incarnation = incarnation
        self.full_count = full_count  # this many finished messages don't wait for more
        self._acked = SeqRanges()
        self._failed: dict[int, FailedMessage] = {}
        self._count = 0
        self._first_at_ms = 0  # when the first of the waiting ones was finished
        self._repeated: list[Settle] = []
        self._unconfirmed: dict[int, Settle] = {}
        #: Failures of this incarnation: a copy that comes again is failed again, never acked.
        self.failures: dict[int, FailedMessage] = {}
        #: Settles were given since somebody last made sure that all so far count.
        self.unsure = False

    def ack(self, seq: int, now_ms: int) -> None:
        self._acked.add(seq)
        self._counted(now_ms)

    def fail(self, failed: FailedMessage, now_ms: int) -> None:
        self._failed[failed.seq] = self.failures[failed.seq] = failed
        self._counted(now_ms)

    def again(self, seq: int, now_ms: int) -> None:
        """A copy came of a message that is finished: its settle did not arrive in time, repeat it."""
        if failed := self.failures.get(seq):
            self.fail(failed, now_ms)
        else:
            self.ack(seq, now_ms)

    def _counted(self, now_ms: int) -> None:
        if not self._count:
            self._first_at_ms = now_ms
        self._count += 1
        self.unsure = True

    def due_at_ms(self, *, nothing_in_hand: bool) -> int | None:
        """When `take` should be called: 0 at once, None if there is nothing to tell."""
        if self._repeated:
            return 0
        if not self._count:
            return None
        if nothing_in_hand or self._count >= self.full_count:
            return 0
        return self._first_at_ms + COALESCE_MS

    def take(self, begun: Begun | None = None) -> list[Settle]:
        """Everything to be told now, oldest first. Each must be given to `sent` with its token. `begun` goes
        with the last one, if that is a new one: a repeated one is as it was."""
        settles, self._repeated = self._repeated, []
        failed = list(self._failed.values())
        acked = self._acked.pairs()
        while acked or failed:
            part, failed = failed[:FAILED_PER_SETTLE_MAX], failed[FAILED_PER_SETTLE_MAX:]
            settles.append(Settle(
                consumer=self._consumer, incarnation=self._incarnation, acked=acked, failed=tuple(part),
                begun=None if failed else begun,
            ))  # fmt: skip
            acked = ()
        self._acked = SeqRanges()
        self._failed = {}
        self._count = 0
        return settles

    def sent(self, token: int, settle: Settle) -> None:
        self._unconfirmed[token] = settle

    def confirmed(self, token: int) -> None:
        """The broker has it. Unknown tokens are ignored, they are of a lost connection."""
        self._unconfirmed.pop(token, None)

    def connection_lost(self) -> None:
        """Unconfirmed settles are reported again, before newer ones."""
        self._repeated = [*self._unconfirmed.values(), *self._repeated]
        self._unconfirmed = {}

    def adopt(self, settles: Iterable[Settle]) -> None:
        """Also tell these, of an incarnation that this one follows."""
        self._repeated.extend(settles)

    def remaining(self) -> list[Settle]:
        """All that no confirm has come for; nothing of it is left here."""
        self.connection_lost()
        return self.take()

    @property
    def waiting(self) -> bool:
        """Something is finished that no settle has told yet."""
        return bool(self._count)

    @property
    def done(self) -> bool:
        """Everything finished so far is confirmed."""
        return not (self._count or self._repeated or self._unconfirmed)
