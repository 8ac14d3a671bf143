"""The ledger: what was decided, as Parquet files for later questions (docs/ledger.md)."""
