"""Why a group waits, in words for operators: a sentence for each cause, made of nothing but its facts."""

from __future__ import annotations

from collections.abc import Callable
from datetime import UTC, datetime
from itertools import islice
from typing import Final

from dispatcher.core.explanation import consumer_hold
from dispatcher.core.holds import Facts, Hold, HoldKind
from dispatcher.core.model import Group, Original
from dispatcher.core.state import LaneState

UNDELIVERABLE_SHOWN: Final = 5


def text(hold: Hold) -> str:
    """The sentence for what holds something."""
    return _TEXTS[hold.kind](hold.facts)


def unheld(state: LaneState, group: Group, waiting: list[Original], out: list[Original]) -> str:
    """The sentence for a group that nothing holds; `waiting`, `out`: its messages here and in flight."""
    if waiting:
        return "Nothing blocks it: its turn comes with the next step."
    if out:
        hold = consumer_hold(group.owner, group) if group.owner is not None else None
        is_stuck = hold is not None and hold.kind in _AWAY
        return f"Nothing waits; {len(out)} in flight." + (f" {text(hold)}" if is_stuck and hold else "")
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
_DECIDED: Final = {"skip": "skipped", "drop": "dropped"}


def counted(count: int, what: str) -> str:
    """`1 message`, `2 messages`"""
    return f"{count} {what}" if count == 1 else f"{count} {what}s"


def _times(count: int) -> str:
    return {1: "once", 2: "twice"}.get(count, f"{count} times")


def _in_flight(facts: Facts) -> str:
    count = facts["in_flight"]
    return f"{count} in flight {'is' if count == 1 else 'are'}"


def _who(facts: Facts) -> str:
    """A consumer, within a sentence."""
    name = facts["consumer"]
    return f"its owner {name}" if facts["is_owner"] else f"consumer {name}, to which it is pinned,"


def _begin(sentence: str) -> str:
    return sentence[0].upper() + sentence[1:]


def _asked(facts: Facts) -> str:
    return (
        f"Redis may have forgotten messages in flight: waiting {facts['left_ms']} ms more for the "
        "consumers' word."
    )


def _quiescing(facts: Facts) -> str:
    names = ", ".join(f"{name} has {count}" for name, count in facts["consumers"].items())
    return f"A rebalance holds the lane until {_in_flight(facts)} settled: {names}."


def _not_begun(facts: Facts) -> str:
    here, wanted = facts["consumers"], facts["wanted"]
    if "left_ms" not in facts:
        return "The lane has not begun: no consumer has joined it."
    of_wanted = f", {here} of {wanted} consumers are here" if wanted else ""
    return f"The lane has not begun{of_wanted}: it begins in {facts['left_ms']} ms at the latest."


def _stopped(facts: Facts) -> str:
    at = (
        f"{facts['failure']} (handed over {_times(facts['attempt'])}, "
        f"{counted(facts['calls'], 'call')} of its handler, last by {facts['consumer']})"
    )
    if facts["decision"] is not None:
        decided = _DECIDED[facts["decision"]]
        return f"Stopped at a message that failed: {at}. To be {decided} when it is read."
    return f"Stopped at a message that failed: {at}, until `dispatcher dead release`, `skip` or `drop`."


def _pin_absent(facts: Facts) -> str:
    return f"Pinned to {facts['pin']}, which is {'drained' if facts['is_there'] else 'not there'}."


def _window_full(facts: Facts) -> str:
    messages = counted(facts["in_flight"], "message")
    at = f" at {facts['consumer']}" if facts["consumer"] is not None else ""
    return f"Its window is full: waits until one of {messages}{at} is settled."


def _one_at_a_time(facts: Facts) -> str:
    messages = counted(facts["in_flight"], "message")
    at = f" at {facts['consumer']}" if facts["consumer"] is not None else ""
    return f"One message of a group is out at a time in this lane: waits until {messages}{at} is settled."


def _recovering(facts: Facts) -> str:
    have = "has" if facts["unresolved"] == 1 else "have"
    return f"Recovering: {facts['unresolved']} of its messages {have} not come back from RabbitMQ yet."


def _draining(facts: Facts) -> str:
    to = facts["target"] if facts["target"] is not None else "the next consumer that takes it"
    return f"Changing hands to {to}: waits until {_in_flight(facts)} settled."


def _batched(facts: Facts) -> str:
    holder = facts["consumer"] if facts["consumer"] is not None else "its consumer"
    messages = counted(facts["in_flight"], "message")
    return f"Sequenced: waits until {holder} has settled the {messages} of its batch."


def _suspect(facts: Facts) -> str:
    where = f"consumer {facts['consumer']} is" if facts["consumer"] is not None else "a consumer is"
    if facts["failed"]:
        became = f"Its first message was handed over {_times(facts['attempt'])} in vain"
    else:
        had = "it" if facts["attempt"] == 1 else "they"
        became = f"{counted(facts['attempt'], 'consumer')} died while {had} had its first message"
    return f"{became}: it goes alone, as soon as {where} free of everything else."


def _number_missing(facts: Facts) -> str:
    return (
        f"Its number {facts['number']} has not come: waits for it {facts['left_ms']} ms more at most, "
        "or until `dispatcher groups resume`."
    )


def _unread(facts: Facts) -> str:
    if facts["read_back"]:
        return f"{facts['queue']} has no reader: its messages go to others first."
    return _begin(
        f"{_who(facts)} does not read {facts['queue']}: waits for it, or for another one to take over."
    )


def _unheard(facts: Facts) -> str:
    if facts["queued"] is not None:
        return f"Whether {facts['consumer']} reads {facts['queue']} is being looked at."
    return _begin(f"{_who(facts)} has not been heard of since this dispatcher took over.")


def _lost(facts: Facts) -> str:
    return _begin(f"{_who(facts)} lost its connection; its messages go to others unless it returns.")


def _kept_free(facts: Facts) -> str:
    return _begin(f"{_who(facts)} gets nothing else while it tries a message that others died with.")


def _prefetch_full(facts: Facts) -> str:
    who, out = _who(facts), facts["in_flight"]
    if facts["queued"] is None:
        unsettled = counted(out, "unsettled message")
        return f"{_begin(who)} has {unsettled}, its whole prefetch{_in_flight_of(facts)}."
    queued = f"{counted(facts['queued'], 'message')} in its queue"
    on_its_way = f" and {out} on the way there" if out else ""
    return f"{_begin(who)} has {queued}{on_its_way}, its whole prefetch."


def _in_flight_of(facts: Facts) -> str:
    """Whose messages they are."""
    named = [
        f"{row['messages']} of group {row['group']}" if row["group"] is not None
        else f"{row['messages']} without a group"
        for row in facts["in_flight_of"]
    ]  # fmt: skip
    others = facts["in_flight"] - sum(row["messages"] for row in facts["in_flight_of"])
    return f": {', '.join([*named, *([f'{others} of others'] if others else [])])}" if named else ""


def _no_capacity(facts: Facts) -> str:
    drained = facts["drained"]
    are = "is" if drained == 1 else "are"
    but = f" ({drained} of {facts['consumers']} {are} drained)" if drained else ""
    return f"No consumer has free capacity{but}."


def _since(facts: Facts) -> str:
    at_ms = facts.get("paused_at_ms")
    if at_ms is None:  # paused by an earlier version
        return ""
    return f" since {datetime.fromtimestamp(at_ms / 1000, UTC):%Y-%m-%d %H:%M:%S} UTC"


def _parked(facts: Facts) -> str:
    return f"Nothing blocks it: its messages are read from {', '.join(facts['queues'])}, in their turn."


def _parking_unavailable(facts: Facts) -> str:
    queues = "; ".join(f"{queue} ({problem})" for queue, problem in facts["queues"].items())
    return f"RabbitMQ can't open its parking queue: {queues}. Waits until it can."


_TEXTS: Final[dict[HoldKind, Callable[[Facts], str]]] = {
    HoldKind.PUBLISHERS_BLOCKED: lambda _: "RabbitMQ blocks publishers: it is short of memory or disk.",
    HoldKind.READING_BACK: lambda _: (
        "Messages from the queue of a hand-over consumer that is gone go to others first."
    ),
    HoldKind.LANE_PAUSED: lambda facts: (
        f"The lane is paused by an operator{_since(facts)}, until `dispatcher groups resume --all`."
    ),
    HoldKind.STOPPING: lambda _: "This dispatcher stops leading the lane: the next leader goes on with it.",
    HoldKind.CONSUMERS_ASKED: _asked,
    HoldKind.QUIESCING: _quiescing,
    HoldKind.NOT_BEGUN: _not_begun,
    HoldKind.UNCONFIRMED: lambda _: "RabbitMQ has to confirm some copies to consumers first.",
    HoldKind.ONE_AT_A_TIME: _one_at_a_time,
    HoldKind.TRANSFERRING: lambda facts: (
        f"The operation {facts['operation']} sends it away: what stays waits until that is done."
    ),
    HoldKind.STOPPED: _stopped,
    HoldKind.DECIDED: _stopped,
    HoldKind.PAUSED: lambda facts: f"Paused by an operator{_since(facts)}, until `dispatcher groups resume`.",
    HoldKind.PIN_ABSENT: _pin_absent,
    HoldKind.RECOVERING: _recovering,
    HoldKind.DRAINING: _draining,
    HoldKind.BATCHED: _batched,
    HoldKind.WINDOW_FULL: _window_full,
    HoldKind.SUSPECT: _suspect,
    HoldKind.NUMBER_MISSING: _number_missing,
    HoldKind.QUEUE_UNREAD: _unread,
    HoldKind.EVICTED: lambda facts: _begin(
        f"{_who(facts)} is being evicted: waits until its last settles have been read."
    ),
    HoldKind.LOST: _lost,
    HoldKind.UNHEARD: _unheard,
    HoldKind.QUEUE_FULL: lambda facts: (
        f"The queue of {_who(facts)} takes no more messages: waits until there is room."
    ),
    HoldKind.LEAVING: lambda facts: _begin(
        f"{_who(facts)} is leaving: waits until it has settled its messages."
    ),
    HoldKind.KEPT_FREE: _kept_free,
    HoldKind.PREFETCH_FULL: _prefetch_full,
    HoldKind.NO_CONSUMER: lambda _: "No consumer has joined this lane.",
    HoldKind.NO_CAPACITY: _no_capacity,
    HoldKind.PARKED: _parked,
    HoldKind.PARKING_UNAVAILABLE: _parking_unavailable,
}
