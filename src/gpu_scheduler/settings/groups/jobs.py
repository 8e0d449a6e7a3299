"""Settings of jobs: what holds for each of them, and what they may do."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.fields import DAY_S, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What holds for every job."""

    max_assignment_attempts: int = setting(
        5,
        "How often in a row a job is tried that was not begun in time, or an elastic gang that "
        "lost a member. What is refused at its start (a program that is not there) is not tried "
        "again.",
        least=1,
        most=100,
    )
    assignment_retry_wait_s: float = setting(
        5.0, "First wait before another attempt; it doubles each time.", least=0, most=3600
    )
    queue_size_limit: int = setting(
        1_000_000,
        "Most tasks that may wait; the smaller of this and `scheduler.max_queue_size` holds.",
        least=1,
        most=100_000_000,
        note="1,000 was asked for elsewhere; it loses to the same million.",
    )
    max_concurrent_jobs: int = setting(
        0,
        "Most jobs that may run at once on this machine; 0 means no limit.",
        least=0,
        most=1_000_000,
        note="100 was asked for elsewhere; small shares and CPU jobs need more.",
    )
    runner: str = setting(
        "process",
        "In what jobs run that do not say it: a plain process, or a session to attach to.",
        choices=("process", "tmux", "screen"),
    )
    grace_s: float = setting(
        10.0, "Time between SIGTERM and SIGKILL, for jobs that state none.", least=0, most=3600
    )
    log_size_mb: float = setting(
        100.0, "A log of a job that grows beyond this is rotated.", least=0.1, most=1_000_000
    )
    log_backup_count: int = setting(
        1, "How many rotated logs of an attempt are kept.", least=0, most=100
    )
    prolog: tuple[str, ...] = setting(
        (),
        "Command that the server's user runs before each attempt. If it fails, the job does not "
        "run there and waits again.",
    )
    epilog: tuple[str, ...] = setting(
        (),
        "Command that the server's user runs after each attempt. How the job ended does not "
        "depend on it.",
    )
    hook_timeout_s: float = setting(
        60.0,
        "A prolog or epilog that takes longer is stopped, and has failed. Less than "
        "`gangs.prepare_timeout_s`, in which the prologs of a gang must be over.",
        least=1,
        most=3600,
    )
    start_timeout_s: float = setting(
        60.0,
        "So long a process of an attempt may take until it is the job's command: to enter the "
        "working directory, open the output file, find the user's groups. One that takes longer is "
        "ended, and the job is tried again as one that was not begun in time. Less than "
        "`gangs.prepare_timeout_s` and `scheduler.worker_timeout_s`.",
        least=1,
        most=DAY_S,
    )
    engine_timeout_s: float = setting(
        120.0,
        "A container engine that has not answered for so long is not waited for any more: what can "
        "be found of the container is killed without it, and the exit code of the job is unknown.",
        least=1,
        most=DAY_S,
    )
    max_prolog_failures: int = setting(
        3,
        "After so many failed prologs in a row a job has failed. Before that it waits again and "
        "keeps its retries.",
        least=1,
        most=100,
    )
    hook_failure_drains: bool = setting(
        True,
        "Whether a node whose prolog or epilog failed gets no new work until somebody has looked "
        "after it (`tgpu nodes uncordon`).",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """What jobs and callers may do."""

    allowed_script_paths: tuple[str, ...] = setting(
        (),
        "Directories that the program of a job must lie in; empty: anywhere. Or an interpreter "
        "of the system (Python, a shell, Perl, R, Julia, Node, Ruby) may run a script from there, "
        "named first, without options. Scripts given as text, containers, and variables that load "
        "code (`LD_*`, `BASH_ENV` ...) are refused; `LD_LIBRARY_PATH`, `PYTHONPATH` and the like "
        "may name these directories and those of the system. A conda environment must be one of "
        "`conda_roots`, or lie in these directories and be named by its whole path. It judges what "
        "is submitted and confines nothing: programs in these directories, but for interpreters, "
        "get any arguments, all read what their user owns (such as Python packages in the home "
        "directory), and whoever may write there, or change a symbolic link there later, may run "
        "anything.",
    )
    conda_roots: tuple[str, ...] = setting(
        (
            *("/opt/conda", "/opt/miniconda3", "/opt/miniforge3", "/opt/mambaforge"),
            "/opt/anaconda3",
        ),
        "The conda installations of the site. Where `allowed_script_paths` is set, an environment "
        "that a job names is sought in their `envs` and nowhere else (`base`: the installation "
        "itself), is entered by the conda there, and must be one that the job's user cannot "
        "change; its interpreters run scripts of the allowed directories.",
    )
    max_memory_per_job_gb: float = setting(
        0.0,
        "Most memory a job may ask for, and its limit if it asks for none; 0 means no limit.",
        least=0,
        most=1_000_000,
        note="32 was asked for elsewhere; a machine's owner has to choose it.",
    )
    max_processes_per_job: int = setting(
        16_384,
        "Most processes and threads a job may have at once, and its limit if it asks for none, "
        "where the host can count them (pids control group); 0 means no limit.",
        least=0,
        most=4_194_304,
    )
    enable_resource_limits: bool = setting(
        default=True, about="CPU, memory and process limits are enforced where the host can."
    )
    forbidden_environment: tuple[str, ...] = setting(
        (),
        "Variables that no job may set or bring along, such as `LD_PRELOAD` or `LD_*`; a "
        "submission that has one is refused.",
    )
    admins: tuple[str, ...] = setting(
        (), "Users who may do everything, besides root and the user who started the server."
    )


# --- Settings of devices: how they are found, watched and shared, and what becomes of idle ones.

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
