"""How much of Spark a run needs: what one over few records takes is mostly its jobs."""

from __future__ import annotations

from tests.pipeline.conftest import Everything

JOBS_MAX = 30


def test_a_run_over_few_records_has_few_jobs(everything: Everything) -> None:
    """Also where there are gaps, violations, several leaders and lanes that hand over."""
    assert 0 < everything.jobs <= JOBS_MAX
