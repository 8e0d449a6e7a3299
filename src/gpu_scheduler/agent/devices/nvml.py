"""GPUs through NVML, the driver's own library.

The only module that imports the binding, which costs some 18 MB: import it only where the library
can be loaded. A value that a device does not support becomes None; a lost device becomes a fault;
only a driver that does not work at all is an error.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from ctypes import c_void_p, cast
from dataclasses import dataclass, replace
from typing import Any

import pynvml  # type: ignore[import-untyped]

from gpu_scheduler.agent.devices.host import Host, plain_bus_id
from gpu_scheduler.agent.devices.source import (
    DetectedDevice,
    DetectedSlice,
    DevicesUnreadable,
    NodeInventory,
    Process,
    Reading,
    join_islands,
    link_gbps,
)
from gpu_scheduler.model.node import short_model_name

MIB = 1024**2

# The device does not support the call, or does not permit it.
_UNKNOWN = frozenset(
    {
        pynvml.NVML_ERROR_INVALID_ARGUMENT,
        pynvml.NVML_ERROR_NOT_SUPPORTED,
        pynvml.NVML_ERROR_NO_PERMISSION,
        pynvml.NVML_ERROR_NOT_FOUND,
        pynvml.NVML_ERROR_INSUFFICIENT_SIZE,
        pynvml.NVML_ERROR_FUNCTION_NOT_FOUND,
        pynvml.NVML_ERROR_CORRUPTED_INFOROM,
        pynvml.NVML_ERROR_NO_DATA,
        pynvml.NVML_ERROR_VGPU_ECC_NOT_SUPPORTED,
        pynvml.NVML_ERROR_ARGUMENT_VERSION_MISMATCH,
        pynvml.NVML_ERROR_DEPRECATED,
        pynvml.NVML_ERROR_NOT_READY,
    }
)
# The driver as a whole does not work.
_BROKEN = frozenset(
    {
        pynvml.NVML_ERROR_UNINITIALIZED,
        pynvml.NVML_ERROR_DRIVER_NOT_LOADED,
        pynvml.NVML_ERROR_LIBRARY_NOT_FOUND,
        pynvml.NVML_ERROR_LIB_RM_VERSION_MISMATCH,
    }
)
_LOST = frozenset(
    {
        pynvml.NVML_ERROR_GPU_IS_LOST,
        pynvml.NVML_ERROR_RESET_REQUIRED,
        pynvml.NVML_ERROR_GPU_NOT_FOUND,
    }
)
_LOAD_WINDOW_US = 10_000_000
_REMEDIES = {
    pynvml.NVML_GPU_RECOVERY_ACTION_GPU_RESET: "reset the GPU",
    pynvml.NVML_GPU_RECOVERY_ACTION_NODE_REBOOT: "reboot the node",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_P2P: "end all work that uses peer to peer, then reset",
    pynvml.NVML_GPU_RECOVERY_ACTION_DRAIN_AND_RESET: "end all work on it, then reset",
}
_DOUBLE_BIT_XID = 48
_MOST_EVENTS = 1000
_CPU_SET_WORDS = 64  # 4,096 CPUs


class _FaultyError(Exception):
    """One device does not answer as it should."""

    def __init__(self, text: str, *, lost: bool) -> None:
        super().__init__(text)
        self.lost = lost


@dataclass(frozen=True, slots=True, kw_only=True)
class _Card:
    """A device and the handle by which NVML knows it; None while it cannot be opened."""

    device: DetectedDevice
    place: int
    handle: Any
    remotes: tuple[str, ...] = ()
    fault: str = ""


class NvmlSource:
    """All GPUs of this node through NVML. Not safe for two threads at once."""

    def __init__(self, host: Host | None = None) -> None:
        self._host = host or Host()
        self._cards: list[_Card] = []
        self._events: Any = None
        self._started = False
        self._found = False

    def find(self) -> NodeInventory:
        """Read the static properties of all devices."""
        with_driver = self._start()
        try:
            count = int(_must(pynvml.nvmlDeviceGetCount))
            cards = _in_bus_order([_card(place, self._host) for place in range(count)])
            self._cards = _joined(cards)
            self._listen()
        except DevicesUnreadable:
            self.close()
            raise
        self._found = True
        problems = [f"GPU {c.device.index}: {c.fault}" for c in self._cards if c.fault]
        return NodeInventory(
            cpu_milli=self._host.cpu_milli(),
            memory_mb=self._host.memory_mb(),
            devices=tuple(card.device for card in self._cards),
            labels=with_driver,
            detection="nvml",
            problem="; ".join(problems),
        )

    def read(self) -> list[Reading]:
        """Read the current values of all devices."""
        if not self._found:
            self.find()
        elif not self._started:
            self._start()
            self._listen()
        try:
            return self._readings()
        except DevicesUnreadable:
            self.close()
            raise

    def close(self) -> None:
        """Shut NVML down. The next call initialises it again, also after a driver was reloaded."""
        if not self._started:
            return
        self._started = False
        for end in (self._free_events, pynvml.nvmlShutdown):
            try:
                end()
            except pynvml.NVMLError:
                continue

    def _start(self) -> tuple[tuple[str, str], ...]:
        """Initialise NVML; returns the driver's labels."""
        if not self._started:
            _must(pynvml.nvmlInit)
            self._started = True
        labels = {"driver": _maybe(pynvml.nvmlSystemGetDriverVersion)}
        cuda = _maybe(pynvml.nvmlSystemGetCudaDriverVersion)
        labels["cuda"] = f"{cuda // 1000}.{cuda % 1000 // 10}" if cuda else None
        return tuple((name, str(value)) for name, value in sorted(labels.items()) if value)

    def _listen(self) -> None:
        """Subscribe to XID events."""
        self._free_events()
        events = _maybe(pynvml.nvmlEventSetCreate)
        wanted = pynvml.nvmlEventTypeXidCriticalError | pynvml.nvmlEventTypeDoubleBitEccError
        for card in self._cards:
            if events is None or card.handle is None:
                continue
            try:
                kinds = _ask(pynvml.nvmlDeviceGetSupportedEventTypes, card.handle) or 0
                if kinds & wanted:
                    _ask(pynvml.nvmlDeviceRegisterEvents, card.handle, kinds & wanted, events)
            except _FaultyError:
                continue
        self._events = events

    def _free_events(self) -> None:
        events, self._events = self._events, None
        if events is not None:
            pynvml.nvmlEventSetFree(events)

    def _readings(self) -> list[Reading]:
        xids = self._new_xids()
        readings, unknown = [], 0
        for position, card in enumerate(self._cards):
            index = card.device.index
            try:
                self._cards[position] = _opened(card)
                readings.append(_reading(self._cards[position], xids[index], self._host))
            except _FaultyError as fault:
                unknown += not fault.lost
                self._cards[position] = replace(card, handle=None, fault=str(fault))
                readings.append(
                    Reading(
                        index=index,
                        xids=tuple(xids[index]),
                        fault=str(fault),
                        needs_reset=fault.lost,
                    )
                )
        if self._cards and unknown == len(self._cards):
            raise DevicesUnreadable(f"NVML answers for no GPU: {readings[0].fault}")
        return readings

    def _new_xids(self) -> dict[int, list[int]]:
        """The XIDs since the last reading, by device."""
        found: dict[int, list[int]] = defaultdict(list)
        owners = {_address(card.handle): card.device.index for card in self._cards if card.handle}
        for _ in range(_MOST_EVENTS if self._events is not None else 0):
            try:
                event = pynvml.nvmlEventSetWait_v2(self._events, 0)
            except pynvml.NVMLError:
                break
            index = owners.get(_address(event.device))
            if index is not None:
                ecc = event.eventType == pynvml.nvmlEventTypeDoubleBitEccError
                found[index].append(_DOUBLE_BIT_XID if ecc else int(event.eventData))
        return found


def _ask(call: Callable[..., Any], *arguments: Any) -> Any:
    """Call NVML for a device; None if the device does not support the call."""
    try:
        return call(*arguments)
    except UnicodeDecodeError:
        return None
    except pynvml.NVMLError as error:
        if error.value in _UNKNOWN:
            return None
        if error.value in _BROKEN:
            raise DevicesUnreadable(f"NVML: {error}") from error
        raise _FaultyError(_fault_text(error), lost=error.value in _LOST) from error


def _ask_newest(handle: Any, *calls: tuple[Any, ...]) -> Any:
    """The answer to the first call (a function and its arguments) that the driver supports."""
    for call, *arguments in calls:
        answer = _ask(call, handle, *arguments)
        if answer is not None:
            return answer
    return None


def _must(call: Callable[..., Any]) -> Any:
    """Call NVML for the driver itself; raises DevicesUnreadable."""
    try:
        return call()
    except pynvml.NVMLError as error:
        raise DevicesUnreadable(f"NVML: {error}") from error


def _maybe(call: Callable[[], Any]) -> Any:
    """Call NVML for an optional property of the driver; None on an error."""
    try:
        return call()
    except (pynvml.NVMLError, UnicodeDecodeError):
        return None


def _fault_text(error: Any) -> str:
    if error.value == pynvml.NVML_ERROR_GPU_IS_LOST:
        return "the GPU is lost: it has fallen off the bus or cannot be reached"
    if error.value == pynvml.NVML_ERROR_RESET_REQUIRED:
        return "the GPU waits for a reset"
    return f"NVML: {error}"


def _address(handle: Any) -> int | None:
    return cast(handle, c_void_p).value


def _card(place: int, host: Host) -> _Card:
    blank = DetectedDevice(index=place)
    try:
        handle = _ask(pynvml.nvmlDeviceGetHandleByIndex, place)
        if handle is None:
            fault = "NVML does not let us open it"
            return _Card(device=blank, place=place, handle=None, fault=fault)
        device, remotes = _device(handle, blank, host)
        return _Card(device=device, place=place, handle=handle, remotes=remotes)
    except _FaultyError as error:
        return _Card(device=blank, place=place, handle=None, fault=str(error))


def _device(
    handle: Any, blank: DetectedDevice, host: Host
) -> tuple[DetectedDevice, tuple[str, ...]]:
    pci = _ask(pynvml.nvmlDeviceGetPciInfo, handle)
    bus_id = plain_bus_id(_string(pci.busId)) if pci is not None else ""
    name = _string(_ask(pynvml.nvmlDeviceGetName, handle))
    minor = _ask(pynvml.nvmlDeviceGetMinorNumber, handle)
    memory = _memory(handle)
    remotes, bandwidth_gbps = _links(handle)
    scope = pynvml.NVML_AFFINITY_SCOPE_NODE
    numa_nodes = _bits(_ask(pynvml.nvmlDeviceGetMemoryAffinity, handle, 4, scope))
    near_cpus = _bits(_ask(pynvml.nvmlDeviceGetCpuAffinity, handle, _CPU_SET_WORDS))
    device = replace(
        blank,
        uuid=_string(_ask(pynvml.nvmlDeviceGetUUID, handle)),
        name=name,
        model=short_model_name(name),
        memory_mb=memory.total // MIB if memory is not None else 0,
        bandwidth_gbps=bandwidth_gbps,
        mig_slices=_mig_slices(handle),
        pci_bus_id=bus_id,
        path=f"/dev/nvidia{minor}" if minor is not None else host.device_path(bus_id),
        numa_node=numa_nodes[0] if numa_nodes else host.numa_node(bus_id),
        cpus=near_cpus or host.near_cpus(bus_id),
    )
    return device, remotes


def _string(value: Any) -> str:
    return value.decode(errors="replace") if isinstance(value, bytes) else str(value or "")


def _memory(handle: Any) -> Any:
    """Version 2 leaves out what the driver keeps for itself; older drivers have only version 1."""
    info = pynvml.nvmlDeviceGetMemoryInfo
    return _ask_newest(handle, (info, pynvml.nvmlMemory_v2), (info,))


def _in_bus_order(cards: list[_Card]) -> list[_Card]:
    """Sort by PCI bus; a card that cannot be opened stays behind its predecessor."""
    last, keyed = "", []
    for card in cards:
        last = card.device.pci_bus_id or last
        keyed.append((last, card.place, card))
    ordered = [card for *_, card in sorted(keyed, key=lambda row: row[:2])]
    return [replace(c, device=replace(c.device, index=i)) for i, c in enumerate(ordered)]


def _joined(cards: list[_Card]) -> list[_Card]:
    """Set the NVLink island of every card."""
    names = [card.device.pci_bus_id or f"place-{card.place}" for card in cards]
    islands = join_islands(names, [card.remotes for card in cards])
    return [
        replace(card, device=replace(card.device, island=island))
        for card, island in zip(cards, islands, strict=True)
    ]


def _links(handle: Any) -> tuple[tuple[str, ...], int]:
    """The remote ends of a device's active NVLinks, and their bandwidth in both directions."""
    remotes = []
    for link in range(pynvml.NVML_NVLINK_MAX_LINKS):
        if _ask(pynvml.nvmlDeviceGetNvLinkState, handle, link):
            pci = _ask(pynvml.nvmlDeviceGetNvLinkRemotePciInfo, handle, link)
            # An end that has no PCI address is a switch; there is one fabric per node.
            remotes.append(plain_bus_id(_string(pci.busId)) if pci is not None else "fabric")
    speed = _field(handle, pynvml.NVML_FI_DEV_NVLINK_SPEED_MBPS_COMMON) if remotes else None
    return tuple(sorted(set(remotes))), len(remotes) * 2 * link_gbps(speed)


def _field(handle: Any, field: int) -> int | None:
    values = _ask(pynvml.nvmlDeviceGetFieldValues, handle, [field])
    if values is None or values[0].nvmlReturn != pynvml.NVML_SUCCESS:
        return None
    return int(values[0].value.uiVal)


def _bits(words: Any) -> tuple[int, ...]:
    return tuple(
        64 * place + bit
        for place, word in enumerate(words or ())
        for bit in range(64)
        if word >> bit & 1
    )


def _mig_slices(handle: Any) -> tuple[DetectedSlice, ...]:
    if not _mig_is_on(handle):
        return ()
    slices: dict[str, list[str]] = defaultdict(list)
    for part in _mig_parts(handle):
        name = _string(_ask(pynvml.nvmlDeviceGetName, part))
        profile = name.partition(" MIG ")[2].strip() or _profile(part, handle)
        slices[profile].append(_string(_ask(pynvml.nvmlDeviceGetUUID, part)))
    return tuple(
        DetectedSlice(profile=profile, uuids=tuple(uuids))
        for profile, uuids in sorted(slices.items())
    )


def _mig_is_on(handle: Any) -> bool:
    modes = _ask(pynvml.nvmlDeviceGetMigMode, handle)
    return bool(modes and modes[0])


def _mig_parts(handle: Any) -> Iterator[Any]:
    for place in range(_ask(pynvml.nvmlDeviceGetMaxMigDeviceCount, handle) or 0):
        part = _ask(pynvml.nvmlDeviceGetMigDeviceHandleByIndex, handle, place)
        if part is not None:
            yield part


def _profile(part: Any, parent: Any) -> str:
    """A profile by its size, as '1g.10gb': memory comes in eighths of the whole device."""
    facts, whole = _ask(pynvml.nvmlDeviceGetAttributes_v2, part), _memory(parent)
    if facts is None or whole is None or not whole.total:
        return "unknown"
    eighths = -(-facts.memorySizeMB * MIB * 8 // whole.total)
    size_gb = round(eighths * -(-whole.total // 1024**3) / 8)
    return f"{facts.gpuInstanceSliceCount}g.{size_gb}gb"


def _opened(card: _Card) -> _Card:
    """The card with a new handle, if it was lost and is back."""
    if card.handle is not None:
        return card
    uuid = card.device.uuid
    handle = (
        _ask(pynvml.nvmlDeviceGetHandleByUUID, uuid)
        if uuid
        else _ask(pynvml.nvmlDeviceGetHandleByIndex, card.place)
    )
    if handle is None:
        raise _FaultyError(card.fault or "the GPU is gone", lost=True)
    return replace(card, handle=handle, fault="")


def _reading(card: _Card, xids: list[int], host: Host) -> Reading:
    handle = card.handle
    memory = _memory(handle)
    load = _ask(pynvml.nvmlDeviceGetUtilizationRates, handle)
    is_split = _mig_is_on(handle)
    parts = _mig_parts(handle) if is_split else ()
    slices = tuple(_string(_ask(pynvml.nvmlDeviceGetUUID, part)) for part in parts)
    fault, needs_reset = _standing_fault(handle, is_empty=is_split and not slices)
    degrees = _ask_newest(
        handle,
        (pynvml.nvmlDeviceGetTemperatureV, pynvml.NVML_TEMPERATURE_GPU),
        (pynvml.nvmlDeviceGetTemperature, pynvml.NVML_TEMPERATURE_GPU),
    )
    throttle_reasons = _ask_newest(
        handle,
        (pynvml.nvmlDeviceGetCurrentClocksEventReasons,),
        (pynvml.nvmlDeviceGetCurrentClocksThrottleReasons,),
    )
    return Reading(
        index=card.device.index,
        utilisation_percent=load.gpu if load is not None else None,
        memory_used_mb=memory.used // MIB if memory is not None else None,
        temperature_c=int(degrees) if degrees is not None else None,
        power_mw=_ask(pynvml.nvmlDeviceGetPowerUsage, handle),
        power_limit_mw=_ask(pynvml.nvmlDeviceGetEnforcedPowerLimit, handle),
        sm_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_SM),
        memory_clock_mhz=_ask(pynvml.nvmlDeviceGetClockInfo, handle, pynvml.NVML_CLOCK_MEM),
        throttle_reasons=int(throttle_reasons or 0) & ~int(pynvml.nvmlClocksEventReasonGpuIdle),
        ecc_errors=_ask(
            pynvml.nvmlDeviceGetTotalEccErrors,
            handle,
            pynvml.NVML_MEMORY_ERROR_TYPE_UNCORRECTED,
            pynvml.NVML_VOLATILE_ECC,
        ),
        xids=tuple(xids),
        fault=fault,
        needs_reset=needs_reset,
        processes=_processes(handle, host),
        mig_uuids=slices,
    )


def _standing_fault(handle: Any, *, is_empty: bool) -> tuple[str, bool]:
    """A persistent fault of the device, and whether only a reset ends it."""
    action = _field(handle, pynvml.NVML_FI_DEV_GET_GPU_RECOVERY_ACTION)
    if action:
        return f"the driver asks to {_REMEDIES.get(action, 'recover the GPU')}", True
    rows = _ask(pynvml.nvmlDeviceGetRemappedRows, handle)
    if rows is not None and rows[3]:
        return "a bad memory row could not be replaced; the GPU needs service", True
    if is_empty:
        return "MIG mode is on and no slice was made", False
    return "", False


def _processes(handle: Any, host: Host) -> tuple[Process, ...]:
    found: dict[int, Process] = {}
    for graphics, kind in ((False, "Compute"), (True, "Graphics")):
        name = f"nvmlDeviceGet{kind}RunningProcesses"
        calls = ((getattr(pynvml, name + version),) for version in ("_v3", "_v2"))
        for row in _ask_newest(handle, *calls) or ():
            user, command = host.process(row.pid)
            used = row.usedGpuMemory
            process = Process(
                pid=row.pid,
                user=user,
                command=command,
                memory_mb=used // MIB if used is not None else None,
                graphics=graphics,
            )
            found.setdefault(row.pid, process)
    loads = _process_loads(handle) if len(found) > 1 else None
    return tuple(
        replace(process, load_percent=None if loads is None else loads.get(pid, 0))
        for pid, process in sorted(found.items())
    )


def _process_loads(handle: Any) -> dict[int, int] | None:
    """The recent load of each process; a process that is not listed was idle."""
    since_us = time.time_ns() // 1000 - _LOAD_WINDOW_US
    try:
        samples = pynvml.nvmlDeviceGetProcessUtilization(handle, since_us)
    except pynvml.NVMLError as error:
        return {} if error.value == pynvml.NVML_ERROR_NOT_FOUND else None
    loads: dict[int, list[int]] = defaultdict(list)
    for sample in samples:
        # Some drivers return invalid samples for a process that has just started.
        if sample.timeStamp > since_us and sample.smUtil <= 100:
            loads[sample.pid].append(sample.smUtil)
    return {pid: round(sum(found) / len(found)) for pid, found in loads.items()}
