"""Forwarding lanes (`handover`): consumers that only read a durable queue and ack.

- `forwarding`: who reads which queue, found by inspection; a queue without a reader is reclaimed
- `rules`: which queues belong to such consumers, and when one may be reclaimed
- `orders`, `events`: what is ordered of the edges, what they report

May touch: its own consumers' credit and depth, and, through `membership`, their lives.
"""
