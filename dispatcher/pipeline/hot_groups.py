"""Which groups are hot, how unevenly work is spread over groups, and how much of it can run in parallel."""

from __future__ import annotations

from typing import Final

from pyspark.sql import DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.ledger.schema import Event
from dispatcher.pipeline.few_rows import few
from dispatcher.pipeline.ranges import BEFORE
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
    # Nothing else over this window: then Spark keeps the first ones only, before it puts a lane together.
    hottest = F.row_number().over(Window.partitionBy("lane").orderBy(F.desc("messages"), "group"))
    ranked = groups.withColumn("rank", hottest).where(F.col("rank") <= SHOWN_MAX)
    lanes = groups.groupBy("lane").agg(
        F.sum("messages").alias("all_messages"), F.sum("busy_us").alias("all_busy_us")
    )
    return ranked.join(few(lanes), "lane").select(
        "lane", "group", "messages", "cost", "busy_us", "rank",
        (F.col("messages") / F.col("all_messages")).alias("share"),
        F.try_divide("busy_us", "all_busy_us").alias("busy_share"),
    )  # fmt: skip


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
    # A lane has many groups, but few numbers of messages that groups have.
    sizes = groups.groupBy("lane", "messages").agg(
        F.count("*").alias("alike"), F.sum("busy_us").alias("busy_us"), F.max("busy_us").alias("busiest_us")
    )
    smaller = F.sum("alike").over(lane.orderBy("messages").rowsBetween(*BEFORE))
    larger = F.sum("alike").over(lane.orderBy(F.desc("messages")).rowsBetween(*BEFORE))
    ranked = sizes.withColumns({
        "smaller": F.coalesce(smaller, F.lit(0)), "larger": F.coalesce(larger, F.lit(0)),
    })  # fmt: skip
    count, alike, total = F.sum("alike"), F.col("alike"), F.sum(F.col("alike") * F.col("messages"))
    twice_ranks = 2 * alike * F.col("smaller") + alike * (alike + 1)
    weighted = F.sum(twice_ranks.cast("double") * F.col("messages"))
    of_top = F.greatest(F.lit(0), F.least(alike, _TOP - F.col("larger")))
    return ranked.groupBy("lane").agg(
        count.alias("groups"),
        total.alias("messages"),
        (weighted / (count * total) - (count + 1) / count).alias("gini"),
        (F.sum(of_top * F.col("messages")) / total).alias("top_share"),
        F.when(F.max("busiest_us") > 0, F.sum("busy_us") / F.max("busiest_us")).alias("parallelism_max"),
    )
