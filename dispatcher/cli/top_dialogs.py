"""What `dispatcher top` asks and tells in a box of its own."""

from __future__ import annotations

from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

_BOX = """
    {name} {{ align: center middle; }}
    {name} Vertical {{ width: 76; height: auto; max-height: 20; padding: 0 1; border: round $accent; }}
"""


class Confirm(ModalScreen[bool]):
    """A question that `y` says yes to; every other way out is no."""

    CSS = _BOX.format(name="Confirm")
    BINDINGS: ClassVar[list[BindingType]] = [
        ("y", "dismiss(True)"), ("n", "dismiss(False)"), ("escape", "dismiss(False)"),
        ("q", "dismiss(False)"),
    ]  # fmt: skip

    def __init__(self, question: str) -> None:
        super().__init__()
        self._question = question

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(f"{self._question}\n\ny yes   n no"))


class AskText(ModalScreen[str | None]):
    """A line of text; None when it was given up."""

    CSS = _BOX.format(name="AskText")
    BINDINGS: ClassVar[list[BindingType]] = [("escape", "dismiss(None)")]

    def __init__(self, prompt: str, text: str) -> None:
        super().__init__()
        self._prompt = prompt
        self._text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(self._prompt))
            yield Input(self._text)

    def on_input_submitted(self, submitted: Input.Submitted) -> None:
        self.dismiss(submitted.value)


class Tell(ModalScreen[None]):
    """Some lines."""

    CSS = _BOX.format(name="Tell")
    BINDINGS: ClassVar[list[BindingType]] = [
        ("escape", "dismiss(None)"), ("enter", "dismiss(None)"), ("q", "dismiss(None)"),
        ("w", "dismiss(None)"),
    ]  # fmt: skip

    def __init__(self, text: str) -> None:
        super().__init__()
        self.text = text

    def compose(self) -> ComposeResult:
        with Vertical():
            yield Static(Text(self.text))
