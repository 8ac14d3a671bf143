"""Message groups for RabbitMQ: a sidecar that hands related messages over in order."""

__version__ = "0.1.0"
