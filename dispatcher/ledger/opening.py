"""Opens the ledger that the configuration names."""

from __future__ import annotations

from importlib.util import find_spec

from dispatcher.errors import ConfigurationError
from dispatcher.ledger.writer import Ledger
from dispatcher.settings import LedgerSettings


def open_ledger(settings: LedgerSettings) -> Ledger:
    """A ledger that can be written to, not started. Raises ConfigurationError."""
    if find_spec("pyarrow") is None:
        raise ConfigurationError(
            "ledger: needs pyarrow, which is not installed: pip install 'rabbitmq-group-dispatcher[ledger]'"
        )
    return Ledger(settings)
