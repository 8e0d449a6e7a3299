"""`python -m gpu_scheduler.kubernetes.webhook`: serve the admission webhook until SIGTERM."""

from __future__ import annotations

import argparse
import asyncio
import os
import signal
import ssl
import sys
from datetime import UTC, datetime
from pathlib import Path

import structlog
from prometheus_client import CollectorRegistry

from gpu_scheduler.kubernetes.client.configuration import load_configuration
from gpu_scheduler.kubernetes.client.errors import KubernetesError
from gpu_scheduler.kubernetes.client.http import connect
from gpu_scheduler.kubernetes.webhook.certificates import CertificateKeeper
from gpu_scheduler.kubernetes.webhook.http import application, start
from gpu_scheduler.logging_setup.structured import LogConfig, configure

log = structlog.get_logger("webhook")


def parser() -> argparse.ArgumentParser:
    """The options of the webhook."""
    made = argparse.ArgumentParser(
        prog="python -m gpu_scheduler.kubernetes.webhook",
        description="Let new pods of the GPU scheduler see the GPUs that they will get.",
    )
    made.add_argument("--kubeconfig", default="", help="file; in a pod: its service account")
    made.add_argument("--host", default="0.0.0.0", help="address to listen at")  # noqa: S104
    made.add_argument("--port", type=int, default=8443)
    made.add_argument("--namespace", default=os.environ.get("POD_NAMESPACE", ""))
    made.add_argument("--service", default="gpu-scheduler-webhook", help="name of the Service")
    made.add_argument(
        "--dns-name",
        action="append",
        default=[],
        metavar="NAME",
        help="a further name for the certificate, if the API server uses another address",
    )
    made.add_argument("--secret", default="gpu-scheduler-webhook-tls")
    made.add_argument(
        "--configuration",
        default="gpu-scheduler",
        help="MutatingWebhookConfiguration that gets the certificate of the authority",
    )
    made.add_argument(
        "--tls-dir",
        type=Path,
        help="use tls.crt and tls.key of another issuer, such as cert-manager; none are made",
    )
    made.add_argument(
        "--dra",
        choices=("yes", "no"),
        default="no",
        help="give the GPUs of GpuClaims by ResourceClaims (Kubernetes 1.34 or newer)",
    )
    made.add_argument("--check-interval", type=float, default=60.0, metavar="SECONDS")
    made.add_argument("--log-level", default="INFO")
    return made


async def run(args: argparse.Namespace) -> None:
    """Serve until SIGTERM or SIGINT."""
    stopped = asyncio.Event()
    loop = asyncio.get_running_loop()
    for number in (signal.SIGTERM, signal.SIGINT):
        loop.add_signal_handler(number, stopped.set)
    app = application(CollectorRegistry(), uses_dra=args.dra == "yes")
    if args.tls_dir is not None:
        tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        tls.minimum_version = ssl.TLSVersion.TLSv1_2
        pair = args.tls_dir / "tls.crt", args.tls_dir / "tls.key"
        tls.load_cert_chain(*pair)
        runner = await start(app, tls, args.host, args.port)
        while not await _ended(stopped, args.check_interval):
            tls.load_cert_chain(*pair)
        await runner.cleanup()
        return
    configuration = load_configuration(kubeconfig=args.kubeconfig)
    namespace = args.namespace or configuration.namespace
    async with connect(configuration) as client:
        keeper = CertificateKeeper(
            client,
            namespace=namespace,
            secret=args.secret,
            configuration=args.configuration,
            hosts=[
                f"{args.service}.{namespace}.svc",
                f"{args.service}.{namespace}",
                *args.dns_name,
            ],
            clock=lambda: datetime.now(UTC),
        )
        await keeper.check()
        runner = await start(app, keeper.tls, args.host, args.port)
        while not await _ended(stopped, args.check_interval):
            try:
                await keeper.check()
            except KubernetesError as error:
                log.warning("certificates not checked; will retry", error=str(error))
        await runner.cleanup()


async def _ended(stopped: asyncio.Event, seconds: float) -> bool:
    """Wait for the end, at most so long."""
    try:
        async with asyncio.timeout(seconds):
            await stopped.wait()
    except TimeoutError:
        return False
    return True


def main(arguments: list[str] | None = None) -> int:
    """Returns the exit code."""
    args = parser().parse_args(arguments)
    configure(LogConfig(level=args.log_level))
    try:
        asyncio.run(run(args))
    except (KubernetesError, OSError) as error:
        log.exception("webhook failed", error=str(error))
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
