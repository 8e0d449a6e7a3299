"""Our CSV format: every column, writing, and every kind of invalid file."""

from pathlib import Path
from typing import Any

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.model.intervals import IntervalSet
from gpu_scheduler.model.job import Array, Dependency, DependencyKind, Pool, split_over_nodes
from gpu_scheduler.model.request import Request, Topology
from gpu_scheduler.simulator.traces.native_format import read_csv, write_csv
from gpu_scheduler.simulator.traces.parsing import Layout
from gpu_scheduler.simulator.traces.records import JOB_COLUMNS
from tests.simulation.trace_files import (
    Refusal,
    a_cluster,
    a_cluster_with_slices,
    a_file,
    a_table,
    a_trace_job,
    gzipped,
    jobs_of,
)


def a_row(job_id: str = "a", **columns: object) -> dict[str, object]:
    return {"id": job_id, "submit_s": 0, "run_s": 60, "gpus": 1, **columns}


def read_one(folder: Path, cluster: Any = None, **columns: object) -> Any:
    path = a_table(folder, "jobs.csv", [a_row(**columns)])
    (only,) = jobs_of(read_csv(path, cluster or a_cluster()))
    return only


def test_times_become_milliseconds(tmp_path: Path) -> None:
    read = read_one(tmp_path, submit_s="1.5", run_s="0.001", limit_s=3600)
    assert (read.job.submit_ms, read.run_ms, read.job.max_runtime_ms) == (1500, 1, 3_600_000)


@pytest.mark.parametrize(
    ("columns", "request_"),
    [
        ({"gpus": 2}, Request(gpu_count=2)),
        ({"gpus": "2.0"}, Request(gpu_count=2)),
        ({"gpus": "0.5"}, Request(gpu_count=1, gpu_share_milli=500)),
        ({"gpus": "1.5"}, Request(gpu_count=1, gpu_extra_milli=500)),
        ({"gpus": "0.5", "exclusive": "true"}, Request(gpu_count=1)),
        ({"gpus": 0, "cpu_cores": "0.5"}, Request(cpu_milli=500)),
        ({"gpus": 0, "gpu_memory_mb": 9}, Request(gpu_count=1, gpu_share_milli=0, gpu_memory_mb=9)),
        ({"gpus": 2, "gpu_memory_mb": 4096}, Request(gpu_count=2, gpu_memory_mb=2048)),
        ({"gpus": 2, "gpu_memory_mb_per_gpu": 4096}, Request(gpu_count=2, gpu_memory_mb=4096)),
        ({"gpus": 1, "gpu_models": "B|GPU"}, Request(gpu_count=1, gpu_models=("B", "GPU"))),
        ({"gpus": 1, "mig_profile": "1g.10gb"}, Request(gpu_count=1, mig_profile="1g.10gb")),
        ({"gpus": 1, "device_ids": "3;1"}, Request(gpu_count=1, device_ids=(1, 3))),
        ({"gpus": 1, "memory_mb": 77}, Request(gpu_count=1, memory_mb=77)),
        (
            {"gpus": 2, "topology": "require_island", "contiguous": "yes"},
            Request(gpu_count=2, topology=Topology.REQUIRE_ISLAND, contiguous=True),
        ),
    ],
)
def test_request_is_parsed(tmp_path: Path, columns: dict[str, object], request_: Request) -> None:
    read = read_one(tmp_path, a_cluster_with_slices(), **columns)
    assert read.job.members == (request_,)


@pytest.mark.parametrize(
    ("column", "text", "field", "value"),
    [
        ("tenant", "vision", "tenant", "vision"),
        ("user", "ada", "user", "ada"),
        ("name", "train", "name", "train"),
        ("priority", "high", "priority", 1500),
        ("priority", "1234", "priority", 1234),
        ("pool", "online", "pool", Pool.ONLINE),
        ("preemptible", "false", "preemptible", False),
        ("interactive", "1", "interactive", True),
        ("estimate_s", "30", "estimate_ms", 30_000),
        ("deadline_s", "90", "deadline_ms", 90_000),
        ("begin_s", "9.5", "begin_ms", 9_500),
        ("array", "0-9%3", "array", Array(tasks=IntervalSet(((0, 9),)), max_running=3)),
        ("retries", "2", "retries", 2),
        ("same_rack", "true", "same_rack", True),
        ("requeue_on_node_loss", "true", "requeue_on_node_loss", True),
    ],
)
def test_job_field_is_parsed(
    tmp_path: Path, column: str, text: str, field: str, value: object
) -> None:
    assert getattr(read_one(tmp_path, **{column: text}).job, field) == value


def test_labels_must_exist_on_some_node(tmp_path: Path) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row(node_labels="zone=a;disk=ssd")])
    with Refusal(path, 2) as refusal:
        read_csv(path, a_cluster())
    assert "labels" in refusal.message


def test_dependencies_name_earlier_jobs(tmp_path: Path) -> None:
    rows = [a_row("a", after=""), a_row("b", after="afterok:a;afterany:a")]
    jobs = jobs_of(read_csv(a_table(tmp_path, "jobs.csv", rows), a_cluster()))
    assert jobs[1].job.dependencies == (
        Dependency(DependencyKind.AFTER_OK, "a"),
        Dependency(DependencyKind.AFTER_ANY, "a"),
    )


def test_gang_has_stated_number_of_members(tmp_path: Path) -> None:
    job = read_one(tmp_path, gpus=4, members=3, min_members=2).job
    assert job.members == (Request(gpu_count=4),) * 3
    assert job.min_members == 2


def test_job_larger_than_node_is_split_over_nodes(tmp_path: Path) -> None:
    job = read_one(tmp_path, gpus=20, cpu_cores=20).job
    assert [member.gpu_count for member in job.members] == [8, 8, 4]
    assert [member.cpu_milli for member in job.members] == [8000, 8000, 4000]


def test_unordered_rows_are_sorted_and_numbered(tmp_path: Path) -> None:
    rows = [a_row("late", submit_s=9), a_row("early", submit_s=1), a_row("tie", submit_s=9)]
    jobs = jobs_of(read_csv(a_table(tmp_path, "jobs.csv", rows), a_cluster()))
    assert [entry.job.id for entry in jobs] == ["early", "late", "tie"]
    assert [entry.job.number for entry in jobs] == [1, 2, 3]


def test_gzip_is_detected_by_content(tmp_path: Path) -> None:
    path = gzipped(a_table(tmp_path, "jobs.csv", [a_row()]), "packed.csv")
    assert len(jobs_of(read_csv(path, a_cluster()))) == 1


def test_byte_order_mark_and_crlf_are_accepted(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"\xef\xbb\xbfid,submit_s,run_s,gpus\r\na,0,1,1\r\n\r\n")
    assert len(jobs_of(read_csv(path, a_cluster()))) == 1


def test_tenants_are_taken_from_jobs(tmp_path: Path) -> None:
    rows = [a_row("a", tenant="y"), a_row("b", tenant="x"), a_row("c", tenant="y")]
    reading = read_csv(a_table(tmp_path, "jobs.csv", rows), a_cluster())
    assert [tenant.id for tenant in reading.workload.partitions[0].tenants] == ["x", "y"]


@pytest.mark.parametrize(
    ("columns", "found", "expected"),
    [
        ({"run_s": -5}, "run_s is '-5'", "0 or more"),
        ({"submit_s": "nan"}, "submit_s is 'nan'", "a number"),
        ({"run_s": "inf"}, "run_s is 'inf'", "a number"),
        ({"run_s": "1e300"}, "run_s is '1e300'", "below 1e12"),
        ({"run_s": "9" * 5000}, "run_s is '999", "a number"),
        ({"run_s": "soon"}, "run_s is 'soon'", "a number"),
        ({"run_s": "1_0"}, "run_s is '1_0'", "a number"),
        ({"run_s": ""}, "run_s is empty", "a value"),
        ({"id": " "}, "id is empty", "a value"),
        ({"gpus": ""}, "gpus is empty", "a value"),
        ({"gpus": -1}, "gpus is '-1'", "such as 2, 0.5"),
        ({"gpus": "0.3333"}, "gpus is '0.3333'", "such as 2, 0.5"),
        ({"gpus": "0.333"}, "0.333 GPUs were asked for", "0.01"),
        ({"gpus": 33}, "33 GPUs", "the cluster has 32 GPUs"),
        ({"gpus": "8.5"}, "8.5 GPUs", "largest node 8 GPUs"),
        ({"cpu_cores": 1000}, "1000 CPU cores", "128 CPU cores"),
        ({"memory_mb": 10**9}, "1000000000 MiB", "1048576 MiB"),
        ({"memory_mb": "2.5"}, "memory_mb is '2.5'", "a whole number"),
        ({"gpu_models": "H100"}, "model H100", "(GPU)"),
        ({"gpu_models": "A||B"}, "gpu_models is 'A||B'", "A100|H100"),
        ({"gpu_memory_mb": 100_000}, "100000 MiB of GPU memory", "can never run"),
        ({"gpu_memory_mb": 1, "gpu_memory_mb_per_gpu": 1}, "in total and per GPU", "one of them"),
        (
            {"gpus": 0, "gpu_memory_mb": 1, "gpu_memory_mb_per_gpu": 1},
            "in total and per GPU",
            "one of them",
        ),
        ({"gpus": 0, "gpu_memory_mb": 1, "exclusive": 1}, "with 0 GPUs", "1 or more"),
        ({"mig_profile": "9g.1gb"}, "'9g.1gb'", "1g.10gb"),
        ({"device_ids": "99"}, "devices 99", "can never run"),
        ({"device_ids": "a"}, "device_ids is 'a'", "a whole number"),
        ({"min_bandwidth_gbps": 1, "gpus": 2}, "1 Gbit/s", "can never run"),
        ({"topology": "near"}, "topology is 'near'", "prefer_island"),
        ({"node_labels": "zone"}, "node_labels is 'zone'", "zone=a"),
        ({"members": 0}, "members is '0'", "from 1"),
        ({"members": 10**9}, "members is '1000000000'", "100000"),
        ({"members": 5, "gpus": 8}, "5 times", "the cluster has 32 GPUs"),
        ({"members": 2, "gpus": 9}, "9 GPUs", "largest node 8 GPUs"),
        ({"members": 2, "min_members": 3}, "min_members is '3'", "at most 2"),
        ({"priority": "huge"}, "'huge'", "urgent"),
        ({"priority": -1}, "'-1'", "a number"),
        ({"pool": "swimming"}, "pool is 'swimming'", "online, batch"),
        ({"preemptible": "maybe"}, "preemptible is 'maybe'", "true or false"),
        ({"after": "a"}, "after is 'a'", "afterok:17"),
        ({"after": "afterok:"}, "after is 'afterok:'", "afterok:17"),
        ({"array": "x"}, "'x'", "0-99"),
        ({"array": "0-99999999999:2"}, "array is", "below 10,000,000"),
        ({"array": "5-1"}, "5-1", "1-5"),
        ({"retries": "-1"}, "retries is '-1'", "0 or more"),
        ({"name": "n" * 5000}, "name is 'nnn", "4000 characters"),
        ({"mig_profile": "1" * 4500 + "g.1gb"}, "mig_profile is", "4000 characters"),
    ],
)
def test_invalid_value_error_names_file_line_and_expectation(
    tmp_path: Path, columns: dict[str, object], found: str, expected: str
) -> None:
    good, bad = a_row("good", **dict.fromkeys(columns, "")), {**a_row("bad"), **columns}
    good = {**good, "submit_s": 0, "run_s": 1, "gpus": 1, "id": "good"}
    path = a_table(tmp_path, "jobs.csv", [good, {name: bad[name] for name in good}])
    with Refusal(path, 3) as refusal:
        read_csv(path, a_cluster())
    assert found in refusal.message
    assert expected in refusal.message


def test_unknown_column_error_lists_known_ones(tmp_path: Path) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row(colour="red")])
    with Refusal(path, 1) as refusal:
        read_csv(path, a_cluster())
    assert "unknown column 'colour'" in refusal.message
    assert Layout(name="a trace", required=("run_s", "gpus")).fault(["num_gpus"]) == (
        "unknown column 'num_gpus' for a trace; did you mean 'gpus'? expected columns are run_s, "
        "gpus"
    )
    assert "submit_s" in refusal.message


@pytest.mark.parametrize(
    ("lines", "line", "words"),
    [
        (("id,submit_s,gpus", "a,0,1"), 1, "column 'run_s' is missing"),
        (("id,submit_s,run_s,gpus,gpus", "a,0,1,1,1"), 1, "'gpus' appears twice"),
        (("id,submit_s,run_s,gpus", "a,0,1"), 2, "3 values; expected 4"),
        (("id,submit_s,run_s,gpus", '"a,0,1,1'), 2, "not valid CSV"),
    ],
    ids=["a column is missing", "a column comes twice", "a row is short", "a quote is open"],
)
def test_malformed_table_is_rejected(
    tmp_path: Path, lines: tuple[str, ...], line: int, words: str
) -> None:
    path = a_file(tmp_path, "jobs.csv", *lines)
    with Refusal(path, line) as refusal:
        read_csv(path, a_cluster())
    assert words in refusal.message


def test_duplicate_id_error_names_both_lines(tmp_path: Path) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row("a"), a_row("b"), a_row("a")])
    with Refusal(path, 4) as refusal:
        read_csv(path, a_cluster())
    assert "'a' appears twice, first in line 2" in refusal.message


def test_dependency_on_unknown_job_is_rejected(tmp_path: Path) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row("a", after="afterok:ghost")])
    with Refusal(path, 2) as refusal:
        read_csv(path, a_cluster())
    assert "'a' depends on 'ghost'" in refusal.message


def test_circular_dependency_is_shown(tmp_path: Path) -> None:
    rows = [
        a_row("a", after="afterok:c"),
        a_row("b", after="afterok:a"),
        a_row("c", after="afterany:x;afterok:b"),
        a_row("x", after=""),
    ]
    path = a_table(tmp_path, "jobs.csv", rows)
    with Refusal(path, 2) as refusal:
        read_csv(path, a_cluster())
    assert "a -> c -> b -> a" in refusal.message


def test_long_dependency_chain_is_not_circular(tmp_path: Path) -> None:
    rows = [a_row("0", after="")]
    rows += [a_row(str(n), after=f"afterok:{n - 1};afterany:0") for n in range(1, 3000)]
    assert len(jobs_of(read_csv(a_table(tmp_path, "jobs.csv", rows), a_cluster()))) == 3000


def test_job_cannot_depend_on_later_one(tmp_path: Path) -> None:
    rows = [a_row("a", after="afterok:b"), a_row("b", submit_s=5, after="")]
    path = a_table(tmp_path, "jobs.csv", rows)
    with Refusal(path, 2) as refusal:
        read_csv(path, a_cluster())
    assert "submitted later" in refusal.message


def test_job_cannot_depend_on_itself(tmp_path: Path) -> None:
    path = a_table(tmp_path, "jobs.csv", [a_row("a", after="afterok:a")])
    with Refusal(path, 2):
        read_csv(path, a_cluster())


def test_empty_file_is_rejected(tmp_path: Path) -> None:
    path = a_file(tmp_path, "jobs.csv")
    with Refusal(path) as refusal:
        read_csv(path, a_cluster())
    assert "empty" in refusal.message


@pytest.mark.parametrize("lines", [("", ""), ("id,submit_s,run_s,gpus",)])
def test_file_without_jobs_is_rejected(tmp_path: Path, lines: tuple[str, ...]) -> None:
    path = a_file(tmp_path, "jobs.csv", *lines)
    with Refusal(path):
        read_csv(path, a_cluster())


def test_missing_file_and_directory_are_rejected(tmp_path: Path) -> None:
    for path in (tmp_path / "none.csv", tmp_path):
        with Refusal(path) as refusal:
            read_csv(path, a_cluster())
        assert "cannot be read" in refusal.message


def test_invalid_utf_8_is_rejected_with_line(tmp_path: Path) -> None:
    path = tmp_path / "jobs.csv"
    path.write_bytes(b"id,submit_s,run_s,gpus\na,0,1,1\n\xe4,0,1,1\n")
    with Refusal(path, 3) as refusal:
        read_csv(path, a_cluster())
    assert "0xe4" in refusal.message


@pytest.mark.parametrize("keep", [3, 30, -1, -9])
def test_truncated_gzip_is_rejected(tmp_path: Path, keep: int) -> None:
    packed = gzipped(a_table(tmp_path, "jobs.csv", [a_row(str(n)) for n in range(50)]))
    packed.write_bytes(packed.read_bytes()[:keep])
    with Refusal(packed) as refusal:
        read_csv(packed, a_cluster())
    assert "ends too early" in refusal.message


def test_damaged_gzip_is_rejected(tmp_path: Path) -> None:
    packed = gzipped(a_table(tmp_path, "jobs.csv", [a_row(str(n)) for n in range(50)]))
    data = bytearray(packed.read_bytes())
    data[-6] ^= 0xFF
    packed.write_bytes(data)
    with Refusal(packed) as refusal:
        read_csv(packed, a_cluster())
    assert "damaged" in refusal.message


ROUND_TRIPS = [
    a_trace_job(),
    a_trace_job(members=(Request(gpu_count=1, gpu_share_milli=250, gpu_memory_mb=999),)),
    a_trace_job(members=(Request.for_gpus(1500, gpu_memory_mb=3001),)),
    a_trace_job(members=(Request(gpu_count=1, gpu_share_milli=0, gpu_memory_mb=5),)),
    a_trace_job(members=(Request(gpu_count=2, mig_profile="3g.40gb"),)),
    a_trace_job(members=(Request(cpu_milli=1500, memory_mb=9),)),
    a_trace_job(members=split_over_nodes(Request(gpu_count=20, cpu_milli=20_000), 8)),
    a_trace_job(members=(Request(gpu_count=2),) * 3, min_members=2),
    a_trace_job(
        tenant="t",
        user="u",
        name='a "name", with signs',
        members=(Request(gpu_count=2, device_ids=(0, 1), contiguous=True, gpu_models=("GPU",)),),
        priority=17,
        pool=Pool.ONLINE,
        preemptible=False,
        interactive=True,
        max_runtime_ms=1,
        estimate_ms=2500,
        deadline_ms=3000,
        begin_ms=4000,
        array=Array(tasks=IntervalSet.parse("1,3-5"), max_running=2),
        retries=3,
        same_rack=True,
        requeue_on_node_loss=True,
    ),
]


@pytest.mark.parametrize("entry", ROUND_TRIPS)
@pytest.mark.parametrize("name", ["out.csv", "out.csv.gz"])
def test_csv_round_trips(tmp_path: Path, entry: Any, name: str) -> None:
    path = tmp_path / name
    assert write_csv(path, [entry]) == 1
    assert jobs_of(read_csv(path, a_cluster_with_slices())) == [entry]


def test_written_header_has_every_column(tmp_path: Path) -> None:
    path = tmp_path / "out.csv"
    write_csv(path, [a_trace_job()])
    assert path.read_text(encoding="utf-8").splitlines()[0] == ",".join(JOB_COLUMNS)


def test_same_jobs_give_same_bytes(tmp_path: Path) -> None:
    for name in ("a.csv.gz", "b.csv.gz"):
        write_csv(tmp_path / name, ROUND_TRIPS[:1])
    assert (tmp_path / "a.csv.gz").read_bytes() == (tmp_path / "b.csv.gz").read_bytes()


@pytest.mark.parametrize(
    "entry",
    [
        a_trace_job(members=(Request(gpu_count=1), Request(gpu_count=3))),
        a_trace_job(members=(Request(gpu_count=2, gpu_share_milli=500),)),
        a_trace_job(hold=True),
        a_trace_job(command=("python", "train.py")),
        a_trace_job(dependencies=(Dependency(DependencyKind.AFTER_OK, "x;y"),)),
    ],
)
def test_inexpressible_job_is_rejected_and_nothing_is_written(tmp_path: Path, entry: Any) -> None:
    with pytest.raises(InvalidRequest):
        write_csv(tmp_path / "out.csv", [a_trace_job("first"), entry])
    assert list(tmp_path.iterdir()) == []


def test_failed_write_keeps_old_file(tmp_path: Path) -> None:
    path = a_file(tmp_path, "out.csv", "precious")

    def jobs_with_a_fault() -> Any:
        yield a_trace_job()
        raise RuntimeError("the source broke")

    with pytest.raises(RuntimeError):
        write_csv(path, jobs_with_a_fault())
    assert path.read_text(encoding="utf-8") == "precious\n"
    assert list(tmp_path.iterdir()) == [path]


def test_unwritable_file_is_named(tmp_path: Path) -> None:
    path = tmp_path / "no-such-folder" / "out.csv"
    with Refusal(path) as refusal:
        write_csv(path, [a_trace_job()])
    assert "cannot be written" in refusal.message


def test_absurd_number_of_gpus_is_rejected_at_once(tmp_path: Path) -> None:
    row = {"id": "a", "submit_s": 0, "run_s": 1, "gpus": 900_000_000_000}
    path = a_table(tmp_path, "jobs.csv", [row])
    with Refusal(path, 2) as refusal:
        read_csv(path, a_cluster())
    assert "can never run" in refusal.message
    assert "--cluster FILE" in refusal.message
