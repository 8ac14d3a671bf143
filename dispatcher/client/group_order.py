"""The check that no copy of a group was lost on its way."""

from __future__ import annotations

from typing import Final

#: Groups whose last number is remembered: about 20 MB of them, and more than any prefetch.
GROUPS_REMEMBERED_MAX: Final = 100_000


class GroupOrder:
    """Knows the last `x-dispatch-group-seq` of each group and its epoch.

    Remembers the `limit` groups that got something last. Epochs of a lane only rise, so a group that isn't
    remembered and has an epoch above all forgotten ones is surely new and must begin with 1; one with a
    lower epoch may have been forgotten, and its first number is taken as it comes.
    """

    __slots__ = ("_forgotten_epoch", "_last", "_limit")

    def __init__(self, limit: int = GROUPS_REMEMBERED_MAX) -> None:
        self._limit = limit
        self._last: dict[bytes | None, tuple[int, int]] = {}  # group → (epoch, group-seq), oldest first
        self._forgotten_epoch = 0  # the highest epoch of a forgotten group

    def admit(self, group: bytes | None, epoch: int, group_seq: int) -> bool:
        """Whether this copy is the successor of the last one admitted; if so it is the last one now."""
        known = self._last.pop(group, None)
        if known is None:
            admitted = group_seq == 1 or epoch <= self._forgotten_epoch
        elif epoch == known[0]:
            admitted = group_seq == known[1] + 1
        else:
            admitted = epoch > known[0] and group_seq == 1
        if admitted:
            self._last[group] = (epoch, group_seq)
            if len(self._last) > self._limit:
                self._forget_oldest()
        elif known is not None:
            self._last[group] = known
        return admitted

    def _forget_oldest(self) -> None:
        oldest = next(iter(self._last))
        epoch, _ = self._last.pop(oldest)
        self._forgotten_epoch = max(self._forgotten_epoch, epoch)

    def __len__(self) -> int:
        return len(self._last)
