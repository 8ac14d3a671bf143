"""How long `dispatcher pipeline run` takes on large ledgers (docs/benchmarks.md)."""
