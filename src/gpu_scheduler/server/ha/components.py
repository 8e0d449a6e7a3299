"""What a server is made of, whatever its role."""

from __future__ import annotations

import time
from collections.abc import Callable
from dataclasses import dataclass, field

from gpu_scheduler.api.auth.tokens import Verifier
from gpu_scheduler.api.context import Context
from gpu_scheduler.control.writer import SteadyClock
from gpu_scheduler.settings.file_paths import Paths
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.store.contract import Store


@dataclass(frozen=True, slots=True, kw_only=True)
class Parts:
    """Settings and places, the store, the time, and who else's tokens are believed.

    `node` is this machine, if the server runs jobs here. `started` is when the process began, by
    the monotonic clock: it is up since then, whatever its part was meanwhile.
    """

    settings: Settings
    paths: Paths
    store: Store
    clock: SteadyClock
    signed: Callable[[Context], Verifier] | None = None
    warnings: tuple[str, ...] = ()
    node: str = ""
    started: float = field(default_factory=time.monotonic)
