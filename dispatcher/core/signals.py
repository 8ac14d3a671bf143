"""What the spine tells the features of a lane: for each kind of news a list of listeners.

A list is empty in a lane whose features don't need it, so it costs nothing there. Listeners are called in the
order in which they were added, which is that of the lane's features. Most change their own state only. A few
kinds are told by a feature.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from dispatcher.core.consumer_life import Ending
from dispatcher.core.inbound import Inbound
from dispatcher.core.model import Consumer, Group, Original
from dispatcher.core.tables import OwnerRow

MessageListener = Callable[[Original], None]
GroupListener = Callable[[Group], None]
ConsumerListener = Callable[[Consumer], None]


@dataclass(slots=True)
class Signals:
    """The listeners of one lane."""

    #: An operation's marker is here, as the broker delivered it.
    marked: list[Callable[[Any], None]] = field(default_factory=list)  # operations/events.py has the type
    #: The broker has delivered an original, perhaps again. True: the journal knows it, so it is not new.
    claiming: list[Callable[[Inbound, Original], bool]] = field(default_factory=list)
    #: True: others that came behind it in its group may have been handed over before it.
    overtaken: list[Callable[[Original], bool]] = field(default_factory=list)
    #: The broker has delivered an original; recovery does not know it.
    delivered: list[MessageListener] = field(default_factory=list)
    #: The journal knows it: it has an entry of it, or it was settled.
    claimed: list[MessageListener] = field(default_factory=list)
    #: True: this listener holds an original, or a marker, back until it knows more.
    deferring: list[Callable[[Original], bool]] = field(default_factory=list)
    #: A consumer has it already. True: this listener held it back, and does so no more.
    withdrawing: list[Callable[[Original], bool]] = field(default_factory=list)
    #: An original is new. It may still be refused for what it is.
    accepted: list[MessageListener] = field(default_factory=list)
    #: True: the group's route goes on from here, so the message waits for its relocation.
    routing: list[Callable[[Group, Original], bool]] = field(default_factory=list)
    #: It waits in a backlog of its group, or among the ungrouped messages.
    filed: list[MessageListener] = field(default_factory=list)
    #: A message is about to be dispatched.
    dispatching: list[MessageListener] = field(default_factory=list)
    #: It was dispatched to its consumer.
    dispatched: list[Callable[[Original, Group | None], None]] = field(default_factory=list)
    #: A consumer has settled these, which are still in flight; or it has failed this one, which no longer is.
    settling: list[Callable[[Consumer, list[Original]], None]] = field(default_factory=list)
    #: An original has ended that is not in its inbound queue any more.
    settled_elsewhere: list[MessageListener] = field(default_factory=list)
    #: A consumer has ended. The message that killed it, and the reason with which that ends, if known.
    blaming: list[Callable[[Consumer, Ending], tuple[Original, str] | None]] = field(default_factory=list)
    #: A consumer could not process it, for this reason. True: its group has stopped at it.
    failing: list[Callable[[Original, str], bool]] = field(default_factory=list)
    #: A group has stopped at it, and its consumer has it no more: the listener has it wait again.
    stopped_at: list[MessageListener] = field(default_factory=list)
    #: A message without a group waits that was handed over before. True: this listener has it wait alone.
    setting_aside: list[Callable[[Original], bool]] = field(default_factory=list)
    #: It was in flight, and waits once more.
    returned: list[MessageListener] = field(default_factory=list)
    #: It has an entry, and its original did not come back.
    lost: list[MessageListener] = field(default_factory=list)
    #: Messages of this group id that no consumer had were still to come: all have come back now, or are gone.
    all_back: list[Callable[[bytes], None]] = field(default_factory=list)
    #: True: the group's waiting messages go soon, although they don't go now.
    goes_soon: list[Callable[[Group], bool]] = field(default_factory=list)
    #: True: waiting messages of the group may be about to go somewhere, or older ones are still to come.
    busy: list[Callable[[Group], bool]] = field(default_factory=list)
    #: True: messages of the group are out, and none was settled for longer than usual.
    stands_still: list[Callable[[Group], bool]] = field(default_factory=list)
    #: An operator resumes the group. True: it waited for something, and does so no more.
    resuming: list[Callable[[Group], bool]] = field(default_factory=list)
    #: Messages that can't go fill the look-ahead, and a consumer is free. True: now some of them may go.
    freeing: list[Callable[[], bool]] = field(default_factory=list)
    #: A new leader reads this owner of a group in Redis. True: the group has lost it all the same.
    disowning: list[Callable[[OwnerRow], bool]] = field(default_factory=list)
    #: The group's owner, state, flags or waiting messages are others.
    group_changed: list[GroupListener] = field(default_factory=list)
    #: A message of the group went out and filled its window, and nothing more of it waits here.
    window_filled: list[GroupListener] = field(default_factory=list)
    #: Parking tells this: the group has changed, its window is full, and more of its messages may be parked.
    full_while_parked: list[GroupListener] = field(default_factory=list)
    #: One of its messages ended: it may be at rest now.
    group_rested: list[GroupListener] = field(default_factory=list)
    #: An incarnation is known from now on: it has joined, or Redis names it.
    consumer_entered: list[ConsumerListener] = field(default_factory=list)
    #: A new incarnation has joined.
    consumer_joined: list[ConsumerListener] = field(default_factory=list)
    #: An incarnation has settled its last message.
    consumer_drained: list[ConsumerListener] = field(default_factory=list)
    #: An incarnation has said that it leaves.
    consumer_leaves: list[ConsumerListener] = field(default_factory=list)
    #: An incarnation has ended: no table has it any more, and its messages still name it.
    consumer_ended: list[ConsumerListener] = field(default_factory=list)
