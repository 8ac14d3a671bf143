"""Of what kind an existing queue is; AMQP has no question for it."""

from __future__ import annotations

import re
from typing import Any, Final, NamedTuple

from pamqp import commands

from dispatcher.amqp.link import Link
from dispatcher.amqp.methods import BasicConsume, QueueDeclare
from dispatcher.errors import ACCESS_REFUSED, PRECONDITION_FAILED, ChannelRefused, ProtocolViolation

CLASSIC: Final = "classic"
QUORUM: Final = "quorum"
STREAM: Final = "stream"
#: Why an inbound queue is refused.
HAS_PRIORITIES: Final = "has x-max-priority, which reorders redeliveries; use one inbound queue per priority"
#: An argument of a quorum queue: how often a message may come back before RabbitMQ drops or dead-letters it.
DELIVERY_LIMIT: Final = "x-delivery-limit"
#: From this version on a quorum queue has a limit, unless it or a policy says otherwise.
_DEFAULT_LIMIT_SINCE: Final = 4
_DEFAULT_LIMIT: Final = 20
#: Arguments of a consume. No kind of queue takes both, so RabbitMQ refuses it, whoever else reads the queue,
#: and says of what kind that is. A declare could tell that as well, but it takes the right to configure it.
IMPOSSIBLE_CONSUME: Final[dict[str, Any]] = {"x-stream-offset": "next", "x-priority": 0}
_KIND: Final = re.compile(r" of queue type rabbit_(\w+)_queue$")
#: AMQP has 255 bytes for the text, and RabbitMQ cuts it. The names of the queue and its vhost come first.
_CUT: Final = "..."
_CUT_KIND: Final = re.compile(r" of queue type rabbit_(\w+)\.\.\.$")
#: More arguments than RabbitMQ compares.
DIFFERENCES_MAX: Final = 20
_DIFFERENCE: Final = re.compile(
    r"inequivalent arg '(?P<name>[^']+)' .* but current is "
    r"(?:none|(?:the value )?'(?P<value>.*?)'(?: of type '(?P<type>\w+)')?)$",
    re.DOTALL,
)
#: AMQP's types of whole numbers, as RabbitMQ calls them.
_INTEGERS: Final = {
    "byte", "short", "signedint", "long",
    "unsignedbyte", "unsignedshort", "unsignedint",
}  # fmt: skip


def kind_named(text: str) -> str | None:
    """The kind of queue that the refusal of the impossible consume names. None: it was refused otherwise, or
    its text is cut before that (`is_cut`)."""
    if (found := _KIND.search(text)) is not None:
        return found[1]
    if (found := _CUT_KIND.search(text)) is not None:  # one letter is enough
        kinds = (CLASSIC, QUORUM, STREAM)
        return next((kind for kind in kinds if f"{kind}_queue".startswith(found[1])), None)
    return None


def is_cut(text: str) -> bool:
    """The text is longer than RabbitMQ shows."""
    return text.endswith(_CUT)


async def kind_of_queue(link: Link, queue: str) -> str:
    """What RabbitMQ calls it: `classic`, `quorum`, `stream`, or otherwise. That takes the right to read it.

    If the names of queue and vhost have more than some 140 bytes together, it takes the right to configure
    it, and without that the answer is `quorum`. A lane can read a classic queue as if it were a quorum queue;
    it then does not keep others from reading it. Raises ChannelRefused if RabbitMQ does not say the kind.
    """
    channel = await link.open_channel()
    try:
        await link.call(channel, BasicConsume(queue=queue, arguments=dict(IMPOSSIBLE_CONSUME)))
    except ChannelRefused as refused:
        if (kind := kind_named(refused.text)) is not None:
            return kind
        if not is_cut(refused.text):
            raise
        probe = KindProbe(queue)
        await _find_out(link, probe)
        return probe.kind
    raise ProtocolViolation(f"RabbitMQ accepted an impossible consumer of {queue!r}")


def unusable(kind: str, *, has_priorities: bool) -> str | None:
    """Why no order can be kept in an inbound queue like this."""
    if kind not in (CLASSIC, QUORUM):
        return f"is a {kind}; it must be a classic or quorum queue"
    return HAS_PRIORITIES if has_priorities else None


async def has_priorities(link: Link, queue: str) -> bool | None:
    """Whether this classic queue has `x-max-priority`. None: that takes the right to configure it."""
    probe = ArgumentProbe.of_priorities(queue)
    await _find_out(link, probe)
    return probe.found


class DeliveryLimit(NamedTuple):
    """How often a message may come back to a quorum queue."""

    queue: str
    times: int
    is_default: bool  # RabbitMQ's own. A policy may set another one, which AMQP doesn't say.


async def low_delivery_limit(link: Link, queue: str) -> DeliveryLimit | None:
    """The limit of this quorum queue, if RabbitMQ has a limit by default, and this one is not higher. None
    also without the right to configure the queue, which it takes to find that out."""
    default = default_delivery_limit(version_of(link))
    if default is None:
        return None
    probe = ArgumentProbe.of_delivery_limit(queue)
    await _find_out(link, probe)
    if not probe.is_said:
        return None
    times = default if probe.value is None else int(probe.value)
    return DeliveryLimit(queue, times, probe.value is None) if 0 <= times <= default else None


def default_delivery_limit(version: str) -> int | None:
    """How often a message may come back to a quorum queue that says nothing. None: for ever."""
    return _DEFAULT_LIMIT if major_of(version) >= _DEFAULT_LIMIT_SINCE else None


def version_of(link: Link) -> str:
    """RabbitMQ's, as it says it at the login."""
    return str(link.server_properties.get("version", ""))


def major_of(version: str) -> int:
    """The first number of a version of RabbitMQ; 0: not known."""
    return int(version.split(".")[0]) if version[:1].isdigit() else 0


async def _find_out(link: Link, probe: KindProbe | ArgumentProbe) -> None:
    """Declare until the probe has its answer."""
    for _ in range(DIFFERENCES_MAX):
        channel = await link.open_channel()
        try:
            await link.call(channel, QueueDeclare(**probe.declare))
        except ChannelRefused as refused:
            if not probe.learn(refused.code, refused.text):
                return
        else:
            await link.call(channel, commands.Channel.Close(200, "asked", 0, 0))
            return


class KindProbe:
    """Finds out of what kind an existing queue is by declares, which begin with what differs: that is in the
    text also where it is cut.

    A declare as a quorum queue is refused with the first difference. RabbitMQ compares the type last: with
    the value that the queue has the next declare comes to the next difference.
    """

    def __init__(self, queue: str) -> None:
        self.kind = QUORUM  # unless something says otherwise
        self._arguments: dict[str, Any] = {"x-queue-type": QUORUM}
        #: The next declare to try. If RabbitMQ accepts it, this is a quorum queue.
        self.declare: dict[str, Any] = {"queue": queue, "durable": True, "arguments": self._arguments}

    def learn(self, code: int, text: str) -> bool:
        """Take the refusal of the declare. True: try the next one; else `kind` is the answer."""
        if code != PRECONDITION_FAILED:
            return False
        difference = _DIFFERENCE.search(text)
        if difference is not None and _learn_argument(difference, self._arguments):
            return True
        if "'x-queue-type'" in text:
            self.kind = difference["value"] if difference is not None and difference["value"] else CLASSIC
        elif "'durable'" in text or "'auto_delete'" in text:
            self.kind = CLASSIC
        return False


class ArgumentProbe:
    """Finds out whether an existing queue has an argument that is a number, and which one.

    A declare that differs is refused with the first difference and the value that the queue has: with that
    the next declare comes to the next difference. None can succeed, for no queue has such a number.
    """

    def __init__(self, queue: str, argument: str, known: dict[str, Any]) -> None:
        """`known`: arguments that it has."""
        self.is_said = False  # RabbitMQ has said what `value` is
        self.value: str | None = None  # None: the queue has no such argument
        self._is_refused = False
        self._argument = argument
        self._arguments: dict[str, Any] = {**known, argument: "impossible"}
        #: The next declare to try.
        self.declare: dict[str, Any] = {
            "queue": queue, "durable": True, "auto_delete": False, "arguments": self._arguments,
        }  # fmt: skip

    @classmethod
    def of_priorities(cls, queue: str) -> ArgumentProbe:
        """Of a classic queue."""
        return cls(queue, "x-max-priority", {})

    @classmethod
    def of_delivery_limit(cls, queue: str) -> ArgumentProbe:
        """Of a quorum queue."""
        return cls(queue, DELIVERY_LIMIT, {"x-queue-type": QUORUM})

    @property
    def found(self) -> bool | None:
        """Whether it has the argument. None: the right to configure the queue is missing. If RabbitMQ does
        not say it otherwise: no, as most queues."""
        return None if self._is_refused else self.value is not None

    def learn(self, code: int, text: str) -> bool:
        """Take the refusal of the declare. True: try the next one; else this is the answer."""
        self._is_refused = code == ACCESS_REFUSED
        difference = _DIFFERENCE.search(text)
        if code != PRECONDITION_FAILED or difference is None:
            return False
        name, value = difference["name"], difference["value"]
        if name == self._argument:
            self.is_said, self.value = True, value
            return False
        if name in ("durable", "auto_delete"):
            before, self.declare[name] = self.declare[name], value == "true"
            return bool(before != self.declare[name])
        return _learn_argument(difference, self._arguments)


def _learn_argument(difference: re.Match[str], arguments: dict[str, Any]) -> bool:
    """Take over the argument that the queue has, for the next declare. False: it can't be told."""
    name, value = difference["name"], difference["value"]
    if value is None or name in arguments:
        return False
    match difference["type"]:
        case "bool":
            arguments[name] = value == "true"
        case kind:
            arguments[name] = int(value) if kind in _INTEGERS else value
    return True
