"""Traces: one OpenTelemetry span for each message, from its arrival to its settle (docs/traces.md).

Only `opening` may be imported where OpenTelemetry is not installed. The service tells a lane's `SpanRecorder`
what it tells the ledger (dispatcher/ledger/recorder.py).
"""
