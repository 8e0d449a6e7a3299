"""Metrics for Prometheus, rendered at each scrape from the counters of the control loop.

Labels are bounded: states, nodes, devices, tenants and the paths of the API. Users and jobs are
never labels.
"""

from __future__ import annotations

import asyncio
import re
from collections import Counter
from collections.abc import Callable, Iterable, Iterator
from functools import partial

import structlog
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import (
    CounterMetricFamily,
    GaugeMetricFamily,
    HistogramMetricFamily,
    Metric,
)
from prometheus_client.registry import Collector

from gpu_scheduler.api.context import Context
from gpu_scheduler.api.http.openapi import Operation, Router
from gpu_scheduler.api.http.request import Request, Response
from gpu_scheduler.api.interfaces import Service
from gpu_scheduler.api.routes.cluster import (
    device_allocations,
    free_gpus,
    node_resources,
    pool_uses,
)
from gpu_scheduler.api.routes.health import CHECKS, findings, read_error, worst
from gpu_scheduler.api.routes.services import shown_state
from gpu_scheduler.control.jobs.submit import spent
from gpu_scheduler.control.self_monitoring import DEGRADED, HEALTHY, UNHEALTHY, Histogram
from gpu_scheduler.model.errors import SchedulerError
from gpu_scheduler.model.job import JobState
from gpu_scheduler.model.node import Device, Health, NodeState
from gpu_scheduler.model.request import WHOLE_MILLI
from gpu_scheduler.predict.selection import SelectedPredictor

MEDIA = b"text/plain; version=0.0.4; charset=utf-8"
PREFIX = "gpu_scheduler_"
_CONTROL = re.compile("[\x00-\x09\x0b-\x1f\x7f-\x9f\u2028-\u202e\u2066-\u2069]")
MOST_TENANTS = 1000
MB = 1 << 20
UJ_PER_JOULE = 10**6
MOST_SERVICES = 500
STATES = ("ready", "starting", "failing", "degraded", "updating", "stopped", "ended", "deleting")
log = structlog.get_logger("api")
Requests = dict[tuple[str, str, int], int]
COUNTED = (
    ("service_restarts", "Ends of replicas that were followed by a restart.", "service_restart"),
    ("service_not_ready", "Times that a replica could not be used any more.", "service_not_ready"),
)


def service_metrics(scheduler: Service) -> Iterator[Metric]:
    """Yield the number of services by state, and the ready replicas of each."""
    services = list(scheduler.core.state.services.values())
    by_state = Counter(shown_state(scheduler.core.state, service) for service in services)
    states = _gauge("services", "Services by state.", "state")
    for state in STATES:
        states.add_metric([state], by_state[state])
    yield states
    labels = ("tenant", "service")
    wanted = _gauge("service_replicas", "Replicas that a service should have.", *labels)
    ready = _gauge("service_replicas_ready", "Replicas of it that can be used.", *labels)
    for service in sorted(services, key=lambda service: service.number)[:MOST_SERVICES]:
        wanted.add_metric([service.tenant, service.name], service.replicas)
        ready.add_metric([service.tenant, service.name], service.ready_count)
    yield wanted
    yield ready
    for name, text, kind in COUNTED:
        count = scheduler.loop_metrics.jobs.get(kind, 0)
        yield _counter(name, text, value=count)


def pool_metrics(scheduler: Service) -> Iterator[Metric]:
    """Yield what online and batch work hold and are guaranteed."""
    held = _gauge("pool_gpus", "GPUs that a pool holds.", "pool")
    sure = _gauge("pool_gpus_sure", "GPUs that a pool is sure of, if it has a part.", "pool")
    borrowed = _gauge("pool_gpus_borrowed", "GPUs that it holds beyond that.", "pool")
    for use in pool_uses(scheduler.core.state):
        held.add_metric([use.pool], use.held_gpus)
        borrowed.add_metric([use.pool], use.borrowed_gpus)
        if use.sure_of_gpus is not None:
            sure.add_metric([use.pool], use.sure_of_gpus)
    yield from (held, sure, borrowed)


class SchedulerCollector(Collector):
    """Collects all metrics at a scrape."""

    def __init__(self, context: Context, requests: Requests) -> None:
        """`requests` are the API's own counts by method, path and status."""
        self._context = context
        self._requests = requests
        self.counts: dict[JobState, int] = {}
        """The stored jobs by state, read before each scrape."""
        self.read_error: SchedulerError | None = None
        """The error of trying to read the store before the scrape."""

    def collect(self) -> Iterable[Metric]:
        """Yield all metrics."""
        service = self._context.service
        parts: tuple[Callable[[], Iterable[Metric]], ...] = (
            self._jobs,
            self._work,
            self._nodes,
            self._devices,
            self._energy,
            self._health,
            self._notifications,
            self._http,
            partial(service_metrics, service),
            partial(pool_metrics, service),
            self._start_ranges,
            self._predictors,
            self._budgets,
        )
        for part in parts:
            try:
                families = list(part())
            except Exception:
                log.exception("some metrics failed; the scrape has the others")
                continue
            yield from families

    def _budgets(self) -> Iterator[Metric]:
        state, now_ms = self._context.state, self._context.service.now_ms()
        used = _gauge(
            "tenant_budget_used_ratio",
            "Used part of the GPU-hours of a tenant with a budget, running jobs included.",
            "tenant",
        )
        budgets = (
            (name, tenant.quota.gpu_milli_ms)
            for name, tenant in sorted(state.cluster.tenants.items())
        )
        limited = [(name, budget) for name, budget in budgets if budget]
        for name, budget in limited[:MOST_TENANTS]:
            held = state.cluster.holdings.tenants.get(name)
            reserved = 0 if held is None else held.gpu_milli_ms
            used.add_metric([name], (spent(state, name, now_ms)[0] + reserved) / budget)
        yield used

    def _start_ranges(self) -> Iterator[Metric]:
        kept = self._context.state.ranges_kept
        counts = _counter("start_ranges", "Starts by their place in the expected range.", "result")
        for result in ("within", "early", "late"):
            counts.add_metric([result], kept[result])
        yield counts

    def _predictors(self) -> Iterator[Metric]:
        predictor = self._context.state.predictor
        if not isinstance(predictor, SelectedPredictor):
            return
        site = predictor.scores()[0]
        loss = _gauge("predictor_loss", "Pinball loss of each predictor of run times.", "predictor")
        if site.jobs:
            loss.add_metric(["history"], site.history_loss)
            loss.add_metric(["model"], site.model_loss)
        yield loss
        used = int(predictor.model is not None and site.is_used)
        yield _gauge("predictor_model_used", "1 if the model predicts run times.", value=used)
        count = predictor.trainings
        yield _counter("predictor_trainings", "Trainings of the model of run times.", value=count)

    def _jobs(self) -> Iterator[Metric]:
        service = self._context.service
        state = service.core.state
        counted = dict(service.loop_metrics.jobs)
        counted[JobState.PENDING.value] = counted.get("submitted", 0) + counted.get("retried", 0)
        total = _counter("jobs", "Jobs and tasks that entered a state since the start.", "state")
        current = _gauge("jobs_current", "Jobs by state now; an array counts once.", "state")
        for job_state in JobState:
            total.add_metric([job_state.value], counted.get(job_state.value, 0))
            current.add_metric([job_state.value], self.counts.get(job_state, 0))
        yield total
        yield current
        yield _gauge("queue_size", "Tasks that wait.", value=state.queued_tasks)
        by_tenant = _gauge("queue_jobs", "Jobs that could start, by tenant.", "tenant")
        sizes: dict[str, int] = {}
        for (tenant, _, _), group in list(state.cluster.queue.groups.items()):
            sizes[tenant] = sizes.get(tenant, 0) + group.size
        for tenant, size in sorted(sizes.items())[:MOST_TENANTS]:
            by_tenant.add_metric([tenant], size)
        yield by_tenant

    def _work(self) -> Iterator[Metric]:
        loop_metrics = self._context.service.loop_metrics
        for name, text, value in (
            ("submissions", "Jobs that were accepted.", loop_metrics.submissions),
            ("preemptions", "Attempts that were preempted.", loop_metrics.preemptions),
            ("messages", "Commands and facts that were handled.", loop_metrics.messages),
            ("refusals", "Commands that were refused.", loop_metrics.refusals),
            ("cycles", "Decisions that were made.", sum(loop_metrics.cycle_seconds.counts)),
            ("cycle_failures", "Cycles that failed.", loop_metrics.failed_cycles),
            ("commits", "Commits to the store.", sum(loop_metrics.commit_seconds.counts)),
            ("commit_failures", "Commits that failed.", loop_metrics.failed_commits),
            ("clock_steps", "How often the wall clock was set.", loop_metrics.clock_steps),
        ):
            yield _counter(name, text, value=value)
        yield _gauge(
            "clock_offset_seconds",
            "How far the wall clock is ahead of scheduler time.",
            value=loop_metrics.clock_offset_ms / 1000,
        )
        for name, text, histogram in (
            ("scheduling_latency", "Seconds a decision took.", loop_metrics.cycle_seconds),
            ("commit_latency", "Seconds a commit took.", loop_metrics.commit_seconds),
            ("wait_time", "Seconds jobs waited before they ran.", loop_metrics.wait_seconds),
        ):
            yield _histogram(name, text, histogram)

    def _nodes(self) -> Iterator[Metric]:
        nodes = node_resources(self._context)
        connected = _gauge("agent_connected", "Whether a node's agent is heard (1) or not.", "node")
        for resources in nodes:
            connected.add_metric([resources.node.id], resources.node.state is NodeState.ONLINE)
        yield connected
        logs = _gauge("node_log_bytes", "Size of the job logs on a node.", "node")
        left = _gauge(
            "node_leftover_directories", "Scratch directories that could not be removed.", "node"
        )
        for resources in nodes:
            files = self._context.service.loop_metrics.files.get(resources.node.id)
            if files is not None:
                logs.add_metric([resources.node.id], files.log_bytes)
                left.add_metric([resources.node.id], files.leftovers)
        yield from (logs, left)
        total = sum(resources.node.gpu_count for resources in nodes)
        yield _gauge("gpus", "All GPUs.", value=total)
        free = sum(map(free_gpus, nodes))
        yield _gauge("gpus_free", "GPUs that are wholly free and take work.", value=free)

    def _devices(self) -> Iterator[Metric]:
        labels = ("node", "gpu")
        share = _gauge("gpu_allocated", "The part of a GPU that is given out, 0 to 1.", *labels)
        usable = _gauge("gpu_usable", "Whether a GPU takes work (1) or not.", *labels)
        busy = _gauge("gpu_utilization", "How busy a GPU is, 0 to 1.", *labels)
        memory = _gauge("gpu_memory_used_bytes", "Memory in use on a GPU.", *labels)
        size = _gauge("gpu_memory_bytes", "Memory of a GPU.", *labels)
        heat = _gauge("gpu_temperature_celsius", "Temperature of a GPU.", *labels)
        power = _gauge("gpu_power_watts", "Power that a GPU draws.", *labels)
        state = _gauge(
            "gpu_condition",
            "Whether a GPU is hot, unhealthy, paused, quarantined, foreign or leaking (1) or not.",
            *labels,
            "condition",
        )
        allocations = device_allocations(self._context)
        for resources in node_resources(self._context):
            node = resources.node
            for device in node.devices:
                place = [node.id, str(device.index)]
                use = allocations.get((node.id, device.index))
                share.add_metric(place, 0 if use is None else use.share_milli / WHOLE_MILLI)
                usable.add_metric(place, device.takes_work)
                size.add_metric(place, device.memory_mb * MB)
                for name, holds in _conditions(device).items():
                    state.add_metric([*place, name], holds)
            telemetry = self._context.service.telemetry.get(node.id)
            for reading in () if telemetry is None else telemetry.readings:
                place = [node.id, str(reading.index)]
                busy.add_metric(place, reading.utilisation_percent / 100)
                memory.add_metric(place, reading.memory_used_mb * MB)
                heat.add_metric(place, reading.temperature_c)
                power.add_metric(place, reading.power_mw / 1000)
        yield from (share, usable, busy, memory, size, heat, power, state, self._gpu_events())

    def _gpu_events(self) -> Metric:
        family = _counter("gpu_events", "What happened to GPUs: hot, cool, leak and so on.", "kind")
        loop_metrics = self._context.service.loop_metrics
        for kind, count in sorted({**loop_metrics.others, **loop_metrics.jobs}.items()):
            if kind.startswith("gpu_"):
                family.add_metric([kind.removeprefix("gpu_")], count)
        return family

    def _energy(self) -> Iterator[Metric]:
        family = _counter("gpu_energy_joules", "Energy that a GPU has drawn.", "node", "gpu")
        gauges = self._context.state.gpu_meter
        for (node_id, index), energy_uj in sorted(gauges.energy_uj.items()):
            family.add_metric([node_id, str(index)], energy_uj / UJ_PER_JOULE)
        yield family

    def _health(self) -> Iterator[Metric]:
        found = list(findings(self._context, self.read_error))
        now = worst(found)
        status = _gauge("health", "1 for the status that the scheduler has now.", "status")
        for name in (HEALTHY, DEGRADED, UNHEALTHY):
            status.add_metric([name], name == now)
        yield status
        wrong = {finding.check for finding in found}
        checks = _gauge("health_check", "Whether a part is well (1) or not.", "check")
        for check in CHECKS:
            checks.add_metric([check], check not in wrong)
        yield checks

    def _notifications(self) -> Iterator[Metric]:
        notifications = self._context.settings.notifications
        lanes = {} if notifications is None else notifications.lanes
        now_ms = self._context.service.now_ms()
        waiting = _gauge("notifications_waiting", "Notifications to be delivered.", "target")
        oldest = _gauge(
            "notifications_oldest_seconds", "How long the oldest of them waits.", "target"
        )
        sent = _counter("notifications_delivered", "Notifications that arrived.", "target")
        failed = _counter("notifications_failed_tries", "Tries that failed.", "target")
        dropped = _counter("notifications_given_up", "Notifications that were given up.", "target")
        for name, lane in list(lanes.items()):
            waiting.add_metric([name], len(lane.waiting))
            since_ms = lane.oldest_ms
            oldest.add_metric([name], 0 if since_ms is None else (now_ms - since_ms) / 1000)
            sent.add_metric([name], lane.delivered)
            failed.add_metric([name], lane.failures)
            dropped.add_metric([name], lane.given_up)
        yield from (waiting, oldest, sent, failed, dropped)

    def _http(self) -> Iterator[Metric]:
        family = _counter("http_requests", "Answers of the API.", "method", "path", "status")
        for (method, path, status), count in sorted(self._requests.items()):
            family.add_metric([method, path, str(status)], count)
        yield family


def metrics_operation(context: Context, requests: Requests) -> Operation:
    """Return the operation GET /metrics; its registry has none of the default collectors."""
    registry = CollectorRegistry(auto_describe=False)
    collector = SchedulerCollector(context, requests)
    registry.register(collector)
    router = Router("cluster")

    @router.operation("GET", "/metrics", prefix="", media="text/plain", public=True)
    async def metrics(context: Context, request: Request) -> Response:
        """Metrics for Prometheus."""
        context.parse_query(request)
        collector.read_error = await read_error(context)
        collector.counts = await asyncio.to_thread(context.service.store.count_states)
        text = generate_latest(registry).decode()
        return Response(_CONTROL.sub(_escaped, text).encode(), media=MEDIA)

    return router.operations[0]


def _escaped(found: re.Match[str]) -> str:
    r"""Return a control character of a stored name as text, such as `\\x1b`."""
    return found[0].encode("unicode_escape").decode().replace("\\", "\\\\")


def _conditions(device: Device) -> dict[str, bool]:
    use = device.foreign
    return {
        "hot": device.hot,
        "unhealthy": device.health is not Health.HEALTHY,
        "paused": device.paused,
        "quarantined": device.quarantined,
        "foreign": use is not None and not use.leaked,
        "leaking": use is not None and use.leaked,
    }


def _counter(name: str, text: str, *labels: str, value: float | None = None) -> CounterMetricFamily:
    return CounterMetricFamily(PREFIX + name, text, labels=labels or None, value=value)


def _gauge(name: str, text: str, *labels: str, value: float | None = None) -> GaugeMetricFamily:
    return GaugeMetricFamily(PREFIX + name, text, labels=labels or None, value=value)


def _histogram(name: str, text: str, histogram: Histogram) -> HistogramMetricFamily:
    buckets: list[tuple[str, float]] = []
    seen = 0
    for bound, number in zip((*histogram.bounds, float("inf")), histogram.counts, strict=True):
        seen += number
        buckets.append(("+Inf" if bound == float("inf") else str(bound), seen))
    return HistogramMetricFamily(PREFIX + name, text, buckets=buckets, sum_value=histogram.total)
