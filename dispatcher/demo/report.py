"""The demo's last word: what happened, as tables, and whether everything held."""

from __future__ import annotations

from rich.console import Console
from rich.table import Table

from dispatcher.demo.checker import TableFault
from dispatcher.demo.replay import INBOUND, ReplayResult
from dispatcher.demo.workload import Workload
from dispatcher.judge.judge import BreachKind


def print_report(console: Console, workload: Workload, result: ReplayResult) -> None:
    """Everything that was counted, then one line that says whether it held."""
    console.print(_consumers(result))
    console.print(_facts(workload, result))
    for example in result.checked.examples.values():
        console.print(f"  for example: {example}", highlight=False, markup=False)
    for problem in result.problems:
        console.print(problem, style="red", highlight=False, markup=False)
    if result.holds:
        console.print("Everything held.", style="green")
    else:
        console.print("Something did not hold.", style="red")


def _consumers(result: ReplayResult) -> Table:
    table = Table()
    table.add_column("consumer")
    table.add_column("")
    table.add_column("messages", justify="right")
    for row in result.consumers:
        about = f"{row.kind}, {row.fate}" if row.fate else row.kind
        table.add_row(row.name, about, f"{row.messages:,}")
    return table


def _facts(workload: Workload, result: ReplayResult) -> Table:
    checked = result.checked
    table = Table(show_header=False)
    table.add_column()
    table.add_column(justify="right")
    table.add_row("messages", f"{checked.messages:,}")
    table.add_row("messages/s", f"{checked.messages / result.seconds:,.0f}")
    table.add_row("pretended work per message", f"{result.work_ms:.1f} ms")
    table.add_row("groups", f"{checked.groups:,}")
    table.add_row("groups moved", f"{checked.groups_moved:,}")
    table.add_row("handed over again after the kill", f"{checked.handed_over_again:,}")
    table.add_row("… begun before by the killed one", f"{checked.begun_again:,}")
    if result.handed_over_s is not None:
        table.add_row("… the first of them after", f"{result.handed_over_s:.2f} s")
    weights = sum(weight for _, weight in INBOUND)
    for index, (name, weight) in enumerate(INBOUND):
        share = "there was none" if result.shares is None else f"{result.shares[index]:.1%}"
        table.add_row(
            f"share of queue {name}, while there was a choice", f"{share} ({weight / weights:.0%} wanted)"
        )
    table.add_section()
    for kind in (*BreachKind, *TableFault):
        table.add_row(kind, _zero(checked.found[kind]))
    for queue, count in result.left.items():
        table.add_row(f"left in {queue.partition('.')[2]}", _zero(count))
    equal = "equal" if not checked.rows_differing else f"[red]{checked.rows_differing:,} rows differ[/red]"
    table.add_row(f"table against {workload.source}", equal)
    return table


def _zero(count: int) -> str:
    return f"[red]{count:,}[/red]" if count else "0"
