"""`python -m gpu_scheduler.kubernetes.agent`: run the agent of this node until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import sys
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry, start_http_server

from gpu_scheduler.agent.devices.discovery import METHODS, DiscoveryOptions
from gpu_scheduler.agent.devices.monitor import MonitorSettings
from gpu_scheduler.kubernetes.agent.node_status import HeatLimits
from gpu_scheduler.kubernetes.agent.publisher import PublishSettings
from gpu_scheduler.kubernetes.agent.service import Agent, AgentOptions
from gpu_scheduler.kubernetes.client.configuration import load_configuration
from gpu_scheduler.kubernetes.client.errors import KubernetesError
from gpu_scheduler.kubernetes.client.http import connect
from gpu_scheduler.logging_setup.structured import LogConfig, configure
from gpu_scheduler.model.errors import SchedulerError

log = structlog.get_logger("agent")


def parser() -> argparse.ArgumentParser:
    """The options of the agent."""
    made = argparse.ArgumentParser(
        prog="python -m gpu_scheduler.kubernetes.agent",
        description="Report the GPUs of this node to Kubernetes and give them to containers.",
    )
    made.add_argument(
        "--node", default=os.environ.get("NODE_NAME", ""), help="name of the node ($NODE_NAME)"
    )
    made.add_argument("--kubeconfig", default="", help="file; in a pod: its service account")
    made.add_argument("--detection", choices=METHODS, default="auto", help="how GPUs are found")
    made.add_argument("--declared", default="", help="GPUs without a driver, such as 8xA100-80GB")
    made.add_argument("--dra", choices=("yes", "no"), default="yes", help="serve as DRA driver")
    made.add_argument(
        "--device-plugin", choices=("yes", "no"), default="yes", help="offer nvidia.com/gpu"
    )
    made.add_argument(
        "--cdi",
        choices=("auto", "yes", "no"),
        default="auto",
        help="whether the container runtime injects devices by CDI",
    )
    made.add_argument("--cdi-dir", type=Path, default=Path("/var/run/cdi"))
    made.add_argument("--kubelet-dir", type=Path, default=Path("/var/lib/kubelet"))
    made.add_argument("--state-dir", type=Path, default=Path("/var/lib/gpu-scheduler"))
    made.add_argument(
        "--driver-root", type=Path, default=Path("/"), help="where the driver is on the host"
    )
    made.add_argument("--hot-celsius", type=int, default=85, help="hotter GPUs get no new work")
    made.add_argument("--read-interval", type=float, default=5.0, metavar="SECONDS")
    made.add_argument("--publish-interval", type=float, default=30.0, metavar="SECONDS")
    made.add_argument("--metrics-port", type=int, default=0, help="0: no metrics")
    made.add_argument("--log-level", default="INFO")
    return made


def options_of(args: argparse.Namespace) -> AgentOptions:
    """The options as the agent takes them."""
    return AgentOptions(
        node=args.node,
        discovery=DiscoveryOptions(method=args.detection, declared=args.declared, node=args.node),
        monitor=MonitorSettings(monitor_interval_s=args.read_interval),
        publish=PublishSettings(interval_seconds=args.publish_interval),
        heat=HeatLimits(hot_celsius=args.hot_celsius),
        serves_dra=args.dra == "yes",
        serves_device_plugin=args.device_plugin == "yes",
        cdi={"auto": None, "yes": True, "no": False}[args.cdi],
        cdi_directory=args.cdi_dir,
        kubelet_directory=args.kubelet_dir,
        state_directory=args.state_dir,
        driver_root=args.driver_root,
    )


async def run(args: argparse.Namespace) -> None:
    """Run the agent until SIGTERM or SIGINT."""
    metrics = CollectorRegistry()
    if args.metrics_port:
        start_http_server(args.metrics_port, registry=metrics)
    async with connect(load_configuration(kubeconfig=args.kubeconfig)) as client:
        work = asyncio.create_task(Agent(client, options_of(args), metrics).run())
        loop = asyncio.get_running_loop()
        for number in (signal.SIGTERM, signal.SIGINT):
            loop.add_signal_handler(number, work.cancel)
        try:
            await work
        except asyncio.CancelledError:
            log.info("agent stopped")


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code; Kubernetes starts an agent that failed again."""
    made = parser()
    args = made.parse_args(arguments)
    if not args.node:
        made.error("--node is not given, and NODE_NAME is not set")
    configure(LogConfig(level=args.log_level))
    failed = False
    try:
        asyncio.run(run(args))
    except* (KubernetesError, SchedulerError, OSError) as group:
        failed = True
        log.exception("agent failed", error="; ".join(str(one) for one in group.exceptions))
    return int(failed)


if __name__ == "__main__":
    sys.exit(main())
