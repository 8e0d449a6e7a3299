"""The admission webhook: which pods it changes and how, and its certificates."""

import asyncio
import base64
import copy
from collections.abc import Sequence
from datetime import UTC, datetime, timedelta
from typing import Any

import pytest
from aiohttp.test_utils import TestClient, TestServer
from cryptography import x509
from prometheus_client import CollectorRegistry

from gpu_scheduler.kubernetes.client.client import ApiClient
from gpu_scheduler.kubernetes.names import SCHEDULER_NAME
from gpu_scheduler.kubernetes.webhook.certificates import (
    CONFIGURATIONS,
    SECRETS,
    Bundle,
    CertificateKeeper,
    renewed,
)
from gpu_scheduler.kubernetes.webhook.http import application
from gpu_scheduler.kubernetes.webhook.mutation import patch_of
from tests.fakes.kubernetes.api import FakeApi
from tests.fakes.kubernetes.transport import FakeTransport

NOW = datetime(2026, 1, 1, tzinfo=UTC)
HOSTS = ("webhook.gpu-scheduler.svc", "webhook.gpu-scheduler")


def a_pod(*containers: dict[str, Any], scheduler: str = "gpu-scheduler") -> dict[str, Any]:
    return {"spec": {"schedulerName": scheduler, "containers": list(containers)}}


def env_of(pod: dict[str, Any], place: int = 0) -> dict[str, Any]:
    """The variables that the patch sets for a container."""
    [found] = [one for one in patch_of(pod) if one["path"] == f"/spec/containers/{place}/env"]
    return {one["name"]: one.get("value", one.get("valueFrom")) for one in found["value"]}


def test_variables_point_at_the_annotation_of_the_scheduler() -> None:
    field = {"apiVersion": "v1", "fieldPath": "metadata.annotations['gpu.scheduling/allocated']"}
    assert env_of(a_pod({"name": "c", "env": [{"name": "A", "value": "1"}]})) == {
        "NVIDIA_VISIBLE_DEVICES": {"fieldRef": field},
        "CUDA_VISIBLE_DEVICES": {"fieldRef": field},
        "A": "1",
    }


def test_value_of_the_user_cannot_claim_other_gpus() -> None:
    pod = a_pod({"name": "c", "env": [{"name": "NVIDIA_VISIBLE_DEVICES", "value": "all"}]})
    assert env_of(pod)["NVIDIA_VISIBLE_DEVICES"] != "all"


def test_pod_of_another_scheduler_is_not_changed() -> None:
    assert patch_of(a_pod({"name": "c"}, scheduler="default-scheduler")) == []
    assert patch_of({}) == []


@pytest.mark.parametrize("resource", ["nvidia.com/gpu", "nvidia.com/mig-1g.10gb"])
def test_containers_beside_one_that_asks_for_gpus_get_none(resource: str) -> None:
    pod = a_pod({"name": "a", "resources": {"limits": {resource: "1"}}}, {"name": "b"})
    assert "fieldRef" in env_of(pod, 0)["CUDA_VISIBLE_DEVICES"]
    assert env_of(pod, 1) == {"NVIDIA_VISIBLE_DEVICES": "void", "CUDA_VISIBLE_DEVICES": ""}


def test_container_with_a_resource_claim_is_left_to_the_agent() -> None:
    pod = a_pod({"name": "a", "resources": {"claims": [{"name": "gpu"}]}}, {"name": "b"})
    assert [one["path"] for one in patch_of(pod)] == ["/spec/containers/1/env"]
    assert env_of(pod, 1)["NVIDIA_VISIBLE_DEVICES"] == "void"


def test_second_review_changes_nothing() -> None:
    pod = a_pod({"name": "c"})
    pod["spec"]["containers"][0]["env"] = patch_of(pod)[0]["value"]
    assert patch_of(pod) == []


# --- GPUs of a GpuClaim by Dynamic Resource Allocation


def patched(pod: dict[str, Any], claim_name: str) -> dict[str, Any]:
    made = copy.deepcopy(pod)
    for operation in patch_of(pod, claim_name=claim_name):
        *path, last = operation["path"].strip("/").split("/")
        target: Any = made
        for part in path:
            target = target[int(part)] if isinstance(target, list) else target[part]
        target[last] = operation["value"]
    return made


def a_claiming_pod(*containers: dict[str, Any]) -> dict[str, Any]:
    pod = a_pod(*containers)
    pod["metadata"] = {"generateName": "x-", "annotations": {"gpu.scheduling/claim": "c"}}
    return pod


def test_a_pod_with_a_gpu_claim_gets_a_resource_claim_in_all_its_containers() -> None:
    pod = a_claiming_pod({"name": "a", "resources": {"limits": {"cpu": "1"}}}, {"name": "b"})
    pod["spec"]["initContainers"] = [{"name": "first"}]
    made = patched(pod, "gpus-1")
    assert made["spec"]["resourceClaims"] == [
        {"name": "gpu-scheduler", "resourceClaimName": "gpus-1"}
    ]
    used = {"claims": [{"name": "gpu-scheduler"}]}
    assert made["spec"]["containers"][0]["resources"] == {"limits": {"cpu": "1"}, **used}
    assert made["spec"]["containers"][1]["resources"] == used
    assert made["spec"]["initContainers"][0]["resources"] == used
    assert "env" not in made["spec"]["containers"][0]


def test_a_container_that_another_webhook_adds_gets_no_gpus() -> None:
    pod = patched(a_claiming_pod({"name": "a"}), "gpus-1")
    pod["spec"]["containers"].append({"name": "sidecar"})
    again = patched(pod, "gpus-1")
    assert again["spec"]["resourceClaims"] == pod["spec"]["resourceClaims"]
    [visible, _] = again["spec"]["containers"][1]["env"]
    assert visible == {"name": "NVIDIA_VISIBLE_DEVICES", "value": "void"}


@pytest.mark.parametrize(
    "pod",
    [
        a_claiming_pod({"name": "a", "resources": {"limits": {"nvidia.com/gpu": "1"}}}),
        a_pod({"name": "a"}),
    ],
    ids=["device plugin", "no claim"],
)
def test_other_pods_get_no_resource_claim(pod: dict[str, Any]) -> None:
    assert patch_of(pod, claim_name="gpus-1") == patch_of(pod)


# --- certificates


def authorities(bundle: Bundle) -> list[x509.Certificate]:
    return x509.load_pem_x509_certificates(bundle.authorities)


def is_trusted(bundle: Bundle, by: Sequence[x509.Certificate]) -> bool:
    certificate = x509.load_pem_x509_certificate(bundle.certificate)
    for authority in by:
        try:
            certificate.verify_directly_issued_by(authority)
        except Exception:  # noqa: BLE001 - another key
            continue
        return True
    return False


def test_certificate_is_renewed_when_a_third_of_its_time_is_left() -> None:
    first = renewed(None, HOSTS, NOW)
    assert first is not None
    assert is_trusted(first, authorities(first))
    assert renewed(first, HOSTS, NOW + timedelta(days=59)) is None
    second = renewed(first, HOSTS, NOW + timedelta(days=61))
    assert second is not None
    assert second.authorities == first.authorities
    assert second.certificate != first.certificate
    assert is_trusted(second, authorities(first))


def test_new_authority_is_added_while_the_old_one_is_still_trusted() -> None:
    first = renewed(None, HOSTS, NOW)
    assert first is not None
    second = renewed(first, HOSTS, NOW + timedelta(days=3000))
    assert second is not None
    assert len(authorities(second)) == 2
    assert is_trusted(first, authorities(second))
    assert is_trusted(second, authorities(second))
    third = renewed(second, HOSTS, NOW + timedelta(days=3000 + 3000))
    assert third is not None
    assert len(authorities(third)) == 2  # the first one has expired


def test_certificate_for_other_names_is_replaced() -> None:
    first = renewed(None, HOSTS, NOW)
    assert renewed(first, ("other.svc",), NOW) is not None


def a_keeper(api: FakeApi, clock: list[datetime]) -> CertificateKeeper:
    return CertificateKeeper(
        ApiClient(FakeTransport(api)),
        namespace="kube-system",
        secret="tls",
        configuration="gpu-scheduler",
        hosts=HOSTS,
        clock=lambda: clock[0],
    )


def test_replicas_that_start_together_share_one_certificate_and_the_api_server_trusts_it() -> None:
    async def scenario() -> None:
        api = FakeApi()
        client = ApiClient(FakeTransport(api))
        webhooks = [{"name": "pods.gpu.scheduling", "clientConfig": {"service": {"name": "w"}}}]
        metadata = {"name": "gpu-scheduler"}
        await client.create(CONFIGURATIONS, {"metadata": metadata, "webhooks": webhooks})
        clock = [NOW]
        keepers = [a_keeper(api, clock) for _ in range(3)]
        for moment in (NOW, NOW + timedelta(days=70), NOW + timedelta(days=3300)):
            clock[0] = moment
            await asyncio.gather(*(keeper.check() for keeper in keepers))
            await asyncio.gather(*(keeper.check() for keeper in keepers))
            secret = await client.get(SECRETS, "tls", "kube-system")
            bundle = Bundle.of(secret)
            assert bundle is not None
            assert [keeper._loaded for keeper in keepers] == [bundle] * 3
            [webhook] = (await client.get(CONFIGURATIONS, "gpu-scheduler")).webhooks
            assert base64.b64decode(webhook["clientConfig"]["caBundle"]) == bundle.authorities
            assert webhook["clientConfig"]["service"] == {"name": "w"}

    asyncio.run(scenario())


def test_broken_secret_is_replaced() -> None:
    async def scenario() -> None:
        api = FakeApi()
        client = ApiClient(FakeTransport(api))
        broken = {"metadata": {"name": "tls"}, "data": {"ca.crt": "bm9uZQ=="}}
        await client.create(SECRETS, broken, "kube-system")
        await a_keeper(api, [NOW]).check()
        assert Bundle.of(await client.get(SECRETS, "tls", "kube-system")) is not None

    asyncio.run(scenario())


# --- pods that nobody expected


HOSTILE_PODS: tuple[Any, ...] = (
    {"spec": "x"},
    {"spec": {"schedulerName": SCHEDULER_NAME, "containers": "many"}},
    {"spec": {"schedulerName": SCHEDULER_NAME, "containers": [None]}},
    {"spec": {"schedulerName": SCHEDULER_NAME, "containers": [{"env": [1]}]}},
    {"spec": {"schedulerName": SCHEDULER_NAME, "containers": [{"resources": []}]}},
    {"spec": {"schedulerName": SCHEDULER_NAME}, "metadata": {"annotations": 5}},
    {"spec": {"schedulerName": {"x": 1}, "containers": [{"resources": {"limits": 3}}]}},
)


@pytest.mark.parametrize("pod", HOSTILE_PODS)
def test_pod_that_cannot_be_read_gets_an_answer(pod: Any) -> None:
    """An error of the webhook would look to the API server like an outage."""

    async def scenario() -> None:
        app = application(CollectorRegistry())
        async with TestClient(TestServer(app)) as client:
            review = {"request": {"uid": "u", "object": pod}}
            answer = await client.post("/mutate", json=review)
            assert answer.status == 200
            response = (await answer.json())["response"]
            assert response["uid"] == "u"
            assert response["allowed"] or response["status"]["code"] == 422

    asyncio.run(scenario())
