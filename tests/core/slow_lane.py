"""A lane for which a few groups are many."""

from __future__ import annotations

from typing import Any

from dispatcher.core.lane import Lane
from dispatcher.core.operators.reset_owners import OwnerReset


class SlowlyResetting(Lane):
    groups_at_once = 2

    def __init__(self, *arguments: Any) -> None:
        super().__init__(*arguments)
        reset = self.state.find(OwnerReset)
        assert reset is not None
        reset.at_once = self.groups_at_once
