"""What the JSON API answers, as JSON Schema by names. `openapi` makes a document of it, and tests check
answers against it. Fields may be added in later versions; these stay what they are.
"""

from __future__ import annotations

from typing import Any, Final

from dispatcher.http.samples import SamplePoint

Schema = dict[str, Any]


def integer(text: str = "", **bounds: int) -> Schema:
    return {"type": "integer", **bounds, **_described(text)}


def number(text: str = "") -> Schema:
    return {"type": "number", **_described(text)}


def string(text: str = "") -> Schema:
    return {"type": "string", **_described(text)}


def one_of(text: str, *values: str) -> Schema:
    return {"type": "string", "enum": list(values), **_described(text)}


def boolean(text: str = "") -> Schema:
    return {"type": "boolean", **_described(text)}


def nullable(schema: Schema) -> Schema:
    """The same, or null."""
    if "$ref" in schema:
        return {"oneOf": [schema, {"type": "null"}]}
    return {**schema, "type": [schema["type"], "null"]}


def list_of(item: Schema, text: str = "") -> Schema:
    return {"type": "array", "items": item, **_described(text)}


def ref(name: str) -> Schema:
    return {"$ref": f"#/components/schemas/{name}"}


def _object(text: str = "", optional: tuple[str, ...] = (), /, **properties: Schema) -> Schema:
    required = [name for name in properties if name not in optional]
    return {"type": "object", "properties": properties, "required": required, **_described(text)}


def _map_of(value: Schema, text: str) -> Schema:
    return {"type": "object", "additionalProperties": value, **_described(text)}


def _described(text: str) -> Schema:
    return {"description": text} if text else {}


_GROUP_ID: Final = string("a group's id: printable UTF-8 as it is, any other byte as %xx")
_AGO: Final = integer("milliseconds ago")
_FACTS: Final = _map_of({}, "what it is about, by names that depend on the reason")
_REASON: Final = string("a code of docs/operations.md, Why a group waits")

_INBOUND: Final = _object(
    queue=string(),
    weight=integer("its configured share against the others"),
    share=nullable(number("its share of the cost of all that was dispatched, 0 to 1")),
    ready=nullable(integer("messages in the queue that the dispatcher has not got, some seconds ago")),
    held=integer("messages that wait here for their turn"),
    in_flight=integer("messages dispatched and not settled"),
    dispatched=integer("messages handed over since this leadership began"),
    look_ahead=integer("how many messages are held at most"),
    window=integer("how many are fetched at a time"),
    full=boolean("whether the look-ahead is used up"),
    full_of=nullable(string("by what")),
    ungrouped_hold=nullable(ref("Hold")),
    settled_unacked=integer("settled messages whose acks wait for unsettled ones"),
    settled_unacked_ms=integer("for how long the first of these has waited"),
)
_STATUS: Final = _object(
    "the result of `dispatcher status`",
    ("counters",),
    lane=string(),
    policy=string(),
    state=string(),
    dispatcher=string("host and process id of the active dispatcher"),
    lane_epoch=integer("rises with every leadership"),
    since_ms=integer("how long this leadership has lasted"),
    standbys=nullable(list_of(ref("Standby"), "who would lead next; null while Redis can't tell")),
    leaderships=list_of(ref("Leadership"), "the latest ones, this one first"),
    problem=nullable(string("why it does not dispatch")),
    paused=boolean("whether an operator has paused the lane"),
    publishers_blocked=boolean("RabbitMQ is short of memory or disk"),
    redis_unavailable=boolean("commits are not answered"),
    hold=nullable(ref("Hold")),
    inbound=list_of(ref("Inbound")),
    consumers=integer(),
    consumers_drained=integer("consumers, here or not, that an operator has drained"),
    consumers_waiting=integer("consumers that wait because another one has their id"),
    consumers_frozen=integer("consumers whose heartbeats are missing now"),
    groups=integer(),
    operations=integer("operations on groups that are under way"),
    groups_paused=integer(),
    groups_waiting=integer("groups whose messages wait for nothing but a consumer's room"),
    parked_groups=integer("groups with messages in parking queues"),
    groups_pinned=integer(),
    groups_stopped=integer("groups that have stopped at a message that failed"),
    busiest_group=nullable(ref("Busiest")),
    oldest_in_flight_ms=integer("since when the oldest message in flight is out"),
    held=integer("messages that wait here for their turn"),
    in_flight=integer("messages dispatched and not settled"),
    unconfirmed=integer("copies that RabbitMQ has not confirmed yet"),
    unanswered_publishes=integer("publishes that RabbitMQ has not answered yet"),
    undeliverable=integer("messages that RabbitMQ refuses even for the dead queue"),
    dead_letters=nullable(integer("messages in the dead queue, some seconds ago")),
    bytes_held=integer("memory taken by messages"),
    parked=integer("messages in parking queues"),
    parking_queues=integer(),
    parking_unavailable=integer("parking queues that RabbitMQ can't open"),
    parked_lost=integer("parked messages that were not in their parking queue any more, in this leadership"),
    parking=list_of(ref("ParkingQueue")),
    counters=_map_of(integer(), "totals of this leadership, as the metrics dispatcher_…_total"),
)
_CONSUMER: Final = _object(
    consumer=string("its id"),
    incarnation=string("the uuid of its present life"),
    state=string(),
    prefetch=integer(),
    in_flight=integer(),
    handed_over=integer("the number of its latest message: a total of this incarnation"),
    oldest_in_flight_ms=nullable(integer("since when its oldest message is out")),
    groups=integer("how many it owns"),
    alone=boolean("it tries a message with which others died, and gets nothing else"),
    drained=boolean("an operator has drained it"),
    overdue=integer("messages not settled within ack_timeout"),
    evicted_by=nullable(string()),
    id_wanted_by=nullable(string("the uuid of another consumer of this id, which waits")),
    queue=string(),
    last_heartbeat_ms=_AGO,
    readers=nullable(integer("of a hand-over consumer's queue")),
    waiting_there=nullable(integer("messages in that queue")),
)
_GROUP_ROW: Final[dict[str, Schema]] = {
    "group": _GROUP_ID,
    "state": string(),
    "owner": nullable(string("the consumer that it belongs to")),
    "epoch": nullable(integer()),
    "held": integer("messages that wait here"),
    "in_flight": integer("messages that are out"),
    "window": nullable(integer("how many may be out at a time")),
    "parked": integer("messages in parking queues"),
    "paused": boolean(),
    "stopped": nullable(string("why the message failed at which it has stopped")),
    "pin": nullable(string("the consumer that it is pinned to")),
    "operation": nullable(string("the uuid of the operation that is open on it")),
    "oldest_ms": nullable(integer("for how long its oldest waiting message has waited")),
    "oldest_in_flight_ms": nullable(integer("since when its oldest message in flight is out")),
    "reason": nullable(_REASON),
    "verdict": string("the reason in a sentence, as `groups why` has it"),
}
_MESSAGE: Final[dict[str, Schema]] = {
    "inbound": nullable(string("the inbound queue that it came from")),
    "parked_in": nullable(string()),
    "arrival": string(),
    "state": string(),
    "seq": nullable(integer()),
    "group_seq": nullable(integer()),
    "number": nullable(integer("its producer's number")),
    "attempt": integer("how often it was handed over"),
    "consumer": nullable(string()),
    "size": integer("bytes"),
    "age_ms": integer("since when it waits"),
}
_POINT: Final = dict.fromkeys(SamplePoint._fields, list_of(nullable(number())))

SCHEMAS: Final[dict[str, Schema]] = {
    "Error": _object(error=string("what is wrong, in a sentence")),
    "Lanes": _object(version=string("of the program"), lanes=list_of(ref("Lane"))),
    "Lane": _object(
        lane=string("its name"),
        policy=string(),
        state=string("active, standing by, connecting, recovering, waiting or stopped"),
        readiness=_object(
            "as /readyz says it",
            ready=boolean("it dispatches or stands by"),
            text=string("that, or why not"),
        ),
        leader=nullable(string("host and process id of the active dispatcher, as far as known")),
        status=nullable(ref("Status")),
    ),
    "Status": _STATUS,
    "Standby": _object(
        dispatcher=string("host and process id"), since_ms=integer("how long it has stood by"),
        leads=integer("how many lanes it leads"),
    ),
    "Leadership": _object(
        lane_epoch=integer(), dispatcher=string("host and process id of who led"), began_ms=_AGO,
        ended_ms=nullable(_AGO),
        why=nullable(string("why it ended; null: it lasts, or its dispatcher could not say so any more")),
    ),
    "Hold": _object(
        "what holds the whole lane, or messages without a group",
        reason=_REASON, facts=_FACTS, verdict=string("a sentence"),
    ),
    "Inbound": _INBOUND,
    "Busiest": _object(
        "the group that most of the last minute's messages were of",
        group=_GROUP_ID, share=number("0 to 1"), owner=nullable(string()), depth=integer(),
    ),
    "ParkingQueue": _object(
        queue=string(), consumer=nullable(string("whose groups wait in it")), groups=integer(),
        parked=integer("messages"),
        problem=nullable(string("why RabbitMQ can't open it: the groups in it wait")),
    ),
    "Consumers": _object(
        consumers=list_of(_CONSUMER),
        drained_absent=list_of(string(), "consumers that are drained and not here"),
        unread=list_of(string(), "hand-over consumers whose queue was never read"),
    ),
    "Groups": _object(
        "", ("not_led_here",),
        total=integer("how many there are, whatever the limit"),
        groups=list_of(
            _object("", ("share", "lane"), **_GROUP_ROW,
                    share=number("with sort=busiest: its part of the last minute's messages"),
                    lane=string("of a lane with shards: the shard that it is in"))
        ),
        not_led_here=list_of(string(), "of a lane with shards: those whose groups are not among these"),
    ),
    "Group": _object(
        show=_object(
            "the result of `groups show`, without headers",
            **_GROUP_ROW,
            last_number=nullable(integer("the last of its producer's numbers")),
            messages=list_of(_object(**_MESSAGE), "its first ones; those in flight come first"),
        ),
        why=_object(
            "the result of `groups why`",
            group=_GROUP_ID,
            reason=nullable(_REASON),
            facts=_FACTS,
            verdict=string("a sentence"),
            owner=nullable(string("the consumer that it belongs to")),
            owner_state=nullable(string("that consumer's state")),
            blocking=nullable(
                _object(
                    "the message in front, if it is out",
                    message=_object(**_MESSAGE),
                    consumer=nullable(string("who has it")),
                    since_ms=nullable(_AGO),
                )
            ),
            behind=integer("messages behind that; all that wait, if none is out"),
            details=list_of(string()),
            dead_lettered=_object(
                "its messages that went to the dead queue, at least: as far as this leadership knows",
                count=integer(), since_ms=integer("how long this leadership has lasted"),
            ),
        ),
        history=list_of(
            _object(
                at=string("when, UTC"),
                event=string("an event of the log, or owner_changed"),
                consumer=nullable(string("of whom it tells; of owner_changed: the new owner")),
                detail=string("what else the event says"),
            ),
            "what has happened to it lately, the newest first: as far as this leadership remembers",
        ),
    ),
    "Stopped": _object(
        groups=list_of(
            _object(
                group=_GROUP_ID,
                inbound=nullable(string()),
                origin=nullable(string()),
                reason=string("why the message failed"),
                attempt=integer("how often it was handed over"),
                calls=integer("how often its handler was called"),
                consumer=string("who failed it"),
                since_ms=_AGO,
                behind=integer("messages behind it"),
                verdict=nullable(string("what an operator has decided")),
            )
        )
    ),
    "DeadLetters": _object(
        messages=list_of(
            _object(
                at=string("when, UTC"),
                group=nullable(_GROUP_ID),
                reason=string("why it went there"),
                attempt=integer("how often it was handed over"),
                calls=nullable(integer("how often its handler was called")),
            ),
            "the newest first, at most 50, whether they still lie there or not",
        )
    ),
    "Operations": _object(
        operations=list_of(
            _object(
                "", ("gone", "left"),
                uuid=string(), operation=one_of("", "purge", "move", "reroute"), group=_GROUP_ID,
                open=boolean(), waits_for=list_of(string(), "inbound queues whose marker has not come back"),
                gone=integer("messages done"), left=integer("messages to do"),
            )
        )
    ),
    "Samples": _object(
        interval_ms=integer("between two samples"),
        at_ms=integer("when the newest was taken, since 1970"),
        lanes=_map_of(
            _object("lists of the same length, the newest last; null: not known", **_POINT), "by their names"
        ),
    ),
    "Outcome": _object(
        "of an action",
        uuid=string("names this request: send it again with this uuid to hear its result once more"),
        open=boolean("it has begun and goes on"),
        applied=boolean("something was done; false: it only says what would be, or is not done yet"),
        result={"type": "object", "description": "as the program's command has it with --json"},
    ),
    "Role": _object(
        role=one_of("what the token of the request may do", "viewer", "operator"),
        acts=boolean("there is a token for operators; false: nobody may act here"),
    ),
    "Event": _object(
        "the data of an event: what a GET of that path answers now",
        path=string("as it was given in `watch`"), status=integer("of HTTP"), body={"type": "object"},
    ),
}  # fmt: skip
