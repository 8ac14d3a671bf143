"""Operators' commands: reads are answered beside the lane's work, changes become events of the core."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable
from typing import Any, Final

from pamqp import commands as amqp
from pamqp import header

from dispatcher.amqp.events import Delivery
from dispatcher.amqp.properties import user_property
from dispatcher.core.events import CommandReceived
from dispatcher.core.operators.commands import Commands
from dispatcher.core.orders import Reply
from dispatcher.core.views.views import Views
from dispatcher.errors import BrokerUnavailable, CommandRefused, ProtocolViolation
from dispatcher.service.clock import Clock
from dispatcher.service.group_listings import GroupListings
from dispatcher.service.outbox import Outbox
from dispatcher.service.replicas import this_process
from dispatcher.wire.protocol import COMMAND_AGE_MS_MAX, Command, decode_command

#: What a command that can't be done, or can't be read, raises: its text is the answer.
REFUSALS: Final = (CommandRefused, ProtocolViolation, ValueError, TypeError)


#: Reads the configuration again and applies it: what became of each lane. Raises CommandRefused.
ReloadCall = Callable[[], Awaitable[dict[str, Any]]]


class Operators:
    """Answers the lane's command queue."""

    def __init__(
        self,
        views: Views,
        outbox: Outbox,
        clock: Clock,
        *,
        listings: GroupListings,
        describe: Callable[[], dict[str, Any]],
        why: Callable[[dict[str, Any]], dict[str, Any]],
        commands: Commands,
        reload: ReloadCall | None = None,
    ) -> None:
        self._views = views
        self._outbox = outbox
        self._clock = clock
        self._describe = describe
        self._say_why = why
        self._commands = commands
        self._listings = listings
        self._answers: set[asyncio.Task[None]] = set()
        self._reads: dict[str, Callable[[dict[str, Any]], Awaitable[dict[str, Any]]]] = {
            "status": self._status,
            "groups.list": listings.groups,
            "groups.show": self._group,
            "groups.why": self._why,
            "consumers.list": self._consumers,
            "dead.stopped": self._stopped,
        }
        if reload is not None:
            self._reads["reload"] = lambda _: reload()

    def status(self) -> dict[str, Any]:
        """The lane at a glance."""
        return {
            "state": "active",
            "dispatcher": this_process(),
            **self._describe(),
            **self._views.status(),
        }

    async def _status(self, _: dict[str, Any]) -> dict[str, Any]:
        await self._listings.see_what_is_full()
        return self.status()

    async def _why(self, arguments: dict[str, Any]) -> dict[str, Any]:
        await self._listings.see_what_is_full()
        return self._say_why(arguments)

    async def _group(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._views.group(arguments)

    async def _stopped(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return self._views.stopped(arguments)

    async def _consumers(self, _: dict[str, Any]) -> dict[str, Any]:
        return self._views.consumers()

    def receive(self, delivery: Delivery) -> CommandReceived | None:
        """Answer a read or a bad command; returns the event for one that changes something."""
        reply_to, correlation_id = _reply_address(delivery.properties)
        token = (reply_to, correlation_id)
        try:
            command = decode_command(delivery.body)
            if not self._commands.is_known(command.uuid):
                self._check_age(command)
            if command.name in self._commands:
                user = user_property(delivery.properties)
                return CommandReceived(token, command.uuid, command.name, command.arguments, user)
            read = self._reads.get(command.name)
            if read is None:
                raise CommandRefused(f"unknown command {command.name!r}")
            task = asyncio.get_running_loop().create_task(self._answer(token, read(command.arguments)))
            self._answers.add(task)  # asyncio itself keeps only weak references
            task.add_done_callback(self._answers.discard)
        except REFUSALS as refused:
            self._refuse(token, refused)
        return None

    async def _answer(self, token: tuple[str, str], read: Awaitable[dict[str, Any]]) -> None:
        try:
            reply = Reply(token, await read, None)
        except REFUSALS as refused:
            self._refuse(token, refused)
        else:
            self._perform(reply)

    def _refuse(self, token: tuple[str, str], refused: Exception) -> None:
        self._perform(Reply(token, {}, str(refused) or "the command can't be read"))

    def _perform(self, reply: Reply) -> None:
        with contextlib.suppress(BrokerUnavailable):  # then the client asks the next leader
            self._outbox.perform([reply])

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
