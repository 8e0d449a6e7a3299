"""The environment of a job: the submitter's variables, and over them those that the agent sets.

The agent sets the visible devices, the identity of the job and the rendezvous of a gang, and wraps
the command to run in a conda environment if one is requested.
"""

from __future__ import annotations

import os
import shutil
from collections.abc import Iterable, Mapping, Sequence

from gpu_scheduler.agent.devices.source import DetectedDevice
from gpu_scheduler.agent.launcher_protocol import WorkDevice
from gpu_scheduler.agent.machine import Account, call_with_timeout
from gpu_scheduler.model.node import Adapter
from gpu_scheduler.wire import agent_pb2 as pb

HOSTFILE = "hostfile"
MACHINEFILE = "machinefile"
LOOPBACK = "127.0.0.1"
PLAIN_PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
WHOLE_MILLI = 1000
CONDA_PLACES = (
    *("~/miniconda3", "~/miniforge3", "~/mambaforge", "~/anaconda3"),
    *("/opt/conda", "/opt/miniconda3", "/opt/miniforge3", "/opt/anaconda3"),
)
"""Where installers put conda; a job from a jobs file has no shell that has set it up."""
CONDA_PREFIXES = ("CONDA", "_CONDA", "_CE_", "MAMBA", "_MAMBA")
"""Prefixes of the variables that tell conda what is active and where things are."""


def rendezvous_environment(
    rendezvous: pb.Rendezvous, port: int, scratch_dir: str
) -> dict[str, str]:
    """The variables of a gang member: its rank, the size of the gang, the address of the first.

    Set when the member is prepared and again when it is committed; only then they are final. RANK
    and the like assume one process per member. PET_* are torchrun's names for its options, where
    torchrun's "node" is a member.
    """
    places = list(rendezvous.nodes) or list(rendezvous.hosts)
    rank, size = rendezvous.rank, rendezvous.world_size
    here = places[rank] if rank < len(places) else ""
    nodes = list(dict.fromkeys(places))
    address = LOOPBACK if len(nodes) <= 1 else rendezvous.master_address
    master_port = str(rendezvous.master_port or port)
    gpus = rendezvous.gpus[rank] if rank < len(rendezvous.gpus) else 0
    return {
        "MASTER_ADDR": address,
        "MASTER_PORT": master_port,
        "RANK": str(rank),
        "WORLD_SIZE": str(size),
        "LOCAL_RANK": str(places[:rank].count(here)),
        "LOCAL_WORLD_SIZE": str(places.count(here) or 1),
        "NODE_RANK": str(nodes.index(here) if here in nodes else 0),
        "NNODES": str(len(nodes) or 1),
        "PET_NNODES": str(size),
        "PET_NODE_RANK": str(rank),
        "PET_NPROC_PER_NODE": str(gpus or 1),
        "PET_MASTER_ADDR": address,
        "PET_MASTER_PORT": master_port,
        "TGPU_NODELIST": ",".join(dict.fromkeys(rendezvous.hosts)),
        "TGPU_HOSTFILE": f"{scratch_dir}/{HOSTFILE}",
        "TGPU_MACHINEFILE": f"{scratch_dir}/{MACHINEFILE}",
    }


NEVER_PASSED = (
    *("CUDA_VISIBLE_DEVICES", "CUDA_DEVICE_ORDER", "NVIDIA_VISIBLE_DEVICES"),
    *("CUDA_MPS_ACTIVE_THREAD_PERCENTAGE", "CUDA_MPS_PINNED_DEVICE_MEM_LIMIT"),
    *("CUDA_MPS_PIPE_DIRECTORY", "CUDA_MPS_LOG_DIRECTORY", "TGPU_GPU_SHARING"),
    *("TGPU_JOB_ID", "TGPU_JOB_NUMBER", "TGPU_ARRAY_INDEX", "TGPU_ATTEMPT", "TGPU_GPU_SHARE"),
    "TGPU_ALLOCATION_ID",
    *rendezvous_environment(pb.Rendezvous(), 0, ""),
    "TGPU_SERVICE_PORT",
)
"""Never copied from the submitter: a job that a job submits must not inherit its devices."""


def rendezvous_files(rendezvous: pb.Rendezvous) -> dict[str, str]:
    """The hosts with their slots: as Open MPI and DeepSpeed read them, and as MPICH does.

    A slot is a GPU; a member without one has one slot.
    """
    slots: dict[str, int] = {}
    for rank, host in enumerate(rendezvous.hosts):
        gpus = rendezvous.gpus[rank] if rank < len(rendezvous.gpus) else 0
        slots[host] = slots.get(host, 0) + (gpus or 1)
    return {
        HOSTFILE: "".join(f"{host} slots={count}\n" for host, count in slots.items()),
        MACHINEFILE: "".join(f"{host}:{count}\n" for host, count in slots.items()),
    }


def nccl_hints(
    adapters: Sequence[Adapter], near: Iterable[int], interface: str = ""
) -> dict[str, str]:
    """The adapters and the interface that NCCL should use.

    Active adapters on the NUMA nodes `near` the member's devices, or all active ones if none is
    near.
    """
    hints: dict[str, str] = {}
    numa = {node for node in near if node >= 0}
    active = [adapter for adapter in adapters if adapter.active]
    chosen = [adapter for adapter in active if adapter.numa_node in numa] or active
    if chosen:
        names = sorted({f"{adapter.name}:{adapter.port or 1}" for adapter in chosen})
        # The "=" makes NCCL match names exactly: mlx5_1 is not mlx5_10.
        hints["NCCL_IB_HCA"] = "=" + ",".join(names)
    if interface:
        hints["NCCL_SOCKET_IFNAME"] = f"={interface}"
        hints["GLOO_SOCKET_IFNAME"] = interface
    return hints


def job_environment(
    order: pb.Order,
    account: Account,
    devices: tuple[WorkDevice, ...],
    scratch_dir: str,
    master_port: int,
) -> dict[str, str]:
    """All variables of one member."""
    start = order.start
    user = account.name or start.user
    variables = {  # as after a fresh login
        "PATH": PLAIN_PATH,
        "USER": user,
        "LOGNAME": user,
        "HOME": account.home,
        "SHELL": account.shell,
    }
    if not start.captured:
        variables["LANG"] = "C.UTF-8"
    variables |= {
        name: value for name, value in start.environment.items() if name not in NEVER_PASSED
    }
    variables |= _device_variables(devices)
    variables |= {
        "TGPU_JOB_ID": start.job_id,
        "TGPU_JOB_NUMBER": job_number(start),
        "TGPU_ATTEMPT": str(start.attempt),
        "TGPU_ALLOCATION_ID": order.allocation_id,
        "TGPU_CHECKPOINT_FILE": f"{scratch_dir}/checkpoint",
        "TGPU_STOP_FILE": f"{scratch_dir}/stop-reason",
    }
    if start.HasField("task"):
        variables["TGPU_ARRAY_INDEX"] = str(start.task)
    if SLURM_MARKER in start.environment:
        for name in SLURM_VARIABLES:
            variables.pop(name, None)  # of the job from which this one was submitted
        variables |= _slurm_variables(start)
    if start.HasField("rendezvous"):
        variables |= rendezvous_environment(start.rendezvous, master_port, scratch_dir)
    return variables


def job_number(start: pb.Start) -> str:
    """The job's number as in tables and file names: `12`, or `12_4` for a task of an array."""
    number = start.job_id.removeprefix("job-")
    return f"{number}_{start.task}" if start.HasField("task") else number


SLURM_MARKER = "TGPU_SLURM_NAMES"
"""Set by `tgpu submit` for scripts whose `#SBATCH` lines it has read."""
SLURM_VARIABLES = (
    *("SLURM_JOB_ID", "SLURM_JOBID", "SLURM_ARRAY_JOB_ID", "SLURM_ARRAY_TASK_ID"),
    "SLURM_RESTART_COUNT",
)


def _slurm_variables(start: pb.Start) -> dict[str, str]:
    """The variables that a script written for Slurm reads to tell its runs apart."""
    number = job_number(start)
    variables = {
        "SLURM_JOB_ID": number,
        "SLURM_JOBID": number,
        "SLURM_RESTART_COUNT": str(start.attempt - 1),
    }
    if start.HasField("task"):
        variables["SLURM_ARRAY_JOB_ID"] = start.job_id.removeprefix("job-")
        variables["SLURM_ARRAY_TASK_ID"] = str(start.task)
    return variables


def work_devices(
    held: Mapping[int, pb.HeldDevice], found: Mapping[int, DetectedDevice], mig: dict[int, str]
) -> tuple[WorkDevice, ...]:
    """The devices of a member, with their UUIDs, device nodes and MIG slices."""
    devices = []
    for index, share in sorted(held.items()):
        device = found.get(index, DetectedDevice(index=index))
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


def home_directory(environment: Mapping[str, str]) -> str:
    """The user's home directory if it exists; service accounts often have none."""
    home = environment.get("HOME", "")
    # pathlib would raise for a name that cannot be looked up.
    exists = bool(home) and call_with_timeout(home, lambda: os.path.isdir(home), True)  # noqa: PTH112
    return home if exists else "/"


def _device_variables(devices: tuple[WorkDevice, ...]) -> dict[str, str]:
    """Exactly the assigned devices are visible; none for a job without GPUs."""
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
        # The percentage holds for all devices of a process, so it is that of the smallest share.
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


def conda_command(start: pb.Start, environment: dict[str, str]) -> tuple[str, ...]:
    """The command, wrapped by `conda run` if the job has a conda environment.

    By default the submitter's own conda finds the environment. If the site's rules name conda
    and environment, the submitter's conda must not interfere: its variables are removed from
    `environment`, and the system's programs come first on the PATH.
    """
    argv = tuple(start.argv)
    if not start.conda:
        return argv
    search = environment.setdefault("PATH", PLAIN_PATH)
    conda = start.conda_exe
    if conda:
        for name in [name for name in environment if name.startswith(CONDA_PREFIXES)]:
            del environment[name]
        if search != PLAIN_PATH:
            environment["PATH"] = f"{PLAIN_PATH}:{search}"
    else:
        conda = _find_conda(environment)
    option = "-p" if "/" in start.conda else "-n"
    return (conda, "run", "--no-capture-output", option, start.conda, *argv)


def _find_conda(environment: dict[str, str]) -> str:
    """The conda of the submitter's shell, else on the PATH, else where installers put it."""
    named = environment.get("CONDA_EXE", "")
    if named:
        return named
    path, home = environment["PATH"], home_directory(environment)
    places = [place.replace("~", home, 1) + "/bin/conda" for place in CONDA_PLACES]

    def find() -> str:
        if shutil.which("conda", path=path):
            return "conda"
        return next((place for place in places if os.access(place, os.X_OK)), "conda")

    return call_with_timeout(f"{path} {home}", find, "conda")
