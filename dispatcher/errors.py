"""Every error of the product, on one page.

DispatcherError
├── ConfigurationError      an operator must change the file, the environment or the broker's set-up
├── ProtocolViolation       a peer sent what the wire contract does not allow
├── InvalidTransition       a bug of ours: the state can't be trusted, the lane stops
├── BrokerUnavailable       RabbitMQ can't be reached, or ended the connection
│   ├── ChannelRefused      RabbitMQ closed one channel and said why
│   ├── DeliveredAgain      RabbitMQ took unacked originals back and delivers them again
│   └── LoginRefused        RabbitMQ does not let this user in, or not into this vhost
├── StoreUnavailable        Redis did not answer: the outcome is unknown, nothing may be sent
├── Fenced                  another dispatcher leads this lane
├── NumbersBehind           consumers have seen higher numbers than this leader would give
├── CommandRefused          an operator's command can't be done; nothing changed
├── NoAnswer                no dispatcher answered a command in time: it may still be carried out
├── ConsumerRefused         the dispatcher does not take this consumer
├── SettlesInDoubt          settles of a consumer may not count: others may get the messages again
└── SendFailed              RabbitMQ did not take a producer's message

An expected race (late settle, stale incarnation, consumer gone) is an outcome with a counter, never one
of these. The first line of an error's text is complete: it names the thing and what to do.
"""

from __future__ import annotations

from typing import Final

#: AMQP's reply codes that the product goes by (0-9-1, reply-code).
ACCESS_REFUSED: Final = 403
NOT_FOUND: Final = 404
PRECONDITION_FAILED: Final = 406
#: How RabbitMQ (3.10 to 4.0) says that there is none of that name. It has the same code for a queue whose
#: node is down, that has stopped or crashed, or that did not answer within a minute.
_THERE_IS_NONE: Final = "NOT_FOUND - no "


class DispatcherError(Exception):
    """Base of all errors that the product raises on purpose."""


class ConfigurationError(DispatcherError):
    """A configuration that can't work.

    `problems` holds one line per problem, each beginning with the path of the key.
    """

    def __init__(self, problems: list[str] | str) -> None:
        self.problems = [problems] if isinstance(problems, str) else list(problems)
        super().__init__("\n".join(self.problems))


class ProtocolViolation(DispatcherError):
    """A peer sent bytes or a message that the wire contract does not allow."""


class InvalidTransition(DispatcherError):
    """A state machine was asked for a transition that its table doesn't have."""


class BrokerUnavailable(DispatcherError):
    """RabbitMQ can't be reached or ended the connection."""


class ChannelRefused(BrokerUnavailable):
    """RabbitMQ closed a channel: `code` is AMQP's reply code (403, 404, 405, 406 …)."""

    def __init__(self, code: int, text: str) -> None:
        self.code, self.text = code, text
        super().__init__(f"{code} {text}")


def is_missing(refused: ChannelRefused) -> bool:
    """There is no queue or exchange of that name."""
    return refused.code == NOT_FOUND and refused.text.startswith(_THERE_IS_NONE)


def is_out_of_reach(refused: ChannelRefused) -> bool:
    """There is such a queue, and RabbitMQ can't use it now. A crashed one needs an operator."""
    return refused.code == NOT_FOUND and not is_missing(refused)


class DeliveredAgain(BrokerUnavailable):
    """RabbitMQ took unacked messages back from an open channel, and delivers them again.

    `by_message` is the fingerprint of the one that says so, if an equal one may say it, too; b"": it is
    certain.
    """

    def __init__(self, problem: str, by_message: bytes = b"") -> None:
        self.by_message = by_message
        super().__init__(problem)


class NumbersBehind(DispatcherError):
    """Consumers have seen higher numbers than ours: Redis forgot them and our clock is behind.

    `lane_epoch` is the lowest that is above all of them.
    """

    def __init__(self, lane_epoch: int) -> None:
        self.lane_epoch = lane_epoch
        super().__init__(f"consumers have seen numbers of a later leader: leading again as {lane_epoch}")


class LoginRefused(BrokerUnavailable):
    """RabbitMQ answered, and refused the user, the client certificate or the vhost."""


class StoreUnavailable(DispatcherError):
    """Redis did not answer in time or the connection broke: the outcome is unknown."""


class Fenced(DispatcherError):
    """Another dispatcher leads this lane now."""


class CommandRefused(DispatcherError):
    """The command was refused; nothing changed."""


class NoAnswer(DispatcherError):
    """No dispatcher answered a command in time; it may still be carried out."""


class ConsumerRefused(DispatcherError):
    """The dispatcher does not take this consumer; the text says why."""


class SettlesInDoubt(DispatcherError):
    """Settles of a consumer since its last `flush` may not count, though RabbitMQ may have confirmed them."""


class SendFailed(DispatcherError):
    """RabbitMQ did not take the message, or may not have taken it; later ones of its group were not sent."""
