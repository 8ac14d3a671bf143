"""Why a group waits, in words for operators: a sentence for each cause, made of nothing but its facts.

Here are those of the spine. A capability that adds causes adds their sentences (`Explanation.sentences`).
"""

from __future__ import annotations

from collections.abc import Callable
from itertools import islice
from typing import Final

from dispatcher.core.explanation import consumer_hold
from dispatcher.core.holds import Facts, Hold, HoldKind
from dispatcher.core.model import Group, Original
from dispatcher.core.state import LaneState
from dispatcher.core.wording import begin, counted, in_flight_are, named

UNDELIVERABLE_SHOWN: Final = 5


def text(state: LaneState, hold: Hold) -> str:
    """The sentence for what holds something."""
    say = _TEXTS.get(hold.kind) or state.explanation.sentences[hold.kind]
    return say(hold.facts)


def verdict(
    state: LaneState, group: Group, hold: Hold | None, waiting: list[Original], out: list[Original]
) -> str:
    """The sentence for a group that this holds, or nothing; `waiting`, `out`: its messages here and in
    flight."""
    if hold is not None:
        return text(state, hold)
    if waiting:
        return "Nothing blocks it: its turn comes with the next step."
    if out:
        of_owner = consumer_hold(group.owner, group) if group.owner is not None else None
        is_stuck = of_owner is not None and of_owner.kind in _AWAY
        why = f" {text(state, of_owner)}" if is_stuck and of_owner is not None else ""
        return f"Nothing waits; {len(out)} in flight.{why}"
    if undeliverable(state, group):
        return "Nothing waits but what RabbitMQ does not take."
    return "Nothing waits."


def undeliverable(state: LaneState, group: Group) -> list[str]:
    """The first messages of the group that RabbitMQ does not even take for the dead queue, a line each."""
    of_group = ((m, problem) for m, problem in state.undeliverable.items() if m.group_id == group.id)
    return [
        f"undeliverable: message {m.arrival[0]}.{m.arrival[1]} of {m.size} bytes ({state.ending[m]}): "
        f"the dead queue does not take it ({problem}); it stays in {state.inbounds[m.inbound].name} "
        "and is tried again"
        for m, problem in islice(of_group, UNDELIVERABLE_SHOWN)
    ]


#: While its owner is so, what it has in flight stays where it is.
_AWAY: Final = (HoldKind.EVICTED, HoldKind.LOST, HoldKind.UNHEARD, HoldKind.QUEUE_UNREAD)


def _window_full(facts: Facts) -> str:
    messages = counted(facts["in_flight"], "message")
    at = f" at {facts['consumer']}" if facts["consumer"] is not None else ""
    return f"Its window is full: waits until one of {messages}{at} is settled."


def _draining(facts: Facts) -> str:
    to = facts["target"] if facts["target"] is not None else "the next consumer that takes it"
    return f"Changing hands to {to}: waits until {in_flight_are(facts)} settled."


def _batched(facts: Facts) -> str:
    holder = facts["consumer"] if facts["consumer"] is not None else "its consumer"
    messages = counted(facts["in_flight"], "message")
    return f"Sequenced: waits until {holder} has settled the {messages} of its batch."


def _unheard(facts: Facts) -> str:
    if facts["queued"] is not None:
        return f"Whether {facts['consumer']} reads {facts['queue']} is being looked at."
    return begin(f"{named(facts)} has not been heard of since this dispatcher took over.")


def _lost(facts: Facts) -> str:
    return begin(f"{named(facts)} lost its connection; its messages go to others unless it returns.")


def _prefetch_full(facts: Facts) -> str:
    who, out = named(facts), facts["in_flight"]
    if facts["queued"] is None:
        unsettled = counted(out, "unsettled message")
        return f"{begin(who)} has {unsettled}, its whole prefetch{_in_flight_of(facts)}."
    queued = f"{counted(facts['queued'], 'message')} in its queue"
    on_its_way = f" and {out} on the way there" if out else ""
    return f"{begin(who)} has {queued}{on_its_way}, its whole prefetch."


def _in_flight_of(facts: Facts) -> str:
    """Whose messages they are."""
    known = [
        f"{row['messages']} of group {row['group']}" if row["group"] is not None
        else f"{row['messages']} without a group"
        for row in facts["in_flight_of"]
    ]  # fmt: skip
    others = facts["in_flight"] - sum(row["messages"] for row in facts["in_flight_of"])
    return f": {', '.join([*known, *([f'{others} of others'] if others else [])])}" if known else ""


def _no_capacity(facts: Facts) -> str:
    drained = facts["drained"]
    are = "is" if drained == 1 else "are"
    but = f" ({drained} of {facts['consumers']} {are} drained)" if drained else ""
    return f"No consumer has free capacity{but}."


_TEXTS: Final[dict[HoldKind, Callable[[Facts], str]]] = {
    HoldKind.PUBLISHERS_BLOCKED: lambda _: "RabbitMQ blocks publishers: it is short of memory or disk.",
    HoldKind.STOPPING: lambda _: "This dispatcher stops leading the lane: the next leader goes on with it.",
    HoldKind.UNCONFIRMED: lambda _: "RabbitMQ has to confirm some copies to consumers first.",
    HoldKind.DRAINING: _draining,
    HoldKind.BATCHED: _batched,
    HoldKind.WINDOW_FULL: _window_full,
    HoldKind.LOST: _lost,
    HoldKind.UNHEARD: _unheard,
    HoldKind.QUEUE_FULL: lambda facts: (
        f"The queue of {named(facts)} takes no more messages: waits until there is room."
    ),
    HoldKind.LEAVING: lambda facts: begin(
        f"{named(facts)} is leaving: waits until it has settled its messages."
    ),
    HoldKind.PREFETCH_FULL: _prefetch_full,
    HoldKind.NO_CONSUMER: lambda _: "No consumer has joined this lane.",
    HoldKind.NO_CAPACITY: _no_capacity,
}
