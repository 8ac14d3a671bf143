"""Text of others, for terminals, logs and pages: nothing in it steers what shows it, or looks like a line of
ours."""

from __future__ import annotations


def printable(text: str) -> str:
    """The text on one line: each character that is not printable as in a Python string (`\\x1b`)."""
    if text.isprintable():
        return text
    return "".join(c if c.isprintable() else c.encode("unicode_escape").decode() for c in text)


def printable_lines(text: str) -> str:
    """The text with its lines; each of these is printable."""
    return "\n".join(map(printable, text.split("\n")))
