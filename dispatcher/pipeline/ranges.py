"""Windows over many rows, cut into ranges: no task has all rows of one group, or of one consumer, at once.

A row is judged by the rows of its window before it, but only by a few facts of these: the latest place, the
latest end, the last row. So a window with many rows is cut, in its order, into ranges, and each range gets
copies of the rows that lead in such a fact among all rows before it. A copy says the same to the rows behind
it as the row itself does, so results do not depend on where the cuts are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Final, NamedTuple

from pyspark import StorageLevel
from pyspark.sql import Column, DataFrame, Window
from pyspark.sql import functions as F

from dispatcher.pipeline.few_rows import few

#: Rows that are sorted at once, in about 100 MB: of a range, and of a part of a table.
ROWS: Final = 250_000
#: A range has as many rows as this many of a sample stand for, give or take a fifth.
_SAMPLES: Final = 25
#: The number of a row's range, and whether the row is a copy.
RANGE, IS_COPY = "in_range", "is_copy"
BEFORE: Final = (Window.unboundedPreceding, -1)
#: Makes the copies from all rows of windows that were cut, with the ranges that they are for.
Carry = Callable[[DataFrame], DataFrame]


class Leading(NamedTuple):
    """A fact: the row with the largest `value` of those before that are equal in `by`; nulls don't count."""

    value: Column
    by: tuple[str, ...] = ()


class Ranges:
    """Cuts the windows of a job over `records` records at most, into ranges of about `rows`."""

    def __init__(self, records: int, rows: int = ROWS) -> None:
        self._rows, self._has_many = rows, records > rows
        self._persisted: list[DataFrame] = []

    def cut(self, rows: DataFrame, of: Sequence[str], order: Sequence[Column], carry: Carry) -> DataFrame:
        """The rows with RANGE and IS_COPY, and the copies, which RANGE belongs to as it does to `of`.

        `of`: the columns by which the window has partitions. `order`: its order, as whole numbers. Rows with
        nulls in all of `order` stay together.
        """
        plain = rows.withColumns({RANGE: F.lit(0), IS_COPY: F.lit(False)})
        if not self._has_many:
            return plain
        place = F.array(*(each.cast("bigint") for each in order))
        cuts = _cuts(rows, of, place, self._rows).toArrow()
        if not cuts.num_rows:
            return plain
        most = max(len(each) for each in cuts["cuts"])
        found = rows.sparkSession.createDataFrame(cuts).withColumnsRenamed(
            {name: f"of_{name}" for name in of}
        )
        is_of = F.lit(True)
        for name in of:
            is_of &= F.col(name).eqNullSafe(F.col(f"of_{name}"))
        ranged = rows.join(few(found), is_of, "left").withColumn(
            RANGE, F.coalesce(_place_among("cuts", place, most), F.lit(0))
        )
        hot = ranged.where("cuts is not null").select(*rows.columns, RANGE)
        copies = carry(hot).withColumn(IS_COPY, F.lit(True))
        ranged = ranged.select(*rows.columns, RANGE, F.lit(False).alias(IS_COPY))
        return ranged.unionByName(copies, allowMissingColumns=True)

    def leading(self, of: Sequence[str], *facts: Leading) -> Carry:
        """Copies of the rows that lead in these facts."""

        def carry(rows: DataFrame) -> DataFrame:
            names = [name for name in rows.columns if name != RANGE]
            row = F.struct(*names)
            keys = sorted({name for fact in facts for name in fact.by})
            best = [_most(fact.value, row).alias(f"best_{n}") for n, fact in enumerate(facts)]
            each = rows.groupBy(*of, RANGE, *keys).agg(*best)
            each = each.select(
                RANGE, F.explode(F.array(*(f"best_{n}.row" for n in range(len(facts))))).alias("row")
            )
            leaders = self._persist(each.where("row is not null").select(RANGE, "row.*").distinct())
            copies = []
            for fact in facts:
                theirs = leaders.groupBy(*of, RANGE, *fact.by).agg(_most(fact.value, row).alias("best"))
                before = Window.partitionBy(*of, *fact.by).orderBy(RANGE).rowsBetween(*BEFORE)
                theirs = theirs.select(RANGE, F.max("best").over(before)["row"].alias("row"))
                copies.append(theirs.where("row is not null").select("row.*", RANGE))
            found = copies[0]
            for each in copies[1:]:
                found = found.unionByName(each)
            return found

        return carry

    def _persist(self, table: DataFrame) -> DataFrame:
        self._persisted.append(table.persist(StorageLevel.DISK_ONLY))
        return table

    def release(self) -> None:
        """What was cut is written."""
        while self._persisted:
            self._persisted.pop().unpersist()


def largest(of: Sequence[str], *names: str) -> Carry:
    """Copies that have nothing but the largest value so far of each of these columns."""

    def carry(rows: DataFrame) -> DataFrame:
        before = Window.partitionBy(*of).orderBy(RANGE).rowsBetween(*BEFORE)
        found = rows.groupBy(*of, RANGE).agg(*(F.max(name).alias(name) for name in names))
        return found.select(*of, RANGE, *(F.max(name).over(before).alias(name) for name in names))

    return carry


def without_copies(rows: DataFrame) -> DataFrame:
    """As they were before they were cut."""
    return rows.where(~F.col(IS_COPY)).drop(IS_COPY, RANGE)


def _most(value: Column, row: Column) -> Column:
    return F.max(F.when(value.isNotNull(), F.struct(value.alias("value"), row.alias("row"))))


def _cuts(rows: DataFrame, of: Sequence[str], place: Column, most: int) -> DataFrame:
    """Where windows of more than so many rows are cut: one row for each of these, by a sample. Its rows are
    chosen by their hashes, so that it is the same each time."""
    step = max(1, most // _SAMPLES)
    sample = rows.select(*of, place.alias("place")).where(F.pmod(F.xxhash64("place"), F.lit(step)) == 0)
    nth = F.row_number().over(Window.partitionBy(*of).orderBy("place"))
    chosen = sample.withColumn("nth", nth).where(F.col("nth") % (most // step) == 0)
    return chosen.groupBy(*of).agg(F.array_sort(F.collect_set("place")).alias("cuts"))


def _place_among(cuts: str, place: Column, most: int) -> Column:
    """How many of the sorted cuts, which are `most` at most, are no larger: a search by halves."""
    steps = F.array(*(F.lit(1 << bit) for bit in reversed(range(most.bit_length()))))
    return F.aggregate(
        steps, F.lit(0),
        lambda at, step: F.when(F.get(F.col(cuts), at + step - 1) <= place, at + step).otherwise(at),
    )  # fmt: skip
