"""From settings to what the core decides by."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.book import Limits
from gpu_scheduler.control.gpu_rules import Action, GpuRules
from gpu_scheduler.engine.policy import HOUR_MS, MINUTE_MS, Policy, Preemption
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.model.tenant import BudgetPeriod, Quota
from gpu_scheduler.settings.gpu import GpuSettings
from gpu_scheduler.settings.groups import Settings
from gpu_scheduler.settings.policy import LimitSettings, PolicySettings


def policy_of(settings: Settings) -> Policy:
    """The preset, with what the settings say about it."""
    policy = replace(
        preset(settings.policy.preset),
        default_limit_ms=round(settings.scheduler.job_timeout_s * 1000),
        max_running=settings.jobs.max_concurrent_jobs,
        interactive_gpu_milli=_interactive_milli(settings.policy),
        fills_gaps=settings.policy.fill_reservation_gaps,
        user_quota=_user_quota(settings.limits),
        budget_period=BudgetPeriod(settings.limits.budget_period),
    )
    if not settings.scheduler.enable_preemption:
        policy = replace(policy, preemption=Preemption.NONE)
    return policy


def _interactive_milli(policy: PolicySettings) -> int:
    return round(policy.interactive_max_gpus * WHOLE_MILLI) if policy.interactive_preemption else 0


def _user_quota(limits: LimitSettings) -> Quota:
    """What every user may have; 0 in the settings means no limit."""
    return Quota(
        gpu_milli=round(limits.user_max_gpus * WHOLE_MILLI) or None,
        concurrent_jobs=limits.user_max_jobs or None,
        pending_jobs=limits.user_max_pending_jobs or None,
        gpu_milli_ms=round(limits.user_max_gpu_hours * WHOLE_MILLI * HOUR_MS) or None,
    )


def limits_of(settings: Settings) -> Limits:
    """What bounds the core."""
    scheduler = settings.scheduler
    hot_above_c = round(scheduler.thermal_threshold) if scheduler.enable_thermal_aware else 0
    return Limits(
        max_queued_tasks=min(scheduler.max_queue_size, settings.jobs.queue_size_limit),
        backoff_ms=max(1, round(settings.jobs.assignment_retry_wait_s * 1000)),
        hot_above_c=hot_above_c,
        hot_hysteresis_c=round(scheduler.thermal_hysteresis),
        nodes_keep_limits=True,
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
    """What jobs may do with their devices."""
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
