"""What `groups list --state` may ask for. The program imports this, and nothing else of the views."""

from __future__ import annotations

from enum import StrEnum


class AskedState(StrEnum):
    """The states of a group, of which it has one, and what else may be said of it."""

    FREE = "free"
    OWNED = "owned"
    BATCHED = "batched"
    DRAINING = "draining"
    RECOVERING = "recovering"
    # what operators have set or ordered, and what has become of it
    PAUSED = "paused"
    PINNED = "pinned"
    STOPPED = "stopped"
    DRAINED = "drained"  # its consumer is
    OPERATION = "operation"
    PARKED = "parked"
