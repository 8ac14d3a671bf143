"""Where the dispatcher's CPU time goes. docs/benchmarks.md says how to read it."""
