"""What the spine tells the features of a lane: for each kind of news a list of listeners.

A list is empty in a lane whose features don't need it, so it costs nothing there. Listeners are called in the
order in which they were added, which is that of the lane's features. They change their own state only.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Consumer, Group, Original
from dispatcher.core.queue_ids import QueueId

MessageListener = Callable[[Original], None]
GroupListener = Callable[[Group], None]
ConsumerListener = Callable[[Consumer], None]


class Signals:
    """The listeners of one lane."""

    __slots__ = (
        "accepted", "blaming", "claimed", "claiming", "consumer_drained", "consumer_ended",
        "consumer_entered", "consumer_joined", "consumer_leaves", "delivered", "dispatched",
        "dispatching", "failing", "filed", "freeing", "goes_soon", "group_changed", "group_rested",
        "keeping", "kept", "lost", "marked", "overtaken", "returned", "routing", "settled_elsewhere",
        "settling", "stands_still", "withdrawing",
    )  # fmt: skip

    def __init__(self) -> None:
        #: An operation's marker is here, as the broker delivered it.
        self.marked: list[Callable[[Any], None]] = []  # operations/events.py has the type
        #: The broker has delivered an original, perhaps again. True: the journal's entry stands for it now.
        self.claiming: list[Callable[[Inbound, Original], bool]] = []
        #: True: others that came behind it in its group may have been handed over before it.
        self.overtaken: list[Callable[[Original], bool]] = []
        #: The broker has delivered an original; recovery does not know it.
        self.delivered: list[MessageListener] = []
        #: The same, and the journal has an entry of it.
        self.claimed: list[MessageListener] = []
        #: True: this listener keeps an original, or a marker, until it knows more.
        self.keeping: list[Callable[[Original], bool]] = []
        #: A consumer has it already. True: this listener kept it, and does so no more.
        self.withdrawing: list[Callable[[Original], bool]] = []
        #: An original is new. It may still be refused for what it is.
        self.accepted: list[MessageListener] = []
        #: True: the group's route goes on from here, so the message waits for its relocation. The last
        #: argument is the queue up to which the route is behind it; None: the queue that it is in.
        self.routing: list[Callable[[Group, Original, QueueId | None], bool]] = []
        #: It waits in a backlog of its group, or among the ungrouped messages.
        self.filed: list[MessageListener] = []
        #: A message is about to be dispatched.
        self.dispatching: list[MessageListener] = []
        #: It was dispatched to its consumer.
        self.dispatched: list[Callable[[Original, Group | None], None]] = []
        #: A consumer settles these messages, which are still in flight.
        self.settling: list[Callable[[Consumer, list[Original]], None]] = []
        #: An original has ended that is not in its inbound queue any more.
        self.settled_elsewhere: list[MessageListener] = []
        #: A consumer has ended. The message that killed it, and the reason with which that ends, if known.
        self.blaming: list[Callable[[Consumer], tuple[Original, str] | None]] = []
        #: A consumer could not process it, for this reason. True: its group has stopped at it.
        self.failing: list[Callable[[Original, str], bool]] = []
        #: Its consumer has it no more: the listener that keeps it has it wait again.
        self.kept: list[MessageListener] = []
        #: It was in flight, and waits once more.
        self.returned: list[MessageListener] = []
        #: It has an entry, and its original did not come back.
        self.lost: list[MessageListener] = []
        #: True: the group's waiting messages go soon, although they don't go now.
        self.goes_soon: list[Callable[[Group], bool]] = []
        #: True: messages of the group are out, and none was settled for longer than usual.
        self.stands_still: list[Callable[[Group], bool]] = []
        #: Messages that can't go fill the look-ahead, and a consumer is free. True: now some of them may go.
        self.freeing: list[Callable[[], bool]] = []
        #: The group's owner, state, flags or waiting messages are others.
        self.group_changed: list[GroupListener] = []
        #: One of its messages ended: it may be at rest now.
        self.group_rested: list[GroupListener] = []
        #: An incarnation is known from now on: it has joined, or Redis names it.
        self.consumer_entered: list[ConsumerListener] = []
        #: A new incarnation has joined.
        self.consumer_joined: list[ConsumerListener] = []
        #: An incarnation has settled its last message.
        self.consumer_drained: list[ConsumerListener] = []
        #: An incarnation has said that it leaves.
        self.consumer_leaves: list[ConsumerListener] = []
        #: An incarnation has ended: no table has it any more, and its messages still name it.
        self.consumer_ended: list[ConsumerListener] = []
