"""A private RabbitMQ node: persistent messages survive, extra configuration counts, nothing stays."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pika
import pytest

from dispatcher.errors import DispatcherError
from dispatcher.nodes import LocalRabbitMQ, Management, guard
from dispatcher.nodes.guard import descendants
from dispatcher.nodes.local_rabbitmq import PLUGINS
from tests.waiting import wait_until

pytestmark = pytest.mark.slow

NOBODY = 65534
SYSTEM_PYTHON = (f"/usr/bin/python{sys.version_info.major}.{sys.version_info.minor}",)


def _publish(url: str, body: bytes) -> None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        channel = connection.channel()
        channel.queue_declare("kept", durable=True)
        channel.confirm_delivery()
        channel.basic_publish("", "kept", body, pika.BasicProperties(delivery_mode=2), mandatory=True)


def _get(url: str) -> bytes | None:
    with pika.BlockingConnection(pika.URLParameters(url)) as connection:
        body: bytes | None = connection.channel().basic_get("kept", auto_ack=True)[2]
        return body


def test_node_survives_kill9_and_leaves_nothing() -> None:
    """A clean stop and what survives it: `tests/recovery/test_broker_restarted.py`."""
    node = LocalRabbitMQ(["channel_max = 7"], ["rabbitmq_random_exchange"])
    node.start()
    try:
        url = node.amqp_url
        api = Management(node.management_url)
        active = node.evaluate("rabbit_plugins:active()")
        assert {*PLUGINS, "rabbitmq_random_exchange"} <= set(re.findall(r"\w+", active))
        exchanges = api.request("exchanges/%2F")
        assert "amq.rabbitmq.event" in {exchange["name"] for exchange in exchanges}
        _publish(url, b"before kill -9")
        node.sync_definitions()
        assert node.evaluate("1 + 1") == "2"
        with pytest.raises(DispatcherError, match="undef"):
            node.evaluate("nothing:here()")
        node.kill9()
        node.start()
        assert (node.amqp_url, _get(url)) == (url, b"before kill -9")
        with pika.BlockingConnection(pika.URLParameters(url)) as connection:
            assert connection._impl.params.channel_max == 7
        assert node._process is not None
        directory = node._process.directory
        processes = _started_in(directory)
        assert len(processes) > 2, "the server, its port mapper and more"
    finally:
        node.close()
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in processes))
    assert not directory.exists()


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can become another user")
def test_ordinary_user_can_run_a_node() -> None:
    interpreter = next((path for path in (sys.executable, *SYSTEM_PYTHON) if _nobody_can_run(path)), None)
    if interpreter is None:
        pytest.skip(f"user {NOBODY} can run neither {sys.executable} nor {SYSTEM_PYTHON}")
    script = (
        "from dispatcher.nodes import PrivateServers\n"
        "with PrivateServers() as pair: print(pair.amqp_url, pair.redis_url)\n"
    )
    repository = str(Path(__file__).parents[2])
    environment = {"PATH": os.defpath, "HOME": "/nonexistent", "PYTHONPATH": repository}
    result = subprocess.run(
        [interpreter, "-c", script], user=NOBODY, group=NOBODY, extra_groups=[], env=environment, cwd="/",
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert result.returncode == 0, result.stderr
    assert result.stdout.startswith("amqp://")


def _nobody_can_run(interpreter: str) -> bool:
    """Neither the interpreter nor the repository lies in a folder that is root's own."""
    command = [interpreter, "-c", f"open({guard.__file__!r})"]
    try:
        subprocess.run(command, user=NOBODY, group=NOBODY, cwd="/", check=True, stderr=subprocess.DEVNULL)
    except (OSError, subprocess.CalledProcessError):
        return False
    return True


def test_command_prints_urls_and_is_gone_with_all_it_started_after_sigterm() -> None:
    environment = {name: value for name, value in os.environ.items() if not name.startswith("DISPATCHER_")}
    command = [sys.executable, "-m", "dispatcher.nodes"]
    with subprocess.Popen(
        command, env=environment, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL, text=True
    ) as process:
        assert process.stdout is not None
        lines = [process.stdout.readline() for _ in range(3)]
        assert [line.split("=")[0] for line in lines] == [
            "export DISPATCHER_RABBITMQ_URL",
            "export DISPATCHER_RABBITMQ_MANAGEMENT_URL",
            "export DISPATCHER_REDIS_URL",
        ]
        below = descendants(process.pid)
        process.terminate()
        assert process.wait() == 0
    wait_until(lambda: not any(Path(f"/proc/{pid}").exists() for pid in below))


def _started_in(directory: Path) -> list[int]:
    """Every process whose environment names the directory: the server and what it started."""
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if str(directory).encode() in (entry / "environ").read_bytes():
                found.append(int(entry.name))
        except OSError:
            continue
    return found
