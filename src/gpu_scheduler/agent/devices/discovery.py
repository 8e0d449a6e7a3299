"""Discovers the devices of this node: chooses a device source, retries, and detects hot-plug.

The setting `gpu.detection_method` comes in, a source whose `find` has worked once comes out. Where
no device was found the source is empty, and its `problem` says what was tried and what to do.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TypeVar

import structlog

from gpu_scheduler.agent.devices.declared import EXAMPLE, DeclaredSource
from gpu_scheduler.agent.devices.host import Host
from gpu_scheduler.agent.devices.smi import SmiSource
from gpu_scheduler.agent.devices.source import (
    DeviceSource,
    DevicesUnreadable,
    NodeInventory,
    Reading,
)
from gpu_scheduler.model.errors import InvalidRequest

T = TypeVar("T")
METHODS = ("auto", "nvml", "nvidia-smi", "declared", "simulated", "none")
RETRIED_METHODS = ("auto", "nvml", "nvidia-smi")
ADVICE = "to try without a GPU, declare some: --simulate 8xA100-80GB"
DRIVER_THREAD = "devices"
FIRST_RETRY_S = 5.0
MAX_RETRY_S = 300.0
log = structlog.get_logger("agent")


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    """The requested method, and the options of each method.

    `declared` alone chooses that method; `simulated` is another name for it. CPU and memory replace
    those of the node, in every method. Finding may take longer than reading: an idle driver wakes
    up its devices first.
    """

    method: str = "auto"
    declared: str = ""
    node: str = ""
    cpu_milli: int | None = None
    memory_mb: int | None = None
    readings_file: Path | None = None
    nvidia_smi: str = "nvidia-smi"
    deadline_s: float = 5.0
    find_deadline_s: float = 30.0


def open_source(options: DiscoveryOptions) -> DeviceSource:
    """The device source of this node; one without devices is chosen again by each `find`."""
    is_declared = options.method == "auto" and options.declared
    if is_declared or options.method not in RETRIED_METHODS:
        return detect(options)
    return RetryingSource(lambda: detect(options))


def detect(options: DiscoveryOptions, *, host: Host | None = None) -> DeviceSource:
    """The first source that sees a GPU. Raises only for invalid options."""
    host = host or Host()
    method = "declared" if options.method == "auto" and options.declared else options.method
    if method not in METHODS:
        raise InvalidRequest(
            f"gpu.detection_method is '{options.method}'; expected one of {', '.join(METHODS)}"
        )
    if method in {"declared", "simulated"}:
        if not options.declared:
            raise InvalidRequest(
                f"gpu.detection_method is '{options.method}', but no GPUs are declared; "
                f"name them, such as {EXAMPLE}"
            )
        return DeclaredSource(
            options.declared,
            node=options.node,
            cpu_milli=options.cpu_milli,
            memory_mb=options.memory_mb,
            host=host,
            readings_file=options.readings_file,
        )
    host = replace(
        host, configured_cpu_milli=options.cpu_milli, configured_memory_mb=options.memory_mb
    )
    if method == "none":
        return EmptySource(host, "GPUs are switched off by gpu.detection_method")
    openers = {"nvml": _open_nvml, "nvidia-smi": _open_smi}
    names = tuple(openers) if method == "auto" else (method,)
    failures: list[str] = []
    for name in names:
        try:
            source = openers[name](options, host)
        except DevicesUnreadable as error:
            failures.append(f"{name}: {error}")
            continue
        if source.find().devices:
            return source
        source.close()
        failures.append(f"{name}: it works, and there is no GPU")
    return EmptySource(host, f"no GPU was found ({'; '.join(failures)}); {ADVICE}")


def _open_nvml(options: DiscoveryOptions, host: Host) -> DeviceSource:
    """Import the NVML binding, which is large, only where the library can be loaded."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise DevicesUnreadable("libnvidia-ml.so.1 cannot be loaded; is a driver there?") from error
    from gpu_scheduler.agent.devices.nvml import NvmlSource  # noqa: PLC0415

    source = TimeLimitedSource(
        NvmlSource(host),
        deadline_s=options.deadline_s,
        find_deadline_s=options.find_deadline_s,
    )
    source.find()
    return source


def _open_smi(options: DiscoveryOptions, host: Host) -> DeviceSource:
    smi = SmiSource(options.nvidia_smi, host=host, timeout_s=options.find_deadline_s)
    # Every run wakes up the devices. A run that the kernel cannot kill needs the second limit.
    limit_s = 2 * options.find_deadline_s
    source = TimeLimitedSource(smi, deadline_s=limit_s, find_deadline_s=2 * limit_s)
    source.find()
    return source


class EmptySource:
    """A node without GPUs; `problem` says why."""

    def __init__(self, host: Host, problem: str) -> None:
        self._host = host
        self._problem = problem

    def find(self) -> NodeInventory:
        return NodeInventory(
            cpu_milli=self._host.cpu_milli(),
            memory_mb=self._host.memory_mb(),
            problem=self._problem,
        )

    def read(self) -> list[Reading]:
        return []

    def close(self) -> None:
        """Nothing is open."""


class TimeLimitedSource:
    """A source whose calls raise DevicesUnreadable after a timeout.

    A call that hangs in the driver cannot be cancelled: it keeps its own thread, and no second one
    is started until it returns. So a hanging driver costs one thread and never blocks the agent.
    """

    def __init__(
        self,
        source: DeviceSource,
        *,
        deadline_s: float = 5.0,
        find_deadline_s: float = 30.0,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self._source = source
        self._deadline_s = deadline_s
        self._find_deadline_s = find_deadline_s
        self._clock = clock
        self._hanging: tuple[threading.Thread, float] | None = None

    def find(self) -> NodeInventory:
        return self._call(self._source.find, self._find_deadline_s)

    def read(self) -> list[Reading]:
        return self._call(self._source.read, self._deadline_s)

    def close(self) -> None:
        """Close the source, unless one of its calls hangs."""
        try:
            self._call(self._source.close, self._deadline_s)
        except DevicesUnreadable:
            return

    def _call(self, work: Callable[[], T], deadline_s: float) -> T:
        if self._hanging is not None:
            thread, began = self._hanging
            if thread.is_alive():
                raise DevicesUnreadable(
                    f"the GPU driver has not answered for {self._clock() - began:.0f} s; "
                    "the agent reads it again when that call returns"
                )
            self._hanging = None
        call: Future[T] = Future()

        def run() -> None:
            try:
                call.set_result(work())
            except BaseException as error:  # noqa: BLE001 - raised again by result()
                call.set_exception(error)

        thread = threading.Thread(target=run, name=DRIVER_THREAD, daemon=True)
        began = self._clock()
        thread.start()
        thread.join(deadline_s)
        if thread.is_alive():
            self._hanging = thread, began
            raise DevicesUnreadable(
                f"the GPU driver did not answer within {deadline_s:g} s; it may be hanging"
            )
        return call.result()


class RetryingSource:
    """Chooses its source again while no device was found.

    At boot the agent may start before the driver does. Each `find` repeats the choice until a
    device was seen; `HotplugScan` decides how often that happens.
    """

    def __init__(self, choose: Callable[[], DeviceSource]) -> None:
        """`choose` returns a source whose `find` has worked."""
        self._choose = choose
        self._source = choose()
        self._is_chosen = True

    def find(self) -> NodeInventory:
        """The devices that exist now; a driver with a hanging call is not asked again."""
        if not self._is_chosen:
            if any(thread.name == DRIVER_THREAD for thread in threading.enumerate()):
                raise DevicesUnreadable("the GPU driver has not answered an earlier question yet")
            self._source.close()
            self._source = self._choose()
        found = self._source.find()
        self._is_chosen = bool(found.devices)
        return found

    def read(self) -> list[Reading]:
        return self._source.read()

    def close(self) -> None:
        self._source.close()


class HotplugScan:
    """Detects devices that are added or removed while the agent runs.

    The kernel's list of GPUs is compared often, as that is cheap. The agent asks the driver for all
    devices only when that list has changed or a scan was requested: by an administrator, or by a
    reading that shows other MIG slices. A node without any device is scanned with back-off.
    """

    def __init__(
        self,
        find: Callable[[], NodeInventory],
        found: NodeInventory,
        gpus: Callable[[], tuple[str, ...]],
        *,
        retry_when_empty: bool = False,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        """`find` asks the driver, `gpus` the kernel.

        With `retry_when_empty` a node without devices is scanned even if the kernel's list is the
        same.
        """
        self._find = find
        self._found = found
        self._gpus = gpus
        self._known_gpus = gpus()
        self._retry_when_empty = retry_when_empty
        self._clock = clock
        self._retry_s = FIRST_RETRY_S
        self._retry_at = clock() + FIRST_RETRY_S
        self.is_requested = False

    def request(self) -> None:
        """Scan at the next opportunity, even if the kernel's list is the same."""
        self.is_requested = True

    def scan(self) -> NodeInventory | None:
        """The inventory if it has changed; may take as long as the driver takes."""
        gpus = self._gpus()
        has_cause = gpus != self._known_gpus or self.is_requested
        is_empty = self._retry_when_empty and not self._found.devices
        if not has_cause and not (is_empty and self._clock() >= self._retry_at):
            return None
        # Most nodes without GPUs stay so: wait longer each time, unless something has happened.
        longer_s = min(MAX_RETRY_S, 2 * self._retry_s)
        self._retry_s = FIRST_RETRY_S if has_cause else longer_s
        self._retry_at = self._clock() + self._retry_s
        self.is_requested = False
        try:
            found = self._find()
        except DevicesUnreadable as error:
            if has_cause:
                log.warning("devices have changed but cannot be read yet", error=str(error))
            return None
        self._known_gpus = gpus
        # A device that exists but cannot be identified stays as it was: its readings say why.
        known = {device.index: device for device in self._found.devices}
        devices = tuple(
            device if device.uuid else known.get(device.index, device) for device in found.devices
        )
        found = replace(found, devices=devices)
        if found == self._found:
            return None
        before, self._found = self._found, found
        if before.devices != found.devices:
            count = len(before.devices)
            log.warning("devices have changed", before=count, now=len(found.devices))
        return found
