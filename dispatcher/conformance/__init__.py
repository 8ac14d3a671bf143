"""Does a consumer in any language keep docs/protocol.md? `dispatcher conformance` tries a program.

- `program`: the program under test: its process, the lines that go in and out, and the record of its calls
- `proxy`: the way to RabbitMQ that can be cut
- `control_tap`: what the program says to the dispatcher
- `stage`: real dispatchers, several such programs, and what is published
- `scenes`: what happens to them, and what must come of it
- `run`: servers, scenes one after the other, and the verdict of `dispatcher.judge`
- `python_consumer`: such a program on the Python SDK

docs/protocol.md has the lines, for authors of such programs.
"""

from dispatcher.conformance.run import run

__all__ = ["run"]
