"""A second event loop, in a thread, for what must go on while the main loop computes.

The scheduler decides in the main loop, which may take seconds; meanwhile this thread renews the
lease of the leader and answers probes. It also watches the main loop: `main_responds` is false once
the main loop has run nothing else for too long, so that a scheduler that hangs gives up its lead.
"""

import asyncio
import threading
import time
from collections.abc import Callable, Coroutine
from typing import Any

LONGEST_SILENCE_SECONDS = 60.0
"""A main loop that is busy for longer hangs."""


class EventLoopThread:
    """Runs a coroutine in a thread of its own, beside the main event loop."""

    def __init__(
        self,
        work: Callable[[], Coroutine[Any, Any, None]],
        *,
        longest_silence_seconds: float = LONGEST_SILENCE_SECONDS,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """Nothing happens until `run`."""
        self._work = work
        self._longest_silence_seconds = longest_silence_seconds
        self._clock = clock
        self._main: asyncio.AbstractEventLoop | None = None
        self._asked_at: float | None = None
        """Since when the main loop owes an answer."""

    def main_responds(self) -> bool:
        """Tell whether the main loop has answered lately; called by the coroutine in the thread."""
        asked_at, now = self._asked_at, self._clock()
        if asked_at is not None:
            return now - asked_at < self._longest_silence_seconds
        if self._main is not None:
            self._asked_at = now
            self._main.call_soon_threadsafe(self._answer)
        return True

    def _answer(self) -> None:
        self._asked_at = None

    async def run(self) -> None:
        """Run the coroutine until it ends, or until cancelled; its failure is raised here."""
        main = self._main = asyncio.get_running_loop()
        ended: asyncio.Future[None] = main.create_future()
        loop = asyncio.new_event_loop()
        task = loop.create_task(self._work())

        def tell(error: BaseException | None) -> None:
            if error is None:
                ended.set_result(None)
            else:
                ended.set_exception(error)

        def live() -> None:
            error: BaseException | None = None
            try:
                loop.run_until_complete(task)
            except asyncio.CancelledError:
                pass
            except BaseException as failure:  # noqa: BLE001 - raised in the main loop
                error = failure
            loop.run_until_complete(loop.shutdown_asyncgens())
            loop.close()
            main.call_soon_threadsafe(tell, error)

        threading.Thread(target=live, name="election", daemon=True).start()
        try:
            await asyncio.wait([ended])
        finally:
            if not ended.done():
                loop.call_soon_threadsafe(task.cancel)
                await asyncio.wait([ended])
        ended.result()
