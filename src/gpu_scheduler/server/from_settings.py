"""Converts settings into the values of other packages: policy, limits, timeouts, prices, quotas."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import UTC, datetime, time

import structlog

from gpu_scheduler.api.nodes.missed_heartbeats import NodeTimeouts
from gpu_scheduler.control.core import Core
from gpu_scheduler.control.gpu_metering import Action, GpuRules
from gpu_scheduler.control.loop import Loop
from gpu_scheduler.control.messages import SetPools, SetTenant
from gpu_scheduler.control.state import CoreLimits
from gpu_scheduler.engine.policy import HOUR_MS, MINUTE_MS, Policy, Preemption, RestartCost
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.ledger.cost import PriceList, Prices
from gpu_scheduler.model.cluster_snapshot import PoolQuota
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.identity import DEFAULT_TENANT
from gpu_scheduler.model.job import Pool
from gpu_scheduler.model.quota_tree import unmatched_names
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.tenant import BudgetPeriod, Quota, Tenant
from gpu_scheduler.predict.history import History
from gpu_scheduler.predict.interface import Predictor
from gpu_scheduler.settings.fields import PriceChange
from gpu_scheduler.settings.groups.cluster import AgentSettings, NodeSettings
from gpu_scheduler.settings.groups.jobs import GpuSettings
from gpu_scheduler.settings.groups.network import TenantEntry
from gpu_scheduler.settings.groups.policy import CostSettings, LimitSettings, PolicySettings
from gpu_scheduler.settings.schema import Settings
from gpu_scheduler.wire.tenants import read_tenant

MIN_HEARTBEATS = 3
"""A node is suspect only after it has missed this many heartbeats."""
MICRO = 10**6
WHOLE_PERCENT = 100
log = structlog.get_logger("server")


def new_core(
    settings: Settings, new_predictor: Callable[[], Predictor] = History
) -> Callable[[], Core]:
    """A factory of empty cores with the policy and the limits of the settings."""
    return lambda: Core(policy_of(settings), new_predictor(), limits_of(settings))


def policy_of(settings: Settings) -> Policy:
    """The policy: the preset with the values of the settings."""
    interactive_milli = round(settings.policy.interactive_max_gpus * WHOLE_MILLI)
    policy = replace(
        preset(settings.policy.preset),
        default_limit_ms=round(settings.scheduler.job_timeout_s * 1000),
        max_running=settings.jobs.max_concurrent_jobs,
        interactive_gpu_milli=interactive_milli if settings.policy.interactive_preemption else 0,
        fills_gaps=settings.policy.fill_reservation_gaps,
        user_quota=_user_quota(settings.limits),
        quota_tree=settings.quota_tree,
        budget_period=BudgetPeriod(settings.limits.budget_period),
    )
    if settings.policy.predictive_preemption and policy.preemption is Preemption.CLASS:
        restart = RestartCost(
            restart_ms=round(settings.policy.restart_cost_s * 1000),
            checkpoint_every_ms=round(settings.policy.checkpoint_interval_s * 1000),
        )
        policy = replace(policy, restart=restart)
    if not settings.scheduler.enable_preemption:
        policy = replace(policy, preemption=Preemption.NONE)
    return policy


def _user_quota(limits: LimitSettings) -> Quota:
    """The default quota of a user; 0 in the settings means no limit."""
    return Quota(
        gpu_milli=round(limits.user_max_gpus * WHOLE_MILLI) or None,
        concurrent_jobs=limits.user_max_jobs or None,
        pending_jobs=limits.user_max_pending_jobs or None,
        gpu_milli_ms=round(limits.user_max_gpu_hours * WHOLE_MILLI * HOUR_MS) or None,
    )


def limits_of(settings: Settings) -> CoreLimits:
    """Limits and timeouts of the control core."""
    scheduler = settings.scheduler
    hot_above_c = round(scheduler.thermal_threshold) if scheduler.enable_thermal_aware else 0
    return CoreLimits(
        max_queued_tasks=min(scheduler.max_queue_size, settings.jobs.queue_size_limit),
        user_queue_percent=settings.limits.user_queue_percent,
        user_max_priority=settings.limits.user_max_priority,
        tenant_queue_percent=settings.limits.tenant_queue_percent,
        admin_queue_percent=settings.limits.admin_queue_percent,
        backoff_ms=max(1, round(settings.jobs.assignment_retry_wait_s * 1000)),
        hot_above_c=hot_above_c,
        hot_hysteresis_c=round(scheduler.thermal_hysteresis),
        nodes_keep_limits=True,
        sets_failing_jobs_aside=True,
        start_timeout_ms=round(scheduler.worker_timeout_s * 1000),
        prepare_timeout_ms=round(settings.gangs.prepare_timeout_s * 1000),
        gang_start_timeout_ms=round(settings.gangs.start_timeout_s * 1000),
        max_misstarts=settings.jobs.max_assignment_attempts,
        max_prolog_failures=settings.jobs.max_prolog_failures,
        hook_failure_drains=settings.jobs.hook_failure_drains,
        usage_half_life_ms=round(settings.policy.usage_half_life_hours * HOUR_MS),
        gpu_rules=gpu_rules_of(settings.gpu),
        lease_ms=round(settings.nodes.lease_s * 1000),
        lease_margin_ms=round(settings.nodes.lease_margin_s * 1000),
        requeue_after_death=settings.nodes.requeue_after_death,
    )


def gpu_rules_of(gpu: GpuSettings) -> GpuRules:
    """Rules about the GPU use of jobs."""
    return GpuRules(
        memory=Action(gpu.memory_enforcement),
        memory_grace_ms=round(gpu.memory_grace_s * 1000),
        memory_tolerance_percent=round(gpu.memory_tolerance * 100),
        idle=Action(gpu.idle_action),
        idle_percent=gpu.idle_percent,
        idle_ms=round(gpu.idle_minutes * MINUTE_MS),
        idle_grace_ms=round(gpu.idle_grace_minutes * MINUTE_MS),
        idle_exempt_users=frozenset(gpu.idle_exempt_users),
        idle_exempt_tenants=frozenset(gpu.idle_exempt_tenants),
        idle_exempts_interactive=gpu.idle_exempt_interactive,
        idle_opt_out=gpu.idle_opt_out,
        longest_gap_ms=max(MINUTE_MS, round(gpu.monitor_interval_s * 3000)),
    )


def node_timeouts_of(nodes: NodeSettings) -> NodeTimeouts:
    """The timeouts of silent nodes."""
    return NodeTimeouts(
        suspect_s=nodes.suspect_after_s, lost_s=nodes.lost_after_s, margin_s=nodes.lease_margin_s
    )


def check_node_timeouts(nodes: NodeSettings, agent: AgentSettings) -> None:
    """Reject timeouts that contradict each other."""
    beat_s, suspect_s, lost_s = (
        agent.heartbeat_interval_s,
        nodes.suspect_after_s,
        nodes.lost_after_s,
    )
    if suspect_s < MIN_HEARTBEATS * beat_s:
        raise InvalidRequest(
            f"nodes.suspect_after_s is {suspect_s:g} and agents send heartbeats every {beat_s:g} s "
            f"(agent.heartbeat_interval_s): one late heartbeat would make a node suspect; "
            f"set it to {MIN_HEARTBEATS * beat_s:g} or more"
        )
    if lost_s <= suspect_s:
        raise InvalidRequest(
            f"nodes.lost_after_s is {lost_s:g} and nodes.suspect_after_s is {suspect_s:g}: a node "
            f"must be suspect before it is lost; set lost_after_s to more than {suspect_s:g}"
        )
    if nodes.lease_s and nodes.lease_s <= lost_s:
        raise InvalidRequest(
            f"nodes.lease_s is {nodes.lease_s:g} and nodes.lost_after_s is {lost_s:g}: jobs would "
            f"be stopped on nodes that are not lost yet; set it to more than {lost_s:g}, or to 0 "
            "for no leases"
        )
    if nodes.lease_s and nodes.lease_margin_s < nodes.lease_s / 100:
        raise InvalidRequest(
            f"nodes.lease_margin_s is {nodes.lease_margin_s:g} and nodes.lease_s is "
            f"{nodes.lease_s:g}: clocks of two machines differ, and killing a job takes time; set "
            f"the margin to {nodes.lease_s / 100:g} or more"
        )


def prices_of(costs: CostSettings) -> PriceList:
    """Prices in millionths of the currency, with their changes."""
    prices = first = Prices(
        gpu_micro=_by_model(costs.gpu_hour),
        other_gpu_micro=_micro(costs.other_gpu_hour),
        cpu_micro=_micro(costs.cpu_hour),
        gib_micro=_micro(costs.memory_gb_hour),
        kwh_micro=_micro(costs.kwh),
        currency=costs.currency,
    )
    changes = []
    for change in sorted(costs.changes.values(), key=lambda change: change.since):
        prices = _apply_change(prices, change)
        midnight = datetime.combine(change.since, time(), UTC)
        changes.append((int(midnight.timestamp()) * 1000, prices))
    return PriceList(first=first, changes=tuple(changes))


def _apply_change(before: Prices, change: PriceChange) -> Prices:
    models = dict(before.gpu_micro) | dict(_by_model(change.gpu_hour))
    return replace(
        before,
        gpu_micro=tuple(sorted(models.items())),
        other_gpu_micro=_micro_or(change.other_gpu_hour, before.other_gpu_micro or 0),
        cpu_micro=_micro_or(change.cpu_hour, before.cpu_micro),
        gib_micro=_micro_or(change.memory_gb_hour, before.gib_micro),
        kwh_micro=_micro_or(change.kwh, before.kwh_micro),
    )


def _micro_or(price: float | None, before_micro: int) -> int:
    return before_micro if price is None else _micro(price)


def _by_model(prices: dict[str, float]) -> tuple[tuple[str, int], ...]:
    return tuple(sorted((model, _micro(price)) for model, price in prices.items()))


def _micro(price: float) -> int:
    return round(price * MICRO)


async def set_up_pools(loop: Loop, policy: PolicySettings) -> None:
    """Store the pool quotas of the settings if none are stored; else warn if they differ."""
    wanted = [
        PoolQuota(pool=pool, percent=percent, elastic=policy.elastic)
        for pool, percent in (
            (Pool.ONLINE, policy.online_percent),
            (Pool.BATCH, policy.batch_percent),
        )
        if percent < WHOLE_PERCENT
    ]
    if len(wanted) == 1 and policy.elastic:
        wanted.append(_complement(wanted[0]))
    pools = await loop.read(loop.store.pools)
    stored = [quota for quota in pools if quota.percent < WHOLE_PERCENT]
    if not pools:
        if wanted:
            await loop.apply(SetPools(tuple(wanted)))
    elif wanted and _by_pool(wanted) != _by_pool(stored):
        log.warning(
            "pool settings ignored: stored quotas are in use; change them with PUT /api/v1/quota",
            settings=_describe(wanted),
            in_use=_describe(stored),
        )


def _complement(quota: PoolQuota) -> PoolQuota:
    """The quota of the other pool if only one is set: with 100 % it could not be reclaimed."""
    other = Pool.BATCH if quota.pool is Pool.ONLINE else Pool.ONLINE
    return PoolQuota(pool=other, percent=WHOLE_PERCENT - quota.percent, elastic=quota.elastic)


def _by_pool(quotas: list[PoolQuota]) -> dict[Pool, PoolQuota]:
    return {quota.pool: quota for quota in quotas}


def _describe(quotas: list[PoolQuota]) -> str:
    parts = [
        f"{quota.pool.value} {quota.percent} %{'' if quota.elastic else ', not elastic'}"
        for quota in quotas
    ]
    return "; ".join(parts) or "no limits"


async def warn_about_quota_tree(loop: Loop) -> None:
    """Log nodes of the quota tree that match no tenant, and GPU models that no node has."""
    cluster = loop.core.state.cluster
    nodes = cluster.quota_nodes.values()
    tenants = {tenant.id for tenant in await loop.read(loop.store.tenants)}
    for warning in unmatched_names(nodes, tenants=tenants, models=cluster.gpu_models()):
        log.warning("quota tree matches nothing", note=warning)


async def set_up_tenants(loop: Loop, entries: Iterable[TenantEntry] = ()) -> None:
    """Create the default tenant; create or update the tenants of the settings.

    Fields that the settings do not name stay the same.
    """
    if DEFAULT_TENANT not in {tenant.id for tenant in await loop.read(loop.store.tenants)}:
        await loop.apply(SetTenant(Tenant(id=DEFAULT_TENANT, name=DEFAULT_TENANT)))
    for entry in entries:
        stored = {tenant.id: tenant for tenant in await loop.read(loop.store.tenants)}
        known = stored.get(entry.id)
        tenant = read_tenant(entry.patch, known or Tenant(id=entry.id, name=entry.id))
        if tenant == known:
            continue
        for other in stored.values():
            if other.id != tenant.id and tenant.name in {other.name, other.id}:
                raise InvalidRequest(
                    f"{entry.origin}: tenant {other.id} already has the name '{tenant.name}'; "
                    "choose another name"
                )
        await loop.apply(SetTenant(tenant))
        log.info("tenant created" if known is None else "tenant changed", tenant=tenant.id)
