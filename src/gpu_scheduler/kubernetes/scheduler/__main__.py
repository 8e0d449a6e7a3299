"""`python -m gpu_scheduler.kubernetes.scheduler`: run the scheduler of a Kubernetes cluster.

Several processes may run; one leads, chosen by a Lease. It finds the API server by its service
account in a pod, and otherwise by the kubeconfig.
"""

import argparse
import asyncio
import gc
import os
import secrets
import signal
import socket
import sys
from collections.abc import Callable

import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, generate_latest
from prometheus_client.core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from gpu_scheduler.engine.presets import preset
from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.client.configuration import load_configuration
from gpu_scheduler.kubernetes.client.errors import KubernetesError, NotFound
from gpu_scheduler.kubernetes.client.http import connect
from gpu_scheduler.kubernetes.dynamic_resources import DEVICE_CLASSES
from gpu_scheduler.kubernetes.event_loop_thread import EventLoopThread
from gpu_scheduler.kubernetes.leader_election import LeaderElector
from gpu_scheduler.kubernetes.names import SCHEDULER_NAME
from gpu_scheduler.kubernetes.scheduler.loop import LoopSettings, Scheduler
from gpu_scheduler.kubernetes.scheduler.repair import Deadlines
from gpu_scheduler.logging_setup.structured import LogConfig, configure
from gpu_scheduler.model.errors import UnknownThing

log = structlog.get_logger("kube-scheduler")

YOUNG_OBJECTS = 100_000
NAMESPACE_VARIABLE = "POD_NAMESPACE"


def main(arguments: list[str] | None = None) -> int:
    """Run until a signal ends the process."""
    given = parser().parse_args(arguments)
    configure(LogConfig(level=given.log_level))
    # With the default thresholds, collection takes a third of a cycle of a large cluster.
    gc.set_threshold(YOUNG_OBJECTS, 20, 50)
    try:
        asyncio.run(run(given))
    except (KubernetesError, UnknownThing, OSError) as error:
        sys.stderr.write(f"error: {error}\n")
        return 1
    return 0


def parser() -> argparse.ArgumentParser:
    """The options of the scheduler."""
    made = argparse.ArgumentParser(
        prog="python -m gpu_scheduler.kubernetes.scheduler",
        description="Schedule pods with schedulerName gpu-scheduler on the GPUs of a cluster.",
    )
    add = made.add_argument
    add(
        "--namespace",
        default=os.environ.get(NAMESPACE_VARIABLE, SCHEDULER_NAME),
        help=f"where leases are kept; default: ${NAMESPACE_VARIABLE}, else {SCHEDULER_NAME}",
    )
    add("--policy", default="fair", help="scheduling policy, such as fair or fifo (default: fair)")
    add("--context", default="", help="context of the kubeconfig (default: the current one)")
    add(
        "--listen",
        default="0.0.0.0:9091",
        metavar="ADDRESS:PORT",
        help="where /healthz, /readyz and /metrics are served (default: 0.0.0.0:9091)",
    )
    add(
        "--gang-deadline",
        type=int,
        default=300,
        metavar="SECONDS",
        help="evict a gang that has had too few pods on nodes for so long (default: 300)",
    )
    add(
        "--dra",
        choices=("auto", "yes", "no"),
        default="auto",
        help="allocate ResourceClaims (auto: if the cluster has resource.k8s.io/v1)",
    )
    add("--log-level", default="INFO", choices=("DEBUG", "INFO", "WARNING", "ERROR"))
    return made


async def run(given: argparse.Namespace) -> None:
    """Stand for election, and schedule while elected."""
    policy = preset(given.policy)
    identity = f"{socket.gethostname()}-{secrets.token_hex(4)}"
    configuration = load_configuration(context=given.context)
    async with connect(configuration) as client:
        serves_claims = await _serves_claims(client) if given.dra == "auto" else given.dra == "yes"
        log.info("ResourceClaims", allocated=serves_claims)
        loop = asyncio.get_running_loop()
        elector: LeaderElector | None = None
        scheduler = Scheduler(
            client,
            namespace=given.namespace,
            identity=identity,
            policy=policy,
            is_leader=lambda: elector is not None and elector.is_leader,
            term=lambda: 0 if elector is None else elector.term,
            settings=LoopSettings(deadlines=Deadlines(gang_ms=given.gang_deadline * 1000)),
            serves_claims=serves_claims,
        )

        def on_elected(_: int) -> None:
            loop.call_soon_threadsafe(scheduler.wake)

        async def stand_for_election() -> None:
            """With connections of its own, so that no cycle can delay a renewal or a probe."""
            nonlocal elector
            async with connect(configuration) as own_client:
                elector = LeaderElector(
                    own_client,
                    name=SCHEDULER_NAME,
                    namespace=given.namespace,
                    identity=identity,
                    on_elected=on_elected,
                    on_lost=lambda: None,
                    may_lead=thread.main_responds,
                )
                site = await _serve(given.listen, scheduler, elector, thread.main_responds)
                try:
                    await elector.run()
                finally:
                    await site.cleanup()

        thread = EventLoopThread(stand_for_election)
        ended = asyncio.Event()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, ended.set)
        tasks = [asyncio.create_task(thread.run()), asyncio.create_task(scheduler.run())]
        waiting = asyncio.create_task(ended.wait())
        try:
            await asyncio.wait([*tasks, waiting], return_when=asyncio.FIRST_COMPLETED)
            for task in tasks:
                if task.done():
                    task.result()  # a task that ends by itself has failed
        finally:
            # The scheduler stops first, so that the lease is released after its last write.
            waiting.cancel()
            for task in reversed(tasks):
                task.cancel()
                await asyncio.wait([task])


async def _serves_claims(client: ApiClient) -> bool:
    """Whether the API server serves the objects of DRA: since Kubernetes 1.34."""
    try:
        await client.list(DEVICE_CLASSES)
    except NotFound:
        return False
    return True


async def _serve(
    listen: str, scheduler: Scheduler, elector: LeaderElector, responds: Callable[[], bool]
) -> web.AppRunner:
    """Answer probes; `responds` says whether the loop of the scheduler does not hang."""
    address, _, port = listen.rpartition(":")
    registry = CollectorRegistry()
    registry.register(_Metrics(scheduler, lambda: elector.is_leader))

    async def healthz(_: web.Request) -> web.Response:
        if responds():
            return web.Response(text="ok\n")
        return web.Response(status=503, text="the scheduler hangs in a cycle\n")

    async def readyz(_: web.Request) -> web.Response:
        if scheduler.is_synced:
            return web.Response(text="ok\n")
        return web.Response(status=503, text="caches are not filled yet\n")

    async def metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(registry), content_type="text/plain")

    app = web.Application()
    app.add_routes(
        [
            web.get("/healthz", healthz),
            web.get("/readyz", readyz),
            web.get("/metrics", metrics),
        ]
    )
    runner = web.AppRunner(app, access_log=None)
    await runner.setup()
    site = web.TCPSite(runner, address or None, int(port))
    await site.start()
    return runner


class _Metrics(Collector):
    """The counters of the scheduler, read at the scrape."""

    def __init__(self, scheduler: Scheduler, is_leader: Callable[[], bool]) -> None:
        self._scheduler = scheduler
        self._is_leader = is_leader

    def collect(self) -> list[Metric]:
        counters = self._scheduler.counters
        name = "gpu_scheduler_kube_"
        aside = GaugeMetricFamily(
            f"{name}objects_set_aside",
            "Objects that decisions are made without, because they cannot be used.",
            labels=["kind"],
        )
        for kind, number in sorted(counters.set_aside.items()):
            aside.add_metric([kind], number)
        return [
            aside,
            GaugeMetricFamily(
                f"{name}leader", "1 while this process leads.", float(self._is_leader())
            ),
            GaugeMetricFamily(f"{name}pods_waiting", "Pods that wait.", counters.waiting_pods),
            GaugeMetricFamily(
                f"{name}last_cycle_seconds",
                "Duration of the last cycle, with its writes.",
                counters.last_cycle_seconds,
            ),
            CounterMetricFamily(f"{name}cycles", "Cycles.", counters.cycles),
            CounterMetricFamily(f"{name}cycles_failed", "Failed cycles.", counters.failed_cycles),
            CounterMetricFamily(f"{name}pods_bound", "Pods bound.", counters.bound_pods),
            CounterMetricFamily(
                f"{name}assignments_failed",
                "Assignments of which not all pods could be bound at once.",
                counters.failed_assignments,
            ),
            CounterMetricFamily(f"{name}pods_evicted", "Pods evicted.", counters.evicted_pods),
            CounterMetricFamily(f"{name}rollbacks", "Assignments given up.", counters.rollbacks),
            CounterMetricFamily(
                f"{name}leases_released", "Device leases released.", counters.released_leases
            ),
        ]


if __name__ == "__main__":
    sys.exit(main())
