"""The lanes of a run."""

from __future__ import annotations

from dataclasses import dataclass

from dispatcher.wire.shards import ShardNames, shard_name, shard_number, whole_name
from tests.chaos.plan import HANDOVER


@dataclass(frozen=True, slots=True)
class LaneOnStage:
    """One lane with a classic and a quorum inbound queue, on a cluster with two quorum queues; or one shard
    of such a lane."""

    name: str
    policy: str  # or HANDOVER
    shards: int = 1  # of the lane

    @property
    def whole(self) -> str:
        """As the configuration names the lane; all its shards have producers in common."""
        return whole_name(self.name)

    @property
    def configured_queues(self) -> list[str]:
        """So it names the inbound queues; producers have them as routing keys."""
        return [f"{self.whole}.high", f"{self.whole}.low"]

    @property
    def queues(self) -> list[str]:
        number = shard_number(self.name)
        return [queue if number is None else shard_name(queue, number) for queue in self.configured_queues]

    @property
    def exchange(self) -> str:
        """Where producers publish."""
        return ShardNames(self.whole).exchange if self.shards > 1 else ""

    @property
    def labels(self) -> str:
        """Of the lane's metrics."""
        number = shard_number(self.name)
        return f'lane="{self.whole}"' + (f',shard="{number}"' if number is not None else "")

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
