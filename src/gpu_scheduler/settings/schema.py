"""`Settings`: all groups of settings.

Values are already checked (see `sources`); nothing here reads a file or a variable. The page
docs/reference/settings.md is generated from these groups.
"""

from __future__ import annotations

from dataclasses import dataclass, field, is_dataclass
from typing import get_type_hints

from gpu_scheduler.model.quota_tree import QuotaNode
from gpu_scheduler.settings.groups.cluster import (
    AgentSettings,
    DatabaseSettings,
    GangSettings,
    NodeSettings,
    ReplicationSettings,
    ServerSettings,
)
from gpu_scheduler.settings.groups.jobs import GpuSettings, JobSettings, SecuritySettings
from gpu_scheduler.settings.groups.network import (
    ApiSettings,
    AuthSettings,
    GrpcSettings,
    TenantEntry,
)
from gpu_scheduler.settings.groups.operations import (
    FileSettings,
    LoggingSettings,
    NotificationSettings,
    RetentionSettings,
)
from gpu_scheduler.settings.groups.policy import (
    CostSettings,
    LimitSettings,
    PolicySettings,
    SchedulerSettings,
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Settings:
    """All settings of one process, by group."""

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
    quota_tree: tuple[QuotaNode, ...] = ()


GROUPS: dict[str, type] = {
    name: kind
    for name, kind in get_type_hints(Settings).items()
    if isinstance(kind, type) and is_dataclass(kind)
}
"""The groups by name, without `tenants` and `quota_tree`, which are lists."""
