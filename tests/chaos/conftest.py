"""What the tests of the verdict share."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.doctored import Doctored
from tests.pipeline.conftest import spark  # where both are used, one Spark serves them: sessions nest

__all__ = ["spark"]


@pytest.fixture
def doctored(tmp_path: Path) -> Doctored:
    return Doctored(tmp_path)
