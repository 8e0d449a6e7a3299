"""Settings of a cluster: database, agents, gangs, nodes, servers; some apply to one machine too."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.names import MAX_NODE_NAME, check_name
from gpu_scheduler.settings.fields import DAY_S, LAST_PORT, setting, table

POSTGRESQL_SCHEMES = ("postgresql://", "postgres://")
ENGINES = ("docker", "podman")
"""Other names of the runner `container`."""


@dataclass(frozen=True, slots=True, kw_only=True)
class DatabaseSettings:
    """Where state is stored: an SQLite file on this machine, or PostgreSQL."""

    url: str = setting(
        "",
        "Database URL: `sqlite:///path` or `postgresql://user@host:port/database?sslmode=...`. "
        "Empty: PostgreSQL if `database.host` is set, else `files.state_file` in the state "
        "directory.",
        secret=True,
    )
    host: str = setting(
        "",
        "Host of PostgreSQL, or the directory of its socket. Several hosts, separated by commas, "
        "are tried until one accepts writes.",
    )
    port: int = setting(5432, "Port of PostgreSQL.", least=1, most=LAST_PORT)
    user: str = setting("gpu_scheduler", "PostgreSQL role to log in as.")
    password: str = setting("", "Password of the role; prefer `password_file`.", secret=True)
    password_file: str = setting("", "File with the password, mode 600.")
    database: str = setting("gpu_scheduler", "Name of the database, which must exist.")
    sslmode: str = setting(
        "prefer",
        "Encryption of the connection and verification of the server, as in libpq.",
        choices=("disable", "allow", "prefer", "require", "verify-ca", "verify-full"),
        note="Only `verify-full` protects against an impostor.",
    )
    sslrootcert: str = setting(
        "",
        "File with the CA certificates for `verify-ca` and `verify-full`, or `system`.",
    )
    sslcert: str = setting("", "File with a client certificate, if the database requires one.")
    sslkey: str = setting("", "File with the key of the client certificate, mode 600.")
    key_file: str = setting(
        "",
        "File with the key that encrypts captured environments, variables of jobs and the nodes' "
        "CA key, mode 600. Empty: the systemd credential `gpu-scheduler.key`, else for SQLite "
        "`secrets.key` in the state directory, which the server creates.",
        note="With PostgreSQL all servers need the same file; without one nothing is encrypted.",
    )
    pool_min: int = setting(1, "Minimum number of open connections for reading.", least=0, most=100)
    pool_max: int = setting(
        8, "Maximum number of open connections for reading.", least=1, most=1000
    )
    connect_timeout_s: float = setting(
        5.0,
        "Timeout of a connection attempt; after it the database counts as down.",
        least=1,
        most=300,
    )
    statement_timeout_s: float = setting(
        30.0,
        "Timeout of a statement; after it the database counts as down.",
        least=0.1,
        most=3600,
    )

    @property
    def is_postgresql(self) -> bool:
        """Whether the database is PostgreSQL and not a file."""
        return self.url.startswith(POSTGRESQL_SCHEMES) or bool(self.host and not self.url)

    def check(self) -> None:
        """Reject bounds that contradict each other."""
        if self.pool_min > self.pool_max:
            raise InvalidRequest(
                f"database.pool_min is {self.pool_min} and database.pool_max is {self.pool_max}; "
                f"set pool_min to {self.pool_max} or less, or raise pool_max"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class AgentSettings:
    """The process that runs jobs on a machine: the local one of `tgpu up`, or `tgpu agent`."""

    servers: tuple[str, ...] = setting(
        (),
        "Servers of `tgpu agent`, such as `a.example:9090`. The agent tries them in turn without "
        "end, and follows a standby's redirect to the leader.",
    )
    token_file: str = setting(
        "",
        "File with the token for a new node to join. Later the node uses its own key, and reads "
        "the file again only if that key is rejected.",
    )
    node_name: str = setting("", "Name of this machine; empty: its host name.")
    address: str = setting(
        "",
        "Address of this machine for gang members on other nodes; empty: the address that it uses "
        "to reach its server.",
    )
    rack: str = setting("", "Rack of this machine; gangs are placed within few racks.")
    labels: dict[str, str] = table(  # noqa: RUF009
        str, "Labels of this machine, which jobs can request."
    )
    work_directory: str = setting(
        "",
        "Directory of `tgpu agent` for its state, job logs and scratch files; empty: "
        "`/var/lib/gpu-scheduler-agent/NODE` for root, else by XDG.",
    )
    execution_methods: tuple[str, ...] = setting(
        (),
        "Runners that jobs may use on this machine; `docker` and `podman` mean `container`. Empty:"
        " all that are available.",
        choices=("process", "tmux", "screen", "terminal", "container", *ENGINES),
    )
    container_engine_user: str = setting(
        "job",
        "Who runs the container engine. `job`: the job's user (rootless podman), so that a "
        "container can do no more than that user. `root`: docker or podman of root; only for sites"
        " that cannot run rootless podman. Then jobs of other users get only images that match "
        "`container_allowed_images`, and no root file systems, archives or other transports.",
        choices=("job", "root"),
    )
    container_image_stores: tuple[str, ...] = setting(
        (),
        "Image stores (directories of podman) that administrators fill and every user's containers"
        " read; users cannot write them. For example by `podman --root DIRECTORY pull IMAGE`.",
    )
    container_allowed_images: tuple[str, ...] = setting(
        (),
        "Images that an engine of root may run, as patterns of full names with their registry, "
        "such as `registry.example.org/ml/*`; empty: none. Ignored where the engine runs as the "
        "job's user.",
    )
    cpu_cores: float = setting(0.0, "Number of CPU cores for jobs; 0: all.", least=0, most=100_000)
    memory_gb: float = setting(0.0, "Memory for jobs in GiB; 0: all.", least=0, most=1_000_000)
    heartbeat_interval_s: float = setting(
        5.0, "Interval of heartbeats to the server.", least=0.1, most=600
    )
    connection_timeout_s: float = setting(
        10.0, "Timeout of a connection attempt to a server.", least=0.1, most=600
    )
    retry_interval_s: float = setting(
        0.05,
        "First wait before the next connection attempt; it grows each time.",
        least=0.01,
        most=600,
    )
    max_retry_interval_s: float = setting(
        5.0, "Longest wait before the next connection attempt.", least=0.01, most=3600
    )

    def check(self) -> None:
        """Reject bad names, and waits that contradict each other."""
        if self.node_name:
            check_name(self.node_name, "agent.node_name", longest=MAX_NODE_NAME)
        for label in self.labels:
            check_name(label, "agent.labels: the name of a label", parts=True)
        first_s, longest_s = self.retry_interval_s, self.max_retry_interval_s
        if first_s > longest_s:
            raise InvalidRequest(
                f"agent.retry_interval_s is {first_s:g} and agent.max_retry_interval_s is "
                f"{longest_s:g}, so the first wait is longer than the longest; set "
                f"retry_interval_s to {longest_s:g} or less, or raise max_retry_interval_s"
            )


@dataclass(frozen=True, slots=True, kw_only=True)
class GangSettings:
    """Jobs whose members run on several nodes and start together."""

    prepare_timeout_s: float = setting(
        90.0,
        "Time in which all members of a gang on several nodes must be prepared; otherwise the "
        "attempt is aborted and retried.",
        least=1,
        most=DAY_S,
    )
    start_timeout_s: float = setting(
        60.0,
        "Time in which all prepared members must start after the start order; otherwise all are "
        "stopped.",
        least=1,
        most=DAY_S,
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class NodeSettings:
    """Liveness of nodes: timeouts, leases and fencing."""

    suspect_after_s: float = setting(
        15.0,
        "A node without heartbeats for this long is suspect and gets no new work.",
        least=0.1,
        most=DAY_S,
    )
    lost_after_s: float = setting(
        60.0,
        "A node without heartbeats for this long is lost: its jobs report that, and the fencing "
        "command is run. The jobs keep their allocation.",
        least=0.2,
        most=DAY_S,
    )
    lease_s: float = setting(
        600.0,
        "How long a job with `--requeue-on-node-loss` keeps running while its node reaches no "
        "server; then the node stops it. 0: no leases; such jobs wait for their node like others.",
        least=0,
        most=7 * DAY_S,
    )
    lease_margin_s: float = setting(
        30.0,
        "How long the server waits after a lease has expired before it starts such a job "
        "elsewhere, to allow for clock differences and for killing the job.",
        least=0.5,
        most=DAY_S,
    )
    requeue_after_death: bool = setting(
        True,
        "Requeue the jobs of a node that is confirmed dead, except interactive ones. Off: only "
        "jobs with `--requeue-on-node-loss` are requeued, the others fail.",
    )
    fencing_command: tuple[str, ...] = setting(
        (),
        "Command for a lost node, with `TGPU_NODE`, `TGPU_NODE_ADDRESS` and `TGPU_SILENT_SINCE` in"
        " its environment. Exit code 0 confirms that the node is dead. Empty: none.",
    )
    fencing_timeout_s: float = setting(
        60.0,
        "A fencing command that takes longer is killed and counts as failed.",
        least=0.1,
        most=3600,
    )
    fencing_retry_s: float = setting(
        30.0,
        "First wait before a failed fencing command is run again; it doubles each time, up to an "
        "hour.",
        least=0.1,
        most=3600,
    )


ROLES = ("auto", "master", "standby")


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerSettings:
    """This server among several servers on one PostgreSQL. With SQLite there is only one."""

    role: str = setting(
        "auto",
        "Preference in leader elections: without a leader, a `master` (or `auto`) competes at "
        "once, a `standby` a little later. Each of them can become the leader.",
        choices=ROLES,
    )
    name: str = setting("", "Unique name of this server; empty: its host name and HTTP port.")
    address: str = setting(
        "",
        "Address of this server for other servers, as `https://host:port`; empty: from `api.host` "
        "and `api.http_port`.",
    )
    agents_address: str = setting(
        "",
        "Address of this server for agents, as `host:port`; empty: from `api.host` and "
        "`api.grpc_port`.",
    )
    ca_file: str = setting(
        "",
        "File with the CA of the other servers' certificates; empty: the CAs of the system.",
    )


@dataclass(frozen=True, slots=True, kw_only=True)
class ReplicationSettings:
    """Leader election among servers on one PostgreSQL, through which they find each other."""

    enabled: bool = setting(
        default=True,
        about="Allow further servers on the same database as standbys. Off: a second server "
        "refuses to start.",
    )
    peer_address: str = setting(
        "", "Accepted but not used: servers find each other in the database."
    )
    heartbeat_interval_s: float = setting(
        2.0, "How often the leader renews its lease.", least=0.1, most=600
    )
    heartbeat_timeout_s: float = setting(
        6.0,
        "How long a lease is valid; after that another server takes over. At least twice the "
        "interval.",
        least=0.5,
        most=3600,
    )

    def check(self) -> None:
        """Reject times with which the leader would change without a failure."""
        if self.heartbeat_timeout_s < 2 * self.heartbeat_interval_s:
            raise InvalidRequest(
                f"replication.heartbeat_timeout_s is {self.heartbeat_timeout_s:g} and "
                f"heartbeat_interval_s is {self.heartbeat_interval_s:g}; one late renewal would "
                "depose the leader, so make the timeout at least twice the interval"
            )
