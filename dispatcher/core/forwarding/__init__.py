"""Forwarding lanes (`handover`): consumers that only read a durable queue and ack."""
