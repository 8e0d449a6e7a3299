"""Settings of devices: how they are found, watched and shared, and what becomes of idle ones."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.field import DAY_S, setting

ACTIONS = ("off", "warn", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """How devices are found and watched."""

    detection_method: str = setting(
        "auto",
        "Who finds devices: NVML, else nvidia-smi (`auto`); one of them; or what `simulate` says.",
        choices=("auto", "nvml", "nvidia-smi", "simulated", "none"),
    )
    simulate: str = setting(
        "", "Declared devices instead of real ones, such as `8xA100-80GB`; jobs stay real."
    )
    memory_threshold: float = setting(
        0.8,
        "A device of which other programs hold more than this part of the memory is taken.",
        least=0,
        most=1,
    )
    load_threshold: float = setting(
        0.8,
        "A device that other programs keep busier than this is taken.",
        least=0,
        most=1,
    )
    allocation_precision: float = setting(
        0.01, "Step of shares; a finer request is refused.", least=0.01, most=1
    )
    monitor_interval_s: float = setting(5.0, "How often devices are read.", least=0.1, most=3600)
    utilization_window_s: float = setting(
        60.0, "Utilisation is the mean over this time.", least=1, most=3600
    )
    ignore_programs: tuple[str, ...] = setting(
        (), "Programs that may use a device beside our jobs, besides desktops and drivers."
    )
    ignore_users: tuple[str, ...] = setting(
        (), "Users whose programs may use a device beside our jobs."
    )
    read_timeout_s: float = setting(
        5.0, "A driver that does not answer within this time has failed.", least=0.1, most=600
    )
    sharing: str = setting(
        "auto",
        "How jobs share a device: by NVIDIA's Multi-Process Service where the driver offers it and "
        "they are one user's, else by time-slicing (`auto`); `mps` refuses to start a share where "
        "there is no such service; or by time-slicing always.",
        choices=("auto", "mps", "time_slicing"),
    )
    memory_enforcement: str = setting(
        "stop",
        "What is done about a job on a shared device that uses more GPU memory than it has there: "
        "nothing, a warning, or a warning and then an end.",
        choices=ACTIONS,
    )
    memory_tolerance: float = setting(
        0.1, "It may use this part more than it has before anything is done.", least=0, most=10
    )
    memory_grace_s: float = setting(
        30.0, "So long after the warning it is stopped.", least=0, most=DAY_S
    )
    idle_action: str = setting(
        "warn",
        "What is done about a job that leaves all its devices idle: nothing, a warning, or a "
        "warning and then an end.",
        choices=ACTIONS,
    )
    idle_percent: int = setting(
        5, "A device that is less busy than this per cent is idle.", least=1, most=100
    )
    idle_minutes: float = setting(
        30.0, "Idle for so long, a job is warned.", least=0.01, most=525_600
    )
    idle_grace_minutes: float = setting(
        10.0, "So long after the warning it is stopped.", least=0, most=525_600
    )
    idle_exempt_users: tuple[str, ...] = setting((), "Users whose jobs may be idle.")
    idle_exempt_tenants: tuple[str, ...] = setting((), "Tenants whose jobs may be idle, by id.")
    idle_exempt_interactive: bool = setting(default=False, about="Interactive jobs may be idle.")
    idle_opt_out: bool = setting(
        default=True, about="A job that was submitted with `--allow-idle` may be idle."
    )
    release_timeout_s: float = setting(
        10.0,
        "So long a job that has ended is given until nothing of it is on its devices; then it is "
        "reported as a leak, and the device is held back.",
        least=0,
        most=3600,
    )
    release_tolerance_mb: int = setting(
        256,
        "So much more memory than before may be in use on a device after a job.",
        least=0,
        most=1_000_000,
    )
    breaker_failures: int = setting(
        3, "After so many failures in a row devices are left alone for a while.", least=1, most=100
    )
    breaker_backoff_s: float = setting(
        10.0, "First time for which they are left alone; it doubles.", least=0.1, most=3600
    )
