"""How long messages waited for their consumer while something happened to the dispatchers."""

from __future__ import annotations

from collections.abc import Iterable, Mapping

from dispatcher.judge.record import HandlingRecord, MessageKey


def longest_waits(
    record: Iterable[HandlingRecord], sent_at: Mapping[MessageKey, float], since: float, until: float
) -> dict[str, float]:
    """Group → the longest time from a message's publish to the first start of its handling, in seconds.

    Of the messages that were published between the two moments, all three on the clock of the record. A lane
    that stands still makes every group wait, the first message after its end the longest.
    """
    first: dict[MessageKey, float] = {}
    for handling in record:
        first[handling.message] = min(handling.start, first.get(handling.message, handling.start))
    longest: dict[str, float] = {}
    for message, start in first.items():
        sent = sent_at.get(message)
        if sent is not None and since <= sent <= until:
            longest[message.group] = max(longest.get(message.group, 0.0), start - sent)
    return longest
