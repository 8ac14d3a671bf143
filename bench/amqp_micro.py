"""What the hot path of dispatcher.amqp costs per message: `python -m bench.amqp_micro`.

Best of several runs, process time, one thread. A message has 256 bytes of body and the usual properties;
reads are 64 KiB, as a busy socket gives them.
"""

from __future__ import annotations

import struct
import time
from collections.abc import Callable

from dispatcher.amqp import wire
from dispatcher.amqp.decoder import Decoder
from dispatcher.amqp.events import ConnectionEvent, Delivery
from dispatcher.amqp.grouping import Grouping
from dispatcher.amqp.properties import string_field
from dispatcher.amqp.relay import copy_frames, read_content

FRAME_MAX = 131_072
MESSAGES = 20_000
RUNS = 5
READ_BYTES = 65_536
TEXT = b"application/json"


def properties(headers: int) -> bytes:
    """content_type, headers, delivery_mode, message_id, timestamp, type."""
    fields = [string_field(b"x-group-id", b"customer-12345")]
    fields += [
        string_field(b"traceparent-%d" % n, b"00-4bf92f3577b34da6a3ce929d0e0e4736")
        for n in range(headers - 1)
    ]
    table = b"".join(fields)
    return b"".join(
        (
            struct.pack(">H", 1 << 15 | 1 << 13 | 1 << 12 | 1 << 7 | 1 << 6 | 1 << 5),
            bytes((len(TEXT),)), TEXT, struct.pack(">I", len(table)), table, b"\x02",
            b"\x24", b"0b9f6d54-7d1c-4a6b-9a55-6f1c9b1f0a11", struct.pack(">Q", 1_790_000_000), b"\x05order",
        )
    )  # fmt: skip


def stream(properties: bytes, body: bytes, count: int) -> bytes:
    """Deliveries as the broker writes them."""
    parts = []
    for tag in range(1, count + 1):
        names = b"\x0cinbound.high" + struct.pack(">QB", tag, 0) + b"\x06events\x06orders"
        parts.append(wire.method_frame(1, wire.BASIC_DELIVER, names))
        parts.append(wire.content_frames(1, properties, body, FRAME_MAX))
    return b"".join(parts)


def best_us(run: Callable[[], object]) -> float:
    """Microseconds of own CPU per message."""
    costs = []
    for _ in range(RUNS):
        start = time.process_time_ns()
        run()
        costs.append(time.process_time_ns() - start)
    return min(costs) / MESSAGES / 1_000


def parse(data: bytes, step: int) -> list[ConnectionEvent]:
    events: list[ConnectionEvent] = []
    decoder = Decoder(lambda *_: None, lambda *_: None)
    decoder.open_channel(1)
    for at in range(0, len(data), step):
        decoder.feed(data[at : at + step], events)
    return events


def measure(headers: int, body: bytes) -> None:
    data = stream(properties(headers), body, MESSAGES)
    deliveries = [event for event in parse(data, READ_BYTES) if isinstance(event, Delivery)]
    assert len(deliveries) == MESSAGES
    grouping = Grouping(("x-group-id",), "x-group-seq")
    contents = [read_content(delivery, grouping) for delivery in deliveries]

    def copy_all() -> None:
        for seq, content in enumerate(contents):
            copy_frames(
                content, channel=2, exchange="dispatch.orders", routing_key="amq.gen-0123456789abcdefghijkl",
                group=content.group, seq=seq, group_seq=7, epoch=1 << 50, attempt=1, frame_max=FRAME_MAX,
            )  # fmt: skip

    def read_all() -> None:
        for delivery in deliveries:
            read_content(delivery, grouping)

    costs = [
        best_us(lambda: parse(data, READ_BYTES)),
        best_us(lambda: parse(data, 1_448)),
        best_us(read_all),
        best_us(copy_all),
    ]
    print(f"{headers:>7} {len(body):>6}" + "".join(f"{cost:>15.2f}" for cost in costs))


if __name__ == "__main__":
    print("µs of own CPU per message")
    print("headers   body    parse 64 KiB  parse 1.4 KiB   read_content    copy_frames")
    for headers in (1, 3, 10, 30):
        measure(headers, b"x" * 256)
    measure(1, b"x" * 4_096)
