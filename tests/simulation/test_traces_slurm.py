"""Traces from `sacct`, and nodes from `scontrol show nodes` and `sinfo`."""

import json
from pathlib import Path
from zoneinfo import ZoneInfo

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.simulator.traces.collector import Reading
from gpu_scheduler.simulator.traces.detect import TraceFormat, detect_format, read_cluster
from gpu_scheduler.simulator.traces.slurm import (
    EARLIER_RUN,
    JOB_STEP,
    NEVER_STARTED,
    NO_GPU,
    SACCT_COLUMNS,
    SHARED_GPU,
    TOO_LARGE,
    WAS_CANCELLED,
    hosts,
    read_sacct,
)
from gpu_scheduler.simulator.workload import TraceJob
from tests.simulation.trace_files import Refusal, a_cluster, a_file, jobs_of

HOUR_MS = 3_600_000
JOB = {
    "JobID": "17",
    "JobName": "train",
    "User": "ada",
    "Account": "vision",
    "Partition": "gpu",
    "Submit": "2026-10-01T08:00:00",
    "Eligible": "2026-10-01T08:00:00",
    "Start": "2026-10-01T09:00:00",
    "End": "2026-10-01T10:30:00",
    "Elapsed": "01:30:00",
    "Timelimit": "1-00:00:00",
    "State": "COMPLETED",
    "NNodes": "1",
    "ReqTRES": "billing=2,cpu=8,gres/gpu=2,mem=64G,node=1",
    "AllocTRES": "billing=2,cpu=8,gres/gpu=2,mem=64G,node=1",
}
SCONTROL = """\
NodeName=gpu01 Arch=x86_64 CoresPerSocket=32
   CPUAlloc=8 CPUEfctv=128 CPUTot=128 CPULoad=7.50
   AvailableFeatures=a100,ib
   ActiveFeatures=a100,ib
   Gres=gpu:a100:8(S:0-1)
   NodeAddr=gpu01 NodeHostName=gpu01 Version=24.05.3
   OS=Linux 5.14.0 #1 SMP Tue Jan 9 2026
   RealMemory=1031000 AllocMem=65536 FreeMem=900000 Sockets=2 Boards=1
   State=MIXED ThreadsPerCore=2 TmpDisk=0 Weight=1 Owner=N/A MCS_label=N/A
   Partitions=gpu,long
   CfgTRES=cpu=128,mem=1031000M,billing=128,gres/gpu=8

NodeName=cpu01 Arch=x86_64 CoresPerSocket=32
   CPUTot=64 RealMemory=256000 Gres=(null)
   Partitions=cpu

NodeName=gpu02 CPUTot=64
   Gres=gpu:v100:2,gpu:a100:2 RealMemory=512000
   Partitions=gpu
"""


def a_job(**values: str) -> dict[str, str]:
    """A line of `sacct`; TRES is both what was asked for and what was held."""
    if tres := values.pop("tres", ""):
        values |= {"ReqTRES": tres, "AllocTRES": tres}
    return {**JOB, **values}


def sacct(folder: Path, *jobs: dict[str, str], ending: str = "", delimiter: str = "|") -> Path:
    """A file as `sacct -P` writes it; with an ending as `-p`."""
    lines = [list(jobs[0]), *(job.values() for job in jobs)]
    return a_file(folder, "sacct.txt", *(delimiter.join(line) + ending for line in lines))


def read(path: Path, **options: object) -> Reading:
    assert detect_format(path) is TraceFormat.SACCT
    return read_sacct(path, a_cluster(), **options)  # type: ignore[arg-type]


def only_job(path: Path) -> TraceJob:
    (entry,) = jobs_of(read(path))
    return entry


def test_documented_command_gives_these_columns() -> None:
    assert SACCT_COLUMNS.split(",") == list(JOB)


def test_job_has_its_request_times_and_owner(tmp_path: Path) -> None:
    entry = only_job(sacct(tmp_path, JOB))
    job = entry.job
    assert (job.id, job.name, job.user, job.tenant) == ("17", "train", "ada", "vision")
    assert job.submit_ms == 8 * HOUR_MS
    assert entry.run_ms == 1.5 * HOUR_MS
    assert job.max_runtime_ms == 24 * HOUR_MS
    (request,) = job.members
    assert (request.gpu_count, request.cpu_milli, request.memory_mb) == (2, 8_000, 65_536)


@pytest.mark.parametrize(("ending", "delimiter"), [("|", "|"), ("", "|"), ("", ";"), ("", "\t")])
def test_delimiters_of_sacct_are_recognised(tmp_path: Path, ending: str, delimiter: str) -> None:
    job = {**JOB, "State": ""}
    job = {"JobID": job.pop("JobID"), **job}
    path = sacct(tmp_path, job, ending=ending, delimiter=delimiter)
    assert only_job(path).job.tenant == "vision"


def test_columns_of_fixed_width_are_read(tmp_path: Path) -> None:
    names = ("JobID", "JobName", "Submit", "Start", "Elapsed", "State", "AllocTRES")
    header = "".join(f"{name:>20} " for name in names)
    dashes = "".join("-" * 20 + " " for _ in names)
    job = a_job(AllocTRES="cpu=1,gres/gpu=1", JobName="a long name of a jo+")
    line = "".join(f"{job[name]:>20} " for name in names)
    entry = only_job(a_file(tmp_path, "sacct.txt", header, dashes, line))
    assert entry.run_ms == 1.5 * HOUR_MS
    assert entry.job.gpu_milli == 1_000
    cut = line.replace("cpu=1,gres/gpu=1", "cpu=1,gres/gpu=+")
    path = a_file(tmp_path, "cut.txt", header, dashes, cut)
    with Refusal(path, 3) as refusal:
        read(path)
    assert "alloctres is cut off" in refusal.message


def test_json_of_sacct_is_read(tmp_path: Path) -> None:
    tres = [
        {"type": "cpu", "name": "", "id": 1, "count": 8},
        {"type": "mem", "name": "", "id": 2, "count": 65536},
        {"type": "node", "name": "", "id": 4, "count": 1},
        {"type": "gres", "name": "gpu", "id": 1001, "count": 2},
    ]
    job = {
        "account": "vision",
        "array": {"job_id": 90, "task_id": {"set": True, "infinite": False, "number": 3}},
        "association": {"account": "vision", "user": "ada"},
        "het": {"job_id": 0, "job_offset": {"set": False, "infinite": False, "number": 0}},
        "job_id": 93,
        "name": "train",
        "partition": "gpu",
        "state": {"current": ["COMPLETED"], "reason": "None"},
        "time": {
            "elapsed": 5400,
            "eligible": 1790841600,
            "end": 1790850600,
            "limit": {"set": True, "infinite": False, "number": 120},
            "start": 1790845200,
            "submission": 1790841600,
        },
        "tres": {"allocated": tres, "requested": tres},
        "user": "ada",
    }
    text = json.dumps({"jobs": [job], "meta": {}, "errors": []}, indent=1)
    entry = only_job(a_file(tmp_path, "sacct.json", text))
    assert (entry.job.id, entry.run_ms, entry.job.submit_ms) == ("90_3", 1.5 * HOUR_MS, 28_800_000)
    assert entry.job.max_runtime_ms == 2 * HOUR_MS
    assert (entry.job.members[0].gpu_count, entry.job.members[0].memory_mb) == (2, 65_536)


def test_steps_are_left_out_and_array_tasks_are_jobs(tmp_path: Path) -> None:
    ids = ("9_1", "9_1.batch", "9_1.extern", "9_1.0", "9_2", "9_[3-7%2]")
    states = dict.fromkeys(ids, "COMPLETED") | {"9_[3-7%2]": "PENDING"}
    rows = [
        a_job(JobID=name, State=state, **({"Start": "Unknown"} if state == "PENDING" else {}))
        for name, state in states.items()
    ]
    reading = read(sacct(tmp_path, *rows))
    assert [entry.job.id for entry in jobs_of(reading)] == ["9_1", "9_2"]
    assert reading.skipped == {JOB_STEP: 3, NEVER_STARTED: 1}


def test_components_of_heterogeneous_job_start_together(tmp_path: Path) -> None:
    rows = (
        a_job(JobID="40+0", tres="cpu=4,gres/gpu=1,node=1"),
        a_job(JobID="40+1", tres="cpu=4,gres/gpu=16,node=2"),
    )
    entry = only_job(sacct(tmp_path, *rows))
    assert entry.job.id == "40"
    assert [member.gpu_count for member in entry.job.members] == [1, 8, 8]
    assert entry.job.min_members == 3


def test_requeued_job_counts_once_from_its_first_submission(tmp_path: Path) -> None:
    first = a_job(State="NODE_FAIL", Elapsed="00:10:00")
    last = a_job(Submit="2026-10-01T09:20:00", Start="2026-10-01T11:00:00", Elapsed="02:00:00")
    reading = read(sacct(tmp_path, first, last))
    (entry,) = jobs_of(reading)
    assert (entry.job.submit_ms, entry.run_ms) == (8 * HOUR_MS, 2 * HOUR_MS)
    assert reading.skipped == {EARLIER_RUN: 1}


@pytest.mark.parametrize(
    ("values", "why"),
    [
        ({"State": "CANCELLED by 1001", "Start": "None", "Elapsed": "00:00:00"}, WAS_CANCELLED),
        ({"State": "CANCELLED by 1001", "Elapsed": "00:00:00"}, WAS_CANCELLED),
        ({"State": "PENDING", "Start": "Unknown", "End": "Unknown"}, NEVER_STARTED),
        ({"tres": "billing=8,cpu=8,mem=16G,node=1"}, NO_GPU),
        ({"tres": "cpu=8,gres/shard=4,node=1"}, SHARED_GPU),
        ({"tres": "cpu=8,gres/gpu=64,node=8"}, TOO_LARGE),
        ({"tres": "cpu=4000,gres/gpu=1,node=1"}, TOO_LARGE),
    ],
)
def test_job_that_cannot_be_replayed_is_counted(
    tmp_path: Path, values: dict[str, str], why: str
) -> None:
    reading = read(sacct(tmp_path, JOB, a_job(JobID="18", **values)))
    assert [entry.job.id for entry in jobs_of(reading)] == ["17"]
    assert reading.skipped == {why: 1}


@pytest.mark.parametrize(
    ("state", "elapsed", "run_ms"),
    [
        ("FAILED", "00:00:07", 7_000),
        ("OUT_OF_MEMORY", "12:34", 754_000),
        ("TIMEOUT", "1-00:00:21", 24 * HOUR_MS),
        ("RUNNING", "2:00:00", 2 * HOUR_MS),
        ("COMPLETED", "00:00:00", 0),
    ],
)
def test_run_is_the_elapsed_time_up_to_the_limit(
    tmp_path: Path, state: str, elapsed: str, run_ms: int
) -> None:
    job = a_job(State=state, Elapsed=elapsed)
    assert only_job(sacct(tmp_path, job)).run_ms == run_ms


@pytest.mark.parametrize("limit", ["UNLIMITED", "Partition_Limit", "INVALID", ""])
def test_missing_limit_is_none(tmp_path: Path, limit: str) -> None:
    assert only_job(sacct(tmp_path, a_job(Timelimit=limit))).job.max_runtime_ms == 0


def test_nodes_that_were_asked_for_become_members(tmp_path: Path) -> None:
    entry = only_job(sacct(tmp_path, a_job(tres="cpu=64,gres/gpu=16,mem=128G,node=2")))
    assert [member.gpu_count for member in entry.job.members] == [8, 8]
    assert {member.cpu_milli for member in entry.job.members} == {32_000}


def test_waiting_for_other_jobs_is_a_begin_time(tmp_path: Path) -> None:
    entry = only_job(sacct(tmp_path, a_job(Eligible="2026-10-01T08:45:00")))
    assert entry.job.begin_ms == 8.75 * HOUR_MS


def test_times_may_be_epochs_or_in_a_zone(tmp_path: Path) -> None:
    epoch = a_job(JobID="18", Submit="1790841600", Start="1790845200")
    path = sacct(tmp_path, JOB, epoch)
    assert [entry.job.submit_ms for entry in jobs_of(read(path))] == [8 * HOUR_MS] * 2
    # The clock in Berlin was two hours ahead of UTC, so the first job came first.
    late = jobs_of(read(path, zone=ZoneInfo("Europe/Berlin")))
    assert [(entry.job.id, entry.job.submit_ms) for entry in late] == [
        ("17", 6 * HOUR_MS),
        ("18", 8 * HOUR_MS),
    ]


def test_gres_of_old_versions_is_read(tmp_path: Path) -> None:
    job = {name: text for name, text in JOB.items() if "TRES" not in name}
    job |= {"NNodes": "2", "ReqGRES": "gpu:a100:4"}
    assert only_job(sacct(tmp_path, job)).job.gpu_milli == 8_000
    job["AllocGRES"] = "gpu:2"
    assert only_job(sacct(tmp_path, job)).job.gpu_milli == 2_000


@pytest.mark.parametrize(
    ("values", "words"),
    [
        ({"Submit": "yesterday"}, "Submit is 'yesterday'; expected a time"),
        ({"Elapsed": "soon"}, "Elapsed is 'soon'; expected a duration"),
        ({"AllocTRES": "cpu"}, "expected amounts"),
        ({"JobID": ""}, "JobID is empty"),
        ({"JobName": "a|b"}, "has 16 values; expected 15"),
    ],
)
def test_invalid_line_is_rejected(tmp_path: Path, values: dict[str, str], words: str) -> None:
    path = sacct(tmp_path, a_job(**values))
    with Refusal(path, 2) as refusal:
        read(path)
    assert words in refusal.message


def test_missing_columns_are_answered_with_the_command(tmp_path: Path) -> None:
    path = a_file(tmp_path, "sacct.txt", "JobID|JobName|State", "1|a|COMPLETED")
    with Refusal(path, 1) as refusal:
        read(path)
    assert "column submit is missing" in refusal.message
    assert "sacct -a -X -P" in refusal.message


# Nodes


def test_nodes_of_scontrol_have_gpus_cores_and_partitions(tmp_path: Path) -> None:
    path = a_file(tmp_path, "nodes.txt", SCONTROL)
    first, second = read_cluster(path).nodes
    assert (first.id, first.gpu_count, first.cpu_milli, first.memory_mb) == (
        "gpu01",
        8,
        128_000,
        1_031_000,
    )
    assert dict(first.labels) == {"slurm.partition/gpu": "yes", "slurm.partition/long": "yes"}
    assert [device.model for device in second.devices] == ["v100"] * 2 + ["a100"] * 2
    one_line = "\n".join(" ".join(block.split()) for block in SCONTROL.split("\n\n"))
    assert read_cluster(a_file(tmp_path, "oneliner.txt", one_line)).nodes == (first, second)


@pytest.mark.parametrize(
    "lines",
    [
        ("NODELIST|CPUS|MEMORY|GRES|PARTITION", "gpu[01-02]|64|512000|gpu:a100:4(S:0-1)|gpu*"),
        (
            "HOSTNAMES CPUS MEMORY GRES PARTITION",
            "gpu01 64 512000+ gpu:a100:4 gpu*",
            "gpu02 64 512000 gpu:a100:4 gpu*",
            "login 8 16000 (null) cpu",
        ),
    ],
)
def test_nodes_of_sinfo_are_read(tmp_path: Path, lines: tuple[str, ...]) -> None:
    nodes = read_cluster(a_file(tmp_path, "sinfo.txt", *lines)).nodes
    assert [(node.id, node.gpu_count, node.cpu_milli) for node in nodes] == [
        ("gpu01", 4, 64_000),
        ("gpu02", 4, 64_000),
    ]
    assert nodes[0].labels == (("slurm.partition/gpu", "yes"),)


def test_sinfo_without_gpus_is_answered_with_the_command(tmp_path: Path) -> None:
    path = a_file(tmp_path, "sinfo.txt", "PARTITION AVAIL TIMELIMIT NODES STATE NODELIST")
    with Refusal(path, 1) as refusal:
        read_cluster(path)
    assert "column GRES is missing" in refusal.message
    assert "sinfo -N" in refusal.message


def test_node_list_is_not_taken_for_a_trace(tmp_path: Path) -> None:
    path = a_file(tmp_path, "nodes.txt", SCONTROL)
    with Refusal(path, 1) as refusal:
        detect_format(path)
    assert "--cluster" in refusal.message


def test_job_stays_in_its_partition_and_on_the_model_it_asked_for(tmp_path: Path) -> None:
    cluster = read_cluster(a_file(tmp_path, "nodes.txt", SCONTROL))
    typed = "cpu=1,gres/gpu=1,gres/gpu:v100=1,node=1"
    rows = (
        a_job(JobID="1", Partition="long"),
        a_job(JobID="2", tres=typed),
        a_job(JobID="3", Partition="long", tres=typed),
        a_job(JobID="4", AllocTRES=typed),
    )
    reading = read_sacct(sacct(tmp_path, *rows), cluster)
    first, second, fourth = (entry.job.members[0] for entry in jobs_of(reading))
    assert first.node_labels == (("slurm.partition/long", "yes"),)
    assert second.gpu_models == ("v100",)
    assert fourth.gpu_models == ()
    assert reading.skipped == {TOO_LARGE: 1}


def test_models_are_recognised_in_other_spellings(tmp_path: Path) -> None:
    path = sacct(tmp_path, a_job(tres="gres/gpu:nvidia_a100-sxm4-80gb=1"))
    (entry,) = jobs_of(read_sacct(path, a_cluster(model="A100")))
    assert entry.job.members[0].gpu_models == ("A100",)
    assert only_job(path).job.members[0].gpu_models == ()


@pytest.mark.parametrize(
    ("text", "names"),
    [
        ("gpu1", ["gpu1"]),
        ("gpu[08-10,12],login", ["gpu08", "gpu09", "gpu10", "gpu12", "login"]),
        ("r[1-2]n[1-2]", ["r1n1", "r1n2", "r2n1", "r2n2"]),
    ],
)
def test_lists_of_hosts_are_expanded(text: str, names: list[str]) -> None:
    assert hosts(text) == names


@pytest.mark.parametrize("text", ["n[0-999999999]", "r[0-9999]n[0-9999]", "n[a-b]", ""])
def test_list_of_too_many_hosts_is_rejected(text: str) -> None:
    with pytest.raises(InvalidRequest, match="expected names such as"):
        hosts(text)


@pytest.mark.parametrize(
    "tres", ["gres/gpu=900000000000", "gres/gpu=64,node=64", "gres/gpu=0,node=999"]
)
def test_absurd_amount_is_no_job(tmp_path: Path, tres: str) -> None:
    reading = read(sacct(tmp_path, JOB, a_job(JobID="18", tres=tres)))
    assert len(jobs_of(reading)) == 1
