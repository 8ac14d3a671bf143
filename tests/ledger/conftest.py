"""Fixtures of the ledger's tests: those of the running dispatcher, and a ledger to read back."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import pytest

from dispatcher.ledger.writer import Ledger
from dispatcher.settings import LedgerSettings
from tests.service.conftest import _plain_log, bench, dispatcher_process

__all__ = ["_plain_log", "bench", "dispatcher_process"]


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    """One that writes into tmp_path / "ledger", started."""
    made = Ledger(LedgerSettings(path=str(tmp_path / "ledger")))
    made.start()
    yield made
    made.stop(10)
