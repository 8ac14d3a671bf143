"""What both producers share: the arguments, the making of a message, and the engine."""

from __future__ import annotations

import logging
import uuid
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import partial
from itertools import count
from typing import Any, Final

from dispatcher.client import properties as amqp_properties
from dispatcher.client.links import NACKED, REFUSAL_CODES, Endpoint, Loop, MakeLink, Publication, Tls
from dispatcher.client.losses import Losses
from dispatcher.client.pacing import Backoff
from dispatcher.client.properties import Properties
from dispatcher.client.send_queue import Failure, Outgoing, SendQueue
from dispatcher.client.tap import TappedDelivery
from dispatcher.errors import ConfigurationError, SendFailed

LOG: Final = logging.getLogger("dispatcher.client")
#: Codes with which a broker closes the channel because of a publish: rights, a missing exchange,
#: a property that it does not accept, a body that is too large.
PUBLISH_REFUSED_CODES: Final = frozenset({403, 404, 406})
GroupId = str | bytes | int
#: What a lane's configuration says unless it says something else.
GROUP_HEADER: Final = "x-group-id"
SEQUENCE_HEADER: Final = "x-group-seq"


def group_bytes(group: GroupId) -> bytes:
    """The group id as the dispatcher reads it: 7 and "7" are one group. Raises ValueError if it is empty."""
    raw = group if isinstance(group, bytes) else str(group).encode()
    if not raw:
        raise ValueError("group must not be empty: an empty id means no group, which is None")
    return raw


@dataclass(frozen=True, slots=True)
class Labels:
    """Where a producer's messages go, and how their groups are written."""

    exchange: str
    routing_key: str
    group: GroupId | None
    group_header: str
    sequence_header: str

    def publication(
        self,
        token: int,
        body: bytes,
        group: GroupId | None,
        headers: Mapping[str | bytes, Any] | None,
        properties: Properties | None,
        routing_key: str | None,
        close: bool,
    ) -> tuple[bytes | None, Publication]:
        """The group's id and the message. Raises ValueError or TypeError for what can't be written."""
        if not isinstance(body, bytes | bytearray | memoryview):
            raise TypeError(
                f"body: must be bytes, not {type(body).__name__}: text.encode() makes them of text, and "
                "json.dumps(value).encode() of anything else"
            )
        group = self.group if group is None else group
        if close and group is None:
            raise ValueError("close: there is no group to close")
        entries = dict(headers or {})
        if group is not None:
            entries[self.group_header] = group
        if close:
            entries[self.sequence_header] = -1
        properties = properties or Properties()
        message_id = properties.message_id if properties.message_id is not None else uuid.uuid4().hex
        if not isinstance(message_id, str) or not message_id:
            raise ValueError("message_id must be a text that is not empty")
        raw = amqp_properties.write(replace(properties, message_id=message_id, delivery_mode=2), entries)
        key = self.routing_key if routing_key is None else routing_key
        publication = Publication(token, self.exchange, key, message_id, raw, bytes(body))
        return None if group is None else group_bytes(group), publication


class ProducerBase(ABC):
    """What both producers are made with. `url` may be a list, of the nodes of one cluster: attempts to
    connect take them in turn, in random order. Raises ConfigurationError naming every wrong argument."""

    def __init__(
        self,
        url: str | Sequence[str],
        queue: str | None = None,
        *,
        exchange: str | None = None,
        routing_key: str = "",
        group: GroupId | None = None,
        auto_group: bool = False,
        group_header: str = GROUP_HEADER,
        sequence_header: str = SEQUENCE_HEADER,
        tls: Tls | None = None,
        give_up_after_s: float | None = None,
    ) -> None:
        problems = []
        if give_up_after_s is not None and give_up_after_s <= 0:
            problems.append("give_up_after_s: must be positive, or None to wait for as long as it takes")
        if (queue is None) == (exchange is None):
            problems.append("queue: either it or exchange must be given")
        if queue is not None and routing_key:
            problems.append("routing_key: goes with exchange, not with queue")
        if auto_group and group is not None:
            problems.append("auto_group: makes a group of its own, so group must not be given")
        if group in ("", b""):
            problems.append("group: must not be empty")
        if problems:
            raise ConfigurationError(problems)
        self._endpoint = Endpoint.of(url, tls, connection_name=f"producer for {queue or exchange}")
        key = queue if queue is not None else routing_key
        own = str(uuid.uuid4()) if auto_group else group
        self._labels = Labels(exchange or "", key, own, group_header, sequence_header)
        self._give_up_after_s = give_up_after_s
        self._tokens = count(1)
        self._set_up()

    @abstractmethod
    def _set_up(self) -> None:
        """Make what belongs to this kind of producer."""

    @property
    def group(self) -> GroupId | None:
        """The group of messages that name none."""
        return self._labels.group


class ProducerEngine:
    """Runs a SendQueue over a link, in the link's event loop."""

    def __init__(
        self,
        to_send: SendQueue,
        loop: Loop,
        make_link: MakeLink,
        ended: Callable[[], None],
        give_up_after_s: float | None = None,
    ) -> None:
        self._give_up_after_s = give_up_after_s
        self._given_up: SendFailed | None = None  # while there is no connection, and was none for too long
        self._offline = 0  # how often the connection was lost
        self._to_send = to_send
        self._loop = loop
        self._link = make_link(self)
        self._ended = ended
        self._backoff = Backoff()
        self._connected = False
        self._ever_connected = False
        self._error: Exception | None = None  # once it has ended
        self._close_asked = False
        self._link_closed = False
        self._step_asked = False
        self._losses = Losses()

    def start(self) -> None:
        self._be_offline("it is not connected yet")
        self._link.open(None)

    def submit(self, outgoing: Outgoing) -> None:
        """Send it when its turn comes; its `resolve` is called in any case."""
        if (failure := self._error or self._given_up) is not None:
            outgoing.resolve(failure)
            return
        try:
            self._to_send.submit(outgoing)
        except (SendFailed, ValueError) as error:
            outgoing.resolve(error)
        self._ask_step()

    def close(self) -> None:
        """End the connection; unconfirmed messages fail. Answered by `ended`."""
        self._close_asked = True
        self._end(SendFailed("the producer was closed before the broker had confirmed the message"))
        if self._link_closed:
            self._ended()

    # --- the link's facts -----------------------------------------------------------------------------

    def opened(self, queue: str) -> None:
        self._connected = self._ever_connected = True
        self._given_up = None
        self._losses.over()
        self._backoff.reset()
        self._step()

    def lost(self, reason: str, code: int) -> None:
        if self._error is not None:
            return
        if code in REFUSAL_CODES and not self._ever_connected:
            self._end(ConfigurationError(f"RabbitMQ refuses this producer: {reason}"))
            return
        LOG.log(self._losses.level(code), "producer: %s", reason)
        if self._connected and code in PUBLISH_REFUSED_CODES:
            _resolve(self._to_send.fail_in_flight(reason))
        if self._connected:
            self._connected = False
            self._be_offline(reason)
        self._reason = reason
        self._to_send.connection_lost()
        self._loop.call_later(self._backoff.next_delay_ms(), self._reopen)

    def delivered(self, deliveries: list[TappedDelivery]) -> None:
        """Nothing is consumed here."""

    def confirmed(self, token: int) -> None:
        if outgoing := self._to_send.confirmed(token):
            outgoing.resolve(None)
        self._ask_step()

    def returned(self, token: int, reason: str) -> None:
        place = self._to_send.place(token)
        _resolve(self._to_send.refused(token, f"{reason}; {place}" if place and reason != NACKED else reason))
        self._ask_step()

    def closed(self) -> None:
        self._link_closed = True
        if self._close_asked:
            self._ended()

    # --- steps ----------------------------------------------------------------------------------------

    def _be_offline(self, reason: str) -> None:
        """There is no connection from now on: give up in time."""
        self._reason = reason
        self._offline += 1
        if self._give_up_after_s is not None:
            self._loop.call_later(round(self._give_up_after_s * 1000), partial(self._give_up, self._offline))

    def _give_up(self, offline: int) -> None:
        if self._connected or offline != self._offline or self._error is not None:
            return
        self._given_up = SendFailed(
            f"there was no connection to RabbitMQ for {self._give_up_after_s:g} s: {self._reason}"
        )
        _resolve(self._to_send.fail_all(self._given_up))

    def _reopen(self) -> None:
        if self._error is None:
            self._link.open(None)

    def _ask_step(self) -> None:
        if not self._step_asked:
            self._step_asked = True
            self._loop.call_soon(self._step)

    def _step(self) -> None:
        self._step_asked = False
        if self._connected and self._error is None:
            for publication in self._to_send.take():
                self._link.publish(publication)

    def _end(self, error: Exception) -> None:
        if self._error is None:
            self._error = error
            _resolve(self._to_send.fail_all(error))
            self._link.close()


def _resolve(failures: list[Failure]) -> None:
    for failure in failures:
        failure.outgoing.resolve(failure.error)
