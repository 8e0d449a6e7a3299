"""The variables that a job sees: its submitter's, and over them those that only we can know."""

from __future__ import annotations

import os
from collections.abc import Mapping

from gpu_scheduler.agent.devices.inventory import FoundDevice
from gpu_scheduler.agent.logins import Login
from gpu_scheduler.agent.patience import looked
from gpu_scheduler.agent.rendezvous import RENDEZVOUS_NAMES, rendezvous_environment
from gpu_scheduler.agent.work import WorkDevice
from gpu_scheduler.wire import agent_pb2 as pb

PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WHOLE_MILLI = 1000
NEVER_PASSED = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "TGPU_GPU_SHARING"),
    *("TGPU_JOB_ID", "TGPU_ARRAY_INDEX", "TGPU_ATTEMPT", "TGPU_GPU_SHARE", "TGPU_ALLOCATION_ID"),
    *RENDEZVOUS_NAMES,
    "TGPU_SERVICE_PORT",
)
"""A job that is submitted from within a job must not inherit the outer one's devices."""


def job_environment(
    order: pb.Order,
    login: Login,
    devices: tuple[WorkDevice, ...],
    scratch_dir: str,
    master_port: int,
) -> dict[str, str]:
    """All variables of one member."""
    start = order.start
    variables = _login(login, start.user)
    if start.captured:
        # Whoever takes only some variables along still has a home and finds programs.
        del variables["LANG"]
    variables |= {
        name: value for name, value in start.environment.items() if name not in NEVER_PASSED
    }
    variables |= _devices(devices)
    variables |= {
        "TGPU_JOB_ID": start.job_id,
        "TGPU_ATTEMPT": str(start.attempt),
        "TGPU_ALLOCATION_ID": order.allocation_id,
        "TGPU_CHECKPOINT_FILE": f"{scratch_dir}/checkpoint",
        "TGPU_STOP_FILE": f"{scratch_dir}/stop-reason",
    }
    if start.HasField("task"):
        variables["TGPU_ARRAY_INDEX"] = str(start.task)
    if start.HasField("rendezvous"):
        variables |= rendezvous_environment(start.rendezvous, master_port, scratch_dir)
    return variables


def work_devices(
    held: Mapping[int, pb.HeldDevice], found: Mapping[int, FoundDevice], mig: dict[int, str]
) -> tuple[WorkDevice, ...]:
    """The devices of a member, with what only this node knows of them."""
    devices = []
    for index, share in sorted(held.items()):
        device = found.get(index, FoundDevice(index=index))
        devices.append(
            WorkDevice(
                index=index,
                uuid=device.uuid,
                path=device.path,
                share_milli=share.share_milli,
                memory_mb=share.memory_mb,
                mig_uuid=mig.get(index, ""),
            )
        )
    return tuple(devices)


def home_in(environment: Mapping[str, str]) -> str:
    """The user's home, if there is one; service accounts often have none."""
    home = environment.get("HOME", "")
    # A name that cannot even be looked up is none; pathlib would raise.
    is_there = bool(home) and looked(home, lambda: os.path.isdir(home), True)  # noqa: PTH112
    return home if is_there else "/"


def _login(login: Login, user: str) -> dict[str, str]:
    """What a fresh login would have."""
    name = login.name or user
    return {
        "PATH": PLAIN_PATH,
        "USER": name,
        "LOGNAME": name,
        "HOME": login.home,
        "SHELL": login.shell,
        "LANG": "C.UTF-8",
    }


def _devices(devices: tuple[WorkDevice, ...]) -> dict[str, str]:
    """Exactly the devices that were given; no GPU asked, none visible."""
    if not devices:
        return {"CUDA_VISIBLE_DEVICES": "", "NVIDIA_VISIBLE_DEVICES": "void"}
    names = [device.mig_uuid or str(device.index) for device in devices]
    variables = {
        "CUDA_VISIBLE_DEVICES": ",".join(names),
        "CUDA_DEVICE_ORDER": "PCI_BUS_ID",
        "NVIDIA_VISIBLE_DEVICES": ",".join(
            device.mig_uuid or device.uuid or name
            for device, name in zip(devices, names, strict=True)
        ),
    }
    parts = [device for device in devices if device.share_milli < WHOLE_MILLI]
    total = sum(device.share_milli for device in devices)
    variables["TGPU_GPU_SHARE"] = f"{total / WHOLE_MILLI:g}"
    if parts and not any(device.mig_uuid for device in devices):
        # One number for the whole process; the smallest share keeps within all of them.
        least = min(device.share_milli for device in parts)
        if least:
            variables["CUDA_MPS_ACTIVE_THREAD_PERCENTAGE"] = f"{least / 10:g}"
        limits = [
            f"{place}={device.memory_mb}M"
            for place, device in enumerate(devices)
            if device in parts and device.memory_mb
        ]
        if limits:
            variables["CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"] = ",".join(limits)
    return variables
