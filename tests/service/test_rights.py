"""The least rights on RabbitMQ and Redis, read from docs/security.md: each role does its work with exactly
these, and nothing of the others'."""

from __future__ import annotations

import asyncio
import json
import re
import uuid
from asyncio import to_thread
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any
from urllib.parse import quote, urlsplit, urlunsplit

import pytest
import redis
import structlog
import yaml
from pamqp import commands
from typer.testing import CliRunner, Result

from dispatcher.amqp.events import ChannelClosed
from dispatcher.cli import app
from dispatcher.client import GroupConsumer
from dispatcher.errors import ChannelRefused, ConfigurationError, ConsumerRefused
from dispatcher.service.topology import refuse_unusable
from dispatcher.settings import RabbitSettings
from dispatcher.wire import protocol
from dispatcher.wire.shards import ShardNames, shard_name
from tests.amqp.samples import properties, text
from tests.conftest import Vhost
from tests.redis_store import least_rights
from tests.service.clients import Client
from tests.service.harness import Bench, bench_of, document, lane
from tests.waiting import TIMEOUT_S, eventually

PAGE = Path(__file__).parents[2] / "docs/security.md"
RIGHTS = ("configure", "write", "read")
QUEUES = ("orders.high", "orders.low")
KEPT = {"history": {"max_age": "1h"}, "dedup": {"window": "5m"}}
LANES = {"orders": lane(inbound=[{"queue": queue} for queue in QUEUES], **KEPT)}


def documented() -> dict[str, dict[str, str]]:
    """configure, write and read of each role."""
    section = PAGE.read_text().partition("## RabbitMQ")[2].partition("\n## ")[0]
    rows = re.findall(r"^\| (\w+) \| `(\S+)` \| `(\S+)` \| `(\S+)` \|$", section, re.MULTILINE)
    return {
        role: {right: pattern.replace("\\|", "|") for right, pattern in zip(RIGHTS, patterns, strict=True)}
        for role, *patterns in rows
    }


class Users:
    """A user for each role, with the documented rights for the prefix of the test's own vhost. That of the
    dispatcher is one of Redis, too."""

    def __init__(self, vhost: Vhost) -> None:
        self._vhost = vhost
        self._names: dict[str, str] = {}
        for role, rights in documented().items():
            name = self._names[role] = f"{role}-{uuid.uuid4().hex[:8]}"
            vhost.management(f"users/{name}", "PUT", {"password": "hunter2", "tags": ""})
            self.permit(role, rights)
        self.permit_keys(least_rights.ONE_LANE)

    def permit_keys(self, pattern: str) -> None:
        """The dispatcher has these keys of Redis, for the prefix of the page's example."""
        rule = [pattern if word == least_rights.ONE_LANE else word for word in least_rights.documented()]
        own = [word.replace("dispatch", self._vhost.redis_prefix) for word in rule]
        with redis.Redis.from_url(self._vhost.redis_url) as admin:
            admin.execute_command("ACL", "SETUSER", self["dispatcher"], *own)

    @property
    def redis_url(self) -> str:
        """The dispatcher's."""
        return self._vhost.redis_url.replace("://", f"://{self['dispatcher']}:SECRET@")

    def permit(self, role: str, rights: dict[str, str]) -> None:
        """These rights, for the prefix of the page's example, instead of the documented ones."""
        own = {
            right: pattern.replace("dispatch", self._vhost.redis_prefix) for right, pattern in rights.items()
        }
        place = f"permissions/{quote(self._vhost.name, safe='')}/{self[role]}"
        self._vhost.management(place, "PUT", own)

    def __getitem__(self, role: str) -> str:
        return self._names[role]

    def url(self, role: str) -> str:
        """Of RabbitMQ."""
        parts = urlsplit(self._vhost.amqp_url)
        host = parts.netloc.rpartition("@")[2]
        return urlunsplit(parts._replace(netloc=f"{self[role]}:hunter2@{host}"))

    def remove(self) -> None:
        for name in self._names.values():
            self._vhost.management(f"users/{name}", "DELETE")
        with redis.Redis.from_url(self._vhost.redis_url) as admin:
            admin.execute_command("ACL", "DELUSER", self["dispatcher"])


@pytest.fixture
def users(vhost: Vhost) -> Iterator[Users]:
    made = Users(vhost)
    yield made
    made.remove()


@pytest.fixture
def without_configure(users: Users) -> None:
    """The dispatcher may do with its inbound queues what it needs to lead a lane."""
    users.permit("dispatcher", {**documented()["dispatcher"], "configure": r"^dispatch\.orders(\..*)?$"})


async def declare_inbound(vhost: Vhost, **arguments: Any) -> None:
    async with Client.opened(RabbitSettings(url=vhost.amqp_url)) as admin:
        for queue in QUEUES:
            await admin.declare(queue, **arguments)


@pytest.fixture
async def inbound(vhost: Vhost) -> None:
    await declare_inbound(vhost)


def running(vhost: Vhost, users: Users) -> Vhost:
    return replace(vhost, amqp_url=users.url("dispatcher"), redis_url=users.redis_url)


def config(folder: Path, vhost: Vhost, users: Users, role: str) -> Path:
    file = folder / f"{role}.yaml"
    file.write_text(yaml.safe_dump(document(users.url(role), users.redis_url, vhost.redis_prefix, LANES)))
    return file


def program(file: Path, *arguments: str) -> Result:
    return CliRunner().invoke(app, [*arguments, "-c", str(file)], prog_name="dispatcher")


async def succeeds(file: Path, *arguments: str) -> None:
    done = await to_thread(program, file, *arguments)
    assert done.exit_code == 0, done.output


async def as_producer(users: Users) -> Client:
    return await Client.open(RabbitSettings(url=users.url("producer")))


@pytest.mark.usefixtures("inbound")
async def test_check_works_with_the_documented_rights(vhost: Vhost, users: Users, tmp_path: Path) -> None:
    async with bench_of(running(vhost, users)) as bench:
        for runs in (False, True):
            if runs:
                await bench.run(**LANES)
            found = await to_thread(program, config(tmp_path, vhost, users, "dispatcher"), "check", "--json")
            levels = [(each["level"], each["text"]) for each in json.loads(found.stdout)["findings"]]
            assert [text for level, text in levels if level in ("problem", "warning")] == []
            assert "hunter2" not in found.output


def findings(file: Path, level: str) -> list[str]:
    found = json.loads(program(file, "check", "--json").stdout)["findings"]
    return [each["text"] for each in found if each["level"] == level]


@pytest.mark.usefixtures("without_configure")
@pytest.mark.parametrize("kind", ["classic", "quorum"])
async def test_the_kind_of_inbound_queues_is_found_out_by_the_right_to_read(
    vhost: Vhost, users: Users, tmp_path: Path, kind: str
) -> None:
    """What RabbitMQ can keep from a second reader it does, and what came in replicated stays replicated."""
    await declare_inbound(vhost, x_queue_type=kind)
    async with bench_of(running(vhost, users)) as bench:
        await bench.run(**LANES)
        queues = {queue["name"]: queue["type"] for queue in vhost.management(f"queues/{vhost.name}")}
        own = {queues[f"{bench.names().exchange}.{word}"] for word in ("control", "command", "lock", "dead")}
        assert own == {kind}
        if kind == "classic":
            async with Client.opened(RabbitSettings(url=vhost.amqp_url)) as admin:
                with pytest.raises(ChannelRefused, match="in exclusive use"):
                    await admin.link.call(admin.channel, commands.Basic.Consume(queue=QUEUES[0]))
        checked = await to_thread(findings, config(tmp_path, vhost, users, "dispatcher"), "problem")
        assert checked == []


@pytest.mark.usefixtures("without_configure")
async def test_a_stream_is_refused_without_the_right_to_configure_it(
    vhost: Vhost, users: Users, tmp_path: Path
) -> None:
    await declare_inbound(vhost, x_queue_type="stream")
    async with bench_of(running(vhost, users)) as bench:
        await bench.run(**LANES, wait=False)
        runner = bench.runners["orders"]
        await eventually(lambda: runner.problem is not None and "is a stream" in runner.problem)
        assert not runner.leaderships
        problems = await to_thread(findings, config(tmp_path, vhost, users, "dispatcher"), "problem")
        assert len([text for text in problems if "is a stream" in text]) == len(QUEUES)


@pytest.mark.usefixtures("without_configure")
@pytest.mark.parametrize(
    ("kind", "unknown"), [("classic", [*QUEUES]), ("quorum", [])], ids=["classic", "quorum"]
)
async def test_it_is_told_that_priorities_can_not_be_found_out(
    vhost: Vhost, users: Users, tmp_path: Path, kind: str, unknown: list[str]
) -> None:
    """Only a classic queue can have them. Its lane is led, as ever."""
    await declare_inbound(vhost, x_queue_type=kind)
    with structlog.testing.capture_logs() as logs:
        async with bench_of(running(vhost, users)) as bench:
            await bench.run(**LANES)
            warnings = await to_thread(findings, config(tmp_path, vhost, users, "dispatcher"), "warning")
    told = [line for line in logs if line["event"] == "inbound_priorities_unknown"]
    assert [line["queues"] for line in told] == ([unknown] if unknown else [])
    assert [text.split("'")[1] for text in warnings if "configure right" in text] == unknown


@pytest.mark.usefixtures("inbound")
async def test_an_inbound_queue_is_refused_without_the_right_to_read_it(vhost: Vhost, users: Users) -> None:
    rights = documented()["dispatcher"]
    users.permit("dispatcher", {**rights, "read": rights["read"].replace(r"|orders\.low", "")})
    settings = Bench(running(vhost, users)).settings(**LANES)
    async with Client.opened(settings.rabbitmq) as client:
        with pytest.raises(ConfigurationError, match=r"inbound\[1\].queue: .* 'orders.low' .*: 403 ACCESS"):
            await refuse_unusable(client.link, settings.lanes["orders"])


@pytest.mark.usefixtures("inbound")
async def test_each_role_does_its_work(vhost: Vhost, users: Users, tmp_path: Path) -> None:
    """Messages go through, one fails, the operator lists it, releases it, replays it and pauses a group."""
    with structlog.testing.capture_logs() as logs:
        async with bench_of(running(vhost, users)) as bench:
            await bench.run(**LANES)
            producer = await as_producer(users)
            seen: list[tuple[bytes, bool]] = []
            async with GroupConsumer(
                users.url("consumer"), "orders", "c1", prefix=vhost.redis_prefix
            ) as consumer:
                producer.send("orders.high", b"1", "g", message_id=b"m1")
                async for message in consumer:
                    seen.append((message.body, "x-dispatch-replay" in message.headers))
                    if len(seen) == 1:
                        await message.fail("no stock")
                        operator = config(tmp_path, vhost, users, "operator")
                        await eventually(lambda: bench.counter("dead_lettered") == 1)
                        await succeeds(operator, "dead", "list", "orders")
                        await succeeds(operator, "dead", "release", "orders", "--all")
                        continue
                    await message.ack()
                    if len(seen) == 2:
                        await succeeds(operator, "replay", "orders", "--all")
                    if len(seen) == 3:
                        break
                await succeeds(operator, "groups", "pause", "orders", "--all")
            await producer.close()
    assert seen == [(b"1", False), (b"1", False), (b"1", True)]
    (told,) = [line for line in logs if line["event"] == "operator_command"]
    assert told["user"] == users["operator"]
    assert not [line for line in logs if line["event"] == "inbound_queue_not_bound"]


@pytest.mark.usefixtures("inbound")
async def test_messages_are_parked_and_come_back(vhost: Vhost, users: Users) -> None:
    """One leader parks them for a consumer that is not idle, the next one reads them."""
    count = 60
    lanes = {"orders": LANES["orders"] | {"look_ahead": 20, "steal_after": None}}
    url, prefix = users.url("consumer"), vhost.redis_prefix
    async with bench_of(running(vhost, users)) as bench:
        await bench.run(**lanes)
        producer = await as_producer(users)
        async with GroupConsumer(url, "orders", "c1", prefix=prefix, prefetch=1) as consumer:
            await consumer.joined()
            for number in range(count):
                producer.send("orders.high", b"%d" % number, "g", message_id=b"m%d" % number)
            copies = aiter(consumer)
            first = await anext(copies)
            async with GroupConsumer(url, "orders", "c2", prefix=prefix):
                await eventually(lambda: bench.status()["parked"] > 0)
                await bench.stop()
                await bench.run(**lanes)
                await eventually(lambda: bench.status()["parked"] > 0)
                await first.ack()
                seen = [first.body]
                while len(seen) < count:
                    copy = await anext(copies)
                    await copy.ack()
                    seen.append(copy.body)
        await producer.close()
    assert seen == [b"%d" % number for number in range(count)]


@pytest.mark.usefixtures("inbound")
@pytest.mark.parametrize("role", ["producer", "consumer"])
async def test_others_send_no_command(vhost: Vhost, users: Users, tmp_path: Path, role: str) -> None:
    """RabbitMQ refuses the exchange, and the program says so in one line."""
    async with bench_of(running(vhost, users)) as bench:
        await bench.run(**LANES)
        refused = await to_thread(
            program, config(tmp_path, vhost, users, role), "groups", "pause", "orders", "--all"
        )
        assert refused.exit_code == 1
        assert f"access to exchange '{bench.names().command_exchange}'" in refused.stderr
        assert (refused.stderr.count("\n"), "hunter2" in refused.output) == (1, False)
        assert not bench.status()["paused"]


@pytest.mark.usefixtures("inbound")
async def test_a_producer_may_reach_every_queue_and_counts_for_nothing_there(
    vhost: Vhost, users: Users
) -> None:
    """With the very right that it needs: a command, a replay and an origin, all of them forged."""
    async with bench_of(running(vhost, users)) as bench:
        await bench.run(**LANES)
        producer = await as_producer(users)
        pause = protocol.Command(uuid="u", name="groups.pause", sent_at_ms=2**52, arguments={"all": True})
        producer.send_raw(bench.names().command, protocol.encode(pause), properties())
        await eventually(lambda: bench.counter("control_refused") == 1)
        consumer = Bench(vhost).consumer("c1")
        await consumer.join()
        for _ in range(2):
            raw = properties(
                text("x-group-id", "g"), text("x-dispatch-origin", "orders.high 1.1"),
                text("x-dispatch-replay", "1"), message_id=b"m1", delivery_mode=2,
            )  # fmt: skip
            producer.send_raw("orders.high", b"1", raw)
        await eventually(lambda: bench.counter("deduplicated") == 1)
        (copy,) = await consumer.has(1)
        assert "x-dispatch-replay" not in copy.headers
        assert not bench.status()["paused"]
        await producer.close()
        await consumer.drop()


@pytest.mark.usefixtures("inbound")
@pytest.mark.parametrize("exchange", ["", ".in", ".ops"])
async def test_a_producer_writes_to_no_exchange_of_the_lane(
    vhost: Vhost, users: Users, exchange: str
) -> None:
    async with bench_of(running(vhost, users)) as bench:
        await bench.run(**LANES)
        producer = await as_producer(users)
        producer.send_raw("control", b"{}", properties(), f"{bench.names().exchange}{exchange}")
        await eventually(lambda: any(isinstance(event, ChannelClosed) for event in producer._events))
        await producer.close()


@pytest.mark.usefixtures("inbound")
async def test_with_strict_identity_no_consumer_speaks_for_another(vhost: Vhost, users: Users) -> None:
    """RabbitMQ refuses the other's name, and the dispatcher what comes with its own or with none."""
    lanes = {"orders": {**LANES["orders"], "strict_identity": True}}
    async with bench_of(running(vhost, users)) as bench:
        await bench.run(**lanes)
        prefix = {"prefix": vhost.redis_prefix}
        async with GroupConsumer(
            users.url("consumer"), "orders", "c1", strict_identity=True, **prefix
        ) as consumer:
            await consumer.joined()
            producer = await as_producer(users)
            producer.send("orders.high", b"1", "g")
            message = await anext(consumer)
            (live,) = (await bench.ask("consumers.list"))["consumers"]
            said = {"consumer": "c1", "incarnation": live["incarnation"]}
            settle = protocol.encode(protocol.Settle(**said, acked=((message.seq, message.seq),)))
            admin = await Client.open(RabbitSettings(url=vhost.amqp_url))
            for count, user in ((1, None), (2, b"guest")):
                raw = properties(user_id=user, delivery_mode=2)
                admin.send_raw("control", settle, raw, bench.names().control_exchange)
                await eventually(lambda count=count: bench.counter("control_refused") == count)
            assert bench.status()["in_flight"] == 1
            forged = properties(user_id=users["consumer"].encode())
            admin.send_raw("control", settle, forged, bench.names().control_exchange)
            await eventually(lambda: any(isinstance(event, ChannelClosed) for event in admin._events))
            await message.ack()
            await eventually(lambda: bench.counter("settled") == 1)
            await admin.close()
            await producer.close()
        with pytest.raises(ConsumerRefused, match="strict_identity"):
            async with GroupConsumer(users.url("consumer"), "orders", "c2", **prefix) as without:
                await without.joined()


def documented_for_shards(role: str) -> dict[str, str]:
    pattern = rf"^\| (?:the|an?) {role} \| `(\S+)` \| `(\S+)` \| `(\S+)` \|$"
    row = re.search(pattern, PAGE.read_text(), re.MULTILINE)
    assert row is not None
    return {right: pattern.replace("\\|", "|") for right, pattern in zip(RIGHTS, row.groups(), strict=True)}


async def test_shards_work_with_their_documented_rights(vhost: Vhost, users: Users, tmp_path: Path) -> None:
    for role in ("dispatcher", "consumer", "producer", "operator"):
        users.permit(role, documented_for_shards(role))
    users.permit_keys(least_rights.pattern_for("a lane with shards"))
    async with Client.opened(RabbitSettings(url=vhost.amqp_url)) as admin:
        for queue in QUEUES:
            for number in (1, 2, 3):
                await admin.declare(shard_name(queue, number))
    names = ShardNames("orders", vhost.redis_prefix)
    lanes = {"orders": {**LANES["orders"], "shards": 3}}
    file = tmp_path / "shards.yaml"
    file.write_text(
        yaml.safe_dump(document(users.url("dispatcher"), users.redis_url, vhost.redis_prefix, lanes))
    )
    async with bench_of(running(vhost, users)) as bench:
        for runs in (False, True):
            if runs:
                await bench.run(**lanes)
            assert await to_thread(findings, file, "problem") == []
            assert await to_thread(findings, file, "warning") == []
        async with Client.opened(RabbitSettings(url=users.url("producer"))) as producer:
            producer.send(QUEUES[0], b"one", "group", exchange=names.exchange)
            await producer.confirmed()
        consumers = [
            GroupConsumer(users.url("consumer"), names.shard(number).lane, "c", prefix=names.prefix)
            for number in (1, 2, 3)
        ]
        async with consumers[0], consumers[1], consumers[2]:
            all_three = [asyncio.ensure_future(anext(aiter(consumer))) for consumer in consumers]
            done, rest = await asyncio.wait(all_three, return_when=asyncio.FIRST_COMPLETED, timeout=TIMEOUT_S)
            copies = [task.result() for task in done]
            assert [copy.body for copy in copies] == [b"one"]
            await copies[0].ack()
            for task in rest:
                task.cancel()
            await succeeds(file, "lane", "reshard", "orders", "--shards", "2")


async def test_shards_without_the_right_to_bind_them_are_refused(vhost: Vhost, users: Users) -> None:
    lost = r"^(dispatch\.orders(@\d+)?(\..*)?|orders\.(high|low)@\d+)$"
    users.permit("dispatcher", {**documented_for_shards("dispatcher"), "configure": lost})
    async with bench_of(running(vhost, users)) as bench:
        with pytest.raises(ConfigurationError, match=r"lanes\.orders\.shards: "):
            await bench.run(wait=False, orders=lane(*QUEUES, shards=2))
