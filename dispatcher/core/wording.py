"""Words that sentences for operators have in common."""

from __future__ import annotations

from datetime import UTC, datetime

from dispatcher.core.holds import Facts


def counted(count: int, what: str) -> str:
    """`1 message`, `2 messages`"""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def times(count: int) -> str:
    """`once`, `twice`, `3 times`"""
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def in_flight_are(facts: Facts) -> str:
    """`1 in flight is`, `2 in flight are`"""
    count = facts["in_flight"]
    return f"{count} in flight {'is' if count == 1 else 'are'}"


def named(facts: Facts) -> str:
    """A consumer, within a sentence."""
    name = facts["consumer"]
    return f"its owner {name}" if facts["is_owner"] else f"consumer {name}, to which it is pinned,"


def begin(sentence: str) -> str:
    """With a capital letter."""
    return sentence[0].upper() + sentence[1:]


def since(at_ms: int | None) -> str:
    """` since …`, behind another word; nothing if the time is not known."""
    if at_ms is None:
        return ""
    return f" since {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"
