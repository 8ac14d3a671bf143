"""Windows over many rows, cut into ranges: no task has all rows of one group, or of one consumer, at once.

A row is judged by the rows of its window before it, but only by a few facts of these: the latest place, the
latest end, the last row. So a window with many rows is cut, in its order, into ranges, and each range gets
copies of the rows that lead in such a fact among all rows before it. A copy has what counts for that fact. It
says the same to the rows behind it as the row itself, so results do not depend on where the cuts are.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from functools import reduce
from typing import Final, NamedTuple

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
    """A fact: the largest `value` of the rows before that are equal in `by`; nulls don't count. A copy has
    these columns, and those of `columns`, from which the value is made."""

    value: Column
    by: tuple[str, ...]
    columns: tuple[str, ...]


class Ranges:
    """Cuts the windows of a job over `records` records at most, into ranges of about `rows`."""

    def __init__(self, records: int, rows: int = ROWS) -> None:
        self._rows, self._has_many = rows, records > rows

    def cut(
        self, rows: DataFrame, of: Sequence[str], order: Sequence[Column], carry: Carry,
        alike: DataFrame | None = None,
    ) -> DataFrame:  # fmt: skip
        """The rows with RANGE and IS_COPY, and the copies; without these where no window is cut.

        `of`: the columns by which the window has partitions. `order`: its order, as whole numbers. Rows with
        nulls in all of `order` stay together. `alike`: the same rows with at least these columns, where they
        take less time to make.
        """
        if not self._has_many:
            return rows
        place = F.array(*(each.cast("bigint") for each in order))
        cuts = _cuts(rows if alike is None else alike, of, place, self._rows).toArrow()
        if not cuts.num_rows:
            return rows
        if alike is not None:
            rows = _planned_alone(rows)
        most = max(len(each) for each in cuts["cuts"])
        found = rows.sparkSession.createDataFrame(cuts).withColumnsRenamed(
            {name: f"of_{name}" for name in of}
        )
        is_of = F.lit(True)
        for name in of:
            is_of &= F.col(name).eqNullSafe(F.col(f"of_{name}"))
        is_cut = F.col("cuts").isNotNull()
        ranged = rows.join(few(found), is_of, "left").withColumn(
            RANGE, F.when(is_cut, _place_among("cuts", place, most)).otherwise(0)
        )
        copies = _planned_alone(carry(ranged.where(is_cut).select(*rows.columns, RANGE)))
        ranged = ranged.select(*rows.columns, RANGE, F.lit(False).alias(IS_COPY))
        return ranged.unionByName(copies.withColumn(IS_COPY, F.lit(True)), allowMissingColumns=True)


def leading(of: Sequence[str], *facts: Leading) -> Carry:
    """Copies of the rows that lead in these facts."""

    def carry(rows: DataFrame) -> DataFrame:
        keys = sorted({name for fact in facts for name in fact.by})
        best = [_most(fact).alias(f"best_{n}") for n, fact in enumerate(facts)]
        leaders = _planned_alone(rows.groupBy(*of, RANGE, *keys).agg(*best))
        copies = []
        for n, fact in enumerate(facts):
            theirs = leaders.groupBy(*of, RANGE, *fact.by).agg(F.max(f"best_{n}").alias("best"))
            before = Window.partitionBy(*of, *fact.by).orderBy(RANGE).rowsBetween(*BEFORE)
            theirs = theirs.select(*of, RANGE, *fact.by, F.max("best").over(before)["copy"].alias("copy"))
            copies.append(theirs.where("copy is not null").select(*of, RANGE, *fact.by, "copy.*"))
        return reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), copies)

    return carry


def largest(of: Sequence[str], *names: str) -> Carry:
    """Copies that have nothing but the largest value so far of each of these columns."""

    def carry(rows: DataFrame) -> DataFrame:
        before = Window.partitionBy(*of).orderBy(RANGE).rowsBetween(*BEFORE)
        found = rows.groupBy(*of, RANGE).agg(*(F.max(name).alias(name) for name in names))
        return found.select(*of, RANGE, *(F.max(name).over(before).alias(name) for name in names))

    return carry


def _planned_alone(table: DataFrame) -> DataFrame:
    """The same rows, without the plan that makes them. Spark goes over a whole plan for each step that is put
    on it, and over what a table has in common with one that it is joined with: of copies, within all that an
    audit does with its rows, that did not end."""
    return table.localCheckpoint(eager=False)


def within_range(rows: DataFrame, of: Sequence[str]) -> tuple[str, ...]:
    """The columns by which a window over rows that `cut` has made has partitions. A range that is the same
    for all rows would hide from Spark that they are in order."""
    return (*of, RANGE) if RANGE in rows.columns else (*of,)


def originals(rows: DataFrame) -> DataFrame:
    """Without copies; with RANGE, if anything was cut."""
    return rows.where(~F.col(IS_COPY)).drop(IS_COPY) if IS_COPY in rows.columns else rows


def without_copies(rows: DataFrame) -> DataFrame:
    """As they were before they were cut."""
    return originals(rows).drop(RANGE)


def _most(fact: Leading) -> Column:
    found = F.struct(fact.value.alias("value"), F.struct(*fact.columns).alias("copy"))
    return F.max(F.when(fact.value.isNotNull(), found))


def _cuts(rows: DataFrame, of: Sequence[str], place: Column, most: int) -> DataFrame:
    """Where windows of more than `most` rows are cut: one row for each window, by a sample. Its rows are
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
