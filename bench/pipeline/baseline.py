"""What plain Spark SQL takes for the heaviest single aggregate of a ledger: the measure of `bench.pipeline`,
in a process of its own like the run.
"""

from __future__ import annotations

import sys

from dispatcher.pipeline.session import heap_setting, spark_session

#: Counts and percentiles of every group, by hour: the most keys, and the values that are dearest to gather.
HEAVIEST = """
select lane, `group`, date_trunc('hour', time) as hour, count(*), sum(size), sum(cost),
    percentile_approx(unix_micros(dispatched_at) - unix_micros(received_at), array(.5, .95, .99), 2000),
    percentile_approx(unix_micros(committed_at) - unix_micros(dispatched_at), array(.5, .95, .99), 2000),
    percentile_approx(unix_micros(confirmed_at) - unix_micros(committed_at), array(.5, .95, .99), 2000),
    percentile_approx(unix_micros(time) - unix_micros(committed_at), array(.5, .95, .99), 2000)
from ledger where event in ('settled', 'failed', 'taken_back') and `group` is not null
group by lane, `group`, hour
"""


def main() -> None:
    ledger, output, records = sys.argv[1:]
    with spark_session(None, heap_setting(int(records))) as spark:
        spark.read.parquet(ledger).createOrReplaceTempView("ledger")
        named = spark.sql(HEAVIEST).toDF("lane", "group", "hour", "n", "bytes", "cost", "w", "c", "f", "p")
        named.write.mode("overwrite").parquet(output)


if __name__ == "__main__":
    main()
