"""Operators' commands: reads are answered at once, changes become events of the core."""

from __future__ import annotations

import os
import socket
from collections.abc import Callable
from typing import Any, Final

from pamqp import commands as amqp
from pamqp import header

from dispatcher.amqp.events import Delivery
from dispatcher.core.commands import Commands
from dispatcher.core.effects import Reply
from dispatcher.core.events import CommandReceived
from dispatcher.core.views import Views
from dispatcher.errors import CommandRefused, ProtocolViolation
from dispatcher.protocol import Command, decode_command
from dispatcher.service.intake import Clock
from dispatcher.service.outbox import Outbox

#: A command that waited longer than this was given up by whoever sent it.
COMMAND_AGE_MS_MAX: Final = 60_000


class Operators:
    """Answers the lane's command queue."""

    def __init__(
        self,
        views: Views,
        outbox: Outbox,
        clock: Clock,
        *,
        describe: Callable[[], dict[str, Any]],
        commands: Commands,
    ) -> None:
        self._views = views
        self._outbox = outbox
        self._clock = clock
        self._describe = describe
        self._commands = commands
        self._reads: dict[str, Callable[[dict[str, Any]], dict[str, Any]]] = {
            "status": lambda _: self.status(),
            "groups.list": views.groups,
            "groups.show": views.group,
            "groups.why": views.why,
            "consumers.list": lambda _: views.consumers(),
        }

    def status(self) -> dict[str, Any]:
        """The lane at a glance."""
        return {
            "state": "active",
            "dispatcher": f"{socket.gethostname()}:{os.getpid()}",
            **self._describe(),
            **self._views.status(),
        }

    def receive(self, delivery: Delivery) -> CommandReceived | None:
        """Answer a read or a bad command; returns the event for one that changes something."""
        reply_to, correlation_id = _reply_address(delivery.properties)
        token = (reply_to, correlation_id)
        try:
            command = decode_command(delivery.body)
            if not self._commands.has_result(command.uuid):
                self._check_age(command)
            if command.name in self._commands:
                return CommandReceived(token, command.uuid, command.name, command.arguments)
            read = self._reads.get(command.name)
            if read is None:
                raise CommandRefused(f"unknown command {command.name!r}")
            self._outbox.perform([Reply(token, read(command.arguments), None)])
        except (CommandRefused, ProtocolViolation, ValueError, TypeError) as refused:
            self._outbox.perform([Reply(token, {}, str(refused) or "the command can't be read")])
        return None

    def _check_age(self, command: Command) -> None:
        age_ms = self._clock.now_ms() - command.sent_at_ms
        if age_ms > COMMAND_AGE_MS_MAX:
            raise CommandRefused(f"the command is {age_ms // 1000} s old: send it again")


def _reply_address(properties: bytes) -> tuple[str, str]:
    """reply_to and correlation_id, empty where absent or unreadable."""
    try:
        frame = header.ContentHeader()
        frame.unmarshal(b"\x00\x3c\x00\x00" + bytes(8) + properties)
        read: amqp.Basic.Properties = frame.properties
        return read.reply_to or "", read.correlation_id or ""
    except (ValueError, IndexError, TypeError):
        return "", ""
