"""Judges from outside whether messages were handled as promised: nothing lost, nothing twice, in order.

- `record`: what each consumer process notes of every message, before and after it handles it, and the reader
- `judge`: everything in such records that the guarantees of docs/semantics.md don't allow

It knows nothing of the dispatcher but its promises. The demo judges itself with it, and so do the tests that
kill processes.
"""
