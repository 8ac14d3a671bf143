"""Times of which records are missing, for pictures that would otherwise say that nothing happened then."""

from __future__ import annotations

from collections.abc import Sequence

from dispatcher.pipeline.page.source import Source, equals


def missing_s(source: Source, lane: str, known_s: Sequence[float]) -> list[tuple[float, float]]:
    """Stretches of a lane's time, in seconds since 1970: a gap without a known end lasts until something is
    known again (`known_s`). Raises ConfigurationError."""
    found = []
    for gap in source.rows("gaps", ("since", "until", "is_boundary"), equals("lane", lane)):
        if not gap["is_boundary"] and gap["since"]:
            since = gap["since"].timestamp()
            until = (
                gap["until"].timestamp()
                if gap["until"]
                else min((second for second in known_s if second > since), default=since)
            )
            found.append((since, until))
    return found
