"""The health of a device: readings come in; healthy or not, and the reason, go out.

A device is unhealthy while it has a fault (it is lost, waits for a reset, a memory row could not be
remapped), and for a probation period after an error that hints at broken hardware (a fatal XID, a
new uncorrected ECC error). The period doubles with each error within a day, and ends early when the
device was evidently reset. Pure: time comes in as `now`.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

from gpu_scheduler.agent.devices.source import Reading

APPLICATION_XIDS: dict[int, str] = {
    8: "the GPU stopped processing",
    11: "invalid push buffer stream",
    13: "graphics engine exception",
    31: "memory page fault",
    32: "invalid push buffer stream",
    39: "copy engine exception",
    40: "copy engine exception",
    41: "copy engine exception",
    43: "the GPU stopped processing",
    45: "preemptive cleanup",
    68: "video processor exception",
    69: "graphics engine class error",
    109: "context switch timeout",
}
"""Usually caused by the program: the job fails, the GPU is healthy."""

NOTED_XIDS: dict[int, str] = {
    63: "a memory row or page is marked for replacement",
    92: "a high rate of corrected ECC errors",
    94: "a contained ECC error",
    121: "a corrected error on the C2C link",
    154: "the driver's wish for a recovery changed",
}
"""The hardware recovered. If anything is left to do, the driver reports it separately."""

FATAL_XIDS: dict[int, str] = {
    46: "the GPU stopped processing",
    48: "a double bit ECC error",
    54: "auxiliary power is not connected",
    61: "the internal micro-controller failed",
    62: "the internal micro-controller halted",
    64: "a memory row or page could not be replaced",
    74: "an NVLink error",
    79: "the GPU has fallen off the bus",
    95: "an uncontained ECC error",
    110: "a security fault",
    119: "the GSP does not answer",
    120: "the GSP failed",
    136: "an NVLink could not be trained",
    140: "an unrecovered ECC error",
    143: "the GPU could not be initialised",
    155: "an NVLink error of its software",
    156: "a resource was retired",
    158: "a fatal timeout of the GPU",
}
"""The hardware, its firmware or its links failed. An unknown XID counts as one of these."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Recovery:
    """How long a device must be without errors before it counts as healthy again."""

    after_fault_s: float = 60.0
    after_error_s: float = 600.0
    most_s: float = 86_400.0
    forget_s: float = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class DeviceHealth:
    """The state of a device between two readings; the fields are those of the health file.

    `why` is the problem, `until` the end of the probation period. `standing` means that the last
    reading had a fault, `needs_reset` that the end of this fault implies a reset.
    """

    why: str = ""
    until: float = 0.0
    hold_s: float = 0.0
    error_at: float | None = None
    ecc_errors: int | None = None
    standing: bool = False
    needs_reset: bool = False

    @property
    def healthy(self) -> bool:
        return not self.why


def is_fatal(xid: int) -> bool:
    """Tell whether the error indicates a broken device rather than a broken program."""
    return xid not in APPLICATION_XIDS and xid not in NOTED_XIDS


def updated_health(
    trust: DeviceHealth, reading: Reading, now: float, rule: Recovery
) -> DeviceHealth:
    """The health of a device after one more reading."""
    error = _new_error(trust, reading)
    was_reset = _was_reset(trust, reading)
    ecc_errors = reading.ecc_errors if reading.ecc_errors is not None else trust.ecc_errors
    trust = replace(trust, ecc_errors=ecc_errors)
    if error:
        trust = _on_trial(trust, error, now, rule)
    if reading.fault:
        needs_reset = reading.needs_reset or trust.needs_reset
        return replace(trust, why=reading.fault, standing=True, needs_reset=needs_reset)
    if error:
        return trust
    if trust.standing:
        return _after_fault(trust, now, rule, was_reset=was_reset)
    if trust.why and (was_reset or now >= trust.until):
        return replace(trust, why="", until=0.0)
    return trust


def _new_error(trust: DeviceHealth, reading: Reading) -> str:
    for xid in reading.xids:
        if is_fatal(xid):
            return f"XID {xid}: {FATAL_XIDS.get(xid, 'an error that is in no table')}"
    if trust.ecc_errors is not None and (reading.ecc_errors or 0) > trust.ecc_errors:
        more = (reading.ecc_errors or 0) - trust.ecc_errors
        return f"{more} new uncorrected ECC error{'s' if more > 1 else ''}"
    return ""


def _was_reset(trust: DeviceHealth, reading: Reading) -> bool:
    """Tell whether a fault that only a reset ends has ended, or the ECC counter was reset."""
    over = trust.standing and trust.needs_reset and not reading.fault
    before, after = trust.ecc_errors, reading.ecc_errors
    return over or (before is not None and after is not None and after < before)


def _on_trial(trust: DeviceHealth, error: str, now: float, rule: Recovery) -> DeviceHealth:
    """Start a probation period, twice as long as the last one if that was recent."""
    again = trust.error_at is not None and now - trust.error_at < rule.forget_s
    hold_s = min(trust.hold_s * 2, rule.most_s) if again else rule.after_error_s
    return replace(
        trust, why=error, until=now + hold_s, hold_s=hold_s, error_at=now, standing=False
    )


def _after_fault(
    trust: DeviceHealth, now: float, rule: Recovery, *, was_reset: bool
) -> DeviceHealth:
    """A short probation after a fault, or the rest of a longer one if there was no reset."""
    soon = now + rule.after_fault_s
    return replace(
        trust,
        why=f"watched after: {trust.why}",
        until=soon if was_reset else max(soon, trust.until),
        standing=False,
        needs_reset=False,
    )
