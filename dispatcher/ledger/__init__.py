"""The ledger: all decisions, as Parquet files for later questions (docs/ledger.md)."""
