"""The screen of `dispatcher top`, on Textual: one table, the lane's numbers above it, the keys below it."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, ClassVar, Final, TypeVar

from rich.text import Text
from textual import work
from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.widgets import DataTable, Static

from dispatcher.cli import verbs
from dispatcher.cli.groups import why_lines
from dispatcher.cli.top_dialogs import AskText, Confirm, Tell
from dispatcher.cli.top_rows import COLUMNS, SORTS, Line, consumer_lines, group_lines, lane_lines, summary
from dispatcher.cli.top_source import LookRequest, Seen, TopSource, View
from dispatcher.cli.verbs import Verb
from dispatcher.errors import DispatcherError
from dispatcher.wire.plain_text import printable, printable_lines

PERIOD_S: Final = 2.0
_KEYS: Final = Text(
    "l lanes  g groups  c consumers  s sort  / filter  w why  enter opens  q quit\n"
    "p pause  r resume  n pin  x close  d drain  b rebalance (each asks first)"
)
_Result = TypeVar("_Result")


class TopApp(App[None]):
    """Shows what `source` says every two seconds, until `q`."""

    CSS = """
        #summary { height: auto; max-height: 4; background: $boost; }
        #said { height: 1; }
        #keys { height: 2; background: $boost; }
        DataTable { height: 1fr; }
    """
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = [
        ("q", "quit"), ("l", "show('lanes')"), ("g", "show('groups')"), ("c", "show('consumers')"),
        ("s", "sort"), ("slash", "filter"), ("w", "why"), ("p", "pause"), ("r", "resume"), ("n", "pin"),
        ("x", "close"), ("d", "drain"), ("b", "rebalance"),
    ]  # fmt: skip

    def __init__(self, source: TopSource, lane: str | None, period_s: float = PERIOD_S) -> None:
        super().__init__()
        self._source = source
        self._period_s = period_s
        self._lane = lane or source.lanes[0]
        self._view = View.LANES if lane is None and len(source.lanes) > 1 else View.GROUPS
        self._sorts = {view: sorts[0] for view, sorts in SORTS.items()}
        self._pattern: str | None = None
        self._seen: Seen | None = None
        self._columns: tuple[str, ...] = ()
        self._keys: list[str] = []
        self._look_now = asyncio.Event()
        # Kept: while a box is open, queries look for widgets in it alone.
        self._summary, self._said = Static(id="summary"), Static(id="said")
        self._table = DataTable[Text](cursor_type="row", zebra_stripes=True)
        self._thread = ThreadPoolExecutor(1, thread_name_prefix="top")  # a connection belongs to one
        self.looks = 0

    def compose(self) -> ComposeResult:
        yield self._summary
        yield self._table
        yield self._said
        yield Static(_KEYS, id="keys")

    def on_mount(self) -> None:
        self._follow()

    async def on_unmount(self) -> None:
        self._thread.submit(self._source.close)
        self._thread.shutdown(wait=False)

    # --- looking --------------------------------------------------------------------------------------

    @work
    async def _follow(self) -> None:
        while True:
            self._look_now.clear()
            wanted = LookRequest(self._view, self._lane, self._sorts[View.GROUPS], self._pattern)
            seen = await self._ask(partial(self._source.look, wanted))
            if wanted.view is self._view and wanted.lane == self._lane:
                self._seen = seen
                self._show_seen()
            self.looks += 1
            with contextlib.suppress(TimeoutError):
                await asyncio.wait_for(self._look_now.wait(), self._period_s)

    async def _ask(self, question: Callable[[], _Result]) -> _Result:
        return await asyncio.get_running_loop().run_in_executor(self._thread, question)

    def _show_seen(self) -> None:
        seen = self._seen
        if seen is None:
            return
        if seen.problem is not None:
            self._say(seen.problem, is_problem=True)
        if seen.problem is None or self._view is View.LANES:  # else what was there stays
            self._fill(self._lines(seen))
        self._show_summary(seen)

    def _show_summary(self, seen: Seen) -> None:
        lane = (self._selected() if self._view is View.LANES else None) or self._lane
        text = summary(seen.lanes[lane]) if lane in seen.lanes else ""
        if self._view is View.GROUPS and seen.total > len(seen.rows):
            text += f"\n{len(seen.rows):,} of {seen.total:,} groups are shown"
        how = f"   [{self._view}, by {self._sorts[self._view]}"
        how += f", only {printable(self._pattern)}]" if self._pattern else "]"
        self._summary.update(Text(text + how, no_wrap=True))

    def _lines(self, seen: Seen) -> list[Line]:
        sort = self._sorts[self._view]
        match self._view:
            case View.LANES:
                return lane_lines(list(seen.lanes.values()), sort, self._pattern)
            case View.GROUPS:
                return group_lines(seen.rows)
            case View.CONSUMERS:
                return consumer_lines(seen.rows, sort, self._pattern)

    def _fill(self, lines: list[Line]) -> None:
        """The cursor stays at its row's id, and else where it was."""
        table = self._table
        at, key = table.cursor_row, self._selected()
        if self._columns != COLUMNS[self._view]:
            self._columns = COLUMNS[self._view]
            table.clear(columns=True)
            table.add_columns(*self._columns)
            at = 0
        else:
            table.clear()
        self._keys = [line.key for line in lines]
        for line in lines:
            table.add_row(*map(Text, line.cells))
        if lines:
            table.move_cursor(row=self._keys.index(key) if key in self._keys else min(at, len(lines) - 1))

    def _selected(self) -> str | None:
        """The id in the cursor's row."""
        at = self._table.cursor_row
        return self._keys[at] if at < len(self._keys) else None

    def _say(self, text: str, *, is_problem: bool = False) -> None:
        shown = Text(printable(text), style="red" if is_problem else "", no_wrap=True, overflow="ellipsis")
        self._said.update(shown)

    # --- what to look at ------------------------------------------------------------------------------

    def action_show(self, view: str) -> None:
        if self._view is View.LANES and (lane := self._selected()) is not None:
            self._lane = lane
        self._view, self._pattern, self._keys = View(view), None, []
        self._look_now.set()

    def on_data_table_row_highlighted(self) -> None:
        if self._view is View.LANES and self._seen is not None:
            self._show_summary(self._seen)

    def on_data_table_row_selected(self) -> None:
        if self._view is View.LANES:
            self.action_show(View.GROUPS)
        elif self._view is View.GROUPS:
            self.action_why()

    def action_sort(self) -> None:
        sorts = SORTS[self._view]
        self._sorts[self._view] = sorts[(sorts.index(self._sorts[self._view]) + 1) % len(sorts)]
        self._look_now.set()

    @work
    async def action_filter(self) -> None:
        text = await self.push_screen_wait(AskText("Only ids that match (* and ? stand for any):",
                                                   self._pattern or ""))  # fmt: skip
        if text is not None:
            self._pattern = text or None
            self._look_now.set()

    @work
    async def action_why(self) -> None:
        if (group := self._group()) is None:
            return
        try:
            result = await self._ask(partial(self._source.why, self._lane, group))
        except DispatcherError as error:
            self._say(str(error), is_problem=True)
            return
        await self.push_screen_wait(Tell(printable_lines("\n".join(why_lines(result)))))

    # --- commands -------------------------------------------------------------------------------------

    def action_pause(self) -> None:
        """Of the group at the cursor, in the list of lanes of the lane."""
        if (target := self._target()) is not None:
            self._carry_out(target[0], verbs.pause(*target), f"Pause {_named(*target)}?")

    def action_resume(self) -> None:
        if (target := self._target()) is not None:
            self._carry_out(target[0], verbs.resume(*target), f"Resume {_named(*target)}?")

    def action_close(self) -> None:
        if (group := self._group()) is not None:
            self._carry_out(self._lane, verbs.close(group), f"Close {_named(self._lane, group)}?")

    @work
    async def action_pin(self) -> None:
        if (group := self._group()) is None:
            return
        row = self._row("group", group)
        if row.get("pin") is not None:
            question = f"End the pin of {_named(self._lane, group)} to {row['pin']}?"
            self._carry_out(self._lane, verbs.pin(group, None), question)
            return
        consumer = await self.push_screen_wait(AskText("Pin it to which consumer?", row.get("owner") or ""))
        if consumer:
            question = f"Pin {_named(self._lane, group)} to {consumer}?"
            self._carry_out(self._lane, verbs.pin(group, consumer), question)

    def action_drain(self) -> None:
        consumer = self._selected()
        if self._view is not View.CONSUMERS or consumer is None:
            self._say("drain: choose a consumer (c lists them)")
            return
        undo = bool(self._row("consumer", consumer).get("drained"))
        question = f"Give {consumer} messages again?" if undo else f"Drain {consumer}?"
        self._carry_out(self._lane, verbs.drain(consumer, undo=undo), question)

    def action_rebalance(self) -> None:
        lane = (self._selected() if self._view is View.LANES else None) or self._lane
        question = f"Rebalance lane {lane}: move as few groups as make the consumers' numbers even?"
        self._carry_out(lane, verbs.rebalance(), question)

    def _carry_out(self, lane: str, verb: Verb, question: str) -> None:
        self.run_worker(self._confirm_and_carry_out(lane, verb, question))

    async def _confirm_and_carry_out(self, lane: str, verb: Verb, question: str) -> None:
        if not await self.push_screen_wait(Confirm(printable(question))):
            self._say("nothing was changed")
            return
        try:
            result = await self._ask(partial(self._source.carry_out, lane, verb))
        except DispatcherError as error:
            self._say(str(error), is_problem=True)
        else:
            self._say(verb.say(result))
        self._look_now.set()

    def _group(self) -> str | None:
        """The group at the cursor; without one it says what to do."""
        group = self._selected() if self._view is View.GROUPS else None
        if group is None:
            self._say("choose a group (g lists them), or a lane to pause and resume (l)")
        return group

    def _target(self) -> tuple[str, str | None] | None:
        """The lane or the group at the cursor; without one it says what to do."""
        selected = self._selected()
        if self._view is View.LANES and selected is not None:
            return selected, None
        group = self._group()
        return None if group is None else (self._lane, group)

    def _row(self, name: str, wanted: str) -> dict[str, Any]:
        rows = self._seen.rows if self._seen is not None else ()
        return next((row for row in rows if row.get(name) == wanted), {})


def _named(lane: str, group: str | None) -> str:
    return f"lane {lane}" if group is None else f"group {group} of lane {lane}"
