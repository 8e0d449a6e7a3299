"""Which nodes the rules of Kubernetes exclude for a pod, and in which words."""

from typing import Any

import pytest

from gpu_scheduler.kubernetes.quantities import (
    InvalidQuantity,
    amount,
    parse_quantity,
    pod_requests,
)
from gpu_scheduler.kubernetes.scheduler.filters import Filters
from tests.kubernetes_objects import NAMESPACE, Manifest, a_node, a_pod, meta, objects_of

ZONE = "topology.kubernetes.io/zone"
TAINT = {"key": "gpu", "value": "h100", "effect": "NoSchedule"}


def rejected(pod: Manifest, *others: Manifest, node: str = "n") -> str:
    objects = objects_of(pod, *others)
    filters = Filters(objects)
    found = objects.pods[NAMESPACE, pod["metadata"]["name"]]
    return filters.refusal(found) or filters.rejection(filters.rules(found), node)


def affinity(kind: str, key: str = ZONE, **term: Any) -> dict[str, Any]:
    rule = {"labelSelector": {"matchLabels": {"app": "db"}}, "topologyKey": key, **term}
    return {kind: {"requiredDuringSchedulingIgnoredDuringExecution": [rule]}}


def node_affinity(*terms: dict[str, Any]) -> dict[str, Any]:
    required = {"nodeSelectorTerms": list(terms)}
    return {"nodeAffinity": {"requiredDuringSchedulingIgnoredDuringExecution": required}}


def expression(key: str, operator: str, *values: str) -> dict[str, Any]:
    return {"matchExpressions": [{"key": key, "operator": operator, "values": list(values)}]}


# --- nodes


def test_a_plain_pod_may_go_anywhere() -> None:
    assert rejected(a_pod("p", gpus=1), a_node("n")) == ""


@pytest.mark.parametrize(
    ("node", "pod", "word"),
    [
        ({"ready": False}, {}, "not ready"),
        ({"unschedulable": True}, {}, "cordoned"),
        ({}, {"nodeSelector": {"disk": "ssd"}}, "not selected"),
        ({"labels": {"disk": "ssd"}}, {"nodeSelector": {"disk": "ssd"}}, ""),
        ({"taints": [TAINT]}, {}, "with the taint gpu=h100:NoSchedule"),
        ({"taints": [TAINT]}, {"tolerations": [{"operator": "Exists"}]}, ""),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "gpu", "value": "h100"}]}, ""),
        ({"taints": [TAINT]}, {"tolerations": [{"key": "gpu", "value": "a100"}]}, "with the taint"),
        (
            {"taints": [TAINT]},
            {"tolerations": [{"key": "gpu", "operator": "Exists", "effect": "NoExecute"}]},
            "with the taint",
        ),
        ({"taints": [{**TAINT, "effect": "PreferNoSchedule"}]}, {}, ""),
        (
            {"unschedulable": True},
            {"tolerations": [{"key": "node.kubernetes.io/unschedulable", "operator": "Exists"}]},
            "",
        ),
    ],
)
def test_state_labels_and_taints_of_a_node(
    node: dict[str, Any], pod: dict[str, Any], word: str
) -> None:
    assert rejected(a_pod("p", **pod), a_node("n", **node)).startswith(word)
    assert bool(rejected(a_pod("p", **pod), a_node("n", **node))) == bool(word)


@pytest.mark.parametrize(
    ("terms", "allowed"),
    [
        ([expression("gen", "In", "7", "8")], True),
        ([expression("gen", "In", "9")], False),
        ([expression("gen", "NotIn", "8")], False),
        ([expression("gen", "Exists")], True),
        ([expression("gen", "DoesNotExist")], False),
        ([expression("gen", "Gt", "7")], True),
        ([expression("gen", "Lt", "8")], False),
        ([expression("gen", "Gt", "many")], False),
        ([expression("gen", "Resembles", "8")], False),
        ([expression("gen", "In", "9"), expression("gen", "In", "8")], True),
        ([{}], False),
        ([], False),
        (
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["n"]}]}],
            True,
        ),
        (
            [{"matchFields": [{"key": "metadata.name", "operator": "In", "values": ["m"]}]}],
            False,
        ),
    ],
)
def test_node_affinity(terms: list[dict[str, Any]], allowed: bool) -> None:
    pod = a_pod("p", affinity=node_affinity(*terms))
    assert (rejected(pod, a_node("n", labels={"gen": "8"})) == "") is allowed


# --- room


@pytest.mark.parametrize("resource", ["cpu", "memory", "ephemeral-storage", "example.com/nic"])
def test_requests_of_all_pods_count(resource: str) -> None:
    node = a_node(
        "n", cpu="10", memory="10", more={"ephemeral-storage": "10", "example.com/nic": "10"}
    )
    other = a_pod("o", node="n", scheduler="default-scheduler", requests={resource: "6"})
    ended = a_pod("e", node="n", phase="Succeeded", requests={resource: "6"})
    assert rejected(a_pod("p", requests={resource: "4"}), node, other, ended) == ""
    assert rejected(a_pod("p", requests={resource: "5"}), node, other) == (
        f"with too little {resource}"
    )


def test_an_unknown_resource_is_nowhere() -> None:
    assert rejected(a_pod("p", requests={"example.com/tpu": "1"}), a_node("n"))


def test_the_number_of_pods_is_limited() -> None:
    node = a_node("n", more={"pods": "1"})
    assert rejected(a_pod("p"), node, a_pod("o", node="n")) == "with too little room for pods"


def test_host_ports_are_taken_once() -> None:
    node, other = a_node("n"), a_pod("o", node="n", ports=(80,))
    assert rejected(a_pod("p", ports=(80,)), node, other) == "with host port 80 in use"
    assert rejected(a_pod("p", ports=(81,)), node, other) == ""


def test_requests_as_kubernetes_counts_them() -> None:
    pod = a_pod("p", requests={"cpu": "1"}, overhead={"cpu": "100m"})
    pod["spec"]["initContainers"] = [
        {"name": "side", "restartPolicy": "Always", "resources": {"requests": {"cpu": "500m"}}},
        {"name": "init", "resources": {"requests": {"cpu": "3", "memory": "1Gi"}}},
    ]
    found = objects_of(pod).pods[NAMESPACE, "p"]
    assert pod_requests(found) == {"cpu": 3600, "memory": 1 << 30}
    pod["status"]["containerStatuses"] = [{"name": "main", "allocatedResources": {"cpu": "4"}}]
    assert pod_requests(objects_of(pod).pods[NAMESPACE, "p"])["cpu"] == 4600
    pod["spec"]["resources"] = {"requests": {"cpu": "8"}}
    assert pod_requests(objects_of(pod).pods[NAMESPACE, "p"])["cpu"] == 8100


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("1", 1),
        ("1500m", 2),
        ("2Gi", 2 << 30),
        ("1e3", 1000),
        ("1E3", 1000),
        ("1k", 1000),
        ("3E", 3 * 10**18),
    ],
)
def test_quantities(text: str, value: int) -> None:
    assert amount("memory", text) == value


@pytest.mark.parametrize("text", ["", "Gi", "1 Gi", "1Kim", "many"])
def test_what_is_no_quantity(text: str) -> None:
    with pytest.raises(InvalidQuantity):
        parse_quantity(text)


# --- other pods


def test_anti_affinity_of_the_pod_and_of_others() -> None:
    node, near = a_node("n", labels={ZONE: "z"}), a_node("m", labels={ZONE: "z"})
    db = a_pod("db", node="m", labels={"app": "db"})
    wary = a_pod("p", affinity=affinity("podAntiAffinity"))
    assert rejected(wary, node, near, db) == "next to pods that its anti-affinity excludes"
    far = a_node("n", labels={ZONE: "y"})
    assert rejected(wary, far, near, db) == ""
    guarded = a_pod("w", node="m", affinity=affinity("podAntiAffinity"))
    comer = a_pod("p", labels={"app": "db"})
    assert rejected(comer, node, near, guarded).startswith("kept free of such pods")
    assert rejected(a_pod("p"), node, near, guarded) == ""


def test_affinity_needs_its_pods_or_itself() -> None:
    node = a_node("n", labels={ZONE: "z"})
    other = a_node("m", labels={ZONE: "y"})
    db = a_pod("db", node="m", labels={"app": "db"})
    pod = a_pod("p", affinity=affinity("podAffinity"))
    assert rejected(pod, node, other, db) == "not near the pods of its affinity"
    assert rejected(pod, node, other, db, node="m") == ""
    first = a_pod("p", labels={"app": "db"}, affinity=affinity("podAffinity"))
    assert rejected(first, node, other) == ""
    assert rejected(first, a_node("n")).startswith("without the label")


def test_affinity_across_namespaces() -> None:
    node = a_node("n", labels={ZONE: "z"})
    db = a_pod("db", node="n", namespace="prod", labels={"app": "db"})
    space = {"kind": "Namespace", "metadata": meta("prod", labels={"team": "a"})}
    for term, allowed in (
        ({}, False),
        ({"namespaces": ["prod"]}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "a"}}}, True),
        ({"namespaceSelector": {"matchLabels": {"team": "b"}}}, False),
        ({"namespaceSelector": {}}, True),
    ):
        pod = a_pod("p", affinity=affinity("podAffinity", **term))
        assert (rejected(pod, node, db, space) == "") is allowed


def test_topology_spread_counts_domains() -> None:
    nodes = [a_node("a", labels={ZONE: "x"}), a_node("b", labels={ZONE: "y"})]
    placed = [a_pod(f"o{n}", node="a", labels={"app": "web"}) for n in range(2)]
    rule = {
        "maxSkew": 1,
        "topologyKey": ZONE,
        "whenUnsatisfiable": "DoNotSchedule",
        "labelSelector": {"matchLabels": {"app": "web"}},
    }
    pod = a_pod("p", labels={"app": "web"}, topologySpreadConstraints=[rule])
    assert rejected(pod, *nodes, *placed, node="a").startswith("in a full part")
    assert rejected(pod, *nodes, *placed, node="b") == ""
    assert rejected(pod, a_node("n")).startswith("without the label")
    soft = {**rule, "whenUnsatisfiable": "ScheduleAnyway"}
    pod = a_pod("p", labels={"app": "web"}, topologySpreadConstraints=[soft])
    assert rejected(pod, *nodes, *placed, node="a") == ""
    wide = a_pod("p", labels={"app": "web"}, topologySpreadConstraints=[{**rule, "minDomains": 3}])
    assert rejected(wide, *nodes, *placed[:1], node="a").startswith("in a full part")


# --- volumes


def with_claim(**spec: Any) -> list[Manifest]:
    """A pod with a PersistentVolumeClaim of this spec."""
    volume = {"name": "data", "persistentVolumeClaim": {"claimName": "data"}}
    claim = {
        "kind": "PersistentVolumeClaim",
        "metadata": meta("data", NAMESPACE, annotations=spec.pop("annotations", {})),
        "spec": spec,
    }
    return [a_pod("p", volumes=[volume]), claim]


def a_volume(labels: dict[str, str] | None = None, **spec: Any) -> Manifest:
    return {"kind": "PersistentVolume", "metadata": meta("pv", labels=labels or {}), "spec": spec}


def a_class(**more: Any) -> Manifest:
    given = {"provisioner": "csi.example.com", "volumeBindingMode": "WaitForFirstConsumer", **more}
    return {"kind": "StorageClass", "metadata": meta("fast"), **given}


def test_a_bound_volume_limits_the_nodes() -> None:
    pod, claim = with_claim(volumeName="pv")
    here = {"nodeAffinity": {"required": {"nodeSelectorTerms": [expression(ZONE, "In", "z")]}}}
    node = a_node("n", labels={ZONE: "z"})
    assert rejected(pod, claim, a_volume(**here), node) == ""
    assert rejected(pod, claim, a_volume(**here), a_node("n")) == "out of reach of its volume"
    assert rejected(pod, claim, a_volume(labels={ZONE: "x__y"}), node).startswith("in another zone")
    assert "does not exist" in rejected(pod, claim, node)


def test_a_claim_that_is_not_bound() -> None:
    node = a_node("n", labels={ZONE: "z"})
    pod, claim = with_claim(storageClassName="fast")
    assert "storage class 'fast' does not exist" in rejected(pod, claim, node)
    assert "is not bound yet" in rejected(pod, claim, node, a_class(volumeBindingMode="Immediate"))
    assert "local volumes" in rejected(
        pod, claim, node, a_class(provisioner="kubernetes.io/no-provisioner")
    )
    assert rejected(pod, claim, node, a_class()) == ""
    only = [{"matchLabelExpressions": [{"key": ZONE, "values": ["y"]}]}]
    assert "outside the topology" in rejected(pod, claim, node, a_class(allowedTopologies=only))
    chosen = {"volume.kubernetes.io/selected-node": "m"}
    pod, claim = with_claim(storageClassName="fast", annotations=chosen)
    assert "not the node that was selected" in rejected(pod, claim, node, a_class())
    assert "does not exist" in rejected(pod, node)


@pytest.mark.parametrize(
    ("capacity", "is_enough"),
    [
        ({"capacity": "10Gi"}, True),
        ({"capacity": "9Gi"}, False),
        ({"capacity": "20Gi", "maximumVolumeSize": "5Gi"}, False),
        ({"capacity": "1Gi", "maximumVolumeSize": "10Gi"}, True),
        ({"capacity": "20Gi", "nodeTopology": {"matchLabels": {ZONE: "y"}}}, False),
        ({"capacity": "20Gi", "nodeTopology": None}, False),
        ({"capacity": "20Gi", "storageClassName": "slow"}, False),
        ({}, False),
    ],
)
def test_a_driver_that_publishes_its_capacity_limits_the_nodes(
    capacity: dict[str, Any], is_enough: bool
) -> None:
    asked = {"requests": {"storage": "10Gi"}}
    pod, claim = with_claim(storageClassName="fast", resources=asked)
    published = {
        "kind": "CSIStorageCapacity",
        "metadata": meta("here", "kube-system"),
        "storageClassName": "fast",
        "nodeTopology": {"matchLabels": {ZONE: "z"}},
        **capacity,
    }
    driver = {"kind": "CSIDriver", "metadata": meta("csi.example.com")}
    cluster = [pod, claim, a_node("n", labels={ZONE: "z"}), a_class()]
    counts = {**driver, "spec": {"storageCapacity": True}}
    why = "" if is_enough else "without enough capacity of its storage class"
    assert rejected(*cluster, counts, published) == why
    assert rejected(*cluster, driver, published) == "", "a driver that does not ask for it"


def test_a_claim_for_one_pod_is_used_by_one() -> None:
    pod, claim = with_claim(volumeName="pv", accessModes=["ReadWriteOncePod"])
    other = a_pod("o", node="n", volumes=pod["spec"]["volumes"])
    assert "ReadWriteOncePod" in rejected(pod, claim, a_volume(), a_node("n"), other)


def test_a_node_attaches_so_many_volumes() -> None:
    pod, claim = with_claim(volumeName="pv")
    volume = a_volume(csi={"driver": "csi.example.com", "volumeHandle": "v1"})
    limits = {
        "kind": "CSINode",
        "metadata": meta("n"),
        "spec": {"drivers": [{"name": "csi.example.com", "allocatable": {"count": 0}}]},
    }
    assert rejected(pod, claim, volume, limits, a_node("n")) == "at the limit of attached volumes"


def test_pods_with_the_token_of_an_account_are_judged_once() -> None:
    """Otherwise each pod of a large cluster is compared with each of its nodes."""
    token = [{"name": "kube-api-access-x", "projected": {"sources": []}}]
    claim = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    manifests = [
        *(a_pod(f"token-{n}", gpus=1, volumes=token) for n in range(2)),
        *(a_pod(f"claim-{n}", gpus=1, volumes=claim) for n in range(2)),
    ]
    objects = objects_of(a_node("n"), *manifests)
    filters = Filters(objects)
    signatures = {key[1]: filters.signature(pod) for key, pod in objects.pods.items()}
    assert signatures["token-0"] == signatures["token-1"]
    assert len({signatures[name] for name in ("token-0", "claim-0", "claim-1")}) == 3


def test_what_cannot_be_judged_is_refused() -> None:
    dra = a_pod("p", resourceClaims=[{"name": "gpu", "resourceClaimName": "x"}])
    assert "ResourceClaim" in rejected(dra, a_node("n"))
    old = a_pod("p", volumes=[{"name": "disk", "gcePersistentDisk": {"pdName": "x"}}])
    assert "of an old kind" in rejected(old, a_node("n"))
    broken = a_pod("p", requests={"cpu": "lots"})
    assert "is no quantity" in rejected(broken, a_node("n"))
