"""Generated orders: placed, amended and cancelled per symbol. Seeded, so every run has the same."""

from __future__ import annotations

import random
from dataclasses import dataclass, field
from typing import Final

from dispatcher.demo.workload import RowChange, Workload, replayed

SEED: Final = 20_240_229
SYMBOLS: Final = tuple(
    first + second + third for first in "ABCDEFGH" for second in "AEIOU" for third in "KLMNRSTX"
)
#: Few symbols see most of the trade: the n-th is n to the power of this rarer than the first.
_POPULARITY_EXPONENT: Final = 0.5
#: What happens next to a symbol that has open orders.
_PLACE_PROBABILITY: Final = 0.45
_CANCEL_PROBABILITY: Final = 0.25
_TICKS: Final = 100


@dataclass(slots=True)
class _Symbol:
    """The open orders of one symbol: side, quantity, price in ticks."""

    name: str
    price: int
    placed: int = 0
    book: dict[int, tuple[str, int, int]] = field(default_factory=dict)


def read_workload(count: int) -> Workload:
    """`count` events of orders; the rows to be reached come from a plain sequential replay."""
    source = random.Random(SEED)
    symbols = [_Symbol(name, source.randrange(20, 400) * _TICKS) for name in SYMBOLS]
    weights = [1 / (rank + 1) ** _POPULARITY_EXPONENT for rank in range(len(symbols))]
    changes = [_next(source, symbol) for symbol in source.choices(symbols, weights, k=count)]
    used = len({change.group for change in changes})
    title = f"{count:,} events of an order book with {used} symbols, generated with seed {SEED}"
    return Workload(title, "a plain replay, one after the other", changes, replayed(changes))


def _next(source: random.Random, symbol: _Symbol) -> RowChange:
    chance = source.random()
    if not symbol.book or chance < _PLACE_PROBABILITY:
        symbol.placed += 1
        symbol.price = max(_TICKS, symbol.price + source.randrange(-_TICKS, _TICKS + 1))
        order = source.choice(("buy", "sell")), source.randrange(1, 100) * 10, symbol.price
        return _change(symbol, symbol.placed, order)
    number = source.choice(list(symbol.book))
    if chance < _PLACE_PROBABILITY + _CANCEL_PROBABILITY:
        return _change(symbol, number, None)
    side, quantity, price = symbol.book[number]
    # Never what it was: an amendment that changes nothing could not be told from its repetition.
    amended = side, quantity + source.randrange(1, 20) * 10, price + source.choice((-1, 1))
    return _change(symbol, number, amended)


def _change(symbol: _Symbol, number: int, order: tuple[str, int, int] | None) -> RowChange:
    before = symbol.book.get(number)
    if order is None:
        del symbol.book[number]
    else:
        symbol.book[number] = order
    name = symbol.name.encode()
    return RowChange(name, b"%s/%d" % (name, number), _row(before), _row(order))


def _row(order: tuple[str, int, int] | None) -> bytes:
    if order is None:
        return b""
    side, quantity, price = order
    return f"{side} {quantity} at {price / _TICKS:.2f}".encode()
