"""The owners of groups at the end of a ledger: from its records of owners, and from each group's last
hand-over."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, Final, NamedTuple
from zlib import crc32

from pyspark.sql import DataFrame
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.ledger_reading import micros, micros_of
from dispatcher.wire.group_text import parse_group

_MESSAGE: Final = ("inbound", "arrival_epoch", "arrival")
#: What a dispatcher tells of groups that operators keep where they are.
_PINNED, _UNPINNED = "group_pinned", "group_unpinned"


class MessageOrigin(NamedTuple):
    """One of a group."""

    inbound: str | None
    arrival_epoch: int | None
    arrival: int | None


class Owner(NamedTuple):
    """The owner of a unit, as far as the ledger tells; None: it has none."""

    consumer: str | None
    incarnation: str | None


class Holder(NamedTuple):
    """Who got the latest message of a group, and when: a leader's turn, and µs by its clock."""

    group: str
    consumer: str
    incarnation: str
    epoch: int
    turn: int
    at_us: int
    message: MessageOrigin

    @classmethod
    def of(cls, row: dict[str, Any]) -> Holder:
        message = MessageOrigin(*(row.pop(name) for name in _MESSAGE))
        return cls(**row, message=message)


class LastOwner(NamedTuple):
    """The last that the ledger tells of a group's or bucket's owner, and when; `turn` None: nothing.
    `closed_by`: the message that closed the group the last time; `pinned_to`: the consumer that an operator
    has pinned it to."""

    group: str
    owner: Owner
    turn: int | None
    at_us: int
    closed_by: MessageOrigin
    pinned_to: str | None = None


def owners(records: DataFrame) -> DataFrame:
    """One row for each group or bucket with records of an owner, a close, a pin or the end of a pin."""
    order = ("turn", "ordinal")
    changed, closed = F.col("event") == Event.OWNER_CHANGED, F.col("event") == Event.CLOSED
    pinned = F.col("event").isin([_PINNED, _UNPINNED])
    of_groups = records.where((changed | closed | pinned) & F.col("group").isNotNull())
    found = of_groups.groupBy("lane", "group").agg(
        F.max(F.when(changed, F.struct(*order, "time", "consumer", "incarnation"))).alias("owner"),
        F.max(F.when(closed, F.struct(*order, *_MESSAGE))).alias("closed"),
        F.max(F.when(pinned, F.struct(*order, "event", "consumer"))).alias("pin"),
    )
    return found.select(
        "lane", "group", "owner.consumer", "owner.incarnation", "owner.turn",
        F.col("owner.time").alias("since"),
        *(F.col(f"closed.{name}").alias(f"closed_{name}") for name in _MESSAGE),
        F.when(F.col("pin.event") == _PINNED, F.col("pin.consumer")).alias("pinned_to"),
    )  # fmt: skip


def read_told(owners: Iterable[dict[str, Any]]) -> list[LastOwner]:
    """Of the table's rows of one lane."""
    return [
        LastOwner(
            row["group"], Owner(row["consumer"], row["incarnation"]), row["turn"],
            0 if row["since"] is None else micros_of(row["since"]),
            MessageOrigin(*(row[f"closed_{name}"] for name in _MESSAGE)), row["pinned_to"],
        )
        for row in owners
    ]  # fmt: skip


def last_holders(hand_overs: DataFrame) -> DataFrame:
    """Of one lane's hand-overs, rows for `Holder.of`, one for each group."""
    told = F.struct("consumer", "incarnation", "epoch", "began", *_MESSAGE)
    latest = F.max_by(told, F.struct("epoch", "group_seq"))
    of_groups = hand_overs.where("group is not null and group_seq > 0 and consumer is not null")
    return of_groups.groupBy("group").agg(latest.alias("latest")).select(
        "group", "latest.consumer", "latest.incarnation", "latest.epoch", "latest.began.turn",
        micros("latest.began.time").alias("at_us"), *(f"latest.{name}" for name in _MESSAGE),
    )  # fmt: skip


def unit_of(group: str, buckets: int | None) -> str:
    """The unit that has an owner: the group, or its bucket (docs/semantics.md, O-15)."""
    return group if buckets is None else f"bucket:{crc32(parse_group(group)) % buckets}/{buckets}"


def owned(holders: Iterable[Holder], told: Iterable[LastOwner], buckets: int | None) -> dict[str, Owner]:
    """By unit, its owner as last recorded: by a record of its owner, or by a hand-over since. Groups that
    were closed by their last message have none any more."""
    latest: dict[str, Holder] = {}
    for holder in holders:
        unit = unit_of(holder.group, buckets)
        if unit not in latest or latest[unit].epoch < holder.epoch:
            latest[unit] = holder
    last_told = {each.group: each for each in told}
    found = {}
    for unit, holder in latest.items():
        found[unit] = Owner(holder.consumer, holder.incarnation)
        word = last_told.get(unit)
        if word is None or word.turn is None or (word.turn, word.at_us) < (holder.turn, holder.at_us):
            continue
        found[unit] = word.owner
        closes = word.closed_by == holder.message and None not in holder.message
        if word.owner.consumer is None and buckets is None and closes:
            del found[unit]
    return found
