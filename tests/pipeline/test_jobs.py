"""How much of Spark a run needs: what one over few records takes is mostly its jobs."""

from __future__ import annotations

from itertools import pairwise

import pytest

from dispatcher.pipeline.run import parts_of
from tests.pipeline.conftest import Everything

JOBS_MAX = 30


def test_a_run_over_few_records_has_few_jobs(everything: Everything) -> None:
    """Also where there are gaps, violations, several leaders and lanes that hand over."""
    assert 0 < everything.jobs <= JOBS_MAX


@pytest.mark.parametrize("cores", [1, 2, 64])
def test_a_growing_ledger_gets_one_part_more_at_a_time(cores: int) -> None:
    parts = [parts_of(records, cores) for records in range(0, 40_000_001, 10_000)]
    assert {more - fewer for fewer, more in pairwise(parts)} == {0, 1}
    assert (parts[0], parts[-1]) == (1, 160)
    assert parts_of(5_000_000, cores) == max(20, cores)
