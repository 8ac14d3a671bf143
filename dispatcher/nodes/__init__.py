"""RabbitMQ and Redis for demo, tests and bench: given ones, containers, or private nodes on loopback.

`open_servers` chooses; `LocalRabbitMQ` and `LocalRedis` are nodes that may be killed and restarted,
`LocalCluster` is several RabbitMQ nodes that form a cluster.
`python -m dispatcher.nodes` runs both in the foreground.
"""

from dispatcher.nodes.local_cluster import LocalCluster
from dispatcher.nodes.local_rabbitmq import LocalRabbitMQ
from dispatcher.nodes.local_redis import LocalRedis
from dispatcher.nodes.management import Management, with_vhost
from dispatcher.nodes.servers import PrivateServers, Servers, open_servers, servers_from_environment

__all__ = [
    "LocalCluster",
    "LocalRabbitMQ",
    "LocalRedis",
    "Management",
    "PrivateServers",
    "Servers",
    "open_servers",
    "servers_from_environment",
    "with_vhost",
]
