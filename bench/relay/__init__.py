"""Relay of small persistent messages: the dispatcher beside RabbitMQ's Shovel and a naive relay.

`python -m bench.relay`; docs/benchmarks.md says what is measured and how.
"""
