"""docs/features.md says what is true: every row has its tests, every mark its row."""

from __future__ import annotations

from tests.features.page import FAMILIES, PAGE, page, proofs, rows

#: Rows of each family, in all.
COUNTS = {"Q": 27, "A": 32, "C": 24, "R": 27, "D": 14}


def test_the_page_is_the_one_that_the_marks_make() -> None:
    assert PAGE.read_text() == page(proofs()), "run: python -m tests.features.page"


def test_every_mark_names_a_row() -> None:
    assert set(proofs()) <= set(rows())


def test_no_row_is_missing() -> None:
    expected = [f"{letter}{number}" for letter in FAMILIES for number in range(1, COUNTS[letter] + 1)]
    assert list(rows()) == expected
