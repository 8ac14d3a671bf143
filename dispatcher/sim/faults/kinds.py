"""The kinds of faults, and how often a scenario draws each."""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final, NamedTuple

if TYPE_CHECKING:
    from dispatcher.sim.faults.striking import Faults


class Fault(NamedTuple):
    """Something that goes wrong: when (ms after the beginning), what, to whom, how long or how much.

    `target` is below 60 and `amount` below 10,000; each kind takes from them what it needs.
    """

    at_ms: int
    kind: str
    target: int = 0
    amount: int = 0
    patient: bool = False  # it strikes only when a consumer works, unless it has to wait too long for that


#: True: it has hit something. False: it did not, or it will later and counts itself then.
Strike = Callable[["Faults", Fault], bool]


class Kind(NamedTuple):
    """A kind of fault. `often`: how often it is drawn, compared with the others; 0: apart."""

    often: int
    strike: Strike


KINDS: Final[dict[str, Kind]] = {}


def fault(*, often: int) -> Callable[[Strike], Strike]:
    """Make this function a kind of fault of that name. It is called when the fault strikes."""

    def register(strike: Strike) -> Strike:
        KINDS[strike.__name__] = Kind(often, strike)
        return strike

    return register
