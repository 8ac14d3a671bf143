"""A node that may be frozen, killed and squeezed, and that speaks TLS."""

from __future__ import annotations

import asyncio
import contextlib
import os
import signal
import subprocess
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import pytest
from pamqp.commands import Queue

from dispatcher.amqp.events import Blocked, Confirmed, Delivery, Unblocked
from dispatcher.amqp.link import Link
from dispatcher.errors import BrokerUnavailable
from dispatcher.nodes.installed import ensure_installed, rabbitmq_server
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.management import Management
from dispatcher.nodes.ports import LOOPBACK, free_ports
from dispatcher.nodes.process import GuardedProcess
from dispatcher.settings import RabbitSettings
from tests.amqp.certificates import Authority
from tests.amqp.conftest import Connect, closes
from tests.waiting import eventually, wait_until

#: For what takes seconds: once is enough, on the loop that the service runs on.
on_uvloop = pytest.mark.asyncio(loop_factories=["uvloop"])
#: Distinguished names are user names with EXTERNAL.
CLIENT = "CN=client-app"
MEMORY = "vm_memory_monitor:set_vm_memory_high_watermark"


class TlsNode(LocalRabbitMQ):
    """A node with a TLS port beside the plain one, where a client certificate logs in."""

    def _lay_out(self, process: GuardedProcess) -> None:
        super()._lay_out(process)
        plugins = "[rabbitmq_management,rabbitmq_auth_mechanism_ssl]."
        (process.directory / "enabled_plugins").write_text(plugins)

    def control(self, *arguments: str) -> None:
        assert self._process is not None
        command = [str(rabbitmq_server().with_name("rabbitmqctl")), *arguments]
        subprocess.run(command, env=self._environment(self._process), check=True, capture_output=True)

    @contextmanager
    def frozen(self) -> Iterator[None]:
        """Every thread of the node stands still inside the block, which may kill it."""
        pid = self.pid
        assert pid is not None
        os.kill(pid, signal.SIGSTOP)
        try:
            threads = Path(f"/proc/{pid}/task")
            wait_until(lambda: all(_state(thread) == "T" for thread in threads.iterdir()))
            yield
        finally:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGCONT)


def _state(thread: Path) -> str:
    return (thread / "stat").read_text().rpartition(")")[2].split()[0]


@dataclass(frozen=True)
class Secured:
    """The node, its TLS port, the authority that it trusts and another one."""

    node: TlsNode
    port: int
    trusted: Authority
    other: Authority

    def settings(self, place: str = "localhost", **given: Any) -> RabbitSettings:
        given = {"ca_file": self.trusted.file, **given}
        return RabbitSettings(url=f"amqps://{place}:{self.port}/", **given)


@pytest.fixture(scope="module")
def tls_node(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Secured]:
    ensure_installed(print)
    folder: Path = tmp_path_factory.mktemp("tls")
    trusted, other = Authority(folder).create(), Authority(folder, "other").create()
    certificate, key = trusted.sign("localhost")
    (port,) = free_ports(1)
    node = TlsNode(
        [
            f"listeners.ssl.1 = {LOOPBACK}:{port}",
            f"ssl_options.cacertfile = {trusted.file}",
            f"ssl_options.certfile = {certificate}",
            f"ssl_options.keyfile = {key}",
            "ssl_options.verify = verify_peer",
            "ssl_options.fail_if_no_peer_cert = false",
            "auth_mechanisms.1 = PLAIN",
            "auth_mechanisms.2 = EXTERNAL",
        ]
    )
    with node:
        api = Management(node.management_url)
        api.request(f"users/{CLIENT}", "PUT", {"password_hash": "", "tags": ""})
        rights = {"configure": ".*", "write": ".*", "read": ".*"}
        api.request(f"permissions/%2F/{CLIENT}", "PUT", rights)
        yield Secured(node, port, trusted, other)


@pytest.fixture
def secured(tls_node: Secured) -> Secured:
    tls_node.node.start()  # when the test before ended it
    return tls_node


async def _refused(settings: RabbitSettings) -> str:
    with pytest.raises(BrokerUnavailable) as caught:
        await Link.open(settings, name="test", on_events=lambda events: None)
    return str(caught.value)


# --- TLS ------------------------------------------------------------------------------------------------


async def test_messages_over_tls(secured: Secured, connect_to: Connect) -> None:
    peer = await connect_to(secured.settings("guest:guest@localhost"))
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    await peer.consume(channel, queue)
    bodies = [b"%d" % n * 1_000 for n in range(500)] + [b"large" * 1_000_000]
    for body in bodies:
        peer.put(channel, queue, body)
    assert [delivery.body for delivery in await peer.deliveries(501)] == bodies
    await peer.link.close()
    assert peer.link.closed.result().code == 200


async def test_a_client_certificate_logs_in(secured: Secured, connect_to: Connect) -> None:
    certificate, key = secured.trusted.sign("client-app")
    peer = await connect_to(secured.settings(cert_file=certificate, key_file=key))
    await peer.queue(await peer.channel(), exclusive=True)


async def test_a_certificate_and_a_user_in_the_url_log_in_as_that_user(
    secured: Secured, connect_to: Connect
) -> None:
    certificate, key = secured.trusted.sign("nobody-else")
    await connect_to(secured.settings("guest:guest@localhost", cert_file=certificate, key_file=key))


async def test_a_certificate_of_an_unknown_user_is_refused(secured: Secured) -> None:
    certificate, key = secured.trusted.sign("stranger")
    text = await _refused(secured.settings(cert_file=certificate, key_file=key))
    assert "refused the client certificate: ACCESS_REFUSED - Login was refused" in text


async def test_a_client_certificate_of_another_authority_is_refused(secured: Secured) -> None:
    certificate, key = secured.other.sign("client-app")
    text = await _refused(secured.settings(cert_file=certificate, key_file=key))
    assert text.startswith(f"RabbitMQ at localhost:{secured.port}")
    assert "UNKNOWN_CA" in text.upper().replace(" ", "_")


async def test_a_server_of_another_authority_is_not_trusted(secured: Secured) -> None:
    text = await _refused(secured.settings("guest:guest@localhost", ca_file=secured.other.file))
    assert "can't be reached: its certificate is not trusted: " in text


async def test_the_name_in_the_certificate_must_be_the_servers(secured: Secured, connect_to: Connect) -> None:
    assert "certificate is not valid for '127.0.0.1'" in await _refused(
        secured.settings("guest:guest@127.0.0.1")
    )
    await connect_to(secured.settings("guest:guest@127.0.0.1", server_name="localhost"))


async def test_no_tls_to_a_tls_port(secured: Secured) -> None:
    text = await _refused(RabbitSettings(url=f"amqp://guest:guest@127.0.0.1:{secured.port}/"))
    assert "does not speak AMQP 0-9-1 (perhaps it expects TLS)" in text


# --- time -----------------------------------------------------------------------------------------------


def _plain(secured: Secured, heartbeat_ms: int = 1_000) -> RabbitSettings:
    return RabbitSettings(url=secured.node.amqp_url, heartbeat_ms=heartbeat_ms)


@on_uvloop
async def test_heartbeats_keep_an_idle_connection_on_both_sides(
    secured: Secured, connect_to: Connect
) -> None:
    peer = await connect_to(_plain(secured, heartbeat_ms=2_000))
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    idle_until = time.monotonic() + 7  # the broker gives up after 4 s of silence, and so do we
    await eventually(lambda: time.monotonic() > idle_until or peer.link.closed.done())
    assert not peer.link.closed.done()
    peer.put(channel, queue)
    await peer.until(Confirmed)


@pytest.mark.parametrize("publishing", [False, True])
async def test_a_frozen_broker_is_given_up_after_two_intervals(
    secured: Secured, connect_to: Connect, publishing: bool
) -> None:
    peer = await connect_to(_plain(secured))
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    with secured.node.frozen():
        frozen_at = time.monotonic()
        waiting = peer.link.call(channel, Queue.Declare(queue="q"))
        if publishing:  # more than the socket takes
            for _ in range(200):
                peer.put(channel, queue, b"x" * 100_000)
        end = await asyncio.wait_for(asyncio.shield(peer.link.closed), 30)
        assert time.monotonic() - frozen_at > 1
        assert (end.code, end.text) == (0, "the broker was silent for 2 heartbeats")
        with pytest.raises(BrokerUnavailable, match="silent for 2 heartbeats"):
            await waiting
        await asyncio.wait_for(peer.link.close(), 5)
    assert closes(peer) == [end] == peer.events[-1:]


async def test_who_stops_waiting_for_a_goodbye_leaves_no_socket(
    secured: Secured, connect_to: Connect
) -> None:
    peer = await connect_to(_plain(secured))
    with secured.node.frozen():
        closing = asyncio.ensure_future(peer.link.close())
        await asyncio.sleep(0)  # sleeps: until it waits
        closing.cancel()
        with pytest.raises(asyncio.CancelledError):
            await closing
        end = await asyncio.wait_for(asyncio.shield(peer.link.closed), 30)
        assert "silent" not in end.text  # that would be the heartbeats' reason, and later


@on_uvloop
async def test_alarms_block_and_unblock(secured: Secured, connect_to: Connect) -> None:
    peer = await connect_to(_plain(secured))
    channel = await peer.channel()
    queue = await peer.queue(channel, exclusive=True)
    await peer.consume(channel, queue)
    try:
        await asyncio.to_thread(secured.node.evaluate, f"{MEMORY}(0.00001)")
        peer.put(channel, queue)  # only a connection that publishes is blocked
        (blocked,) = await peer.until(Blocked)
        assert peer.link.blocked == blocked.reason
        assert "memory" in blocked.reason
        published = peer.put(channel, queue, b"second")
    finally:
        await asyncio.to_thread(secured.node.evaluate, f"{MEMORY}(0.4)")
    await peer.until(Unblocked)
    assert peer.link.blocked is None
    await eventually(lambda: any(event.tag == published for event in peer.of(Confirmed)))
    await eventually(lambda: peer.of(Delivery)[-1].body == b"second")


# --- the node ends --------------------------------------------------------------------------------------


@on_uvloop
async def test_a_killed_broker_is_noticed_at_once(secured: Secured, connect_to: Connect) -> None:
    peer = await connect_to(_plain(secured, 60_000))
    channel = await peer.channel()
    with secured.node.frozen():
        waiting = peer.link.call(channel, Queue.Declare(queue="q"))
        peer.link.flush()
        await asyncio.to_thread(secured.node.kill9)
        # By heartbeats it would take two minutes.
        end = await asyncio.wait_for(asyncio.shield(peer.link.closed), 20)
    assert end.code == 0
    assert peer.events[-1] == end
    with pytest.raises(BrokerUnavailable, match=end.text[:20]):
        await waiting


@on_uvloop
async def test_a_stopped_broker_says_goodbye(secured: Secured, connect_to: Connect) -> None:
    peer = await connect_to(_plain(secured))
    stopping = asyncio.create_task(asyncio.to_thread(secured.node.stop))
    end = await asyncio.wait_for(asyncio.shield(peer.link.closed), 30)
    assert (end.code, end.text) == (
        320,
        "CONNECTION_FORCED - broker forced connection closure with reason 'shutdown'",
    )
    await stopping
