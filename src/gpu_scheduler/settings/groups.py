"""The settings themselves: groups of frozen dataclasses, each field with its meaning and range.

Values come in checked (`sources` does that); nothing here reads a file or a variable. The page
docs/reference/settings.md is made from this module.
"""

from __future__ import annotations

from dataclasses import dataclass, field

from gpu_scheduler.model.notice import OF_JOBS
from gpu_scheduler.settings.access import AuthSettings, TenantEntry
from gpu_scheduler.settings.cluster import (
    LAST_PORT,
    AgentSettings,
    DatabaseSettings,
    GangSettings,
    NodeSettings,
)
from gpu_scheduler.settings.field import setting, table
from gpu_scheduler.settings.forms import Price, PriceChange, Target
from gpu_scheduler.settings.grpc import GrpcSettings
from gpu_scheduler.settings.policy import LimitSettings, PolicySettings
from gpu_scheduler.settings.replication import ReplicationSettings, ServerSettings

LEVELS = ("DEBUG", "INFO", "WARNING", "ERROR")
ACTIONS = ("off", "warn", "stop")
DAY_S = 86_400.0


@dataclass(frozen=True, slots=True, kw_only=True)
class SchedulerSettings:
    """When the scheduler decides, and what it may do."""

    scheduling_interval_ms: int = setting(
        1000,
        "At the latest after this time the queue is looked at again; a change does so at once.",
        least=10,
        most=600_000,
    )
    max_queue_size: int = setting(
        1_000_000,
        "Most tasks that may wait; a submission beyond that is refused as `queue_full`.",
        least=1,
        most=100_000_000,
        note="10,000 was asked for elsewhere; an array of a million tasks must fit, so that loses.",
    )
    enable_preemption: bool = setting(
        default=True, about="A job of a higher class may stop one of a lower class."
    )
    enable_gang_scheduling: bool = setting(
        default=True, about="Jobs of several members are accepted; off, they are refused."
    )
    enable_thermal_aware: bool = setting(
        default=True, about="Devices above `thermal_threshold` get no new work."
    )
    thermal_threshold: float = setting(
        75.0, "Above this temperature in degrees Celsius a device is hot.", least=20, most=120
    )
    thermal_hysteresis: float = setting(
        5.0, "A hot device is used again once it is this much cooler.", least=0, most=50
    )
    num_gpus: int = setting(
        0,
        "Use only the first so many devices of this machine; 0 uses all that are found.",
        least=0,
        most=1024,
        note="8 was asked for elsewhere; what the machine has wins.",
    )
    max_workers: int = setting(
        8,
        "So many starts (prolog, container, spawn) may be under way at once on this machine.",
        least=1,
        most=1024,
    )
    worker_timeout_s: float = setting(
        300.0,
        "A start that takes longer has failed, and the job is tried again.",
        least=1,
        most=DAY_S,
    )
    job_timeout_s: float = setting(
        7 * DAY_S,
        "Limit of jobs that state none.",
        least=1,
        most=3650 * DAY_S,
        note="3,600 was asked for elsewhere; nobody expects a training run to end after an hour.",
    )
    graceful_shutdown_timeout_s: float = setting(
        30.0,
        "How long a stopping server waits for open requests; jobs are left alone.",
        least=0,
        most=3600,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ApiSettings:
    """Where the server listens."""

    host: str = setting(
        "127.0.0.1",
        "Address for HTTP. On loopback callers are known by their uid; any other address needs "
        "`tls_certificate`, and callers there need a token.",
    )
    host_names: tuple[str, ...] = setting(
        (),
        "Further names by which browsers may call the server, besides localhost, `host` and the "
        "machine's own name.",
    )
    tls_certificate: str = setting(
        "", "File with the certificate chain (PEM) for HTTPS; read again when it changes."
    )
    tls_key: str = setting(
        "", "File with its private key; only its owner, and perhaps a group, may read it."
    )
    allow_plain_http: bool = setting(
        default=False,
        about="Serve other addresses than loopback without TLS: only where something before the "
        "server encrypts, as tokens can be read on the way otherwise.",
    )
    requests_per_second: float = setting(
        500.0,
        "Most requests of one caller (admins excepted), in the long run; 0 means no limit. Beyond "
        "that they are answered with 429 and `Retry-After`.",
        least=0,
        most=1_000_000,
    )
    requests_burst: int = setting(
        2000, "So many requests of one caller may come at once.", least=1, most=10_000_000
    )
    connections_per_caller: int = setting(
        512, "Most connections that one user, or one address, may hold open.", least=1, most=65_536
    )
    slow_request_s: float = setting(
        30.0,
        "A request whose head, or whose body, has not arrived after this time is given up.",
        least=0.1,
        most=3600,
    )
    http_port: int = setting(
        8080, "Port of the REST API; 0 takes a free one.", least=0, most=LAST_PORT
    )
    grpc_port: int = setting(
        9090,
        "Port of gRPC with `tgpu server`, for programs and for agents of other machines; 0 takes a "
        "free one. With `tgpu up` it is not opened.",
        least=0,
        most=LAST_PORT,
    )
    metrics_port: int = setting(
        9091, "Port of the Prometheus metrics; 0 takes a free one.", least=0, most=LAST_PORT
    )
    max_body_mb: float = setting(64.0, "Largest body of a request, in MiB.", least=0.001, most=1024)
    max_jobs_per_request: int = setting(
        100_000, "Most jobs in one submission.", least=1, most=1_000_000
    )


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


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSettings:
    """What holds for every job."""

    max_assignment_attempts: int = setting(
        5,
        "How often a job is tried that was not begun in time. What is refused at its start (a "
        "program that is not there) is not tried again.",
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
class FileSettings:
    """Files that the server reads and writes."""

    state_dir: str = setting(
        "",
        "Directory of all state; empty: `/var/lib/gpu-scheduler` for root, else by XDG.",
    )
    jobs_file: str = setting(
        "",
        "A jobs.txt whose new lines are submitted; empty: none is watched.",
        note="jobs.txt was asked for elsewhere; a file that is found by chance should not run.",
    )
    llm_config_file: str = setting(
        "llm_config.json",
        "GPUs by model name, for jobs.txt and `tgpu add`; a missing file means one GPU each.",
    )
    state_file: str = setting(
        "scheduler.db",
        "Name of the SQLite database in the state directory.",
        note="gpu_scheduler_state.json was asked for elsewhere; state is a database here.",
    )
    log_file: str = setting(
        "",
        "The server's own log; empty: standard error, or server.log with `--daemon`.",
        note="gpu_scheduler.log was asked for elsewhere; a service's log belongs to its keeper.",
    )
    monitor_interval_s: float = setting(
        30.0, "How often `jobs_file` and `llm_config_file` are looked at.", least=1, most=86_400
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class LoggingSettings:
    """What the server says about itself."""

    level: str = setting("INFO", "The least important lines that are written.", choices=LEVELS)
    structured: bool = setting(
        default=True, about="Lines are JSON, except on a terminal, which gets readable ones."
    )
    max_log_size_mb: float = setting(
        100.0, "The server's log file is rotated at this size.", least=0.1, most=100_000
    )
    backup_count: int = setting(5, "How many rotated log files are kept.", least=0, most=1000)
    metrics_enabled: bool = setting(
        default=True, about="The metrics port is open; off, only `/metrics` of the API is."
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


@dataclass(frozen=True, slots=True, kw_only=True)
class RetentionSettings:
    """How long things are kept."""

    archive_after_days: float = setting(
        30.0, "Jobs that ended so long ago move to the archive.", least=0.01, most=36_500
    )
    events_days: float = setting(90.0, "Events are dropped after this.", least=0.01, most=36_500)
    logs_days: float = setting(
        30.0, "Output of ended jobs is dropped after this.", least=0.01, most=36_500
    )
    audit_days: float = setting(
        365.0,
        "Who changed what, and what was refused, is kept for this long.",
        least=0.01,
        most=36_500,
    )
    readings_days: float = setting(
        400.0, "Hourly readings of devices are dropped after this.", least=0.01, most=36_500
    )
    environments_days: float = setting(
        7.0,
        "Captured environments of ended jobs are dropped after this; they can hold secrets.",
        least=0,
        most=36_500,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NotificationSettings:
    """Who is told what happens to jobs and GPUs."""

    targets: dict[str, Target] = table(Target, "Who can be told, by name.")  # noqa: RUF009
    default_target: str = setting(
        "",
        "Where `--notify end` goes if it names no target. Empty, or not for jobs of the tenant: to "
        "the only `for_jobs` target with this tenant in `tenants`, else the only `for_jobs` one.",
    )
    owner_events: tuple[str, ...] = setting(
        ("idle",),
        "What owners are told of their jobs without having asked, at the same target; "
        "`--notify none` wants nothing of it.",
        choices=tuple(OF_JOBS),
    )
    allow_job_webhooks: bool = setting(
        default=False,
        about="Jobs may name an https address of their own, as in `--notify end:https://...`; it "
        "must lie on the public network.",
    )
    timeout_s: float = setting(
        10.0, "A receiver that takes longer has failed, for this time.", least=0.1, most=300
    )
    retry_first_s: float = setting(
        10.0, "First wait before another try; it doubles.", least=0.1, most=3600
    )
    retry_most_s: float = setting(900.0, "Longest wait between two tries.", least=1, most=DAY_S)
    give_up_hours: float = setting(
        24.0,
        "A notification that could not be delivered for so long is given up, with an event.",
        least=0.001,
        most=720,
    )
    max_waiting: int = setting(
        10_000,
        "So many notifications may wait for one target; more are dropped, with an event.",
        least=1,
        most=1_000_000,
    )
    budget_percent: int = setting(
        90, "A budget of GPU-hours is nearly used from here on.", least=1, most=100
    )
    smtp_host: str = setting("localhost", "The mail server.")
    smtp_port: int = setting(25, "Its port.", least=1, most=LAST_PORT)
    smtp_security: str = setting(
        "starttls",
        "Whether the connection is encrypted: by STARTTLS (which the server then must offer), from "
        "its beginning, or not.",
        choices=("starttls", "tls", "none"),
        note="A relay on the same machine usually needs `none`.",
    )
    smtp_login_file: str = setting(
        "", "A file with `user:password` for the mail server, mode 600; empty: no login."
    )
    mail_from: str = setting("", "Sender of mails; empty: gpu-scheduler@ this machine.")
    ca_file: str = setting(
        "", "A file with certificates to trust besides the system's, for https and mail."
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class CostSettings:
    """Prices, for reports and invoices."""

    currency: str = setting("EUR", "What prices are in.")
    gpu_hour: dict[str, float] = table(  # noqa: RUF009
        Price, "Price of a GPU for an hour, by model, as `tgpu gpus` names it."
    )
    other_gpu_hour: float = setting(
        0.0, "Price of a GPU of any other model for an hour.", least=0, most=1_000_000
    )
    cpu_hour: float = setting(0.0, "Price of a CPU core for an hour.", least=0, most=1_000_000)
    memory_gb_hour: float = setting(
        0.0, "Price of a GiB of memory for an hour.", least=0, most=1_000_000
    )
    kwh: float = setting(
        0.0, "Price of a kWh that GPUs have drawn; 0: not charged.", least=0, most=1_000_000
    )
    changes: dict[str, PriceChange] = table(  # noqa: RUF009
        PriceChange,
        "New prices from a day on, by any name; the prices above hold until the first of them.",
        note="Add a change rather than edit a price: what was used before then costs what it did.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All of them."""

    scheduler: SchedulerSettings = field(default_factory=SchedulerSettings)
    api: ApiSettings = field(default_factory=ApiSettings)
    gpu: GpuSettings = field(default_factory=GpuSettings)
    jobs: JobSettings = field(default_factory=JobSettings)
    files: FileSettings = field(default_factory=FileSettings)
    logging: LoggingSettings = field(default_factory=LoggingSettings)
    security: SecuritySettings = field(default_factory=SecuritySettings)
    database: DatabaseSettings = field(default_factory=DatabaseSettings)
    agent: AgentSettings = field(default_factory=AgentSettings)
    gangs: GangSettings = field(default_factory=GangSettings)
    nodes: NodeSettings = field(default_factory=NodeSettings)
    retention: RetentionSettings = field(default_factory=RetentionSettings)
    policy: PolicySettings = field(default_factory=PolicySettings)
    limits: LimitSettings = field(default_factory=LimitSettings)
    notifications: NotificationSettings = field(default_factory=NotificationSettings)
    costs: CostSettings = field(default_factory=CostSettings)
    auth: AuthSettings = field(default_factory=AuthSettings)
    server: ServerSettings = field(default_factory=ServerSettings)
    replication: ReplicationSettings = field(default_factory=ReplicationSettings)
    grpc: GrpcSettings = field(default_factory=GrpcSettings)
    tenants: tuple[TenantEntry, ...] = ()


GROUPS: dict[str, type] = {
    "scheduler": SchedulerSettings,
    "api": ApiSettings,
    "gpu": GpuSettings,
    "jobs": JobSettings,
    "files": FileSettings,
    "logging": LoggingSettings,
    "security": SecuritySettings,
    "database": DatabaseSettings,
    "agent": AgentSettings,
    "gangs": GangSettings,
    "nodes": NodeSettings,
    "retention": RetentionSettings,
    "policy": PolicySettings,
    "limits": LimitSettings,
    "notifications": NotificationSettings,
    "costs": CostSettings,
    "auth": AuthSettings,
    "server": ServerSettings,
    "replication": ReplicationSettings,
    "grpc": GrpcSettings,
}
