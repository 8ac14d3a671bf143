"""What a ledger says, computed with Spark: was order kept, and how long did everything take.

Transforms are functions from DataFrame to DataFrame; `run` reads, calls them and writes. Spark is imported
only here, and only when a command of it runs.
"""
