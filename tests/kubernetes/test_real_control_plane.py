"""Client, reflector and leader election against a real control plane, and what the lab offers."""

import asyncio
import json
import secrets
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.kubernetes.client.client import ApiClient, Selection
from gpu_scheduler.kubernetes.client.configuration import read_kubeconfig, read_service_account
from gpu_scheduler.kubernetes.client.errors import Forbidden, Unauthorized
from gpu_scheduler.kubernetes.client.http import connect
from gpu_scheduler.kubernetes.leader_election import ElectionSettings, LeaderElector
from gpu_scheduler.kubernetes.objects import LEASES, NODES, PODS, Lease
from gpu_scheduler.kubernetes.reflector import Reflector
from tests.kubernetes.lab.control_plane import ControlPlane, kwok_node

pytestmark = pytest.mark.slow

DEADLINE_S = 120.0


@asynccontextmanager
async def a_client(control_plane: ControlPlane) -> AsyncIterator[ApiClient]:
    async with connect(read_kubeconfig([control_plane.kubeconfig])) as client:
        async with asyncio.timeout(DEADLINE_S):
            yield client


async def until(condition: Callable[[], bool]) -> None:
    while not condition():  # noqa: ASYNC110 - the other side is a server
        await asyncio.sleep(0.05)


@pytest.fixture
def namespace(control_plane: ControlPlane) -> str:
    name = f"test-{secrets.token_hex(4)}"
    control_plane.kubectl("create", "namespace", name)
    return name


def pod(name: str, **spec: Any) -> dict[str, Any]:
    container = {"name": "main", "image": "busybox"}
    return {
        "metadata": {"name": name},
        "spec": {"schedulerName": "gpu-scheduler", "containers": [container], **spec},
    }


class Names:
    """Keeps the names that exist, from what it hears."""

    def __init__(self) -> None:
        self.found: set[str] = set()

    def on_added(self, new: Lease) -> None:
        assert new.metadata.name not in self.found
        self.found.add(new.metadata.name)

    def on_updated(self, old: Lease, new: Lease) -> None:
        assert old.metadata.uid == new.metadata.uid

    def on_deleted(self, last: Lease) -> None:
        self.found.remove(last.metadata.name)


def test_a_cache_follows_through_a_restart_of_the_api_server(
    control_plane: ControlPlane, namespace: str
) -> None:
    async def main() -> None:
        async with a_client(control_plane) as client:
            reflector = Reflector(client, LEASES, Selection(namespace=namespace))
            names = Names()
            reflector.add_handler(names)
            following = asyncio.create_task(reflector.run())
            await reflector.wait_until_synced()
            for n in range(20):
                await client.create(LEASES, {"metadata": {"name": f"a{n}"}}, namespace)
            await until(lambda: len(names.found) == 20)
            control_plane.kill("kube-apiserver")
            await asyncio.to_thread(control_plane.start_api_server)
            # Before the reflector is back: a gap, after which it has to list again.
            await client.delete(LEASES, "a0", namespace)
            await client.create(LEASES, {"metadata": {"name": "b"}}, namespace)
            await until(lambda: names.found == {"b", *(f"a{n}" for n in range(1, 20))})
            listing = await client.list(LEASES, Selection(namespace=namespace), page_size=7)
            assert {one.key: one for one in listing.items} == reflector.objects
            following.cancel()

    asyncio.run(main())


def test_the_next_candidate_leads_after_a_release_and_after_a_death(
    control_plane: ControlPlane, namespace: str
) -> None:
    times = ElectionSettings(
        lease_duration_seconds=6,
        renew_deadline_seconds=4.0,
        retry_period_seconds=0.5,
        attempt_timeout_seconds=3.0,
    )

    async def main() -> None:
        async with a_client(control_plane) as client:
            elected: list[tuple[str, int]] = []

            def candidate(name: str) -> tuple[LeaderElector, asyncio.Task[None]]:
                elector = LeaderElector(
                    client,
                    name="election",
                    namespace=namespace,
                    identity=name,
                    on_elected=lambda term: elected.append((name, term)),
                    on_lost=lambda: None,
                    settings=times,
                )
                return elector, asyncio.create_task(elector.run())

            first, running = candidate("a")
            await until(lambda: first.is_leader)
            second, second_running = candidate("b")
            await asyncio.sleep(1)
            assert not second.is_leader
            running.cancel()
            await until(lambda: second.is_leader)
            assert not first.is_leader
            third, third_running = candidate("c")
            # A leader that dies releases nothing.
            second._release = lambda: asyncio.sleep(0)  # type: ignore[method-assign]
            second_running.cancel()
            await until(lambda: third.is_leader)
            assert not second.is_leader
            assert elected == [("a", 1), ("b", 2), ("c", 3)]
            third_running.cancel()

    asyncio.run(main())


def test_rights_are_checked_and_writes_are_in_the_audit_log(
    control_plane: ControlPlane, namespace: str
) -> None:
    user = f"user-{secrets.token_hex(4)}"
    config = control_plane.kubeconfig_of(user)

    async def main() -> None:
        async with connect(read_kubeconfig([config])) as client:
            with pytest.raises(Forbidden, match=user):
                await client.list(PODS)
        async with a_client(control_plane) as client:
            made = await client.create(PODS, pod("a"), namespace)
            annotations = {"gpu.scheduling/allocated": "3"}
            await client.bind(
                "a", namespace, uid=made.metadata.uid, node="n1", annotations=annotations
            )

    control_plane.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
    asyncio.run(main())
    bindings = [
        entry
        for entry in map(json.loads, control_plane.audit_log.read_text().splitlines())
        if entry["objectRef"].get("subresource") == "binding"
        and entry["objectRef"]["namespace"] == namespace
    ]
    assert len(bindings) == 1
    assert bindings[0]["user"]["username"] == "admin"
    assert bindings[0]["requestObject"]["metadata"]["annotations"] == {
        "gpu.scheduling/allocated": "3"
    }


def test_a_pod_reaches_the_server_by_its_service_account(
    control_plane: ControlPlane, namespace: str, tmp_path: Path
) -> None:
    kubectl = control_plane.kubectl
    kubectl("create", "serviceaccount", "scheduler", "-n", namespace)
    kubectl("create", "role", "r", "--verb=list", "--resource=pods", "-n", namespace)
    account = f"--serviceaccount={namespace}:scheduler"
    kubectl("create", "rolebinding", "r", "--role=r", account, "-n", namespace)
    (tmp_path / "ca.crt").write_bytes(control_plane.authority.certificate.read_bytes())
    (tmp_path / "namespace").write_text(namespace)
    token = kubectl("create", "token", "scheduler", "-n", namespace)
    (tmp_path / "token").write_text("expired")
    host, port = control_plane.url.removeprefix("https://").split(":")
    environment = {"KUBERNETES_SERVICE_HOST": host, "KUBERNETES_SERVICE_PORT": port}

    async def main() -> None:
        configuration = read_service_account(environment, tmp_path)
        async with connect(configuration) as client:
            with pytest.raises(Unauthorized):
                await client.list(PODS, Selection(namespace=namespace))
            (tmp_path / "token").write_text(token)
            assert (await client.list(PODS, Selection(namespace=namespace))).items == []
            with pytest.raises(Forbidden):
                await client.list(NODES)

    asyncio.run(main())


def test_kwok_runs_pods_on_its_nodes(kwok: ControlPlane, namespace: str) -> None:
    kwok.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")

    async def main() -> None:
        async with a_client(kwok) as client:
            node = f"kwok-{secrets.token_hex(4)}"
            await client.create(NODES, kwok_node(node))
            nodes = Reflector(client, NODES)
            pods = Reflector(client, PODS, Selection(namespace=namespace))
            following = [asyncio.create_task(one.run()) for one in (nodes, pods)]

            def is_ready() -> bool:
                found = nodes.objects.get(("", node))
                return found is not None and any(
                    one.type == "Ready" and one.status == "True" for one in found.status.conditions
                )

            await until(is_ready)
            assert nodes.objects["", node].status.allocatable["nvidia.com/gpu"] == "8"
            made = await client.create(PODS, pod("a"), namespace)
            await client.bind("a", namespace, uid=made.metadata.uid, node=node)
            await until(lambda: pods.objects[namespace, "a"].status.phase == "Running")
            await client.delete(PODS, "a", namespace)
            await until(lambda: not pods.objects)
            await client.delete(NODES, node)
            for task in following:
                task.cancel()

    asyncio.run(main())


def test_kube_scheduler_binds_only_the_pods_that_name_it(
    kube_scheduler: ControlPlane, namespace: str
) -> None:
    kube_scheduler.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")

    async def main() -> None:
        async with a_client(kube_scheduler) as client:
            node = f"kwok-{secrets.token_hex(4)}"
            await client.create(NODES, kwok_node(node))
            pods = Reflector(client, PODS, Selection(namespace=namespace))
            following = asyncio.create_task(pods.run())
            limits = {"limits": {"nvidia.com/gpu": "8"}}
            container = {"name": "main", "image": "busybox", "resources": limits}
            chosen = {"nodeSelector": {"kubernetes.io/hostname": node}, "containers": [container]}
            await client.create(PODS, pod("ours", **chosen), namespace)
            theirs = pod("theirs", schedulerName="default-scheduler", **chosen)
            await client.create(PODS, theirs, namespace)

            def is_bound() -> bool:
                found = pods.objects.get((namespace, "theirs"))
                return found is not None and found.spec.node_name == node

            await until(is_bound)
            assert pods.objects[namespace, "ours"].spec.node_name == ""
            following.cancel()
            await client.delete(NODES, node)

    asyncio.run(main())
