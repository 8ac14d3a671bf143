"""A lane's core that looks at the numbers of producers."""

from __future__ import annotations

from typing import Any

from dispatcher.core.views.views import Views
from tests.spec.lane_bench import names
from tests.spec.move_bench import MoveBench


class NumberBench(MoveBench):
    """A lane that reports. `publish("a", 5, 7)`: messages of group a with these numbers."""

    def __init__(self, name: str = "exclusive", **options: Any) -> None:
        super().__init__(name, checks_sequence=True, **options)
        self.published = 0

    def publish(self, group: str, *numbers: int | None, inbound: int = 0, **fields: Any) -> list[str]:
        """Returns the names of what was handed over."""
        sent = []
        for number in numbers:
            self.published += 1
            facts = {"number": number, "closing": number is not None and number < 0, **fields}
            sent += names(self.arrive(f"{group}{self.published}", inbound=inbound, **facts))
        return sent

    @property
    def gaps(self) -> int:
        return self.lane.state.counters["sequence_gaps"]

    @property
    def repeats(self) -> int:
        return self.lane.state.counters["sequence_repeats"]

    def why(self, group: str = "a") -> list[str]:
        details: list[str] = Views(self.lane.state).why({"group": group})["details"]
        return details

    def tells(self, event: str) -> list[dict[str, Any]]:
        return [fields for name, fields in self.told if name == event]
