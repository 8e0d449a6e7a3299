"""Settings of a cluster: the database, the agents and their nodes.

One machine uses some of them as well.
"""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.fields import DAY_S, LAST_PORT, setting, table

POSTGRESQL_SCHEMES = ("postgresql://", "postgres://")
ENGINES = ("docker", "podman")
"""What people call the way of running jobs that is `container` here."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """Where state is kept: an SQLite file on this machine, or PostgreSQL."""

    url: str = setting(
        "",
        "A database as `sqlite:///path` or `postgresql://user@host:port/database?sslmode=...`; "
        "empty: PostgreSQL if `database.host` is set, else `files.state_file` in the state "
        "directory.",
        secret=True,
    )
    host: str = setting(
        "",
        "The machine that runs PostgreSQL, or the directory of its socket; several, separated by "
        "commas, are tried until one can be written to.",
    )
    port: int = setting(5432, "Its port.", least=1, most=LAST_PORT)
    user: str = setting("gpu_scheduler", "The role to log in as.")
    password: str = setting("", "Its password; better in a file.", secret=True)
    password_file: str = setting("", "A file with the password, mode 600.")
    database: str = setting("gpu_scheduler", "The name of the database, which must exist.")
    sslmode: str = setting(
        "prefer",
        "Whether the connection is encrypted, and what is checked, in PostgreSQL's words.",
        choices=("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        note="`verify-full` is the one that cannot be deceived.",
    )
    sslrootcert: str = setting(
        "",
        "A file with the certificates that vouch for the database, or `system`; for `verify-ca` "
        "and `verify-full`.",
    )
    sslcert: str = setting("", "A file with our own certificate, if the database asks for one.")
    sslkey: str = setting("", "A file with its key, mode 600.")
    pool_min: int = setting(1, "So many connections for reading are kept open.", least=0, most=100)
    pool_max: int = setting(
        8, "So many connections for reading are opened at the most.", least=1, most=1000
    )
    connect_timeout_s: float = setting(
        5.0, "A database that does not accept a connection in this time is away.", least=1, most=300
    )
    statement_timeout_s: float = setting(
        30.0,
        "A statement that takes longer is given up, and the database counts as away.",
        least=0.1,
        most=3600,
    )

    @property
    def is_postgresql(self) -> bool:
        """Tell whether PostgreSQL is meant, and not a file."""
        return self.url.startswith(POSTGRESQL_SCHEMES) or bool(self.host and not self.url)

    def check(self) -> None:
        """Refuse bounds that contradict each other."""
        if self.pool_min > self.pool_max:
            raise InvalidRequest(
                f"database.pool_min is {self.pool_min} and database.pool_max is {self.pool_max}; "
                f"set the first to {self.pool_max} or less, or raise the second"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The process that runs jobs on a machine: the local one of `tgpu up`, or `tgpu agent`."""

    servers: tuple[str, ...] = setting(
        (),
        "Where `tgpu agent` finds its servers, such as `a.example:9090`; it tries one after the "
        "other, for ever, and goes where a standby says that the leader is.",
    )
    token_file: str = setting(
        "",
        "File with the token that a new node joins with; later it has a key of its own, and the "
        "file is read again only if that is refused.",
    )
    node_name: str = setting("", "Name of this machine; empty: its host name.")
    address: str = setting(
        "",
        "Where members of a gang on other nodes reach this one; empty: the address that this "
        "machine uses towards its server.",
    )
    rack: str = setting("", "Where this machine stands; gangs are placed close together.")
    labels: dict[str, str] = table(  # noqa: RUF009
        str, "Labels of this machine, which jobs can ask for."
    )
    work_directory: str = setting(
        "",
        "Directory of `tgpu agent`, for its state, logs of jobs and their scratch files; empty: "
        "`/var/lib/gpu-scheduler-agent/NODE` for root, else by XDG.",
    )
    execution_methods: tuple[str, ...] = setting(
        (),
        "What jobs may run in on this machine; `docker` and `podman` mean `container`. Empty: all "
        "that it has.",
        choices=("process", "tmux", "screen", "terminal", "container", *ENGINES),
    )
    cpu_cores: float = setting(
        0.0, "So many CPU cores are given out; 0: as many as there are.", least=0, most=100_000
    )
    memory_gb: float = setting(
        0.0, "So much memory is given out, in GiB; 0: all there is.", least=0, most=1_000_000
    )
    heartbeat_interval_s: float = setting(
        5.0, "How often the agent reports even if nothing happened.", least=0.1, most=600
    )
    connection_timeout_s: float = setting(
        10.0, "A server that has not answered after this time is given up.", least=0.1, most=600
    )
    retry_interval_s: float = setting(
        0.05, "First wait before a server is tried again; it grows each time.", least=0.01, most=600
    )
    max_retry_interval_s: float = setting(
        5.0, "Longest wait before a server is tried again.", least=0.01, most=3600
    )

    def check(self) -> None:
        """Refuse waits that contradict each other."""
        first_s, longest_s = self.retry_interval_s, self.max_retry_interval_s
        if first_s > longest_s:
            raise InvalidRequest(
                f"agent.retry_interval_s is {first_s:g} and agent.max_retry_interval_s is "
                f"{longest_s:g}, so the first wait is longer than the longest; set the first to "
                f"{longest_s:g} or less, or raise the second"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSettings:
    """Jobs whose members run on several nodes and start together."""

    prepare_timeout_s: float = setting(
        90.0,
        "A gang over several nodes whose members are not all prepared by then is given up and "
        "tried again.",
        least=1,
        most=DAY_S,
    )
    start_timeout_s: float = setting(
        60.0,
        "When all members were prepared and told to run, and one of them has not begun by then, "
        "all are stopped.",
        least=1,
        most=DAY_S,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """What happens when nothing is heard of a node."""

    suspect_after_s: float = setting(
        15.0, "A node that was silent for this long gets no new work.", least=0.1, most=DAY_S
    )
    lost_after_s: float = setting(
        60.0,
        "A node that was silent for this long is lost: its jobs say so, and the fencing command "
        "is run. They keep what they hold.",
        least=0.2,
        most=DAY_S,
    )
    lease_s: float = setting(
        600.0,
        "How long a job with `--requeue-on-node-loss` runs on when its node reaches no server; "
        "then the node stops it. 0: no leases, such jobs wait for their node like others.",
        least=0,
        most=7 * DAY_S,
    )
    lease_margin_s: float = setting(
        30.0,
        "What the server waits beyond a lease before such a job is started elsewhere: for clocks "
        "that differ, and for the killing.",
        least=0.5,
        most=DAY_S,
    )
    requeue_after_death: bool = setting(
        True,
        "Whether jobs of a node that is known to be dead wait again, interactive ones apart; else "
        "only those with `--requeue-on-node-loss` do, and the others have failed.",
    )
    fencing_command: tuple[str, ...] = setting(
        (),
        "Run for a lost node, with `TGPU_NODE`, `TGPU_NODE_ADDRESS` and `TGPU_SILENT_SINCE` in its "
        "environment; exit code 0 says that the node is dead for certain. Empty: none.",
    )
    fencing_timeout_s: float = setting(
        60.0, "A fencing command that takes longer is killed and has failed.", least=0.1, most=3600
    )
    fencing_retry_s: float = setting(
        30.0,
        "First wait before a fencing command that has failed is run again; it doubles each time, "
        "up to an hour.",
        least=0.1,
        most=3600,
    )


# --- Settings of several servers on one database: who may lead, and how a failure is noticed.

ROLES = ("auto", "master", "standby")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """This server among others on the same PostgreSQL. With SQLite there is just one."""

    role: str = setting(
        "auto",
        "Who leads is settled in the database; this says who tries first when nobody does: a "
        "`master` (or `auto`) at once, a `standby` a little later. Each of them takes over.",
        choices=ROLES,
    )
    name: str = setting(
        "", "Name of this server, another one for each; empty: its host name and HTTP port."
    )
    address: str = setting(
        "",
        "Where the other servers reach this one, as `https://host:port`; empty: by `api.host` and "
        "`api.http_port`.",
    )
    agents_address: str = setting(
        "", "Where agents reach this one, as `host:port`; empty: by `api.host` and `api.grpc_port`."
    )
    ca_file: str = setting(
        "",
        "A file with the authority of the other servers' certificates; empty: those that the "
        "system believes.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """How servers on one PostgreSQL watch each other. They find each other in the database."""

    enabled: bool = setting(
        default=True,
        about="Further servers may stand by on the same database; off, a second one refuses to "
        "start.",
    )
    peer_address: str = setting("", "Read and not needed: servers find each other in the database.")
    heartbeat_interval_s: float = setting(
        2.0, "How often the leader renews its lease.", least=0.1, most=600
    )
    heartbeat_timeout_s: float = setting(
        6.0,
        "For so long a lease holds; after that another server takes over. At least twice the "
        "interval.",
        least=0.5,
        most=3600,
    )

    def check(self) -> None:
        """Refuse times that would let the lead go round without any failure."""
        if self.heartbeat_timeout_s < 2 * self.heartbeat_interval_s:
            raise InvalidRequest(
                f"replication.heartbeat_timeout_s is {self.heartbeat_timeout_s:g} and "
                f"heartbeat_interval_s is {self.heartbeat_interval_s:g}; one late renewal would "
                "cost the lead, so make the timeout at least twice the interval"
            )
