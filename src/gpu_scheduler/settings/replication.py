"""Settings of several servers on one database: who may lead, and how a failure is noticed."""

from __future__ import annotations

from dataclasses import dataclass

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.settings.field import setting

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
