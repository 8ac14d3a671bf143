"""What reads the bytes of others: headers, control messages and commands, HTTP, the configuration.

A target takes one input. It may raise what `EXPECTED` names, which the product turns into a refusal.
"""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Coroutine
from random import Random
from types import SimpleNamespace
from typing import Any, Final

from multidict import CIMultiDict
from opentelemetry.context import Context
from opentelemetry.trace import get_current_span

from dispatcher.amqp.events import Delivery, Fetched
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.history_message import read_kept
from dispatcher.amqp.identity import SentBack, id_of
from dispatcher.amqp.parked import park_frames, read_parked
from dispatcher.amqp.reclaimed import read_reclaimed
from dispatcher.amqp.relay import copy_frames, dead_frames, delivery_count, read_content
from dispatcher.amqp.transfer import transfer_frames
from dispatcher.core.events import CommandReceived
from dispatcher.errors import CommandRefused, ConfigurationError, ProtocolViolation
from dispatcher.http.access import Access, Refused
from dispatcher.http.actions import ACTIONS, act
from dispatcher.http.api import RESOURCES, Api
from dispatcher.http.samples import Samples
from dispatcher.service.operators import _reply_address
from dispatcher.settings import file as config
from dispatcher.settings.urls import redact
from dispatcher.traces.context import give_to_consumer, producers_context
from dispatcher.wire import protocol
from dispatcher.wire.protocol import LaneNames
from tests.amqp.samples import EVERY_TYPE, field, properties, text
from tests.fuzz.mutation import mutated, mutated_value
from tests.spec.lane_bench import LaneBench

EXPECTED: Final = (ProtocolViolation, ConfigurationError, CommandRefused)
NAMES: Final = LaneNames("orders")
FRAME_MAX: Final = 131_072
_GROUPING: Final = Grouping(
    ("x-group-id", "property:app_id"), "x-group-seq", "x-first", reads_numbers=True, prefix="dispatch"
)
_OURS: Final = (
    text("x-dispatch-origin", "in 7.1"), text("x-dispatch-replay", "1"), text("x-dispatch-reason", "no"),
    text("x-dispatch-exchange", "e"), text("x-dispatch-routing-key", "k"), text("x-dispatch-id", "00" * 16),
    *(field(f"x-dispatch-{name}", "l", bytes(8)) for name in ("term", "attempt", "delivery-mode", "seq")),
)  # fmt: skip
_LISTS: Final = (
    properties(),
    properties(text("x-group-id", "g"), text("x-group-seq", "7"), message_id=b"m", delivery_mode=2),
    properties(*EVERY_TYPE.values(), expiration=b"60000", user_id=b"u", app_id=b"a", timestamp=1, type_=b"t"),
    properties(text("x-group-id", "g"), *_OURS, delivery_mode=2),
    properties(text("traceparent", f"00-{'4b' * 16}-{'b7' * 8}-01"), text("tracestate", "a=1,b=2")),
)
_EXCHANGES: Final = (b"", b"dispatch.orders", b"dispatch.orders.ops", b"shop", b"\xff")


def headers(random: Random) -> None:
    """A message of a producer, and one that claims to be a parked, kept or handed-over one."""
    raw = mutated(random, random.choice(_LISTS))
    exchange, body = random.choice(_EXCHANGES), mutated(random, b"body")
    delivery = Delivery(1, b"c", 1, True, exchange, b"key", raw, body)
    content = read_content(delivery, _GROUPING)
    delivery_count_of(raw)
    SentBack(_GROUPING, "u").has(delivery)
    id_of(content)
    _reply_address(raw)
    where = {"channel": 1, "exchange": "e", "routing_key": "k", "frame_max": FRAME_MAX}
    context = producers_context(content)
    if isinstance(context, Context):
        give_to_consumer(content, get_current_span(context).get_span_context())
    copy_frames(
        content, **where, group=content.group, seq=1, group_seq=1, epoch=1, attempt=1, origin="in 7.1"
    )
    dead_frames(content, **where, reason="r", attempt=1, calls=1, group=content.group, origin="in 7.1")
    transfer_frames(content, **where, group=content.group, origin="in 7.1", user=b"u")
    park_frames(
        content, **where, origin="in 7.1", term=1, attempt=1, deadline_at_ms=1, waits_since_ms=1
    )  # fmt: skip
    fetched = Fetched(1, False, b"dispatch.orders", b"q", 0, raw, body)
    with contextlib.suppress(ProtocolViolation):
        read_parked(fetched, _GROUPING, b"dispatch.orders")
    with contextlib.suppress(ProtocolViolation):
        read_reclaimed(delivery._replace(exchange=b"dispatch.orders"), NAMES, "x-first")
    with contextlib.suppress(ProtocolViolation):
        read_kept(b"\x01" + raw)


def delivery_count_of(raw: bytes) -> None:
    """The service asks only of property lists that could be read."""
    with contextlib.suppress(ProtocolViolation):
        delivery_count(raw)


_SAID: Final[tuple[dict[str, Any], ...]] = (
    {"type": "join", "protocol": 1, "consumer": "c1", "incarnation": "i1", "n": 1, "queue": "q1",
     "prefetch": 5, "in_hand": [[1, "Zw==", "00" * 16], [3, None, "11" * 16]]},
    {"type": "settle", "consumer": "c1", "incarnation": "i1", "acked": [[1, 2]], "begun": [[1, 1]],
     "concurrency": 2, "failed": [{"seq": 3, "reason": "no", "attempts": 1}]},
    {"type": "heartbeat", "consumer": "c1", "incarnation": "i1", "queue": "q1", "held": 1, "last": 2,
     "in_hand": [[1, 1]]},
    {"type": "leave", "consumer": "c1", "incarnation": "i1"},
    {"type": "marker", "incarnation": "i1", "lane_epoch": 7, "n": 1},
)  # fmt: skip
_ASKED: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("groups.pause", {"group": "g"}), ("groups.resume", {"all": True}), ("groups.close", {"group": "g"}),
    ("groups.pin", {"group": "g", "consumer": "c1"}), ("consumers.drain", {"consumer": "c1"}),
    ("consumers.evict", {"consumer": "c1"}), ("groups.purge", {"group": "g", "first": 1, "dry_run": True}),
    ("groups.move", {"group": "g", "to": "q"}),
    ("groups.reroute", {"group": "g", "exchange": "e", "key": "k"}),
    ("rebalance", {"group": "g", "to": "c1", "pause": "group"}), ("rebalance", {"reset": True}),
    ("rebalance.plan", {"moves": [["g", "c1", "c2"]], "buckets": None}), ("dead.release", {"group": "g"}),
)  # fmt: skip
#: So many inputs go into one lane.
_PER_LANE: Final = 500


class Words:
    """Control messages and commands, decoded and carried out by a lane with messages."""

    def __init__(self) -> None:
        self._bench = LaneBench()
        self._inputs = 0

    def __call__(self, random: Random) -> None:
        if self._inputs % _PER_LANE == 0:
            self._bench = LaneBench(strict_identity=random.random() < 0.3)
            self._bench.join("c1", uuid="i1")
        self._inputs += 1
        if random.random() < 0.2:
            self._bench.arrive(f"g{self._inputs}", f"h{self._inputs}")
        if random.random() < 0.3:
            self._command(random)
        else:
            self._control(random)

    def _control(self, random: Random) -> None:
        body = json.dumps(mutated_value(random, random.choice(_SAID))).encode(errors="surrogatepass")
        body = mutated(random, body) if random.random() < 0.3 else body
        protocol.refusable_join(body)
        protocol.claimed_sender(body)
        self._bench.step(protocol.decode_control(body))

    def _command(self, random: Random) -> None:
        name, arguments = random.choice(_ASKED)
        said = {
            "uuid": f"u{self._inputs}",
            "name": name,
            "sent_at_ms": 1,
            "arguments": mutated_value(random, arguments),
        }
        body = json.dumps(said).encode(errors="surrogatepass")
        command = protocol.decode_command(mutated(random, body) if random.random() < 0.2 else body)
        self._bench.step(CommandReceived("token", command.uuid, command.name, command.arguments, None))


class _Lane:
    """Answers whatever it is asked."""

    name = "orders"

    def readiness(self) -> tuple[bool, str]:
        return True, "leading"

    def overview(self) -> dict[str, Any]:
        return {"lane": "orders", "policy": "exclusive", "state": "active"}

    async def groups(self, arguments: dict[str, Any]) -> dict[str, Any]:
        return arguments

    async def command(self, name: str, arguments: dict[str, Any], uuid: str, user: str) -> dict[str, Any]:
        return {"applied": True}

    def __getattr__(self, _: str) -> Callable[..., Any]:
        return lambda *_: {}


def _finished(answering: Coroutine[Any, Any, tuple[int, Any]]) -> tuple[int, Any]:
    """Nothing here waits for anything."""
    try:
        answering.send(None)
    except StopIteration as done:
        answer: tuple[int, Any] = done.value
        return answer
    raise AssertionError("it waits")


class Http:
    """Paths, queries, headers and bodies of requests."""

    def __init__(self) -> None:
        lanes: Any = [_Lane()]
        self._lane = lanes[0]
        self._api = Api(lanes, Samples(lanes))
        self._access = Access("viewer-0123456789", "operator-0123456789")

    def __call__(self, random: Random) -> None:
        self._read(random)
        self._act(random)
        self._let_in(random)

    def _read(self, random: Random) -> None:
        path = random.choice(RESOURCES).path.replace("{lane}", "orders")
        query = b"sort=depth&limit=5&offset=0&after=g&id=g&state=free"
        target = mutated(random, path.encode() + b"?" + query).decode(errors="surrogateescape")
        status, body = _finished(self._api.answer(target))
        assert status in (200, 400, 404, 409)
        json.dumps(body)

    def _act(self, random: Random) -> None:
        body = {"group": "g", "consumer": "c", "to": "q", "first": 1, "apply": True, "all": True, "uuid": "u"}
        raw = json.dumps(mutated_value(random, body)).encode(errors="surrogatepass")
        action = random.choice(list(ACTIONS.values()))
        status, answer = _finished(act(self._lane, action, mutated(random, raw), "fuzz"))
        assert status in (200, 400)
        json.dumps(answer)

    def _let_in(self, random: Random) -> None:
        """As aiohttp decodes headers."""
        given = {
            "Authorization": b"Bearer operator-0123456789", "Origin": b"http://h:1", "Host": b"h:1",
            "Sec-Fetch-Site": b"same-origin",
        }  # fmt: skip
        sent = CIMultiDict(
            (name, mutated(random, value).decode(errors="surrogateescape")) for name, value in given.items()
        )
        request: Any = SimpleNamespace(
            headers=sent, method=random.choice(("GET", "POST")), path="/api/lanes",
            content_type="application/json",
        )  # fmt: skip
        with contextlib.suppress(Refused):
            self._access.check(request)


_FILE: Final = b"""rabbitmq: {url: "amqp://app:${PASSWORD:-pw}@mq:5672/prod", heartbeat: 10s}
redis: {url: "redis://u:hunter2-hunter2@redis:6379/0", timeout: 2s}
http: {listen: "127.0.0.1:8642", tokens: {viewer: "env:X"}}
ledger: {path: /tmp/l, max_age: 30d, max_bytes: 10GiB}
traces: {endpoint: "http://otel:4318", sample: 0.5, service_name: x}
defaults: {reconnect_grace: 5s, liveness_interval: 1s}
match: [{lanes: "orders.#", policy: sequenced}]
lanes:
  orders.eu: {group_map: {buckets: 5}, cost: {header: x}, dedup: {window: 5m}, inbound: [{queue: a}]}
  bills: {handover: true, consumers: [{id: c, prefetch: 5}], inbound: [{queue: b, declare: true}]}
"""


_SECRET: Final = "hunter2-hunter2"


def configuration(random: Random) -> None:
    """A file with mistakes. No line of a refusal has a password."""
    raw = mutated(random, _FILE).decode(errors="replace")
    try:
        config.parse(raw, {"PASSWORD": _SECRET})
    except ConfigurationError as refused:
        # As every command and the log print it. A password that is no URL's any more can't be known as one.
        in_url = raw.count("hunter2") == 2 * raw.count(f"redis://u:{_SECRET}@redis")
        if in_url and _SECRET in redact(str(refused)):
            raise ValueError(f"the password is shown: {refused}") from None
        raise


TARGETS: Final[dict[str, Callable[[], Callable[[Random], None]]]] = {
    "headers": lambda: headers, "control": Words, "http": Http, "configuration": lambda: configuration,
}  # fmt: skip
