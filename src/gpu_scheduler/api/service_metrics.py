"""Metrics of services and pools, read at the moment of a scrape."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator

from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric

from gpu_scheduler.api.pools import pool_uses
from gpu_scheduler.api.service import Service
from gpu_scheduler.api.services import shown_state

PREFIX = "gpu_scheduler_"
MOST_SERVICES = 500
STATES = ("ready", "starting", "failing", "degraded", "updating", "stopped", "ended", "deleting")
COUNTED = (
    ("service_restarts", "Ends of replicas that were followed by a restart.", "service_restart"),
    ("service_not_ready", "Times that a replica could not be used any more.", "service_not_ready"),
)


def service_metrics(scheduler: Service) -> Iterator[Metric]:
    """How many services there are, and how many replicas of each can be used."""
    services = list(scheduler.core.book.services.values())
    by_state = Counter(shown_state(scheduler.core.book, service) for service in services)
    states = GaugeMetricFamily(f"{PREFIX}services", "Services by state.", labels=["state"])
    for state in STATES:
        states.add_metric([state], by_state[state])
    yield states
    labels = ["tenant", "service"]
    wanted = GaugeMetricFamily(
        f"{PREFIX}service_replicas", "Replicas that a service should have.", labels=labels
    )
    ready = GaugeMetricFamily(
        f"{PREFIX}service_replicas_ready", "Replicas of it that can be used.", labels=labels
    )
    for service in sorted(services, key=lambda service: service.number)[:MOST_SERVICES]:
        wanted.add_metric([service.tenant, service.name], service.replicas)
        ready.add_metric([service.tenant, service.name], service.ready_count)
    yield wanted
    yield ready
    for name, text, kind in COUNTED:
        count = scheduler.tallies.jobs.get(kind, 0)
        yield CounterMetricFamily(f"{PREFIX}{name}", text, value=count)


def pool_metrics(scheduler: Service) -> Iterator[Metric]:
    """What online and batch work hold, and what they are sure of."""
    held = GaugeMetricFamily(f"{PREFIX}pool_gpus", "GPUs that a pool holds.", labels=["pool"])
    sure = GaugeMetricFamily(
        f"{PREFIX}pool_gpus_sure", "GPUs that a pool is sure of, if it has a part.", labels=["pool"]
    )
    borrowed = GaugeMetricFamily(
        f"{PREFIX}pool_gpus_borrowed", "GPUs that it holds beyond that.", labels=["pool"]
    )
    for use in pool_uses(scheduler.core.book):
        held.add_metric([use.pool], use.held_gpus)
        borrowed.add_metric([use.pool], use.borrowed_gpus)
        if use.sure_of_gpus is not None:
            sure.add_metric([use.pool], use.sure_of_gpus)
    yield from (held, sure, borrowed)
