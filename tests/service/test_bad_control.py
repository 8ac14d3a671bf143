"""Control messages that nobody should send: they do no harm, and the offender is named."""

from __future__ import annotations

import asyncio
import time
import uuid

import pytest
import structlog

from dispatcher.cli.command_client import ask
from dispatcher.cli.rabbitmq import connected
from dispatcher.core.orders import SendNotice
from dispatcher.wire import protocol
from dispatcher.wire.protocol import Command, Heartbeat, Marker, Settle
from tests.amqp.samples import properties
from tests.service.clients import Client
from tests.service.harness import ASK_TIMEOUT_MS, Bench, lane
from tests.service.protocol_consumer import ProtocolConsumer, read_properties
from tests.waiting import eventually


async def _working(bench: Bench, **keys: object) -> tuple[Client, ProtocolConsumer]:
    """A lane whose one consumer holds five messages."""
    await bench.run(orders=lane(**keys))
    client = await bench.client()
    consumer = await bench.joined("c1", hold=True)
    for number in range(5):
        client.send("in", b"%d" % number, "g")
    await consumer.has(5)
    return client, consumer


async def _still_works(bench: Bench, client: Client, consumer: ProtocolConsumer) -> None:
    """All five are still in flight, and everything goes on."""
    await eventually(lambda: bench.status()["in_flight"] == 5)
    client.send("in", b"5", "g")
    consumer.release()
    await consumer.has(6)
    await bench.acked()
    assert consumer.bodies() == [b"%d" % number for number in range(6)]
    assert bench.runners["orders"].leaderships == 1


UNREADABLE = [
    (b"", "JSON"),
    (b"{", "JSON"),
    (b"\xff\xfe", "JSON"),
    (b"[" * 50_000, "JSON"),
    (b"[1]", "JSON object"),
    (b"null", "JSON object"),
    (b"{}", "unknown control message type None"),
    (b'{"type":"dance"}', "unknown control message type 'dance'"),
    (b'{"type":["settle"]}', "unknown control message type"),
    (b'{"type":"%s"}' % (b"x" * 200_000), "unknown control message type 'xxxxxxxxxxxx...xxxxxxxxxxxxx'"),
    (b'{"type":%s}' % (b"[" * 300 + b"]" * 300), "unknown control message type [[[[[[[...]]]]]]]"),
    (b'{"type":"settle"}', "consumer"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","acked":[[1]]}', "acked"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","acked":[[1,2.5]]}', "acked"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","acked":[[0,9]]}', "acked"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","acked":7}', "acked"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","failed":[7]}', "failed"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","failed":[{"seq":1,"reason":7}]}', "reason"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","failed":[{"seq":1,"reason":null}]}', "reason"),
    (b'{"type":"settle","consumer":"c 1","incarnation":"i"}', "consumer"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","begun":7}', "begun"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","begun":[[1]]}', "begun"),
    (b'{"type":"settle","consumer":"c1","incarnation":"i","begun":[],"concurrency":0}', "concurrency"),
    (b'{"type":"leave","consumer":"c1"}', "incarnation"),
    (b'{"type":"leave","consumer":"c1","incarnation":"\\ud800"}', "incarnation"),
    (b'{"type":"join","protocol":1,"consumer":"c2","incarnation":"i","n":1,"queue":"\\ud800"}', "queue"),
    (b'{"type":"marker","incarnation":"i"}', "must be an integer"),
]


async def test_what_can_not_be_read_is_kept_in_the_dead_queue(bench: Bench) -> None:
    client, consumer = await _working(bench)
    for number, (body, problem) in enumerate(UNREADABLE, start=1):
        consumer.publish(body)
        await client.has_ready(bench.names().dead, 1)
        (dead,) = await client.take(bench.names().dead)
        assert dead.body == body
        reason = (read_properties(dead.properties).headers or {})["x-dispatch-reason"]
        assert problem in reason, body
        assert bench.counter("control_refused") == number, body
    await _still_works(bench, client, consumer)


REFUSED_JOINS: list[tuple[dict[str, object], str]] = [
    ({"prefetch": 0}, "prefetch"),
    ({"prefetch": -1}, "prefetch"),
    ({"prefetch": 1_000_000}, "prefetch"),
    ({"prefetch": "50"}, "prefetch"),
    ({"prefetch": True}, "prefetch"),
    ({"protocol": 2}, "protocol"),
    ({"protocol": "x" * 200_000}, "protocol: must be 1, not 'xxxxxxxxxxxx...xxxxxxxxxxxxx'"),
    ({"consumer": "with space"}, "consumer"),
    ({"consumer": "x" * 300}, "consumer"),
    ({"n": 0}, "n"),
    ({"in_hand": [[1, "not base64!", "00"]]}, "in_hand"),
    ({"in_hand": [[1, "Zw==", "xyz"]]}, "in_hand"),
    ({"in_hand": [[1, "Zw=="]]}, "in_hand"),
    ({"in_hand": {"1": 2}}, "in_hand"),
    ({"in_hand": [[1, "Zw==", "00" * 16], [1, "Zw==", "11" * 16]]}, "seq 1 is named twice"),
    ({"incarnation": "\ud800"}, "incarnation"),
]


async def test_a_join_that_can_not_be_accepted_is_refused_with_the_reason(bench: Bench) -> None:
    client, consumer = await _working(bench)
    for changes, problem in REFUSED_JOINS:
        other = bench.consumer("c2")
        await other.connect()
        other.n = 1
        other.send_join(**changes)
        await eventually(lambda other=other: other.heard("refused"), what=f"the refusal of {changes}")
        assert problem in other.heard("refused")[0].body["reason"]
        assert not other.heard("welcome")
        await other.drop()
    await _still_works(bench, client, consumer)


async def test_a_join_with_a_queue_of_ours_is_refused(bench: Bench) -> None:
    client, consumer = await _working(bench)
    for number, queue in enumerate(("control", "dead", "lock", "heartbeat"), start=1):
        other = bench.consumer("c2")
        await other.connect()
        other.n = 1
        other.send_join(queue=f"{bench.names().exchange}.{queue}")
        await eventually(lambda number=number: bench.counter("control_refused") == number)
        assert bench.counter("joins") == 1, queue
        await other.drop()
    await _still_works(bench, client, consumer)


async def test_a_join_with_an_inbound_queue_makes_no_loop(bench: Bench) -> None:
    """Copies would go to the queue that they came from; it isn't bound to the lane's exchange."""
    client, consumer = await _working(bench)
    other = bench.consumer("c2", prefetch=50)
    await other.connect()
    other.n = 1
    other.send_join(queue="in")
    await other.confirmed()
    for number in range(10):
        client.send("in", b"x", f"h{number}")
    await eventually(lambda: len(consumer.received) == 15, what="all messages at the real consumer")
    consumer.release()
    await bench.acked()


async def test_settles_for_strangers_count_for_nothing(bench: Bench) -> None:
    client, consumer = await _working(bench)
    first, last = consumer.received[0].seq, consumer.received[-1].seq
    for changes in (
        {"consumer": "nobody"},
        {"incarnation": str(uuid.uuid4())},
        {"consumer": "nobody", "incarnation": str(uuid.uuid4())},
    ):
        consumer.send_settle(acked=[[first, last]], **changes)
        consumer.send_settle(failed=[{"seq": first, "reason": "no"}], **changes)
    await eventually(lambda: bench.counter("settles_ignored") == 18)
    await _still_works(bench, client, consumer)


async def test_numbers_that_were_never_sent_count_for_nothing(bench: Bench) -> None:
    client, consumer = await _working(bench)
    first, last = consumer.received[0].seq, consumer.received[-1].seq
    consumer.send_settle(acked=[[1, first - 1], [last + 1, 2**53 - 1], [last, first]])
    consumer.send_settle(failed=[{"seq": last + 1, "reason": "no"}, {"seq": 1, "reason": "no"}])
    await eventually(lambda: bench.counter("settles_ignored") > 2**52)
    await _still_works(bench, client, consumer)


async def test_a_reason_is_kept_whatever_text_it_is(bench: Bench) -> None:
    """JSON can write half a character, which nothing else can."""
    client, consumer = await _working(bench)
    for number, reason in enumerate(["half \ud800", "zero \x00", "line\n\x1b[31m", "", "ü" * 4_000]):
        client.send("in", b"odd", "other")
        await consumer.has(6 + number)
        consumer.fail(consumer.received[-1].seq, reason)
    await client.has_ready(bench.names().dead, 5)
    dead = await client.take(bench.names().dead)
    reasons = [(read_properties(one.properties).headers or {})["x-dispatch-reason"] for one in dead]
    assert reasons[:4] == ["half ?", "zero \x00", "line\n\x1b[31m", ""]
    assert set(reasons[4]) == {"ü"}
    await eventually(lambda: bench.status()["in_flight"] == 5)
    consumer.release()
    await bench.acked()
    assert bench.runners["orders"].leaderships == 1


async def test_of_a_range_that_reaches_too_far_the_known_part_applies(bench: Bench) -> None:
    client, consumer = await _working(bench)
    consumer.send_settle(acked=[[1, 2**53 - 1]])
    consumer.in_hand.clear()
    await eventually(lambda: bench.status()["in_flight"] == 0)
    client.send("in", b"5", "g")
    await consumer.has(6)


async def test_other_consumers_numbers_count_for_nothing(bench: Bench) -> None:
    client, consumer = await _working(bench)
    other = await bench.joined("c2", hold=True)
    other.settle([copy.seq for copy in consumer.received])
    await eventually(lambda: bench.counter("settles_ignored") == 5)
    await _still_works(bench, client, consumer)


async def test_a_stale_incarnation_can_say_nothing(bench: Bench) -> None:
    client, stale = await _working(bench)
    await stale.drop()
    await eventually(lambda: bench.counter("consumers_taken") == 1)
    fresh = await bench.joined("c1", hold=True)
    await fresh.has(5)
    await stale.connect()
    stale.send_settle(acked=[[copy.seq, copy.seq] for copy in stale.received])
    stale.publish({"type": "leave", "consumer": "c1", "incarnation": stale.incarnation})
    stale.send_heartbeat()
    stale.n += 1
    stale.send_join()
    await eventually(lambda: stale.heard("taken"))
    await _still_works(bench, client, fresh)


async def test_a_forged_marker_takes_nothing_back(bench: Bench) -> None:
    client, consumer = await _working(bench)
    for epoch in (0, 1, bench.status()["lane_epoch"]):
        consumer.publish({"type": "marker", "incarnation": consumer.incarnation, "lane_epoch": epoch, "n": 1})
    await consumer.confirmed()
    await _still_works(bench, client, consumer)
    assert bench.counter("consumers_taken") == 0


async def test_a_heartbeat_on_the_control_queue_and_a_join_on_the_heartbeat_queue_are_refused(
    bench: Bench,
) -> None:
    client, consumer = await _working(bench)
    consumer.publish(
        {"type": "heartbeat", "consumer": "c1", "incarnation": consumer.incarnation, "queue": consumer.queue,
         "held": 0, "last": 0}
    )  # fmt: skip
    stranger = bench.consumer("c2")
    await stranger.connect()
    fields = {
        "type": "join", "protocol": 1, "consumer": "c2", "incarnation": stranger.incarnation, "n": 1,
        "queue": stranger.queue, "prefetch": 5, "in_hand": [],
    }  # fmt: skip
    stranger.publish(fields, "heartbeat")
    await eventually(lambda: stranger.heard("refused"), what="the refusal")
    assert "routing key 'heartbeat'" in stranger.heard("refused")[0].body["reason"]
    await client.has_ready(bench.names().dead, 1)
    (dead,) = await client.take(bench.names().dead)
    reason = (read_properties(dead.properties).headers or {})["x-dispatch-reason"]
    assert "a heartbeat must not be published with the routing key 'control'" in reason
    assert bench.counter("control_refused") == 2
    await _still_works(bench, client, consumer)
    assert bench.counter("joins") == 1


async def test_a_consumer_queue_deleted_from_outside_is_a_lost_connection(bench: Bench) -> None:
    client, consumer = await _working(bench, reconnect_grace="10s")
    await consumer.delete_queue()
    client.send("in", b"5", "g")
    await eventually(lambda: bench.counter("consumers_lost") == 1)
    await eventually(lambda: consumer.cancelled)
    await consumer.rejoin()
    await consumer.has(6)
    consumer.release()
    await bench.acked()
    assert not consumer.repeated
    assert [copy.attempt for copy in consumer.received] == [1] * 6


@pytest.mark.seed("A29")
async def test_a_deleted_consumer_queue_without_grace_is_a_death(bench: Bench) -> None:
    client, consumer = await _working(bench, liveness_interval="1m")
    await consumer.delete_queue()
    client.send("in", b"5", "g")  # its copy comes back: nothing else would tell for a minute
    await eventually(lambda: bench.counter("consumers_taken") == 1)
    heir = await bench.joined("c2")
    await heir.has(6)
    await bench.acked()
    assert heir.bodies() == [b"%d" % number for number in range(6)]
    assert [copy.attempt for copy in heir.received[:5]] == [2] * 5


@pytest.mark.parametrize("to_heartbeats", [False, True])
async def test_a_producer_does_not_speak_for_consumers(bench: Bench, to_heartbeats: bool) -> None:
    """It may write to the default exchange, which reaches every queue by its name."""
    client, consumer = await _working(bench)
    names, speaker = bench.names(), {"consumer": "c1", "incarnation": consumer.incarnation}
    seqs = [copy.seq for copy in consumer.received]
    forged: Settle | Heartbeat = Settle(**speaker, acked=((min(seqs), max(seqs)),))
    if to_heartbeats:
        forged = Heartbeat(**speaker, queue=consumer.queue, held=0, last=max(seqs), in_hand=())
    queue = names.heartbeat if to_heartbeats else names.control
    client.send_raw(queue, protocol.encode(forged), properties(user_id=b"guest"))
    await client.has_ready(names.dead, 1)
    assert bench.counter("control_refused") == 1
    await _still_works(bench, client, consumer)


async def test_a_producer_is_no_operator(bench: Bench) -> None:
    """What it publishes to the command queue by its name is kept, and the log names its user."""
    client, consumer = await _working(bench)
    now_ms = int(time.time() * 1000)
    pause = Command(uuid=str(uuid.uuid4()), name="groups.pause", sent_at_ms=now_ms, arguments={"group": "g"})
    with structlog.testing.capture_logs() as logs:
        client.send_raw(bench.names().command, protocol.encode(pause), properties(user_id=b"guest"))
        await client.has_ready(bench.names().dead, 1)
    (refused,) = (line for line in logs if line["event"] == "control_message_refused")
    assert refused["user_id"] == "guest"
    await _still_works(bench, client, consumer)


async def test_a_consumer_sends_no_markers(bench: Bench) -> None:
    """Only the dispatcher says that all settles of an incarnation are read."""
    client, consumer = await _working(bench)
    marker = Marker(incarnation=consumer.incarnation, lane_epoch=1, n=1)
    consumer.publish(protocol.encode(marker))
    await client.has_ready(bench.names().dead, 1)
    assert bench.counter("control_refused") == 1
    await _still_works(bench, client, consumer)


async def test_the_log_names_the_operator(bench: Bench) -> None:
    client, consumer = await _working(bench)
    with structlog.testing.capture_logs() as logs:
        await bench.ask("groups.pause", group="g")
    (told,) = (line for line in logs if line["event"] == "operator_command")
    assert (told["user"], told["command"], told["group"]) == ("guest", "groups.pause", "g")
    await bench.ask("groups.resume", group="g")
    await _still_works(bench, client, consumer)


async def test_a_command_goes_without_a_user_that_rabbitmq_knows_by_another_name(bench: Bench) -> None:
    """As that of a token: RabbitMQ refuses the URL's, and the command is sent once more."""
    client, consumer = await _working(bench)

    def pause() -> dict[str, object]:
        with connected(bench.rabbitmq, "test") as connection:
            connection.user = "by a token"
            return ask(connection, bench.names(), "groups.pause", {"group": "g"}, timeout_ms=ASK_TIMEOUT_MS)

    with structlog.testing.capture_logs() as logs:
        assert (await asyncio.to_thread(pause))["changed"]
    (told,) = (line for line in logs if line["event"] == "operator_command")
    assert told["user"] is None
    await bench.ask("groups.resume", group="g")
    await _still_works(bench, client, consumer)


async def test_a_flood_of_nonsense_does_not_stop_the_lane(bench: Bench) -> None:
    client, consumer = await _working(bench)
    for number in range(2_000):
        client.send_raw(
            "control", b'{"type":"x%d"}' % number, properties(delivery_mode=2), bench.names().control_exchange
        )
    await client.confirmed()
    await eventually(lambda: bench.counter("control_refused") == 2_000)
    await _still_works(bench, client, consumer)


async def test_a_bad_message_is_acked_only_when_the_dead_queue_has_it(bench: Bench) -> None:
    full, dead = f"policies/{bench.vhost.name}/full", bench.names().dead
    limit = {"pattern": r"\.dead$", "definition": {"max-length": 0, "overflow": "reject-publish"}}
    bench.vhost.management(full, "PUT", limit)
    client, consumer = await _working(bench)
    consumer.publish(b"nonsense")
    await eventually(lambda: bench.counter("control_refused") == 1)
    consumer.release()
    await bench.acked()  # what is said behind it is obeyed
    await bench.crash()
    assert await client.ready(dead) == 0
    bench.vhost.management(full, "DELETE")
    await bench.run(orders=lane())
    await client.has_ready(dead, 1)
    assert [message.body for message in await client.take(dead)] == [b"nonsense"]
    await bench.stop()
    assert await client.ready(bench.names().control) == 0


async def test_a_bad_message_for_a_dead_queue_that_is_gone_is_not_lost(bench: Bench) -> None:
    client, consumer = await _working(bench)
    await client.delete(bench.names().dead)
    consumer.publish(b"nonsense")
    await eventually(lambda: bench.runners["orders"].leaderships == 2)
    await client.has_ready(bench.names().dead, 1)
    consumer.release()
    await bench.acked()


async def test_what_can_not_be_carried_out_is_not_left_half_done(bench: Bench) -> None:
    """Should such a thing get through all the same: whatever else was decided with it would be lost."""
    client, consumer = await _working(bench)
    order = SendNotice("\ud800", "dispatch.odd", {})
    bench.runners["orders"]._session.lane.state.effects.actions.append(order)
    client.send("in", b"5", "g")
    await eventually(lambda: bench.runners["orders"].leaderships == 2)
    consumer.release()
    await consumer.has(6)
    await bench.acked()
    assert len(consumer.received) == 6


async def test_the_log_names_who_sent_it(bench: Bench) -> None:
    client, consumer = await _working(bench)
    with structlog.testing.capture_logs() as logs:
        consumer.publish({"type": "dance", "consumer": "c1", "incarnation": consumer.incarnation})
        raw = properties(user_id=b"guest", app_id=b"shop")
        client.send_raw("control", b"nonsense", raw, bench.names().control_exchange)
        other = bench.consumer("c2")
        await other.connect()
        other.n = 1
        other.send_join(prefetch=0)
        await eventually(lambda: bench.counter("control_refused") == 3)
    refused = [line for line in logs if line["event"] in ("control_message_refused", "join_refused")]
    found = [
        {key: line.get(key) for key in ("consumer", "incarnation", "user_id", "app_id")} for line in refused
    ]
    nobody = {"consumer": None, "incarnation": None, "user_id": None, "app_id": None}
    for sender in (
        {"consumer": "c1", "incarnation": consumer.incarnation},
        {"user_id": "guest", "app_id": "shop"},
        {"consumer": "c2", "incarnation": other.incarnation},
    ):
        assert nobody | sender in found
    await _still_works(bench, client, consumer)
