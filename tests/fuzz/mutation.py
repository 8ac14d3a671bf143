"""Inputs that nearly are what is expected: good ones, with something wrong at random."""

from __future__ import annotations

from random import Random
from typing import Any, Final

_ODD: Final = (
    b"", b"\x00", b"\xff", b"\x7f", b"\x80", b"\r\n", b"\n", b"\x1b[2J", b"\x9b", b"%", b"%zz", b"{", b"[",
    b'"', b"\\", b"..", b"/", b"\xed\xa0\x80", "\u202e".encode(), b"0" * 40, b"9" * 400, b"-1",
    b"1e999", b"null", b"x-dispatch-", b"a" * 300,
)  # fmt: skip
_VALUES: Final = (
    None, True, False, 0, 1, -1, 2**31, 2**53, 2**63, 2**64, 10**30, 0.5, float("inf"), float("nan"), "", "x",
    "\x00", "\ud800", "\u202e", "a" * 300, "%zz", [], {}, [[]],
    [[1, 2]], [[2, 1]], [[1]], {"a": {}}, ["x"] * 50,
)  # fmt: skip


def mutated(random: Random, data: bytes) -> bytes:
    """A few of its bytes are others, gone, doubled or in another place."""
    changed = bytearray(data)
    for _ in range(random.choice((0, 1, 1, 2, 3, 8))):
        at = random.randrange(len(changed) + 1)
        match random.randrange(5):
            case 0:
                changed[at : at + 1] = bytes((random.randrange(256),))
            case 1:
                del changed[at : at + random.choice((1, 1, 4, 32))]
            case 2:
                changed[at:at] = random.choice(_ODD)
            case 3:
                changed[at:at] = changed[at : at + random.choice((1, 4, 64))]
            case _:
                if changed:
                    changed[at % len(changed)] ^= 1 << random.randrange(8)
    return bytes(changed)


def mutated_value(random: Random, value: Any, depth: int = 0) -> Any:
    """The same JSON, in which some values, keys or items are others."""
    if random.random() < 0.15 or depth > 6:
        return random.choice(_VALUES)
    if isinstance(value, dict):
        changed = {
            (random.choice(("x", "", "type", key)) if random.random() < 0.05 else key):
            mutated_value(random, each, depth + 1)
            for key, each in value.items() if random.random() > 0.05
        }  # fmt: skip
        return changed
    if isinstance(value, list):
        return [mutated_value(random, each, depth + 1) for each in value] * random.choice((1, 1, 1, 2))
    return value
