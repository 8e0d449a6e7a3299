"""Detection of trace formats."""

from pathlib import Path

import pytest

from gpu_scheduler.model.errors import InvalidRequest
from gpu_scheduler.simulator.traces.detect import (
    TraceFormat,
    detect_format,
    read_trace,
    write_trace,
)
from tests.simulation.trace_files import (
    Refusal,
    a_cluster,
    a_file,
    a_trace_job,
    gzipped,
    jobs_of,
)

JSON_LINE = '{"id": "a", "submit_s": 0, "run_s": 1, "gpus": 1}'
SAMPLES = {
    TraceFormat.CSV: ("id,submit_s,run_s,gpus", "a,0,1,1"),
    TraceFormat.JSON_LINES: (JSON_LINE,),
    TraceFormat.JSON: ('{"nodes": [{"id": "n", "gpus": 8}],', f'"jobs": [{JSON_LINE}]}}'),
    TraceFormat.HELIOS: ("job_id,user,vc,gpu_num,submit_s,duration_s", "1,u,v,1,0,5"),
    TraceFormat.PHILLY: ("row,submit_time,submit_s,gpu_num,duration_s", "0,,0,1,5"),
    TraceFormat.OPENB: (
        "name,cpu_milli,memory_mib,num_gpu,gpu_milli,creation_time,deletion_time,scheduled_time",
        "p,1,1,1,500,0,9,1",
    ),
    TraceFormat.SWF: ("; MaxProcs: 4", " ".join(["1"] * 18)),
    TraceFormat.SACCT: (
        "JobID|Submit|Start|Elapsed|AllocTRES",
        "1|2026-10-01T00:00:00|2026-10-01T00:00:05|00:01:00|gres/gpu=1",
    ),
    TraceFormat.KUBERNETES: (
        '{"apiVersion": "v1", "kind": "List", "items": [{"kind": "Pod", "metadata": {"name": "p",',
        '"creationTimestamp": "2026-10-01T00:00:00Z"}, "spec": {"containers": [{"resources":',
        '{"limits": {"nvidia.com/gpu": "1"}}}]}, "status": {"phase": "Running", "startTime":',
        '"2026-10-01T00:00:00Z"}}]}',
    ),
}


@pytest.mark.parametrize("trace_format", SAMPLES)
def test_format_is_detected_by_content(tmp_path: Path, trace_format: TraceFormat) -> None:
    path = a_file(tmp_path, "trace", *SAMPLES[trace_format])
    packed = gzipped(path, "packed")
    assert detect_format(path) == detect_format(packed) == trace_format
    assert len(jobs_of(read_trace(packed, cluster=a_cluster()))) == 1


def test_single_line_document_is_not_taken_for_json_lines(tmp_path: Path) -> None:
    path = a_file(tmp_path, "trace", "".join(SAMPLES[TraceFormat.JSON]))
    assert detect_format(path) is TraceFormat.JSON


def test_given_format_is_not_guessed(tmp_path: Path) -> None:
    path = a_file(tmp_path, "trace", *SAMPLES[TraceFormat.CSV])
    with Refusal(path, 1):
        read_trace(path, cluster=a_cluster(), trace_format=TraceFormat.HELIOS)


@pytest.mark.parametrize(
    "trace_format",
    [
        TraceFormat.CSV,
        TraceFormat.JSON_LINES,
        TraceFormat.HELIOS,
        TraceFormat.OPENB,
        TraceFormat.SACCT,
        TraceFormat.KUBERNETES,
    ],
)
def test_trace_without_machines_needs_cluster(tmp_path: Path, trace_format: TraceFormat) -> None:
    path = a_file(tmp_path, "trace", *SAMPLES[trace_format])
    with Refusal(path) as refusal:
        read_trace(path)
    assert "--cluster FILE" in refusal.message
    assert "--nodes N" in refusal.message


@pytest.mark.parametrize(
    ("name", "lines", "words"),
    [
        ("x.txt", ("Dear reader,",), "format is not known"),
        ("x.bin", ("\x00\x01",), "format is not known"),
        ("x.csv", ("id,submit_s,gpus",), "column 'run_s' is missing"),
        ("x.csv", ('a,"b',), "missing"),
        ("x.csv", ("id,gpus",), "lists machines"),
        ("vc_nodes.csv", ("vc,nodes,gpus_per_node",), "lists machines"),
        ("nodes.csv", ("sn,cpu_milli,memory_mib,gpu,model",), "lists machines"),
    ],
)
def test_unknown_file_is_rejected_with_reason(
    tmp_path: Path, name: str, lines: tuple[str, ...], words: str
) -> None:
    path = a_file(tmp_path, name, *lines)
    with Refusal(path, 1) as refusal:
        detect_format(path)
    assert words in refusal.message


def test_empty_file_has_no_format(tmp_path: Path) -> None:
    path = a_file(tmp_path, "empty.csv")
    with Refusal(path):
        detect_format(path)


def test_swf_log_is_recognised_by_name(tmp_path: Path) -> None:
    path = a_file(tmp_path, "log.swf", "1 2 3")
    assert detect_format(path) is TraceFormat.SWF


@pytest.mark.parametrize("name", ["x.csv", "x.csv.gz", "x.json", "x.json.gz", "x.jsonl"])
def test_output_format_follows_file_name(tmp_path: Path, name: str) -> None:
    path = tmp_path / name
    jobs = [a_trace_job("a"), a_trace_job("b", number=2, submit_ms=5)]
    assert write_trace(path, jobs, nodes=a_cluster().nodes) == 2
    assert jobs_of(read_trace(path, cluster=a_cluster())) == jobs


def test_unknown_extension_is_rejected(tmp_path: Path) -> None:
    with pytest.raises(InvalidRequest, match=r"\.csv, \.json or \.jsonl"):
        write_trace(tmp_path / "x.swf", [a_trace_job()])
