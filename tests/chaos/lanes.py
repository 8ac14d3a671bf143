"""The lanes of a run."""

from __future__ import annotations

from dataclasses import dataclass

from tests.chaos.plan import HANDOVER


@dataclass(frozen=True, slots=True)
class LaneOnStage:
    """One lane with a classic and a quorum inbound queue, on a cluster with two quorum queues."""

    name: str
    policy: str  # or HANDOVER

    @property
    def queues(self) -> list[str]:
        return [f"{self.name}.high", f"{self.name}.low"]

    @property
    def target(self) -> str:
        """What an operator moves elsewhere is moved there."""
        return f"{self.name}.elsewhere"

    @property
    def keeps_owner(self) -> bool:
        return self.policy == "exclusive"

    @property
    def hands_over(self) -> bool:
        """Its consumers only read their queues."""
        return self.policy == HANDOVER
