"""The vhost fixture: real, usable, its own."""

from __future__ import annotations

import pika
import redis

from tests.conftest import Vhost


def test_vhost_accepts_a_client_and_its_redis_prefix_is_free(vhost: Vhost) -> None:
    with pika.BlockingConnection(pika.URLParameters(vhost.amqp_url)) as connection:
        connection.channel().queue_declare("here", durable=True)
        assert [queue["name"] for queue in vhost.management(f"queues/{vhost.name}")] == ["here"]
    with redis.Redis.from_url(vhost.redis_url) as client:
        assert not list(client.scan_iter(match=f"*{vhost.redis_prefix}*"))
