"""A lane's core that drops repeated messages, and the window of ids as Redis keeps it."""

from __future__ import annotations

from typing import Any

from dispatcher.core.effects import Effects, WindowChange
from dispatcher.core.events import Event, IdsLookedUp
from dispatcher.core.options import DedupOptions
from dispatcher.core.orders import LookUp
from dispatcher.core.records import Dispatched
from tests.spec.move_bench import MoveBench

WINDOW_MS = 10_000


def id_of(text: str) -> bytes:
    return text.encode().ljust(16, b"\0")


class DedupBench(MoveBench):
    """`hold_answers`: Redis does not answer for now."""

    def __init__(self, name: str = "exclusive", *, ids_max: int = 1_000, **options: Any) -> None:
        self.window: dict[bytes, int] = {}
        self.hold_answers = False
        self.questions: list[LookUp] = []
        self.last_window: WindowChange | None = None
        super().__init__(name, dedup=DedupOptions(WINDOW_MS, ids_max), **options)

    def _take(self, effects: Effects) -> list[Dispatched]:
        change = effects.window
        if change is not None:
            self.last_window = change
            self.enter(change)
            if change.lookup is not None:
                since_ms = change.now_ms - change.window_ms
                change.lookup.known = b"".join(
                    b"1" if self.window.get(one, -1) >= since_ms and b"v" + copy not in self.window else b"0"
                    for one, copy in change.lookup.ids
                )
        self.questions += [action for action in effects.actions if isinstance(action, LookUp)]
        return super()._take(effects)

    def enter(self, change: WindowChange) -> None:
        """What Redis does with it."""
        for ranges, prefix in ((change.entered, b""), (change.doubted, b"v")):
            for at_ms, ids in ranges:
                for at in range(0, len(ids), 16):
                    member = prefix + ids[at : at + 16]
                    self.window[member] = max(at_ms, self.window.get(member, 0))

    def step(self, *events: Event, after_ms: int = 1) -> list[Dispatched]:
        sent = super().step(*events, after_ms=after_ms)
        return sent if self.hold_answers else sent + self.answer()

    def answer(self) -> list[Dispatched]:
        """Redis has answered all that was asked."""
        questions, self.questions = self.questions, []
        return super().step(*map(IdsLookedUp, questions), after_ms=0) if questions else []

    def publish(self, name: str, message_id: str | None = None, **fields: Any) -> list[Dispatched]:
        """A message comes that has this id; its own name, if that is not given."""
        return self.arrive(name, message_id=id_of(message_id or name), **fields)

    @property
    def dropped(self) -> int:
        return self.lane.state.counters["deduplicated"]
