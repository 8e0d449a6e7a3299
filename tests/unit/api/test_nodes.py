"""Nodes over REST: display and admin commands."""

from collections.abc import Iterator

import pytest

from gpu_scheduler.control.messages import NodeLost, NodeReported, NodeSilent
from gpu_scheduler.model.node import Adapter
from tests.unit.api.lab import ApiLab
from tests.unit.api.test_app import ByHeader

BEN = {"X-Test-User": "ben"}


@pytest.fixture
def lab() -> Iterator[ApiLab]:
    with ApiLab(authenticators=[ByHeader()]) as lab:
        yield lab


def test_node_shows_its_inventory(lab: ApiLab) -> None:
    lab.tell(
        NodeReported(
            node_id="ib1",
            cpu_milli=64_000,
            memory_mb=512_000,
            rack="r2",
            address="10.0.0.7",
            version="0.1.0",
            numa_nodes=2,
            direct_storage=True,
            adapters=(Adapter(name="mlx5_0", rate_gbps=400, numa_node=1),),
        )
    )
    node = lab.get("/nodes/ib1").json
    assert (node["state"], node["rack"], node["address"]) == ("online", "r2", "10.0.0.7")
    assert (node["numa_nodes"], node["direct_storage"], node["jobs"]) == (2, True, [])
    assert node["adapters"][0]["name"] == "mlx5_0"
    assert {"n0", "ib1"} == {one["id"] for one in lab.get("/nodes").json["nodes"]}


def test_node_is_cordoned_drained_and_uncordoned(lab: ApiLab) -> None:
    job = lab.submit(gpu_count=1)
    cordoned = lab.post("/nodes/n0/cordon", {"reason": "a fan is loud"}).json
    assert (cordoned["state"], cordoned["closed"]["reason"]) == ("cordoned", "a fan is loud")
    drained = lab.post("/nodes/n0/drain", {"deadline_seconds": 3600}).json
    assert (drained["state"], drained["jobs"]) == ("draining", [job])
    assert drained["closed"]["requeue_at"] is not None
    assert lab.get("/nodes").json["nodes"][0]["free_gpus"] == 0
    waits = lab.submit(gpu_count=1)
    told = lab.get(f"/jobs/{waits}/explain").json
    assert (told["code"], told["reason"]) == (
        "nodes_closed",
        "no node takes work: 1 x being drained",
    )
    assert lab.post("/nodes/n0/uncordon", {}).json["state"] == "online"


def test_lost_node_is_shown_as_lost_whatever_its_closure(lab: ApiLab) -> None:
    lab.post("/nodes/n0/drain", {})
    lab.tell(NodeSilent("n0"))
    lab.tell(NodeLost("n0"))
    assert lab.get("/nodes/n0").json["state"] == "lost"


def test_nodes_are_sorted_by_name(lab: ApiLab) -> None:
    for name in ("n10", "rack2-n1", "n2"):
        lab.tell(NodeReported(node_id=name, cpu_milli=64_000, memory_mb=512_000))
    names = [node["id"] for node in lab.get("/nodes").json["nodes"]]
    assert names == ["n0", "n2", "n10", "rack2-n1"]


def test_gpus_of_unresponsive_node_are_marked(lab: ApiLab) -> None:
    lab.tell(NodeSilent("n0"))
    gpus = lab.get("/gpus").json["gpus"]
    assert {gpu["why"] for gpu in gpus} == {"its node does not answer"}


def test_labels_are_set_and_removed(lab: ApiLab) -> None:
    set_ = lab.call("PATCH", "/nodes/n0", {"labels": {"zone": "b", "owner": "vision"}}).json
    assert set_["labels"] | {"zone": "b", "owner": "vision"} == set_["labels"]
    gone = lab.call("PATCH", "/nodes/n0", {"labels": {"owner": None}}).json
    assert "owner" not in gone["labels"]


def test_only_disconnected_node_can_be_removed(lab: ApiLab) -> None:
    refused = lab.call("DELETE", "/nodes/n0")
    assert (refused.status, "its agent is connected" in refused.error) == (409, True)
    lab.tell(NodeSilent("n0"))
    assert lab.call("DELETE", "/nodes/n0").json["id"] == "n0"
    assert lab.get("/nodes").json["nodes"] == []


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "says"),
    [
        ("POST", "/nodes/nowhere/drain", {}, 404, "node 'nowhere' is not known; known: n0"),
        ("GET", "/nodes/nowhere", None, 404, "is not known"),
        ("POST", "/nodes/n0/drain", {"deadline_seconds": -1}, 400, "deadline_seconds"),
        ("POST", "/nodes/n0/drain", {"deadline": 5}, 400, "deadline"),
        (
            "POST",
            "/nodes/n0/drain",
            {"requeue": True, "deadline_seconds": 5},
            400,
            "leave out one",
        ),
        ("POST", "/nodes/n0/cordon", {"reason": "a\nb"}, 400, "control character"),
        ("PATCH", "/nodes/n0", {"labels": {"tgpu.runner.tmux": "no"}}, 400, "set by agents"),
        ("PATCH", "/nodes/n0", {"labels": {}}, 400, "labels"),
        ("PATCH", "/nodes/n0", {"state": "online"}, 400, "state"),
    ],
)
def test_invalid_node_request_is_rejected_and_changes_nothing(
    lab: ApiLab, method: str, path: str, body: object, status: int, says: str
) -> None:
    before = lab.get("/nodes").json
    reply = lab.call(method, path, body)
    assert reply.status == status, reply.json
    assert says in reply.error
    assert lab.get("/nodes").json == before


def test_everyone_sees_nodes_and_only_admins_change_them(lab: ApiLab) -> None:
    assert lab.get("/nodes/n0", headers=BEN).status == 200
    for method, path, body in (
        ("POST", "/nodes/n0/cordon", {}),
        ("POST", "/nodes/n0/drain", {"requeue": True}),
        ("POST", "/nodes/n0/uncordon", {}),
        ("PATCH", "/nodes/n0", {"labels": {"a": "b"}}),
        ("DELETE", "/nodes/n0", None),
    ):
        refused = lab.call(method, path, body, headers=BEN)
        assert (refused.status, refused.code) == (403, "forbidden"), path
    assert lab.get("/nodes/n0").json["state"] == "online"


def test_drain_is_audited_with_actor_and_reason(lab: ApiLab) -> None:
    lab.post("/nodes/n0/drain", {"reason": "new driver"})
    rows = lab.get("/audit").json["records"]
    row = next(row for row in rows if row["action"] == "drain")
    assert (row["target"], row["detail"], row["outcome"]) == ("n0", "new driver", "done")
