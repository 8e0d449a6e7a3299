"""Our JSON format, as one document and as lines: value types and errors."""

import gc
import json
from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.job import Dependency, DependencyKind
from gpu_scheduler.model.node import Device, Node
from gpu_scheduler.model.request import Request
from gpu_scheduler.model.tenant import Quota, Tenant, Tier
from gpu_scheduler.simulator.traces.native_format import (
    read_json,
    read_json_lines,
    write_json,
    write_json_lines,
)
from gpu_scheduler.simulator.workload import NodeGroup, nodes_of
from tests.simulation.trace_files import (
    Refusal,
    a_cluster,
    a_file,
    a_trace_job,
    gzipped,
    jobs_of,
)

NODES = [{"id": "big", "count": 4, "gpus": 8}]


def a_record(job_id: object = "a", **fields: object) -> dict[str, object]:
    return {"id": job_id, "submit_s": 0, "run_s": 60, "gpus": 1, **fields}


def a_document(folder: Path, *jobs: object, **sections: object) -> Path:
    """One item per line, the jobs from line 4 on."""
    lines = ["{"]
    for name, items in {"nodes": NODES, **sections}.items():
        lines.append(f'"{name}": {json.dumps(items)},')
    lines.append('"jobs": [')
    lines.extend(json.dumps(job) + "," for job in jobs)
    lines[-1] = lines[-1].rstrip(",")
    return a_file(folder, "trace.json", *lines, "]}")


def test_document_brings_its_nodes_tenants_and_jobs(tmp_path: Path) -> None:
    path = a_document(tmp_path, a_record(tenant="x"), tenants=[{"id": "x", "max_gpus": 4.5}])
    reading = read_json(path)
    (pool,) = reading.workload.partitions
    assert [node.id for node in pool.nodes] == ["big-000", "big-001", "big-002", "big-003"]
    assert pool.tenants == (Tenant(id="x", quota=Quota(gpu_milli=4500)),)
    assert [entry.job.id for entry in pool.jobs] == ["a"]
    assert pool.total_jobs == 1


def test_given_nodes_replace_those_of_document(tmp_path: Path) -> None:
    path = a_document(tmp_path, a_record())
    assert len(read_json(path, a_cluster(nodes=2)).workload.partitions[0].nodes) == 2


def test_values_may_have_json_types(tmp_path: Path) -> None:
    record = a_record(
        7,
        gpus=0.1,
        gpu_models=["GPU", "A"],
        preemptible=False,
        cpu_cores=1.5,
        array=None,
        priority=9,
        device_ids=[0, 1],
    )
    after = a_record("b", after=["afterok:7"], submit_s=1.25)
    first, second = jobs_of(read_json(a_document(tmp_path, record, after)))
    assert first.job.id == "7"
    assert first.job.members[0] == Request(
        gpu_count=1,
        gpu_share_milli=100,
        gpu_models=("A", "GPU"),
        cpu_milli=1500,
        device_ids=(0, 1),
    )
    assert first.job.priority == 9
    assert not first.job.preemptible
    assert second.job.dependencies == (Dependency(DependencyKind.AFTER_OK, "7"),)
    assert second.job.submit_ms == 1250


def test_labels_are_an_object(tmp_path: Path) -> None:
    nodes = [{"id": "n", "gpus": 1, "labels": {"zone": "a", "disk": "ssd"}}]
    path = a_document(tmp_path, a_record(node_labels={"zone": "a"}), nodes=nodes)
    assert jobs_of(read_json(path))[0].job.members[0].node_labels == (("zone", "a"),)


def test_gang_may_list_different_members(tmp_path: Path) -> None:
    record = {**a_record(), "members": [{"gpus": 2}, {"gpus": 0, "cpu_cores": 1}]}
    del record["gpus"]
    job = jobs_of(read_json(a_document(tmp_path, {**record, "min_members": 1})))[0].job
    assert job.members == (Request(gpu_count=2), Request(cpu_milli=1000))
    assert job.min_members == 1


def test_each_line_may_hold_a_job(tmp_path: Path) -> None:
    path = a_file(tmp_path, "jobs.jsonl", json.dumps(a_record("a")), "", json.dumps(a_record("b")))
    for form in (path, gzipped(path)):
        jobs = jobs_of(read_json_lines(form, a_cluster()))
        assert [entry.job.id for entry in jobs] == ["a", "b"]


@pytest.mark.parametrize(
    ("job", "words"),
    [
        (a_record(run_s=-1), "run_s is '-1'"),
        (a_record(run_s="NaN"), "run_s is 'NaN'"),
        (a_record(run_s=float("nan")), "'NaN'"),
        (a_record(run_s=float("inf")), "'Infinity'"),
        (a_record(colour="red"), "unknown field 'colour'"),
        (a_record(gpus=[1]), "gpus is"),
        (a_record(gpus=99), "99 GPUs"),
        (a_record(members=[]), "empty list"),
        (a_record(members=[{"gpus": 1}]), "gpus is given beside a list of members"),
        (a_record(members=[3]), "members is"),
        (["a"], "an object"),
        ("a", "an object"),
        ({"id": "b", "run_s": 1, "gpus": 1}, "submit_s is empty"),
    ],
)
def test_invalid_job_error_names_file_and_line(tmp_path: Path, job: Any, words: str) -> None:
    path = a_document(tmp_path, a_record("good"), job)
    with Refusal(path, 5) as refusal:
        read_json(path)
    assert words in refusal.message
    path = a_file(tmp_path, "jobs.jsonl", json.dumps(a_record("good")), json.dumps(job))
    with Refusal(path, 2) as refusal:
        read_json_lines(path, a_cluster())
    assert words in refusal.message


def test_number_with_thousands_of_digits_is_rejected(tmp_path: Path) -> None:
    line = '{"id": "a", "submit_s": 0, "gpus": 1, "run_s": ' + "9" * 5000 + "}"
    path = a_file(tmp_path, "jobs.jsonl", line)
    with Refusal(path, 1) as refusal:
        read_json_lines(path, a_cluster())
    assert "run_s is '999" in refusal.message


def test_duplicate_field_is_rejected(tmp_path: Path) -> None:
    line = '{"id": "a", "submit_s": 0, "run_s": 1, "gpus": 1, "gpus": 2}'
    path = a_file(tmp_path, "jobs.jsonl", line)
    with Refusal(path, 1) as refusal:
        read_json_lines(path, a_cluster())
    assert "'gpus' appears twice" in refusal.message
    path = a_file(tmp_path, "jobs.json", '{"jobs": [', line, "]}")
    with Refusal(path, 2):
        read_json(path, a_cluster())


def test_duplicate_ids_and_circles_are_found_in_documents(tmp_path: Path) -> None:
    path = a_document(tmp_path, a_record("a"), a_record("a"))
    with Refusal(path, 5) as refusal:
        read_json(path)
    assert "first in line 4" in refusal.message
    path = a_document(tmp_path, a_record("a", after="afterok:b"), a_record("b", after="afterok:a"))
    with Refusal(path, 4) as refusal:
        read_json(path)
    assert "a -> b -> a" in refusal.message


def test_unlisted_tenant_is_rejected(tmp_path: Path) -> None:
    path = a_document(tmp_path, a_record(tenant="y"), tenants=[{"id": "x"}])
    with Refusal(path, 5) as refusal:
        read_json(path)
    assert "'y'; expected one of x" in refusal.message


@pytest.mark.parametrize(
    "tenant",
    [
        {"id": ""},
        {"id": "x", "tier": "royal"},
        {"id": "x", "weight": 0},
        {"id": "x", "max_gpus": -1},
        {"id": "x", "colour": "red"},
    ],
)
def test_invalid_tenant_is_rejected(tmp_path: Path, tenant: dict[str, object]) -> None:
    path = a_document(tmp_path, a_record(), tenants=[tenant])
    with Refusal(path, 3):
        read_json(path)


def test_tenant_listed_twice_is_rejected(tmp_path: Path) -> None:
    path = a_document(tmp_path, a_record(tenant="x"), tenants=[{"id": "x"}, {"id": "x"}])
    with Refusal(path):
        read_json(path)


@pytest.mark.parametrize(
    "nodes",
    [[], [{"id": "a", "gpus": 1}, {"id": "a", "gpus": 1}]],
)
def test_document_needs_nodes_with_unique_ids(tmp_path: Path, nodes: object) -> None:
    path = a_document(tmp_path, a_record(), nodes=nodes)
    with Refusal(path) as refusal:
        read_json(path)
    assert "node" in refusal.message


@pytest.mark.parametrize(
    ("text", "line"),
    [
        ('{"jobs": [', 2),
        ('{"jobs": [}', 1),
        ('{"jobs": {}}', 1),
        ('{"jobs": []} trailing', 1),
        ('{"jobs": [{"id": }]}', 1),
        ("{jobs: []}", 1),
        ('{"jobs": [1 2]}', 1),
        ("[]", 1),
        ('{"a": [], "b": []}', None),
        ('{"jobs": [], "jobs": []}', None),
        ('{"jobs": []}', None),
        ("{}", None),
        ('{"jobs": [' + "[" * 100_000, 1),
    ],
)
def test_malformed_document_is_rejected(tmp_path: Path, text: str, line: int | None) -> None:
    path = a_file(tmp_path, "trace.json", text)
    gc.collect()  # A finalizer of an earlier test must not run at the depth reached here.
    with Refusal(path, line):
        read_json(path, a_cluster())


@pytest.mark.parametrize("text", ["{", "nonsense", "{} {}", "[" * 100_000])
def test_malformed_line_is_rejected(tmp_path: Path, text: str) -> None:
    path = a_file(tmp_path, "jobs.jsonl", json.dumps(a_record()), text)
    gc.collect()  # A finalizer of an earlier test must not run at the depth reached here.
    with Refusal(path, 2):
        read_json_lines(path, a_cluster())


def test_document_round_trips(tmp_path: Path) -> None:
    nodes = nodes_of(
        [
            NodeGroup(id="a", count=2, gpus=8, model="A100", island_size=4, island_gbps=600),
            NodeGroup(id="b", gpus=0, rack="r1", labels=(("zone", "b"),)),
            NodeGroup(id="c", gpus=2, cpu_milli=0, memory_mb=0, gpu_memory_mb=0),
            NodeGroup(id="d", gpus=2, mig_slices=(("1g.10gb", 3), ("3g.40gb", 1))),
        ]
    )
    tenants = (
        Tenant(id="default", name="All", tier=Tier.HIGH, weight_milli=1500, elastic=True),
        Tenant(
            id="x",
            allow_preemption=False,
            max_preemptions=1,
            quota=Quota(
                gpu_milli=2500,
                gpu_memory_mb=1,
                cpu_milli=500,
                memory_mb=3,
                concurrent_jobs=0,
                gpu_milli_ms=3_600_000_000,
            ),
        ),
    )
    jobs = [
        a_trace_job("1", name="true", user="12"),
        a_trace_job("2", number=2, members=(Request(gpu_count=1), Request(cpu_milli=1))),
        a_trace_job("3", number=3, members=(Request(device_ids=(2, 3), gpu_count=1),)),
        a_trace_job(
            "4",
            number=4,
            members=(Request(node_labels=(("zone", "b"),), gpu_models=("X",)),),
            dependencies=(Dependency(DependencyKind.AFTER_NOT_OK, "3"),),
        ),
    ]
    for name in ("out.json", "out.json.gz"):
        assert write_json(tmp_path / name, jobs, nodes=nodes, tenants=tenants) == 4
        (pool,) = read_json(tmp_path / name).workload.partitions
        assert pool.nodes == nodes
        assert pool.tenants == tenants
        assert pool.jobs == jobs
    write_json_lines(tmp_path / "out.jsonl", jobs)
    assert jobs_of(read_json_lines(tmp_path / "out.jsonl", a_cluster().pool(nodes))) == jobs


def test_node_with_mixed_devices_cannot_be_written(tmp_path: Path) -> None:
    node = Node(id="n", ordinal=0, devices=(Device(index=0), Device(index=1, model="B")))
    with pytest.raises(InvalidRequest):
        write_json(tmp_path / "out.json", [a_trace_job()], nodes=[node])
    assert list(tmp_path.iterdir()) == []
