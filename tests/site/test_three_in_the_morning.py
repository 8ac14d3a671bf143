"""docs/three-in-the-morning.md: in each of its situations the commands say what the page shows, and help."""

from __future__ import annotations

import re
import shlex
import signal
from collections.abc import Iterator
from contextlib import ExitStack
from pathlib import Path

import pytest
import typer.main

from dispatcher.cli import app
from dispatcher.nodes import Servers
from dispatcher.nodes.servers import PrivateServers
from tests.conftest import Vhost
from tests.site.night import PAGE, Night, night_of
from tests.waiting import wait_until

pytestmark = [pytest.mark.slow, pytest.mark.timeout(600)]

BLOCKED = 'rabbit_disk_monitor:set_disk_free_limit("900000GB")'
UNBLOCKED = 'rabbit_disk_monitor:set_disk_free_limit("50MB")'


@pytest.fixture
def night(vhost: Vhost, servers: Servers, tmp_path: Path) -> Iterator[Night]:
    with ExitStack() as stack:
        made = night_of(vhost, servers.management_url, tmp_path, stack)
        made.configure()
        yield made


def commands_of_the_page() -> list[str]:
    return sorted({line[2:] for line in PAGE.splitlines() if line.startswith("$ dispatcher ")})


@pytest.mark.parametrize("command", commands_of_the_page())
def test_every_command_of_the_page_exists_with_its_options(command: str) -> None:
    words = shlex.split(command)[1:]
    found = typer.main.get_command(app)
    while hasattr(found, "commands"):
        found = found.commands[words.pop(0)]
    options = {name for parameter in found.params for name in parameter.opts}
    assert {word for word in words if word.startswith("-")} <= options


def test_there_are_ten_situations() -> None:
    titles = re.findall(r"\n## (\d+)\. ", PAGE)
    assert titles == [str(number) for number in range(1, 11)]


def test_redis_is_away(night: Night) -> None:
    section = "1. Nothing moves, and `status` has a line `problem`"
    night.dispatch()
    night.work("worker-1")
    night.redis.kill9()
    night.publish("place", group="order-17")
    night.says("dispatcher status orders", section)
    night.redis.start()
    wait_until(lambda: "problem" not in night.run("dispatcher status orders"), what="the problem to end")


def test_rabbitmq_blocks_publishers(private_servers: PrivateServers, tmp_path: Path) -> None:
    section = "2. RabbitMQ blocks publishers"
    with ExitStack() as stack:
        night = Night(
            private_servers.amqp_url, private_servers.management_url, private_servers.redis, tmp_path, stack
        )
        night.configure()
        night.dispatch()
        private_servers.rabbitmq.evaluate(BLOCKED)
        night.says("dispatcher status orders", section)
        private_servers.rabbitmq.evaluate(UNBLOCKED)
        wait_until(lambda: "in flight" in night.run("dispatcher status orders"), what="the lane to go on")


def test_no_dispatcher_answers(night: Night) -> None:
    section = "3. `no dispatcher answered`"
    dispatcher = night.dispatch()
    dispatcher.kill()
    dispatcher.wait()
    night.says("dispatcher status orders --timeout 2s", section)
    night.dispatch()
    assert "active at" in night.run("dispatcher status orders")


def test_no_consumer_has_joined(night: Night) -> None:
    section = "4. Messages wait, and no consumer is there"
    night.dispatch()
    night.publish("place", "ship", group="order-17")
    night.says("dispatcher groups why orders order-17", section)
    night.says("dispatcher consumers list orders", section)
    night.work("worker-1")
    wait_until(lambda: "no_consumer" not in night.run("dispatcher groups why orders order-17"))


def test_a_handler_hangs(night: Night) -> None:
    section = "5. One group stands still"
    night.dispatch()
    night.work("worker-1")
    night.publish("hang", *["next"] * 5, group="order-17")
    night.says("dispatcher groups list orders --sort age", section)
    night.says("dispatcher groups why orders order-17", section)
    night.says("dispatcher consumers list orders", section)
    night.says("dispatcher consumers evict orders worker-1", section)


def test_a_consumer_is_frozen(night: Night) -> None:
    section = "6. A consumer is frozen"
    night.dispatch()
    worker = night.work("worker-1")
    night.publish("hang", group="order-17")
    wait_until(lambda: "in flight" in night.run("dispatcher groups why orders order-17"))
    worker.send_signal(signal.SIGSTOP)
    night.says("dispatcher status orders", section)
    night.says("dispatcher consumers list orders", section)
    worker.send_signal(signal.SIGCONT)
    wait_until(lambda: "frozen" not in night.run("dispatcher consumers list orders"))


def test_most_messages_belong_to_one_group(night: Night) -> None:
    section = "7. The backlog grows although consumers are idle"
    night.dispatch()
    night.work("worker-1")
    night.publish("hang", *["next"] * 300, group="shop-1")
    wait_until(lambda: "owned" in night.run("dispatcher groups list orders"), 20, "its owner")
    night.work("worker-2")
    night.publish("place", group="shop-2")
    night.says("dispatcher status orders", section)
    night.says("dispatcher groups pin orders shop-1 worker-2", section)
    assert "not pinned" not in night.run("dispatcher groups pin orders shop-1 --undo")


def test_messages_were_given_up(night: Night) -> None:
    section = "8. Messages lie in the dead queue"
    night.dispatch()
    night.work("worker-1")
    night.publish("fail", "ship", group="order-17")
    wait_until(lambda: night.dead() == 1, 20, "a dead letter")
    night.says("dispatcher status orders", section)
    night.says("dispatcher dead list orders", section)
    night.says("dispatcher dead show orders --group order-17", section)
    night.says("dispatcher dead release orders --group order-17", section)
    wait_until(lambda: night.dead() == 1, 20, "it fails again")


def test_a_group_has_stopped(night: Night) -> None:
    section = "9. A group has stopped"
    night.configure(retry={"on_exhausted": "stop"})
    night.dispatch()
    night.work("worker-1")
    night.publish("fail", "ship", group="order-17")
    night.says("dispatcher groups why orders order-17", section)
    night.says("dispatcher dead list orders", section)
    night.says("dispatcher dead skip orders --group order-17", section)
    wait_until(lambda: night.dead() == 1, 20, "it in the dead queue")


def test_somebody_has_paused_it(night: Night) -> None:
    section = "10. Somebody has paused or pinned it"
    night.dispatch()
    worker = night.work("worker-1")
    night.publish("place", group="order-17")
    night.publish("place", group="order-18")
    wait_until(lambda: "2 of 2" in night.run("dispatcher groups list orders --state owned"), 20, "both")
    night.run("dispatcher groups pause orders order-17")
    night.run("dispatcher groups pin orders order-18 worker-1")
    worker.kill()
    night.work("worker-2")
    night.publish("amend", group="order-17")
    night.publish("amend", group="order-18")
    night.says("dispatcher status orders", section)
    night.says("dispatcher groups list orders --state paused", section)
    night.says("dispatcher groups why orders order-18", section)
    night.says("dispatcher groups resume orders order-17", section)
    night.says("dispatcher groups pin orders order-18 --undo", section)
