"""How the shards of a lane are called, and what leads to them.

A lane `orders` with `shards: 4` is four lanes, `orders@1` to `orders@4`, each with inbound queues of its own:
`orders.high@1` … Producers publish to one exchange, which finds the shard of a group.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final, NamedTuple

from dispatcher.wire.protocol import DEFAULT_PREFIX, LaneNames

#: No lane that the configuration names has it in its name.
SEPARATOR: Final = "@"
SHARDS_MAX: Final = 64
#: A few names differ in what they are made for; so long is the part that says it.
FINGERPRINT_CHARACTERS: Final = 16


class Shard(NamedTuple):
    """One of the lanes that a lane with `shards` is made of."""

    lane: str  # as the configuration names it
    number: int  # from 1
    shards: int  # so many there are


def shard_name(name: str, number: int) -> str:
    """Of a shard, by the name of its lane; of its inbound queue, by the name in the configuration."""
    return f"{name}{SEPARATOR}{number}"


def whole_name(name: str) -> str:
    """What `name` is a shard of; itself, if it is none."""
    return name.partition(SEPARATOR)[0]


def without_number(name: str) -> str:
    """The name of a lane, if this is the name of one or of a shard; else no name of any lane."""
    return name if shard_number(name) is None else whole_name(name)


def shard_number(name: str) -> int | None:
    """The number in the name of a shard; None: it is none."""
    number = name.partition(SEPARATOR)[2]
    return int(number) if number.isascii() and number.isdecimal() else None


def lane_order(name: str) -> tuple[str, int]:
    """Names of lanes sorted by it are in the order of the alphabet, and those of shards in that of their
    numbers."""
    return without_number(name), shard_number(name) or 0


@dataclass(frozen=True, slots=True)
class ShardNames:
    """What a lane with shards has on the broker beside the lanes that it is made of."""

    lane: str  # as the configuration names it
    prefix: str = DEFAULT_PREFIX

    @property
    def exchange(self) -> str:
        """Where producers publish."""
        return f"{self.prefix}.{self.lane}{SEPARATOR}shards"

    @property
    def placement(self) -> str:
        """An exchange that nobody publishes to: it keeps which shards groups were in."""
        return f"{self.exchange}.placement"

    @property
    def kept_ring(self) -> str:
        """The same; it keeps which ring led there."""
        return f"{self.exchange}.ring"

    @property
    def kept(self) -> tuple[str, ...]:
        """In the order in which they go: without `kept_ring` the lane has no shards."""
        return self.placement, self.kept_ring

    def placed(self, fingerprint: str) -> str:
        """What `placement` has as its alternate exchange, and so keeps. There is no such exchange."""
        return f"{self.exchange}.placed.{fingerprint}"

    def ring(self, count: int, fingerprint: str) -> str:
        """The consistent-hash exchange over so many shards."""
        return f"{self.exchange}.{count}.{fingerprint}"

    def shard(self, number: int) -> LaneNames:
        return LaneNames(shard_name(self.lane, number), self.prefix)

    def entrance(self, number: int) -> str:
        return self.shard(number).entrance
