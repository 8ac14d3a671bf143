"""Which groups are hot, how unevenly work is spread over groups, and how much of it can run in parallel."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.few_rows import few
from dispatcher.pipeline.work import busy_us, whole_us

#: How many of each lane's groups, the hottest ones, have a row.
SHOWN_MAX: Final = 100
#: How many of these have rows by consumer.
HELD_MAX: Final = 20
_TOP: Final = 10


def shares(worked: DataFrame) -> DataFrame:
    """What each consumer had of each group on a `day` (`work.worked`): `hand_overs` that ended and the work
    that they took; of settled messages also `messages`, `cost` and `settled_us`. Days add up."""
    settled = F.col("outcome") == Event.SETTLED
    theirs = worked.where(F.col("ended_at").isNotNull() & F.col("group").isNotNull())
    return theirs.groupBy("day", "lane", "group", "consumer").agg(
        F.count("*").alias("hand_overs"),
        busy_us(),
        F.count(F.when(settled, 1)).alias("messages"),
        F.coalesce(F.sum(F.when(settled, F.col("cost"))), F.lit(0)).alias("cost"),
        whole_us(F.when(settled, F.col("work_us"))).alias("settled_us"),
    )


def by_group(shares: DataFrame) -> DataFrame:
    """Messages settled and the work that they took, of each group that has any."""
    return (
        shares.groupBy("lane", "group")
        .agg(
            F.sum("messages").alias("messages"), F.sum("cost").alias("cost"),
            F.sum("settled_us").alias("busy_us"),
        )
        .where("messages > 0")
    )  # fmt: skip


def hot_groups(groups: DataFrame) -> DataFrame:
    """The groups with most messages, with their shares of the lane's."""
    lane = Window.partitionBy("lane")
    ranked = groups.withColumns({
        "rank": F.row_number().over(lane.orderBy(F.desc("messages"), "group")),
        "share": F.col("messages") / F.sum("messages").over(lane),
        "busy_share": F.try_divide("busy_us", F.sum("busy_us").over(lane)),
    })  # fmt: skip
    return ranked.where(F.col("rank") <= SHOWN_MAX)


def holders(shares: DataFrame, unended: DataFrame, hot: DataFrame) -> DataFrame:
    """Who had the hottest groups: `hand_overs` and `busy_us` of each of them and a consumer. `unended` are
    the hand-overs that have no end so far."""
    hottest = hot.where(F.col("rank") <= HELD_MAX).select("lane", "group", "rank")
    in_hand = unended.select("lane", "group", "consumer").withColumns({
        "hand_overs": F.lit(1).cast("bigint"), "busy_us": F.lit(0).cast("bigint"),
    })  # fmt: skip
    theirs = shares.select(*in_hand.columns).unionByName(in_hand).join(few(hottest), ["lane", "group"])
    return theirs.groupBy("lane", "rank", "group", "consumer").agg(
        F.sum("hand_overs").alias("hand_overs"), F.sum("busy_us").alias("busy_us")
    )


def concentration(groups: DataFrame) -> DataFrame:
    """One row for each lane: `groups`, `messages`, `gini` of the groups' messages (0: all the same, near 1:
    one has all), `top_share` of the ten with most, and `parallelism_max`: how many consumers can be busy on
    average, because a group is one's at a time."""
    lane = Window.partitionBy("lane")
    ranked = groups.withColumns({
        "up": F.row_number().over(lane.orderBy("messages", "group")),
        "down": F.row_number().over(lane.orderBy(F.desc("messages"), F.desc("group"))),
    })  # fmt: skip
    count, total = F.count("*"), F.sum("messages")
    weighted = F.sum((2 * F.col("up")).cast("double") * F.col("messages"))
    return ranked.groupBy("lane").agg(
        count.alias("groups"),
        total.alias("messages"),
        (weighted / (count * total) - (count + 1) / count).alias("gini"),
        (F.sum(F.when(F.col("down") <= _TOP, F.col("messages")).otherwise(0)) / total).alias("top_share"),
        F.when(F.max("busy_us") > 0, F.sum("busy_us") / F.max("busy_us")).alias("parallelism_max"),
    )
