"""A program on the Python SDK that breaks the protocol: `python -m tests.conformance.wrong_consumer HOW`.

`hasty`: its handler returns before it is told to; `impatient`: it gives up at the first failure; `lossy`: it
takes messages for done that its handler has not seen.
"""

from __future__ import annotations

import asyncio
import sys

from dispatcher.client import Message, RejectMessage
from dispatcher.conformance import python_consumer
from dispatcher.conformance.python_consumer import Handlers


class HastyHandlers(Handlers):
    async def handle(self, message: Message) -> None:
        task = asyncio.create_task(super().handle(message))
        task.add_done_callback(lambda ended: ended.cancelled() or ended.exception())
        await asyncio.sleep(0)  # sleeps: it has begun


class ImpatientHandlers(Handlers):
    async def handle(self, message: Message) -> None:
        try:
            await super().handle(message)
        except RuntimeError as error:
            raise RejectMessage(str(error)) from error


class LossyHandlers(Handlers):
    async def handle(self, message: Message) -> None:
        if message.group_seq % 7:
            await super().handle(message)


WRONG = {"hasty": HastyHandlers, "impatient": ImpatientHandlers, "lossy": LossyHandlers}

if __name__ == "__main__":
    python_consumer.Handlers = WRONG[sys.argv[1]]  # type: ignore[misc]
    asyncio.run(python_consumer.main())
