"""MIG slices that were destroyed while a job holds them.

What was found and what jobs hold come in; what the server may count on, and who has lost a slice,
come out. The server counts slices by profile: one that is held and gone stays in the count until
its job is over, so that all others can be given out, and nobody gets it.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace

from gpu_scheduler.agent.devices.inventory import Found, FoundDevice, FoundSlice

Key = tuple[str, int]
"""Allocation id and member."""


@dataclass(frozen=True, slots=True)
class Slice:
    """A slice that a job was given; an empty profile is that of an agent that did not write it."""

    uuid: str
    profile: str = ""


Held = Mapping[Key, Mapping[int, Slice]]
"""Slices by work and device."""


def lost_slices(found: Found, held: Held) -> Iterator[tuple[Key, int, Slice]]:
    """Who holds a slice that is not there, and of which device."""
    there = {device.index: device.mig_uuids for device in found.devices}
    for key, slices in held.items():
        for index, one in slices.items():
            if one.uuid not in there.get(index, ()):
                yield key, index, one


def offered(found: Found, held: Held) -> Found:
    """What the server may count on. A device that is gone as a whole stays gone."""
    missing: dict[int, list[Slice]] = {}
    for _, index, one in lost_slices(found, held):
        if one.profile:
            missing.setdefault(index, []).append(one)
    if not missing:
        return found
    devices = tuple(_with(device, missing.get(device.index, [])) for device in found.devices)
    return replace(found, devices=devices)


def _with(device: FoundDevice, missing: list[Slice]) -> FoundDevice:
    uuids = {piece.profile: piece.uuids for piece in device.mig_slices}
    for one in sorted(missing, key=lambda one: one.uuid):
        uuids[one.profile] = (*uuids.get(one.profile, ()), one.uuid)
    slices = tuple(FoundSlice(profile=name, uuids=uuids[name]) for name in sorted(uuids))
    return replace(device, mig_slices=slices)
