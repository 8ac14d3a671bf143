"""What consumers do with which message, by its number: known to who sends it and to who judges."""

from __future__ import annotations

from dispatcher.judge.record import UNGROUPED, MessageKey

#: The reason of what its consumer gave up.
FAILED = "every fortieth"


def is_closing(message: MessageKey) -> bool:
    """Its producer says that the group ends with it."""
    return message.group != UNGROUPED and message.number % 25 == 0


def is_failing(message: MessageKey) -> bool:
    """Its consumer gives it up."""
    return message.number % 40 == 7


def is_mending(message: MessageKey) -> bool:
    """Of those that fail: its second hand-over succeeds, where consumers retry."""
    return message.number % 80 == 47
