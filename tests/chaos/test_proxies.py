"""The ways of one process to several nodes are one for the verdict."""

from __future__ import annotations

from tests.chaos.proxies import Proxies
from tests.client.tcp_proxy import Connection, TcpProxy


def proxies(*connections: list[Connection]) -> Proxies:
    ways = [TcpProxy(f"amqp://127.0.0.1:{port}/") for port in range(1, 1 + len(connections))]
    for way, its in zip(ways, connections, strict=True):
        way.connections = its
    return Proxies(ways)


async def test_connections_are_in_the_order_of_their_beginnings() -> None:
    ways = proxies([Connection(1.0, 2.0), Connection(5.0)], [Connection(3.0, 4.0)])
    assert [connection.opened for connection in ways.connections] == [1.0, 3.0, 5.0]
    assert ways.used() == 0


async def test_a_node_that_was_given_up_ends_what_went_through_it() -> None:
    ways = proxies([Connection(1.0, 2.0), Connection(3.0), Connection(6.0)], [Connection(3.5)])
    ways.lost(0, 5.0)
    ended, lost, *_ = ways.ways[0].connections
    assert (ended.closed, lost.closed) == (2.0, 5.0)
    assert ended.served_until < 2.0
    assert lost.served_until > 5.0
    assert ways.ways[0].connections[2].closed > 6.0  # it began later
    assert ways.ways[1].connections[0].closed > 5.0
    assert ways.used() in (0, 1)
