"""Settings of jobs and GPUs: defaults, limits, security rules, detection and sharing."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.settings.fields import DAY_S, setting


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """Defaults and limits of all jobs."""

    max_assignment_attempts: int = setting(
        5,
        "How many times in a row a job is tried that did not start in time, or an elastic gang "
        "that lost a member. A job whose start is rejected (for example a missing program) is not "
        "retried.",
        least=1,
        most=100,
    )
    assignment_retry_wait_s: float = setting(
        5.0, "First wait before another attempt; it doubles each time.", least=0, most=3600
    )
    queue_size_limit: int = setting(
        1_000_000,
        "Maximum number of waiting tasks; the smaller of this and `scheduler.max_queue_size` "
        "applies.",
        least=1,
        most=100_000_000,
        note="The default fits an array of a million tasks. `limits.user_queue_percent` is the part"
        " that one user may fill.",
    )
    max_concurrent_jobs: int = setting(
        0,
        "Maximum number of jobs that run at once; 0: no limit.",
        least=0,
        most=1_000_000,
        note="No limit by default, because small GPU shares and CPU jobs need more than 100.",
    )
    runner: str = setting(
        "process",
        "Default runner of jobs: a plain process, or a session to attach to.",
        choices=("process", "tmux", "screen"),
    )
    grace_s: float = setting(10.0, "Default time between SIGTERM and SIGKILL.", least=0, most=3600)
    log_size_mb: float = setting(
        100.0, "A job's log is rotated at this size.", least=0.1, most=1_000_000
    )
    log_backup_count: int = setting(
        1, "Number of rotated logs that are kept per attempt.", least=0, most=100
    )
    log_job_mb: float = setting(
        0.0,
        "Budget of all logs of a job on a node: of its attempts, members and tasks, with their "
        "rotated parts. What exceeds it is deleted: rotated parts first, then logs of ended "
        "attempts, the oldest first; then the log of a running attempt is cut, with a line that "
        "says so and the event `log_cut`. 0: half of a user's budget.",
        least=0,
        most=1_000_000_000,
    )
    log_user_mb: float = setting(
        0.0,
        "The same for all jobs of a user on a node, where the node serves several users. 0: half of"
        " the total.",
        least=0,
        most=1_000_000_000,
    )
    log_total_mb: float = setting(
        0.0,
        "The same for all job logs on a node; users with the most logs lose some first. 0: half of "
        "the size of their file system.",
        least=0,
        most=1_000_000_000,
    )
    log_free_mb: float = setting(
        0.0,
        "Logs of running jobs are cut while their file system has less free space than this. 0: "
        "1 GiB, at most a twentieth of its size.",
        least=0,
        most=1_000_000_000,
    )
    prolog: tuple[str, ...] = setting(
        (),
        "Command that the server's user runs before each attempt. If it fails, the job does not "
        "run there and waits again.",
    )
    epilog: tuple[str, ...] = setting(
        (),
        "Command that the server's user runs after each attempt. It does not affect the result of "
        "the job.",
    )
    hook_timeout_s: float = setting(
        60.0,
        "A prolog or epilog that takes longer is stopped and counts as failed. Must be less than "
        "`gangs.prepare_timeout_s`, in which the prologs of a gang must finish.",
        least=1,
        most=3600,
    )
    start_timeout_s: float = setting(
        60.0,
        "Time for a process of an attempt to enter the working directory, open the output file, "
        "look up the user's groups and execute the job's command. If it takes longer, it is killed"
        " and the job is retried as one that did not start in time. Must be less than "
        "`gangs.prepare_timeout_s` and `scheduler.worker_timeout_s`.",
        least=1,
        most=DAY_S,
    )
    engine_timeout_s: float = setting(
        120.0,
        "Timeout of a container engine. After it the processes of the container are killed without"
        " the engine, and the exit code of the job is unknown. Podman of the job's user that has "
        "not begun the container and has done nothing for this time is killed, and the job is "
        "retried as one that did not start in time.",
        least=1,
        most=DAY_S,
    )
    max_prolog_failures: int = setting(
        3,
        "A job fails after this many failed prologs in a row. Before that it waits again and keeps"
        " its retries.",
        least=1,
        most=100,
    )
    hook_failure_drains: bool = setting(
        True,
        "Cordon a node whose prolog or epilog failed: it gets no new work until `tgpu nodes "
        "uncordon`.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class SecuritySettings:
    """What jobs and callers may do."""

    allowed_script_paths: tuple[str, ...] = setting(
        (),
        "Directories that the program of a job must be in; empty: anywhere. A system interpreter "
        "(Python, a shell, Perl, R, Julia, Node, Ruby) may run a script from there as its first "
        "argument, without options. Scripts submitted as text, containers, jobs on a terminal "
        "(where `tgpu shell --job` starts anything), and variables that load code (`LD_*`, "
        "`BASH_ENV` ...) are rejected. A site that sets `jobs.runner` to tmux or screen accepts "
        "jobs on that terminal, and with them what users start there. "
        "`LD_LIBRARY_PATH`, `PYTHONPATH` and similar may name "
        "these directories and those of the system; other directories are removed from `PATH`. "
        "A conda environment must be one of "
        "`conda_roots`, or be in these directories and named by its absolute path. This checks the"
        " submission and does not confine the job: programs in these directories, except "
        "interpreters, get any arguments; programs read files of their user (Python's user "
        "packages, `.Rprofile` and `.zshenv` are switched off, which a program may undo; Julia's "
        "`startup.jl`, R packages in the home directory and conda's `.condarc` are not); and a "
        "user who may write there, or change a symbolic link there later, can run anything.",
    )
    conda_roots: tuple[str, ...] = setting(
        (
            *("/opt/conda", "/opt/miniconda3", "/opt/miniforge3", "/opt/mambaforge"),
            "/opt/anaconda3",
        ),
        "Conda installations of the site. Where `allowed_script_paths` is set, an environment that"
        " a job names is looked up only in their `envs` (`base`: the installation itself), is "
        "entered with their conda, and must not be writable for the job's user; its interpreters "
        "may run scripts of the allowed directories.",
    )
    max_memory_per_job_gb: float = setting(
        0.0,
        "Maximum memory of a job, and the limit of a job that requests none; 0: no limit.",
        least=0,
        most=1_000_000,
        note="No limit by default: it depends on the machine.",
    )
    max_processes_per_job: int = setting(
        16_384,
        "Maximum number of processes and threads of a job, and the limit of a job that requests "
        "none, where the host can count them (pids cgroup); 0: no limit.",
        least=0,
        most=4_194_304,
    )
    max_processes_per_user: int = setting(
        0,
        "Maximum number of processes and threads of a user on a node, by RLIMIT_NPROC in each job: "
        "the kernel counts all of them, also those outside of jobs, and starts no more in a job "
        "beyond it. Root has no such limit. 0: half of `max_processes_total`, or all of it where "
        "the node serves one user.",
        least=0,
        most=4_194_304,
    )
    max_processes_total: int = setting(
        0,
        "Maximum number of processes and threads of all jobs on a node, where the host can count "
        "them (pids cgroup); at most three quarters of the kernel's maximum, which 0 stands for.",
        least=0,
        most=4_194_304,
    )
    reserved_memory_gb: float = setting(
        0.0,
        "Memory of a node that all jobs together leave for the system, where the host has a memory "
        "cgroup. 0: a twentieth, from 1 to 16 GiB.",
        least=0,
        most=1_000_000,
    )
    default_memory_percent: int = setting(
        100,
        "Memory limit of a job that requests none, where the host has a memory cgroup: this "
        "percentage of its share of the node, by its GPUs or its CPU cores; 0: no limit. It does "
        "not apply to jobs of root, to nodes that serve one user, and where "
        "`max_memory_per_job_gb` is set.",
        least=0,
        most=1_000,
    )
    default_memory_floor_gb: float = setting(
        8.0,
        "Least value of that limit, and the limit of a job that requests neither GPUs nor CPU "
        "cores.",
        least=0.001,
        most=1_000_000,
    )
    enable_resource_limits: bool = setting(
        default=True, about="Enforce CPU, memory and process limits where the host can."
    )
    forbidden_environment: tuple[str, ...] = setting(
        (),
        "Variables that jobs may not set or bring along, such as `LD_PRELOAD` or `LD_*`; a "
        "submission with one of them is rejected.",
    )
    admins: tuple[str, ...] = setting(
        (), "Users who may do everything, in addition to root and the user who started the server."
    )


ACTIONS = ("off", "warn", "stop")


@dataclass(frozen=True, slots=True, kw_only=True)
class GpuSettings:
    """Detection, monitoring and sharing of GPUs."""

    detection_method: str = setting(
        "auto",
        "How GPUs are detected: NVML, else nvidia-smi (`auto`); one of them; or as declared by "
        "`simulate`.",
        choices=("auto", "nvml", "nvidia-smi", "simulated", "none"),
    )
    simulate: str = setting(
        "",
        "Declared GPUs instead of real ones, such as `8xA100-80GB`; jobs still run as real "
        "processes.",
    )
    memory_threshold: float = setting(
        0.8,
        "A GPU is occupied if other programs use more than this fraction of its memory.",
        least=0,
        most=1,
    )
    load_threshold: float = setting(
        0.8,
        "A GPU is occupied if other programs keep it busier than this fraction.",
        least=0,
        most=1,
    )
    allocation_precision: float = setting(
        0.01, "Smallest step of GPU shares; a finer request is rejected.", least=0.01, most=1
    )
    monitor_interval_s: float = setting(5.0, "How often GPUs are polled.", least=0.1, most=3600)
    utilization_window_s: float = setting(
        60.0, "Utilisation is the mean over this time.", least=1, most=3600
    )
    ignore_programs: tuple[str, ...] = setting(
        (), "Programs that may use a GPU beside jobs, in addition to desktops and drivers."
    )
    ignore_users: tuple[str, ...] = setting((), "Users whose programs may use a GPU beside jobs.")
    read_timeout_s: float = setting(
        5.0, "Timeout of a call to the GPU driver.", least=0.1, most=600
    )
    sharing: str = setting(
        "auto",
        "How jobs share a GPU: with NVIDIA's Multi-Process Service where the driver offers it and "
        "the jobs belong to one user, else by time-slicing (`auto`); with `mps` a share does not "
        "start where that service is missing; `time_slicing` always uses time-slicing.",
        choices=("auto", "mps", "time_slicing"),
    )
    memory_enforcement: str = setting(
        "stop",
        "Action if a job on a shared GPU uses more GPU memory than it was allocated: none, a "
        "warning, or a warning and then a stop.",
        choices=ACTIONS,
    )
    memory_tolerance: float = setting(
        0.1, "Fraction by which it may exceed its memory before the action.", least=0, most=10
    )
    memory_grace_s: float = setting(
        30.0, "Time between the warning and the stop.", least=0, most=DAY_S
    )
    idle_action: str = setting(
        "warn",
        "Action if a job leaves all its GPUs idle: none, a warning, or a warning and then a stop.",
        choices=ACTIONS,
    )
    idle_percent: int = setting(
        5, "A GPU with a lower utilisation than this percentage is idle.", least=1, most=100
    )
    idle_minutes: float = setting(30.0, "Idle time before the warning.", least=0.01, most=525_600)
    idle_grace_minutes: float = setting(
        10.0, "Time between the warning and the stop.", least=0, most=525_600
    )
    idle_exempt_users: tuple[str, ...] = setting((), "Users whose jobs may be idle.")
    idle_exempt_tenants: tuple[str, ...] = setting((), "Ids of tenants whose jobs may be idle.")
    idle_exempt_interactive: bool = setting(default=False, about="Interactive jobs may be idle.")
    idle_opt_out: bool = setting(
        default=True, about="Jobs submitted with `--allow-idle` may be idle."
    )
    release_timeout_s: float = setting(
        10.0,
        "Time for the processes of an ended job to leave its GPUs; after it a leak is reported and"
        " the GPU gets no new work.",
        least=0,
        most=3600,
    )
    release_tolerance_mb: int = setting(
        256,
        "Memory in use on a GPU after a job may exceed that before the job by this much.",
        least=0,
        most=1_000_000,
    )
    breaker_failures: int = setting(
        3, "After this many failures in a row, GPUs are not polled for a while.", least=1, most=100
    )
    breaker_backoff_s: float = setting(
        10.0, "First duration of that pause; it doubles each time.", least=0.1, most=3600
    )
