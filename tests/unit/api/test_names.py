"""One rule for every name, over REST and in reports of agents; stored names stay usable."""

import base64
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.api.auth.accounts import Directory
from gpu_scheduler.api.auth.jwt import Issuer, JwtVerifier, Keys
from gpu_scheduler.api.http.errors import BadToken
from gpu_scheduler.api.nodes.protocol import reported_node
from gpu_scheduler.control.messages import NodeReported, NodeSilent, SetNode
from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.node import Node
from gpu_scheduler.model.tenant import TenantDirectory
from gpu_scheduler.wire import agent_pb2 as pb
from tests.unit.api.lab import ApiLab

BAD = {
    "control": "a\x1b[2Jb",
    "newline": "a\nb",
    "slash": "../x y",
    "parent": "a..b",
    "spaces": " a ",
    "long": "a" * 300,
}
MANY = pytest.mark.parametrize("name", BAD.values(), ids=BAD)


@pytest.fixture(scope="module")
def lab() -> Iterator[ApiLab]:
    with ApiLab() as lab:
        yield lab


def reported(name: str) -> NodeReported:
    return NodeReported(node_id=name, cpu_milli=1000, memory_mb=1000)


def stored(name: str, ordinal: int) -> SetNode:
    """A node of a database from before the rule."""
    return SetNode(Node(id=name, ordinal=ordinal, cpu_milli=1000, memory_mb=1000, devices=()))


@MANY
def test_node_with_bad_name_cannot_join(lab: ApiLab, name: str) -> None:
    with pytest.raises(InvalidRequest, match="name of a node"):
        lab.tell(reported(name))
    assert [node["id"] for node in lab.get("/nodes").json["nodes"]] == ["n0"]


@MANY
@pytest.mark.parametrize(
    ("path", "body", "field"),
    [
        ("/tenants", {}, "name"),
        ("/tenants", {"name": "ok"}, "id"),
        ("/tenants", {"name": "ok"}, "users"),
        ("/tenants", {"name": "ok"}, "admins"),
        ("/tenants", {"name": "ok"}, "linux_groups"),
        ("/tokens", {"user": "nobody", "role": "viewer"}, "name"),
        ("/nodes/tokens", {}, "name"),
        ("/nodes/tokens", {}, "nodes"),
        ("/reservations", {"gpus": 1, "tenant_id": "default", "duration_minutes": 5}, "name"),
        ("/reservations", {"gpus": 1, "tenant_id": "default", "duration_minutes": 5}, "user"),
        ("/reservations", {"gpus": 1, "tenant_id": "default", "duration_minutes": 5}, "node"),
        ("/services", {"command": ["true"]}, "name"),
    ],
    ids=lambda value: value.strip("/").replace("/", "-") if isinstance(value, str) else "",
)
def test_bad_name_is_rejected(
    lab: ApiLab, path: str, body: dict[str, Any], field: str, name: str
) -> None:
    value: Any = [name] if field in {"users", "admins", "linux_groups", "nodes"} else name
    reply = lab.post(path, {**body, field: value})
    assert (reply.status, reply.code) == (400, "invalid_request"), reply.body


@MANY
def test_bad_label_is_rejected(lab: ApiLab, name: str) -> None:
    reply = lab.call("PATCH", "/nodes/n0", {"labels": {name: "x"}})
    assert (reply.status, reply.code) == (400, "invalid_request"), reply.body


def test_names_with_spaces_inside_are_accepted(lab: ApiLab) -> None:
    assert lab.post("/tenants", {"name": "ML Research Team"}).status == 201
    assert lab.call("PATCH", "/nodes/n0", {"labels": {"nvidia.com/gpu": "yes"}}).status == 200


def test_text_of_agents_is_cleaned() -> None:
    device = pb.Device(index=0, uuid="GPU-\x1b1", model="A100\n", memory_mb=1)
    inventory = pb.Inventory(
        cpu_milli=1, memory_mb=1, devices=[device], rack="r\x1b1", labels={"a\nb": "c\rd"}
    )
    fact = reported_node(pb.Hello(node="n1", version="1\n2", address="h\x00"), inventory)
    assert repr(fact).count("\\x") == repr(fact).count("\\n") == repr(fact).count("\\r") == 0


@pytest.mark.parametrize("name", ["../x y", "keys/n0", "a\x1b[2Jb", "tokens/x", "n0/drain"])
def test_stored_node_with_bad_name_is_shown_and_removed(name: str) -> None:
    quoted = "".join(f"%{byte:02x}" for byte in name.encode())
    with ApiLab() as lab:
        lab.tell(stored(name, 7))
        lab.tell(reported(name))
        assert name in {node["id"] for node in lab.get("/nodes").json["nodes"]}
        assert lab.get(f"/nodes/{quoted}").json["id"] == name
        assert lab.post(f"/nodes/{quoted}/cordon", {}).json["state"] == "cordoned"
        lab.tell(NodeSilent(name))
        assert lab.call("DELETE", f"/nodes/{quoted}").status == 200
        assert {node["id"] for node in lab.get("/nodes").json["nodes"]} == {"n0"}


def test_metrics_have_no_control_character() -> None:
    names = ["a\x1b[2Jb", "c\rd", 'e\nf{x="1"} 1', "g\x9bh", "i\u2028j"]
    with ApiLab() as lab:
        for ordinal, name in enumerate(names, 7):
            lab.tell(stored(name, ordinal))
        text = lab.get("/metrics", root=True).body.decode()
    assert all(line.isprintable() for line in text.split("\n"))
    assert text.count("gpu_scheduler_agent_connected{") == len(names) + 1


@pytest.mark.parametrize("media", ["application/json", "application/x-ndjson"])
@pytest.mark.parametrize("path", ["/jobs", "/jobs/bulk", "/tenants", "/tokens", "/reservations"])
def test_deep_body_is_rejected(lab: ApiLab, path: str, media: str) -> None:
    for text in (b"[" * 5_000 + b"]" * 5_000, b'{"a":' * 5_000 + b"1" + b"}" * 5_000):
        for body in (text, b'{"name": ' + text + b"}", b'{"command": ' + text + b"}"):
            reply = lab.post(path, body, headers={"Content-Type": media})
            assert reply.status in {400, 415}, (reply.status, reply.body[:200])


def test_deep_web_token_is_rejected(tmp_path: Path) -> None:
    file = tmp_path / "key"
    file.write_bytes(b"s" * 32)
    keys = Keys(str(file), lambda name: Path(name).read_bytes(), "HS256", is_set=False)
    people = Directory(0, (), lambda: TenantDirectory.of([]))
    issuer = Issuer(algorithm="HS256", issuer="i", audience="a", roles={})
    verifier = JwtVerifier(issuer, keys, people, lambda name: name)
    head = base64.urlsafe_b64encode(b'{"a":' + b"[" * 50_000 + b"]" * 50_000 + b"}").decode()
    with pytest.raises(BadToken):
        verifier.caller(f"{head.rstrip('=')}.e30.AAAA", "")
