"""Buckets: groups by the hash of their id, so that memory does not grow with the ids (A18, C20).

A bucket stands where a group does: it has the owner, the order and the state, and the messages of its ids
wait in one line. Only what consumers see counts by id: `x-dispatch-group` is the id as it came, and
`x-dispatch-group-seq` must be contiguous for it. So a bucket numbers each id for itself, and remembers an
id only as long as something of it is in flight; afterwards the id begins with 1 under a new epoch.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from typing import Final
from zlib import crc32

from dispatcher.core.model import Group, GroupState, Original

#: What buckets are called, in Redis and by operators: number and how many there are. Owners of another number
#: of buckets are strangers, so that a lane that is resized begins without owners.
_BEGIN: Final = b"bucket:"
_NAME: Final = re.compile(_BEGIN + rb"([0-9]+)/([0-9]+)")
#: Makes the group of a key, in a state.
GroupMaker = Callable[[bytes, GroupState], Group]


class IdNumbers:
    """The numbers of one id that has something in flight."""

    __slots__ = ("epoch", "in_flight", "last_seq")

    def __init__(self) -> None:
        self.epoch = 0
        self.last_seq = 0
        self.in_flight = 0


class Bucket(Group):
    """All groups whose ids have one hash."""

    __slots__ = ("lines", "_next_epoch")

    def __init__(self, key: bytes, state: GroupState, next_epoch: Callable[[], int]) -> None:
        super().__init__(key, state)
        self._next_epoch = next_epoch  # of the lane: larger than all before
        self.lines: dict[bytes, IdNumbers] = {}

    def number(self, message: Original) -> None:
        line = self._line(message)
        if line.epoch < self.epoch or not line.epoch:
            line.epoch, line.last_seq = self._next_epoch(), 0
        line.last_seq += 1
        message.group_seq, message.epoch = line.last_seq, line.epoch

    def gave_last(self, message: Original) -> bool:
        """An id of which nothing is out any more begins anew by itself."""
        line = self.lines.get(message.group_id or b"")
        is_last = line is not None and message.group_seq == line.last_seq and message.epoch == line.epoch
        return is_last or not self.epoch

    def renumbered(self, message: Original) -> None:
        line = self._line(message)
        line.epoch, line.last_seq = message.epoch, message.group_seq

    def goes_on(self, latest: Original, assigned_epoch: int) -> None:
        """Each of its ids does, see `count_out`, but for those whose numbers were to begin anew since."""
        self.epoch = assigned_epoch or min(line.epoch for line in self.lines.values())

    def count_out(self, message: Original) -> None:
        self.in_flight += 1
        line = self._line(message)
        line.in_flight += 1
        line.epoch, line.last_seq = max((line.epoch, line.last_seq), (message.epoch, message.group_seq))

    def count_back(self, message: Original) -> None:
        self.in_flight -= 1
        line = self._line(message)
        line.in_flight -= 1
        if not line.in_flight:
            del self.lines[message.group_id or b""]

    def _line(self, message: Original) -> IdNumbers:
        group_id = message.group_id or b""
        line = self.lines.get(group_id)
        if line is None:
            line = self.lines[group_id] = IdNumbers()
        return line


class GroupMap:
    """Which group the messages of an id belong to: the one of that id, or a bucket.

    Not `grouped`: order binds none of them."""

    def __init__(self, buckets: int | None, *, grouped: bool = True) -> None:
        self._buckets = buckets
        self._grouped = grouped

    def maker(self, next_epoch: Callable[[], int]) -> GroupMaker:
        """What makes the groups; `next_epoch` is for buckets, which number their ids for themselves."""
        return Group if self._buckets is None else partial(Bucket, next_epoch=next_epoch)

    def key(self, group_id: bytes) -> bytes:
        """The key of the group; the same in every process and version."""
        if self._buckets is None:
            return group_id
        return b"bucket:%d/%d" % (crc32(group_id) % self._buckets, self._buckets)

    def order_key(self, message: Original) -> bytes | None:
        """The key of the group whose order binds the message; None: no order does."""
        return self.key(message.group_id) if self._grouped and message.group_id is not None else None

    def named(self, name: bytes) -> bytes:
        """The key of the group that an operator names: by an id, or a bucket as it is shown."""
        return name if self.is_bucket(name) else self.key(name)

    def may_have(self, key: bytes) -> bool:
        """Whether a group of this key can have been made by this map, not by one of another kind or size."""
        if self._buckets is not None:
            return self.is_bucket(key)
        # A start asks this of each of a million keys, and few begin so.
        return not key.startswith(_BEGIN) or _NAME.fullmatch(key) is None

    def differs_from(self, buckets: int | None) -> str | None:
        """How this map differs from the one with that number of buckets; None: not at all."""
        if buckets == self._buckets:
            return None
        return f"for a lane {_grouping(buckets)}, and this lane is one {_grouping(self._buckets)}"

    def is_bucket(self, key: bytes) -> bool:
        """Whether it is the key of a bucket of this map."""
        found = _NAME.fullmatch(key)
        if found is None or self._buckets is None:
            return False
        number, count = (int(digits) for digits in found.groups())
        return count == self._buckets > number


def _grouping(buckets: int | None) -> str:
    return "without buckets" if buckets is None else f"with {buckets} buckets"
