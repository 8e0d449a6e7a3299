"""From settings to what the core decides by."""

from __future__ import annotations

from dataclasses import replace

from gpu_scheduler.control.book import Limits
from gpu_scheduler.engine.policy import HOUR_MS, Policy, Preemption
from gpu_scheduler.engine.presets import preset
from gpu_scheduler.settings.groups import Settings


def policy_of(settings: Settings) -> Policy:
    """The preset, with what the settings say about it."""
    policy = replace(
        preset(settings.policy.preset),
        default_limit_ms=round(settings.scheduler.job_timeout_s * 1000),
        max_running=settings.jobs.max_concurrent_jobs,
    )
    if not settings.scheduler.enable_preemption:
        policy = replace(policy, preemption=Preemption.NONE)
    return policy


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
        max_misstarts=settings.jobs.max_assignment_attempts,
        usage_half_life_ms=round(settings.policy.usage_half_life_hours * HOUR_MS),
    )
