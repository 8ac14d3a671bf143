"""The ways of one process to the nodes of a cluster: a proxy for each, hurt together."""

from __future__ import annotations

import math
import time

from tests.client.tcp_proxy import Connection, TcpProxy


class Proxies:
    """Like one `TcpProxy`. `url` has all URLs, with commas between them."""

    def __init__(self, ways: list[TcpProxy]) -> None:
        self.ways = ways  # in the order of the nodes

    @property
    def urls(self) -> list[str]:
        return [way.url for way in self.ways]

    @property
    def url(self) -> str:
        return ",".join(self.urls)

    @property
    def connections(self) -> list[Connection]:
        """In the order in which they began."""
        return sorted((c for way in self.ways for c in way.connections), key=lambda c: c.opened)

    def cut(self) -> None:
        for way in self.ways:
            way.cut()

    def stall(self, *, to_server: bool = True, to_client: bool = True) -> None:
        for way in self.ways:
            way.stall(to_server=to_server, to_client=to_client)

    def resume(self) -> None:
        for way in self.ways:
            way.resume()

    def lead_to(self, node: int, url: str) -> None:
        """Another one has taken the place of this node: its host name means that one from now on."""
        self.ways[node].point_at(url)

    def used(self) -> int:
        """The node that most of the open connections go to."""
        return max(range(len(self.ways)), key=lambda node: sum(map(_is_open, self.ways[node].connections)))

    def lost(self, node: int, since: float) -> None:
        """The rest of the cluster has given this node up then: reset what goes to it. Nothing counts that
        came later over a connection of before."""
        for connection in self.ways[node].connections:
            if connection.opened <= since < connection.closed:
                connection.served_until = min(connection.closed, time.monotonic())
                connection.closed = since
        self.ways[node].cut()


def _is_open(connection: Connection) -> bool:
    return connection.closed == math.inf
