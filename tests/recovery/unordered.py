"""The checker of a record whose groups have no owner (`concurrent`): no order, but a limit for each (F-7)."""

from __future__ import annotations

from collections import defaultdict

from dispatcher.judge.judge import Story, doubled, is_ghost, is_over_by, lost, say, that_count
from dispatcher.judge.record import UNGROUPED, HandlingRecord


def violations_without_order(record: list[HandlingRecord], story: Story, most: int) -> list[str]:
    """Everything that is wrong, in words. `record` is sorted by start; `most` of a group may be in flight."""
    alive = [handling for handling in record if not is_ghost(handling, story)]
    judged = lost(that_count(record, story), story) + doubled(alive, story)
    return [str(violation) for violation in judged] + _too_many(alive, story, most)


def _too_many(record: list[HandlingRecord], story: Story, most: int) -> list[str]:
    """Nothing begins while so many of its group are at work. Suspects go beside the limit."""
    found = []
    at_work: dict[str, list[HandlingRecord]] = defaultdict(list)
    for handling in record:
        group, at = handling.message.group, handling.start
        if group == UNGROUPED:
            continue
        others = [other for other in at_work[group] if _is_at_work(other, at, story)]
        if len(others) >= most and handling.attempt == 1:
            found.append(f"too many: {say(handling)} while {', '.join(map(say, others))}")
        at_work[group] = [*others, handling]
    return found


def _is_at_work(handling: HandlingRecord, at: float, story: Story) -> bool:
    """Nobody has forgotten it either."""
    ended = handling.end is not None and handling.end <= at
    forgotten = any(handling.start <= gap.until <= at for gap in story.forgotten)
    return not (ended or forgotten or is_over_by(handling, at, story))
