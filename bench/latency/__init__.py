"""Where a message spends its time at a steady rate. docs/benchmarks.md says how to read it."""
