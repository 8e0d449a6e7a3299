"""Answers the API server over HTTPS: /mutate for pods, /healthz for probes, /metrics."""

from __future__ import annotations

import base64
import ssl
from typing import Any

import msgspec
import structlog
from aiohttp import web
from prometheus_client import CollectorRegistry, Counter, generate_latest

from gpu_scheduler.kubernetes.webhook.mutation import patch_of

MOST_BYTES = 8 << 20
"""More than etcd accepts for an object."""
log = structlog.get_logger("webhook")


class AdmissionRequest(msgspec.Struct, frozen=True, kw_only=True):
    """A pod that is about to be created."""

    uid: str
    object: dict[str, Any] = {}


class AdmissionReview(msgspec.Struct, frozen=True, kw_only=True):
    """What the API server sends."""

    request: AdmissionRequest


def application(metrics: CollectorRegistry, *, uses_dra: bool = False) -> web.Application:
    """The routes of the webhook. With `uses_dra`, pods with a GpuClaim get a ResourceClaim."""
    reviews = Counter("gpu_webhook_reviews_total", "Pods reviewed", ["changed"], registry=metrics)

    async def mutate(request: web.Request) -> web.Response:
        try:
            review = msgspec.json.decode(await request.read(), type=AdmissionReview)
        except msgspec.DecodeError as error:
            return web.Response(status=400, text=f"this is not an AdmissionReview: {error}")
        # The uid of the request is unique, and the name of the pod may not be known yet.
        name = f"gpus-{review.request.uid}" if uses_dra else ""
        response: dict[str, Any] = {"uid": review.request.uid, "allowed": True}
        try:
            patch = patch_of(review.request.object, claim_name=name)
            reviews.labels(changed="yes" if patch else "no").inc()
        except Exception as error:
            # Without the variables, a container could see GPUs of others.
            log.exception("pod cannot be read")
            reviews.labels(changed="failed").inc()
            message = f"gpu-scheduler cannot read this pod: {type(error).__name__}: {error}"[:500]
            patch = []
            response |= {"allowed": False, "status": {"code": 422, "message": message}}
        if patch:
            encoded = base64.b64encode(msgspec.json.encode(patch)).decode()
            response |= {"patchType": "JSONPatch", "patch": encoded}
        answer = {
            "apiVersion": "admission.k8s.io/v1",
            "kind": "AdmissionReview",
            "response": response,
        }
        return web.Response(body=msgspec.json.encode(answer), content_type="application/json")

    async def healthz(_: web.Request) -> web.Response:
        return web.Response(text="ok")

    async def show_metrics(_: web.Request) -> web.Response:
        return web.Response(body=generate_latest(metrics), content_type="text/plain")

    app = web.Application(client_max_size=MOST_BYTES)
    app.router.add_post("/mutate", mutate)
    app.router.add_get("/healthz", healthz)
    app.router.add_get("/metrics", show_metrics)
    return app


async def start(app: web.Application, tls: ssl.SSLContext, host: str, port: int) -> web.AppRunner:
    """Serve; connections of the API server stay open, so that a review costs no handshake."""
    runner = web.AppRunner(app, access_log=None, keepalive_timeout=300.0)
    await runner.setup()
    await web.TCPSite(runner, host, port, ssl_context=tls).start()
    log.info("webhook listening", host=host, port=port)
    return runner
