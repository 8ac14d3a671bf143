"""Tables of few rows: joined with large ones, and brought here together."""

from __future__ import annotations

from collections.abc import Mapping
from functools import reduce

import pyarrow as pa
from pyspark.sql import DataFrame
from pyspark.sql import functions as F

PARTS = "spark.sql.shuffle.partitions"
#: More rows than that are not sent to every machine.
FEW = 200_000


def few(table: DataFrame) -> DataFrame:
    """The side of a join, by equal columns, that has few rows. Each machine gets all of them, which is a job
    of its own; where results are in one part, the rows are put there instead."""
    if table.sparkSession.conf.get(PARTS) == "1":
        return table.coalesce(1).hint("shuffle_hash")
    return F.broadcast(table)


def sorted_by(table: DataFrame, *keys: str) -> DataFrame:
    """Rows of one key in one part, beside each other: then each key is aggregated once, and no parts of
    results are merged. Where all is in one part, Spark needs no sort for that."""
    if table.sparkSession.conf.get(PARTS) == "1":
        return table
    return table.repartition(*keys).sortWithinPartitions(*keys)


def together(tables: Mapping[str, DataFrame]) -> dict[str, pa.Table]:
    """All rows of these tables, by name, in their order: one job for all of them."""
    # Each table is a column of lists of one row: a list may be null whatever its rows say of their columns.
    each = [table.select(F.array(F.struct(*table.columns)).alias(name)) for name, table in tables.items()]
    rows = reduce(lambda one, other: one.unionByName(other, allowMissingColumns=True), each).toArrow()
    return {name: pa.Table.from_struct_array(rows[name].combine_chunks().flatten()) for name in tables}
