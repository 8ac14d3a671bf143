"""The running dispatcher: one runner per lane, between RabbitMQ, Redis and the core."""
