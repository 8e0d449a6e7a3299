"""The Helm chart on a real control plane: it installs, and its accounts may do what they need.

The control plane is of this file alone: admission policies and webhooks are for the whole cluster.
"""

import json
import subprocess
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import msgspec
import pytest
import yaml

from gpu_scheduler.kubernetes.agent.resource_slice import SliceState, resource_slice, slice_name
from gpu_scheduler.kubernetes.crds.node_status import Gpu, GpuNodeStatusStatus
from gpu_scheduler.kubernetes.objects import OwnerReference
from tests.kubernetes.lab.build import CONTROL_PLANE
from tests.kubernetes.lab.component import Component, until
from tests.kubernetes.lab.control_plane import ControlPlane, kwok_node
from tests.kubernetes.lab.fixtures import skip_unless_built
from tests.ports import lasting_port

pytestmark = pytest.mark.slow

ROOT = Path(__file__).parents[2]
CHART = ROOT / "charts" / "gpu-scheduler"
MANIFESTS = ROOT / "deployments" / "k8s"
NAMESPACE = "gpu-scheduler"
SCHEDULER = f"system:serviceaccount:{NAMESPACE}:gpu-scheduler-scheduler"
VARIANTS: dict[str, list[str]] = {
    "default": [],
    "smallest": ["webhook.enabled=false", "agent.enabled=false", "admissionPolicies.enabled=false"],
    "without DRA": ["agent.dra=false", "agent.metricsPort=0", "rbac.aggregate=false"],
    "privileged agent": ["agent.privileged=true", "agent.driverRoot=/run/nvidia/driver"],
    "webhook by address": ["webhook.url=https://webhook.example:8443/mutate"],
}


def helm(*arguments: str, plane: ControlPlane | None = None, check: bool = True) -> str:
    program = skip_unless_built("helm").program("helm")
    options = [f"--kubeconfig={plane.kubeconfig}"] if plane else []
    done = subprocess.run(
        [program, *arguments, *options], capture_output=True, text=True, check=False
    )
    if check and done.returncode:
        raise AssertionError(f"helm {arguments[0]}: {done.stdout}{done.stderr}")
    return done.stdout + done.stderr if not check else done.stdout


def rendered(*values: str) -> str:
    options = [option for value in values for option in ("--set", value)]
    return helm(
        *("template", "gpu-scheduler", str(CHART), "--namespace", NAMESPACE, "--include-crds"),
        *("--kube-version", "1.35.0", "--api-versions", "resource.k8s.io/v1", *options),
    )


@pytest.fixture(scope="module")
def plane() -> Iterator[ControlPlane]:
    made = ControlPlane(skip_unless_built(*CONTROL_PLANE, "kwok", "helm"))
    try:
        made.start()
        made.start_kwok()
        made.kubectl("create", "namespace", NAMESPACE)
        yield made
    finally:
        made.stop()


@pytest.fixture(scope="module")
def port() -> int:
    return lasting_port()


@pytest.fixture(scope="module")
def installed(plane: ControlPlane, port: int) -> ControlPlane:
    """The chart is installed; no component runs, since no node runs its pods."""
    notes = helm(
        *("install", "gpu-scheduler", str(CHART), "-n", NAMESPACE),
        *("--set", f"webhook.url=https://localhost:{port}/mutate"),
        plane=plane,
    )
    assert "kubectl get gclaim" in notes
    return plane


def pod(name: str, *, gpus: int = 1, **fields: Any) -> dict[str, Any]:
    limits = {"nvidia.com/gpu": str(gpus)} if gpus else {}
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": "default", **fields.pop("metadata", {})},
        "spec": {
            "schedulerName": "gpu-scheduler",
            "tolerations": [{"operator": "Exists"}],
            "containers": [{"name": "main", "image": "busybox", "resources": {"limits": limits}}],
            **fields,
        },
    }


def apply(plane: ControlPlane, *manifests: dict[str, Any], check: bool = True) -> str:
    text = "\n---\n".join(json.dumps(one) for one in manifests)
    return plane.kubectl("apply", "-f", "-", stdin=text, check=check)


def test_the_chart_passes_helm_lint() -> None:
    for values in VARIANTS.values():
        helm("lint", "--strict", str(CHART), *(f"--set={value}" for value in values))


@pytest.mark.parametrize("value", ["scheduler.replicas=0", "webhook.failurePolicy=Maybe", "x=1"])
def test_the_schema_rejects_wrong_values(value: str) -> None:
    said = helm("template", str(CHART), "--set", value, check=False)
    assert "values don't meet the specifications of the schema" in said


def test_optional_resources_of_others_are_rendered() -> None:
    text = rendered("podMonitor.enabled=true", "webhook.certManager.enabled=true")
    kinds = [one["kind"] for one in yaml.safe_load_all(text) if one]
    assert kinds.count("PodMonitor") == 3
    assert {"Certificate", "Issuer"} <= {*kinds}
    assert "Secret" not in kinds


def test_the_plain_manifests_are_those_of_the_chart() -> None:
    stored = (MANIFESTS / "gpu-scheduler.yaml").read_text(encoding="utf-8")
    assert stored == rendered(), "run 'make manifests'"


@pytest.mark.parametrize(
    ("version", "values", "is_on"),
    [
        ("1.34.0", [], True),
        ("1.33.13", [], False),
        ("1.34.0", ["agent.dra=false"], False),
        ("1.33.13", ["agent.dra=true"], True),
        ("1.34.0", ["agent.enabled=false"], False),
    ],
)
def test_dra_is_on_where_the_cluster_has_it(version: str, values: list[str], is_on: bool) -> None:
    options = [option for value in values for option in ("--set", value)]
    text = helm("template", "gpu-scheduler", str(CHART), "--kube-version", version, *options)
    kinds = [one["kind"] for one in yaml.safe_load_all(text) if one]
    assert ("DeviceClass" in kinds, "--dra=yes" in text) == (is_on, is_on)
    assert ("--dra=no" in text) is not is_on


@pytest.mark.parametrize("variant", VARIANTS)
def test_the_api_server_accepts_every_manifest(plane: ControlPlane, variant: str) -> None:
    text = rendered(*VARIANTS[variant])
    crds = str(CHART / "crds")
    plane.kubectl("apply", "--server-side", "--force-conflicts", "-f", crds)
    flags = ("--server-side", "--dry-run=server", "--validate=strict", "--force-conflicts")
    plane.kubectl("apply", *flags, "-f", "-", stdin=text)


def test_the_pods_comply_with_pod_security(plane: ControlPlane) -> None:
    """Scheduler and webhook with the level restricted; the agent needs directories of its node."""
    found = [one for one in yaml.safe_load_all(rendered()) if one]
    for level, kinds in (("restricted", {"Deployment"}), ("privileged", {"DaemonSet"})):
        namespace = f"level-{level}"
        manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}
        manifest["metadata"]["labels"] = {"pod-security.kubernetes.io/enforce": level}  # type: ignore[index]
        apply(plane, manifest)
        for one in found:
            if one["kind"] in kinds:
                template = one["spec"]["template"]
                template["spec"].pop("serviceAccountName")
                metadata = {"name": one["metadata"]["name"], "namespace": namespace}
                plane.wait_for(f"/api/v1/namespaces/{namespace}/serviceaccounts/default")
                apply(
                    plane,
                    {
                        "apiVersion": "v1",
                        "kind": "Pod",
                        "metadata": metadata,
                        "spec": template["spec"],
                    },
                )


def test_the_chart_refuses_to_run_beside_another_device_plugin(plane: ControlPlane) -> None:
    labels = {"app": "other"}
    image = "nvcr.io/nvidia/k8s-device-plugin:v0.17.0"
    other = {
        "apiVersion": "apps/v1",
        "kind": "DaemonSet",
        "metadata": {"name": "nvidia-device-plugin", "namespace": "kube-system"},
        "spec": {
            "selector": {"matchLabels": labels},
            "template": {
                "metadata": {"labels": labels},
                "spec": {"containers": [{"name": "plugin", "image": image}]},
            },
        },
    }
    apply(plane, other)
    command = ("install", "second", str(CHART), "-n", "default", "--dry-run=server")
    said = helm(*command, plane=plane, check=False)
    assert "another device plugin for nvidia.com/gpu" in said
    allowed = helm(
        *command, "--set", "agent.devicePlugin.allowOthers=true", plane=plane, check=False
    )
    assert "another device plugin" not in allowed
    plane.kubectl("-n", "kube-system", "delete", "daemonset", "nvidia-device-plugin")


# --- what the accounts may


@pytest.mark.parametrize(
    ("account", "verb", "resource", "namespace"),
    [
        ("scheduler", "get", "secrets", NAMESPACE),
        ("scheduler", "create", "pods", "default"),
        ("scheduler", "delete", "pods", "default"),
        ("scheduler", "patch", "nodes", "default"),
        ("scheduler", "update", "leases.coordination.k8s.io", "kube-system"),
        ("scheduler", "update", "gpuclaims.gpu.scheduling", "default"),
        ("webhook", "list", "secrets", NAMESPACE),
        ("webhook", "create", "secrets", NAMESPACE),
        ("webhook", "get", "secrets/other", NAMESPACE),
        ("webhook", "patch", "mutatingwebhookconfigurations/other", "default"),
        ("webhook", "list", "pods", "default"),
        ("agent", "get", "secrets", NAMESPACE),
        ("agent", "patch", "pods", "default"),
        ("agent", "patch", "nodes", "default"),
        ("agent", "update", "resourceclaims.resource.k8s.io --subresource=status", "default"),
        ("agent", "create", "leases.coordination.k8s.io", NAMESPACE),
    ],
)
def test_an_account_may_not(
    installed: ControlPlane, account: str, verb: str, resource: str, namespace: str
) -> None:
    user = f"system:serviceaccount:{NAMESPACE}:gpu-scheduler-{account}"
    said = installed.kubectl(
        "auth", "can-i", verb, *resource.split(), "-n", namespace, f"--as={user}", check=False
    )
    assert said.strip().splitlines()[-1] == "no", said


def granted(plane: ControlPlane) -> set[tuple[str, str]]:
    """Verbs and resources of the roles of the scheduler."""
    roles = [
        json.loads(plane.kubectl("get", "clusterrole", "gpu-scheduler-scheduler", "-o", "json")),
        json.loads(
            plane.kubectl("-n", NAMESPACE, "get", "role", "gpu-scheduler-scheduler", "-o", "json")
        ),
    ]
    return {
        (verb, resource)
        for role in roles
        for rule in role["rules"]
        for verb in rule["verbs"]
        for resource in rule["resources"]
    }


def used(plane: ControlPlane) -> tuple[set[tuple[str, str]], set[tuple[str, str]]]:
    """What the scheduler did by the audit log, and what it was refused."""
    done: set[tuple[str, str]] = set()
    refused: set[tuple[str, str]] = set()
    for line in plane.audit_log.read_text(encoding="utf-8").splitlines():
        try:
            event = json.loads(line)
        except ValueError:
            continue  # the last line is being written
        if event["user"]["username"] != SCHEDULER:
            continue
        about = event.get("objectRef", {})
        name = "/".join(filter(None, [about.get("resource"), about.get("subresource")]))
        code = event.get("responseStatus", {}).get("code")
        (refused if code == 403 else done).add((event["verb"], name))
    return done, refused


def test_the_scheduler_uses_all_that_its_account_may_and_nothing_else(
    installed: ControlPlane, tmp_path: Path, port: int
) -> None:
    webhook = Component(
        *("webhook", installed.kubeconfig_of_account("gpu-scheduler-webhook", NAMESPACE)),
        *(tmp_path / "webhook.log", "--namespace", NAMESPACE, "--host", "127.0.0.1"),
        *("--port", str(port), "--dns-name", "localhost", "--dra", "yes"),
    )
    scheduler = Component(
        *("scheduler", installed.kubeconfig_of_account("gpu-scheduler-scheduler", NAMESPACE)),
        *(tmp_path / "scheduler.log", "--namespace", NAMESPACE),
        *("--listen", f"127.0.0.1:{lasting_port()}"),
    )
    both = [webhook, scheduler]

    def phase(name: str) -> str:
        return installed.kubectl(
            "get", "pod", name, "-o", "jsonpath={.status.phase}", check=False
        ).strip()

    try:
        webhook.start()
        scheduler.start()
        until(lambda: "the API server trusts" in webhook.text(), both)
        urgent = {
            "apiVersion": "scheduling.k8s.io/v1",
            "kind": "PriorityClass",
            "metadata": {"name": "urgent"},
            "value": 100_000,
        }
        claim = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuClaim",
            "metadata": {"name": "one", "namespace": "default"},
            "spec": {"devices": {"count": 1}, "maxRunTimeSeconds": 3600},
        }
        annotated = {"annotations": {"gpu.scheduling/claim": "one"}}
        apply(installed, kwok_node("a", gpus=1), urgent, claim)
        # The API server uses new certificates of a webhook a moment later.
        until(
            lambda: "created" in apply(installed, pod("low", metadata=annotated), check=False), both
        )
        env = installed.kubectl(
            "get", "pod", "low", "-o", "jsonpath={.spec.containers[0].env[*].name}"
        )
        assert env.split() == ["NVIDIA_VISIBLE_DEVICES", "CUDA_VISIBLE_DEVICES"]
        until(lambda: phase("low") == "Running", both)
        # The claim's time limit becomes the deadline of the pod.
        until(
            lambda: (
                installed.kubectl(
                    "get", "pod", "low", "-o", "jsonpath={.spec.activeDeadlineSeconds}"
                )
                == "3600"
            ),
            both,
        )
        # Preempted by the Eviction API.
        apply(installed, pod("high", priorityClassName="urgent"))
        until(lambda: phase("high") == "Running", both)
        # A volume that is made where its pod goes.
        storage = {
            "apiVersion": "storage.k8s.io/v1",
            "kind": "StorageClass",
            "metadata": {"name": "late"},
            "provisioner": "example.com/disk",
            "volumeBindingMode": "WaitForFirstConsumer",
        }
        volume = {
            "apiVersion": "v1",
            "kind": "PersistentVolumeClaim",
            "metadata": {"name": "data", "namespace": "default"},
            "spec": {
                "accessModes": ["ReadWriteOnce"],
                "storageClassName": "late",
                "resources": {"requests": {"storage": "1Gi"}},
            },
        }
        mounted = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        node = kwok_node("b", gpus=1)
        apply(installed, node, storage, volume, pod("disk", volumes=mounted))
        until(
            lambda: (
                "volume.kubernetes.io/selected-node"
                in installed.kubectl("get", "pvc", "-o", "json")
            ),
            both,
        )
        # A GpuClaim alone: the webhook names a ResourceClaim, and the scheduler makes it.
        dra_node(installed, "c")
        by_claim = pod("by-claim", gpus=0, metadata=annotated, nodeSelector={"offers": "c"})
        apply(installed, by_claim)
        until(lambda: phase("by-claim") == "Running", both)
        used_claims = installed.kubectl("get", "resourceclaims", "-o", "json")
        (made,) = json.loads(used_claims)["items"]
        asked = {"name": "r", "exactly": {"deviceClassName": "gpu.scheduling"}}
        theirs = {
            "apiVersion": "resource.k8s.io/v1",
            "kind": "ResourceClaim",
            "metadata": {"name": "theirs", "namespace": "default"},
            "spec": {"devices": {"requests": [asked]}},
        }
        uses = [{"name": "r", "resourceClaimName": "theirs"}]
        selected = {"nodeSelector": {"offers": "c"}, "resourceClaims": uses}
        apply(installed, theirs, pod("by-theirs", gpus=0, **selected))
        until(lambda: phase("by-theirs") == "Running", both)
        assert made["metadata"]["ownerReferences"][0]["name"] == "by-claim"
        (result,) = made["status"]["allocation"]["devices"]["results"]
        allocated = installed.kubectl(
            "get",
            "pod",
            "by-claim",
            "-o",
            r"jsonpath={.metadata.annotations.gpu\.scheduling/allocated}",
        )
        assert (result["pool"], result["device"]) == ("c", allocated.lower())
        # Quotas and reservations have a status as well.
        queue = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuQueue",
            "metadata": {"name": "others"},
            "spec": {"namespaces": ["others"]},
        }
        start = datetime.now(UTC) + timedelta(days=1)
        kept = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuReservation",
            "metadata": {"name": "tomorrow"},
            "spec": {
                "queue": "others",
                "count": 1,
                "startTime": start.strftime("%Y-%m-%dT%H:%M:%SZ"),
                "endTime": (start + timedelta(hours=1)).strftime("%Y-%m-%dT%H:%M:%SZ"),
            },
        }
        apply(installed, queue, kept)
        installed.kubectl("delete", "pod", "high", "--wait=false")
        until(lambda: ("delete", "leases") in used(installed)[0], both)
        # Used only if another writer was faster; and what API servers check since 1.36.
        rarely = {("get", "pods")}
        rarely |= {(verb, "resourceclaims/binding") for verb in ("update", "patch")}
        until(lambda: granted(installed) - rarely <= used(installed)[0], both)
        done, refused = used(installed)
        assert refused == set()
        assert granted(installed) - done <= rarely
    finally:
        for one in both:
            if one.process is not None:
                one.stop()
    outage_blocks_no_other_pods(installed)


def dra_node(plane: ControlPlane, name: str) -> None:
    """A node of kwok with what its agent would report: two GPUs, offered to ResourceClaims."""
    node = kwok_node(name, gpus=0, labels={"offers": name})
    node["status"]["nodeInfo"] = {
        "kubeletVersion": "v1.35.0",
        **dict.fromkeys(
            (
                *("machineID", "systemUUID", "bootID", "kernelVersion", "osImage"),
                *("containerRuntimeVersion", "kubeProxyVersion", "operatingSystem"),
                "architecture",
            ),
            "test",
        ),
    }
    node["status"]["allocatable"].pop("nvidia.com/gpu")
    status = GpuNodeStatusStatus(
        heartbeat_time=datetime.now(UTC),
        gpus=tuple(
            Gpu(index=index, uuid=f"GPU-{name}-{index}", model="NVIDIA H100", memory_mib=81920)
            for index in range(2)
        ),
    )
    report = {
        "apiVersion": "gpu.scheduling/v1",
        "kind": "GpuNodeStatus",
        "metadata": {"name": name},
    }
    apply(plane, node, report)
    changes = json.dumps({"status": msgspec.to_builtins(status)})
    patch = ("patch", "gpunodestatus", name, "--subresource=status", "--type=merge", "-p")
    plane.kubectl(*patch, changes)
    uid = plane.kubectl("get", "node", name, "-o", "jsonpath={.metadata.uid}")
    owner = OwnerReference(api_version="v1", kind="Node", name=name, uid=uid)
    offered = resource_slice(name, status, owner, SliceState())
    assert offered is not None
    offered["metadata"]["name"] = slice_name(name)
    apply(plane, {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice", **offered})


def outage_blocks_no_other_pods(plane: ControlPlane) -> None:
    said = apply(plane, pod("ours"), check=False)
    assert "pods.gpu.scheduling" in said, "a pod of ours would not see its GPUs"
    apply(plane, pod("theirs", schedulerName="default-scheduler"))


# --- what others may not


def test_only_the_scheduler_writes_allocations_and_leases(installed: ControlPlane) -> None:
    other = {"schedulerName": "default-scheduler"}
    forged = {"annotations": {"gpu.scheduling/allocated": "0"}}
    said = apply(installed, pod("forged", metadata=forged, **other), check=False)
    assert "only the GPU scheduler may set the annotations" in said
    apply(installed, pod("honest", **other))
    annotate = ("annotate", "pod", "honest")
    assert "only the GPU scheduler" in installed.kubectl(
        *annotate, "gpu.scheduling/gpu-indices=0", check=False
    )
    patch = ("patch", "pod", "honest", "--type=merge", "-p", json.dumps({"metadata": forged}))
    assert "only the GPU scheduler" in installed.kubectl(
        *patch, "--subresource=status", check=False
    )
    installed.kubectl(*annotate, "note=1")
    uid = installed.kubectl("get", "pod", "honest", "-o", "jsonpath={.metadata.uid}")
    binding = {
        "apiVersion": "v1",
        "kind": "Binding",
        "metadata": {"name": "honest", "uid": uid, **forged},
        "target": {"kind": "Node", "name": "a"},
    }
    path = "/api/v1/namespaces/default/pods/honest/binding"
    said = installed.kubectl(
        "create", "--raw", path, "-f", "-", stdin=json.dumps(binding), check=False
    )
    assert "only the GPU scheduler" in said
    lease = {"apiVersion": "coordination.k8s.io/v1", "kind": "Lease"}
    for name, namespace, may in (
        ("gpu-a-0", NAMESPACE, False),
        ("gpu-scheduler", NAMESPACE, False),
        ("other", NAMESPACE, True),
        ("gpu-a-0", "default", True),
    ):
        manifest = {**lease, "metadata": {"name": f"{name}", "namespace": namespace}}
        said = apply(installed, manifest, check=False)
        assert ("only the GPU scheduler" in said) is not may, said


def test_only_the_scheduler_allocates_our_devices(installed: ControlPlane) -> None:
    claim = {
        "apiVersion": "resource.k8s.io/v1",
        "kind": "ResourceClaim",
        "metadata": {"name": "gpu", "namespace": "default"},
        "spec": {
            "devices": {
                "requests": [{"name": "r", "exactly": {"deviceClassName": "gpu.scheduling"}}]
            }
        },
    }
    apply(installed, claim)

    def allocate(driver: str) -> str:
        result = {"request": "r", "driver": driver, "pool": "a", "device": "gpu-0"}
        changes = {"status": {"allocation": {"devices": {"results": [result]}}}}
        return installed.kubectl(
            *("patch", "resourceclaim", "gpu", "--subresource=status", "--type=merge"),
            *("-p", json.dumps(changes)),
            check=False,
        )

    assert "only the GPU scheduler allocates" in allocate("gpu.scheduling")
    assert "patched" in allocate("other.example")


def test_an_agent_reports_only_its_own_node(installed: ControlPlane) -> None:
    for name in ("node-1", "node-2"):
        apply(installed, kwok_node(name))
    config = installed.kubeconfig_of_account(
        *("gpu-scheduler-agent", NAMESPACE, "--bound-object-kind=Node"),
        "--bound-object-name=node-1",
    )

    def report(node: str) -> str:
        manifest = {
            "apiVersion": "gpu.scheduling/v1",
            "kind": "GpuNodeStatus",
            "metadata": {"name": node},
        }
        return installed.kubectl(
            f"--kubeconfig={config}", "create", "-f", "-", stdin=json.dumps(manifest), check=False
        )

    assert "an agent may only report the GPUs of its own node" in report("node-2")
    assert "created" in report("node-1")


def test_editors_write_claims_but_not_their_status(installed: ControlPlane) -> None:
    installed.kubectl(
        "create", "rolebinding", "eve", "--clusterrole=edit", "--user=eve", "-n", "default"
    )

    def can(verb: str, resource: str, *flags: str) -> str:
        said = installed.kubectl("auth", "can-i", verb, resource, "--as=eve", *flags, check=False)
        return said.strip().splitlines()[-1]

    until(lambda: can("create", "gpuclaims.gpu.scheduling") == "yes")
    assert can("patch", "gpuclaims.gpu.scheduling", "--subresource=status") == "no"
    assert can("create", "gpuqueues.gpu.scheduling") == "no"
