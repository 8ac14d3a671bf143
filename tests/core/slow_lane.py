"""A lane for which a few groups are many."""

from __future__ import annotations

from dispatcher.core.lane import Lane


class SlowlyResetting(Lane):
    groups_reset_at_once = 2
