"""Generated orders: the same in every run, and each follows from the one before it."""

from __future__ import annotations

from dispatcher.demo import order_book


def test_the_seed_makes_every_run_the_same() -> None:
    assert order_book.read_workload(500) == order_book.read_workload(500)


def test_orders_are_placed_amended_and_cancelled() -> None:
    workload = order_book.read_workload(2_000)
    kinds = {(bool(change.old), bool(change.new)) for change in workload.changes}
    assert kinds == {(False, True), (True, True), (True, False)}
    assert all(change.old != change.new for change in workload.changes)
    assert all(change.key.startswith(change.group + b"/") for change in workload.changes)


def test_the_book_at_the_end_is_that_of_a_plain_replay() -> None:
    workload = order_book.read_workload(2_000)
    book: dict[bytes, bytes] = {}
    for change in workload.changes:
        assert book.pop(change.key, b"") == change.old
        if change.new:
            book[change.key] = change.new
    assert book == workload.expected
