"""What operators look for in the log: decisions, each logged once it is committed."""

from __future__ import annotations

from typing import Any

from dispatcher.core.effects import Effects
from dispatcher.core.model import Original
from dispatcher.core.orders import LogEvent
from dispatcher.wire.group_text import format_group


class LaneLog:
    """Adds orders to log to the effects of the step that runs."""

    effects: Effects

    def log_event(self, event: str, **fields: Any) -> None:
        """Log a decision, once it is committed."""
        self.effects.actions.append(LogEvent(event, fields))

    def warn(self, event: str, **fields: Any) -> None:
        """The same as a warning: an operator may have to do something."""
        self.effects.actions.append(LogEvent(event, fields, is_warning=True))

    def report_loss(self, event: str, **fields: Any) -> None:
        """The same as an error: messages are gone."""
        self.effects.actions.append(LogEvent(event, fields, is_error=True))

    def log_message(self, message: Original, event: str, **fields: Any) -> None:
        """The same, about a message: names its group."""
        self.log_event(event, group=message.group_id and format_group(message.group_id), **fields)

    def warn_message(self, message: Original, event: str, **fields: Any) -> None:
        """The same as a warning."""
        self.warn(event, group=message.group_id and format_group(message.group_id), **fields)
