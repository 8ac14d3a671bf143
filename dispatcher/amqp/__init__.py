"""The AMQP 0-9-1 edge: the data path of a lane.

`Connection` is the protocol without I/O, `Link` its asyncio shell, `relay` reads originals and builds
their copies byte for byte. Only frames that come or go per message have code of their own; pamqp does
the others.
"""
