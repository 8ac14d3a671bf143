"""What the configuration says of the ledger, and what is said when it is wrong."""

from __future__ import annotations

import pytest

from dispatcher.errors import ConfigurationError
from dispatcher.settings import LedgerSettings
from dispatcher.settings import file as config

LANES = "lanes: {a: {inbound: [{queue: q}]}}"


def test_every_key_is_read() -> None:
    keys = "path: /l, max_age: 7d, max_bytes: 5GiB, file_age: 2s, file_rows: 10, memory: 8MiB"
    assert config.parse(f"ledger: {{{keys}}}\n{LANES}", {}).ledger == LedgerSettings(
        path="/l", max_age_ms=7 * 86_400_000, max_bytes=5 << 30, file_age_ms=2_000, file_rows=10,
        memory_bytes=8 << 20,
    )  # fmt: skip
    nothing_deleted = config.parse(f"ledger: {{path: /l, max_age: null, max_bytes: null}}\n{LANES}", {})
    assert nothing_deleted.ledger == LedgerSettings(path="/l", max_age_ms=None, max_bytes=None)


@pytest.mark.parametrize("document", [LANES, f"ledger: null\n{LANES}"])
def test_without_the_key_there_is_none(document: str) -> None:
    assert config.parse(document, {}).ledger is None


@pytest.mark.parametrize(
    ("keys", "expected"),
    [
        ("{}", "ledger.path: is required"),
        ("/var/lib", "ledger: must be a mapping of keys to values"),
        ("{path: ''}", "ledger.path: must not be empty or hold control characters"),
        ("{path: /l, max_age: 30}", "ledger.max_age: must be a duration such as 500ms, 5s or 2m"),
        ("{path: /l, max_age: 0}", "ledger.max_age: must be from 1s to 3650d"),
        ("{path: /l, max_bytes: 10}", "ledger.max_bytes: must be a size such as 64KiB, 256MiB or 1GiB"),
        ("{path: /l, file_age: 10ms}", "ledger.file_age: must be from 100ms to 1h"),
        ("{path: /l, file_rows: 0}", "ledger.file_rows: must be a positive integer"),
        ("{path: /l, memory: 1KiB}", "ledger.memory: must be from 1MiB to"),
        ("{path: /l, rows: 10}", "ledger.rows: unknown key"),
    ],
)
def test_what_is_wrong_is_named(keys: str, expected: str) -> None:
    with pytest.raises(ConfigurationError) as refused:
        config.parse(f"ledger: {keys}\n{LANES}", {})
    assert any(line.startswith(expected) for line in refused.value.problems), refused.value.problems
