"""Choose how the devices of this node are seen.

The setting `gpu.detection_method` in, a source out whose `find` has worked once. Where nothing was
found the source is empty, and says in a sentence what was tried and what to do.
"""

from __future__ import annotations

import ctypes
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Generic, TypeVar

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

# --- A limit on how long a source may take.
#
# A call that hangs in the driver cannot be ended, only left behind: it keeps its own thread, and no
# second one is started until it is back. So a hanging driver costs one thread, never the agent.

T = TypeVar("T")
NAME = "devices"
"""Of the threads that ask a driver."""


def driver_call_hangs() -> bool:
    """Tell whether some source of this process has left a call behind that is not back."""
    return any(thread.name == NAME for thread in threading.enumerate())


class TimeLimitedSource:
    """A source whose calls end after a deadline, with DevicesUnreadable if need be."""

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
        self._left_behind: tuple[threading.Thread, float] | None = None

    def find(self) -> NodeInventory:
        return self._call(self._source.find, self._find_deadline_s)

    def read(self) -> list[Reading]:
        return self._call(self._source.read, self._deadline_s)

    def close(self) -> None:
        """Close the source, unless one of its calls still hangs."""
        try:
            self._call(self._source.close, self._deadline_s)
        except DevicesUnreadable:
            return

    def _call(self, work: Callable[[], T], deadline_s: float) -> T:
        self._refuse_while_one_hangs()
        call = _Call(work)
        thread = threading.Thread(target=call.run, name=NAME, daemon=True)
        began = self._clock()
        thread.start()
        thread.join(deadline_s)
        if thread.is_alive():
            self._left_behind = thread, began
            raise DevicesUnreadable(
                f"the GPU driver did not answer within {deadline_s:g} s; it may be hanging"
            )
        return call.result()

    def _refuse_while_one_hangs(self) -> None:
        if self._left_behind is None:
            return
        thread, began = self._left_behind
        if thread.is_alive():
            raise DevicesUnreadable(
                f"the GPU driver has not answered for {self._clock() - began:.0f} s; "
                "it is asked again when that call is back"
            )
        self._left_behind = None


class _Call(Generic[T]):
    """One call in a thread: its answer or its error, kept for the one who asked."""

    def __init__(self, work: Callable[[], T]) -> None:
        self._work = work
        self._answers: list[T] = []
        self._error: BaseException | None = None

    def run(self) -> None:
        try:
            self._answers.append(self._work())
        except BaseException as error:  # noqa: BLE001 - raised again where the answer is awaited
            self._error = error

    def result(self) -> T:
        if self._error is not None:
            raise self._error
        return self._answers[0]


# --- Choose how the devices of this node are seen.

METHODS = ("auto", "nvml", "nvidia-smi", "declared", "simulated", "none")
OFFER = "to try without a GPU, declare some: --simulate 8xA100-80GB"


@dataclass(frozen=True, slots=True, kw_only=True)
class DiscoveryOptions:
    """What was asked for: a method, and what each method needs.

    `declared` alone chooses that method; `simulated` is another name for it. CPU and memory replace
    those of the node, in every method. Finding may take longer than reading: a driver that nobody
    uses wakes up its devices first.
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


def detect(wanted: DiscoveryOptions, *, host: Host | None = None) -> DeviceSource:
    """The source to use. Raises only for a wish that no machine could grant."""
    host = host or Host()
    method = "declared" if wanted.method == "auto" and wanted.declared else wanted.method
    if method not in METHODS:
        raise InvalidRequest(
            f"gpu.detection_method is '{wanted.method}'; expected one of {', '.join(METHODS)}"
        )
    if method in {"declared", "simulated"}:
        return _declared(wanted, host)
    if method == "none":
        return _with_overrides(
            EmptySource(host, "GPUs are switched off by gpu.detection_method"), wanted
        )
    tries = {"nvml": lambda: _nvml(wanted, host), "nvidia-smi": lambda: _smi(wanted, host)}
    names = tuple(tries) if method == "auto" else (method,)
    return _with_overrides(_first(names, tries, host), wanted)


class EmptySource:
    """A node without GPUs, and why that is so."""

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
        """Nothing is held."""


class _OverriddenSource:
    """A source whose CPU and memory are as somebody said."""

    def __init__(self, source: DeviceSource, cpu_milli: int | None, memory_mb: int | None) -> None:
        self._source = source
        self._cpu_milli = cpu_milli
        self._memory_mb = memory_mb

    def find(self) -> NodeInventory:
        found = self._source.find()
        return NodeInventory(
            cpu_milli=found.cpu_milli if self._cpu_milli is None else self._cpu_milli,
            memory_mb=found.memory_mb if self._memory_mb is None else self._memory_mb,
            devices=found.devices,
            labels=found.labels,
            detection=found.detection,
            problem=found.problem,
        )

    def read(self) -> list[Reading]:
        return self._source.read()

    def close(self) -> None:
        self._source.close()


def _with_overrides(source: DeviceSource, wanted: DiscoveryOptions) -> DeviceSource:
    if wanted.cpu_milli is None and wanted.memory_mb is None:
        return source
    return _OverriddenSource(source, wanted.cpu_milli, wanted.memory_mb)


def _first(
    names: tuple[str, ...], tries: dict[str, Callable[[], DeviceSource]], host: Host
) -> DeviceSource:
    """The first source that sees a GPU, or an empty one that tells of all attempts."""
    told: list[str] = []
    for name in names:
        try:
            source = tries[name]()
        except DevicesUnreadable as error:
            told.append(f"{name}: {error}")
            continue
        if source.find().devices:
            return source
        source.close()
        told.append(f"{name}: it works, and there is no GPU")
    return EmptySource(host, f"no GPU was found ({'; '.join(told)}); {OFFER}")


def _declared(wanted: DiscoveryOptions, host: Host) -> DeviceSource:
    if not wanted.declared:
        raise InvalidRequest(
            f"gpu.detection_method is '{wanted.method}', but no GPUs are declared; "
            f"name them, such as {EXAMPLE}"
        )
    return DeclaredSource(
        wanted.declared,
        node=wanted.node,
        cpu_milli=wanted.cpu_milli,
        memory_mb=wanted.memory_mb,
        host=host,
        readings_file=wanted.readings_file,
    )


def _nvml(wanted: DiscoveryOptions, host: Host) -> DeviceSource:
    """The binding is large, so it is imported only where the library loads."""
    try:
        ctypes.CDLL("libnvidia-ml.so.1")
    except OSError as error:
        raise DevicesUnreadable("libnvidia-ml.so.1 cannot be loaded; is a driver there?") from error
    from gpu_scheduler.agent.devices.nvml import NvmlSource  # noqa: PLC0415

    return _tried(
        TimeLimitedSource(
            NvmlSource(host),
            deadline_s=wanted.deadline_s,
            find_deadline_s=wanted.find_deadline_s,
        )
    )


def _smi(wanted: DiscoveryOptions, host: Host) -> DeviceSource:
    source = SmiSource(wanted.nvidia_smi, host=host, timeout_s=wanted.find_deadline_s)
    # Every run wakes up the devices. One that the kernel does not let die needs the second limit.
    limit_s = 2 * wanted.find_deadline_s
    return _tried(TimeLimitedSource(source, deadline_s=limit_s, find_deadline_s=2 * limit_s))


def _tried(source: DeviceSource) -> DeviceSource:
    source.find()
    return source


# --- Devices that are not there yet: at boot an agent may be up before the driver is.
#
# Until a device was seen, the way to see them is chosen anew with each `find`; who asks how often
# decides `HotplugScan`. From the first device on this source is the one that was chosen then.

SOUGHT = ("auto", "nvml", "nvidia-smi")


class RetryingSource:
    """A source that is chosen again for as long as it sees nothing."""

    def __init__(self, choose: Callable[[], DeviceSource]) -> None:
        """`choose` gives a source whose `find` has worked."""
        self._choose = choose
        self._source = choose()
        self._is_chosen = True

    def find(self) -> NodeInventory:
        """What is there now; a driver that hangs since the last time is not asked once more."""
        if not self._is_chosen:
            if driver_call_hangs():
                raise DevicesUnreadable("the GPU driver has not answered an earlier question yet")
            self._source.close()
            self._source = self._choose()
        found = self._source.find()
        self._is_chosen = bool(found.devices)
        return found

    def read(self) -> list[Reading]:
        """What the devices say, if there are any."""
        return self._source.read()

    def close(self) -> None:
        """Let go of the driver."""
        self._source.close()


def open_source(wanted: DiscoveryOptions) -> DeviceSource:
    """The source to use; devices that can still come are looked for again."""
    is_declared = wanted.method == "auto" and wanted.declared
    if is_declared or wanted.method not in SOUGHT:
        return detect(wanted)
    return RetryingSource(lambda: detect(wanted))
