"""Slurm: jobs from the output of `sacct`, nodes from `scontrol show nodes` or `sinfo`.

`sacct` may write fields between delimiters (`-P`, `-p`, `--delimiter`), columns of fixed width, or
JSON. Of the many columns only those are read that a replay needs. A line of a job step is left out;
array tasks are jobs; components of a heterogeneous job are members of one gang.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import UTC, datetime, tzinfo
from functools import partial
from pathlib import Path
from typing import Any

from gpu_scheduler.model.errors import InvalidInput, NeverFits
from gpu_scheduler.model.job import Job
from gpu_scheduler.model.node import Device, Node
from gpu_scheduler.model.request import MB_PER_GB, Request
from gpu_scheduler.simulator.traces.collector import Intake, Reading
from gpu_scheduler.simulator.traces.parsing import (
    read_items,
    text_lines,
    thousandths,
    unexpected,
    whole_number,
)
from gpu_scheduler.simulator.workload import (
    DEFAULT_GPU_MEMORY_MB,
    DEFAULT_MODEL,
    Cluster,
    EmptyCluster,
    NodeGroup,
    TraceJob,
    nodes_of,
)

SACCT_COLUMNS = (
    "JobID,JobName,User,Account,Partition,Submit,Eligible,Start,End,Elapsed,Timelimit,State,"
    "NNodes,ReqTRES,AllocTRES"
)
"""What to ask `sacct -o` for."""
SACCT_COMMAND = f"TZ=UTC sacct -a -X -P -o {SACCT_COLUMNS}"
SINFO_COMMAND = "sinfo -N -o '%N|%c|%m|%G|%P'"
ID_COLUMNS = frozenset({"jobid", "jobidraw"})
NODE_NAMES = ("nodelist", "hostnames", "nodehost", "node_list")
DELIMITERS = ("|", "\t", ";", ",")
JOB_STEP = "a job step"
EARLIER_RUN = "an earlier run of a requeued job"
NEVER_STARTED = "no start"
WAS_CANCELLED = "a cancellation before the start"
RUN_UNKNOWN = "an unknown run time"
NO_GPU = "no GPU"
SHARED_GPU = "shards or MPS of a GPU"
TOO_LARGE = "a request that the cluster can never run"
PARTITION_LABEL = "slurm.partition/"
MINUTE_MS = 60_000
MOST_HOSTS = 100_000

_NOTHING = frozenset({"", "unknown", "none", "n/a", "(null)"})
_NO_LIMIT = frozenset({*_NOTHING, "unlimited", "partition_limit", "invalid"})
_NO_START = frozenset({"pending", "requeued", "requeue_fed", "requeue_hold", "revoked"})
_STEP = re.compile(r"[^.]+\..+")
_COMPONENT = re.compile(r"(\d+)\+(\d+)")
_DASHES = re.compile(r"-+( +-+)*")
_DURATION = re.compile(r"(?:(\d+)-)?(?:(\d+):)?(\d+):(\d+)(\.\d+)?", re.ASCII)
_AMOUNT = re.compile(r"(\d+(?:\.\d+)?)([KMGTP]?)B?[cn]?", re.ASCII)
_KEY = re.compile(r"(?:^|\s)([A-Za-z]+)=(\S*)")
_HOSTS = re.compile(r"[^,\[\]]*(?:\[[^\[\]]*\][^,\[\]]*)*")
_TYPED_GPU = "gres/gpu:"
_GPU_COLUMNS = ("alloctres", "reqtres", "allocgres", "reqgres")
_UNITS_KB = {"K": 1, "": MB_PER_GB, "M": MB_PER_GB, "G": MB_PER_GB**2, "T": MB_PER_GB**3}
_UNITS_KB["P"] = MB_PER_GB**4

Columns = dict[str, str]
"""One line of a table by the names of its columns, in lower case."""


@dataclass(frozen=True, slots=True)
class _Record:
    """All lines of one job: runs after a requeue, and components of a heterogeneous job."""

    job_id: str
    rows: tuple[Columns, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class _Amounts:
    """What a job holds or asks for; `models` are the types of its GPUs, if it names any."""

    gpus: int = 0
    models: tuple[str, ...] = ()
    is_shared: bool = False
    cpu_milli: int = 0
    memory_mb: int = 0
    nodes: int = 0


# Jobs


def is_sacct(line: str) -> bool:
    """Whether a first line names the columns of `sacct`."""
    return bool(ID_COLUMNS & set(_cells(line.lower(), _delimiter_of(line))))


def is_sacct_json(beginning: str) -> bool:
    """Whether a document is that of `sacct --json`; in ours, jobs have `id` and `submit_s`."""
    return '"job_id"' in beginning and '"association"' in beginning


def read_sacct(path: Path, cluster: Cluster, *, zone: tzinfo = UTC) -> Reading:
    """Read jobs with GPUs. Times without an offset are in `zone`.

    What a job held comes from AllocTRES; GPU models and the number of nodes from ReqTRES. Skipped
    and counted: job steps, jobs that never started or held no GPU, requests that the cluster can
    never run, and earlier runs of requeued jobs.
    """
    maker = _JobMaker(cluster.nodes, zone)
    intake = Intake(path, read_items(path, _records(path), maker.make))
    return intake.pool(cluster.nodes, has_dates=True)


class _JobMaker:
    """Makes a job of the lines about it."""

    def __init__(self, nodes: tuple[Node, ...], zone: tzinfo) -> None:
        self._zone = zone
        self._empty = EmptyCluster(nodes)
        labels = {label for node in nodes for label, _ in node.labels}
        self._has_partitions = any(label.startswith(PARTITION_LABEL) for label in labels)

    def make(self, record: _Record | str, number: int) -> TraceJob | str:
        if isinstance(record, str):
            return record
        first = record.rows[0]
        moment = partial(_moment_ms, zone=self._zone)
        submit_ms = min(
            (ms for row in record.rows if (ms := moment(row.get("submit", ""), "Submit"))),
            default=None,
        )
        if submit_ms is None:
            raise unexpected(first.get("submit", ""), "Submit", "a time")
        components = _last_runs(record.rows)
        start_ms = moment(components[0].get("start", ""), "Start")
        run_ms = _run_ms(components[0], start_ms, moment)
        state = _state(components[0])
        is_cancelled = state == "cancelled"
        if start_ms is None or state in _NO_START or (is_cancelled and run_ms == 0):
            return WAS_CANCELLED if is_cancelled else NEVER_STARTED
        if run_ms is None:
            return RUN_UNKNOWN
        held = [_held(row) for row in components]
        if not any(each.gpus for each in held):
            return SHARED_GPU if any(each.is_shared for each in held) else NO_GPU
        try:
            members = self._members(components, held)
        except NeverFits:
            return TOO_LARGE
        limit_ms = _limit_ms(components[0])
        eligible_ms = moment(first.get("eligible", ""), "Eligible") or 0
        job = Job(
            id=record.job_id,
            number=number,
            submit_ms=submit_ms,
            begin_ms=eligible_ms if eligible_ms > submit_ms else 0,
            tenant=first.get("account", "").strip() or "default",
            user=first.get("user", "").strip(),
            name=first.get("jobname", "").strip(),
            members=members,
            max_runtime_ms=limit_ms,
        )
        return TraceJob(job, min(run_ms, limit_ms) if limit_ms else run_ms)

    def _members(self, rows: list[Columns], held: list[_Amounts]) -> tuple[Request, ...]:
        """The members of all components, which the cluster must hold at once."""
        members: list[Request] = []
        for row, amounts in zip(rows, held, strict=True):
            partition = row.get("partition", "").strip() if self._has_partitions else ""
            if amounts.gpus > self._empty.gpu_count:
                raise NeverFits(f"{amounts.gpus} GPUs are more than the cluster has")
            parts = max(1, amounts.nodes)
            if not amounts.gpus or amounts.gpus % parts:
                parts = 1
            request = Request(
                gpu_count=amounts.gpus // parts,
                gpu_models=self._empty.models_like(amounts.models) if amounts.gpus else (),
                cpu_milli=-(-amounts.cpu_milli // parts),
                memory_mb=-(-amounts.memory_mb // parts),
                node_labels=((PARTITION_LABEL + partition, "yes"),) if partition else (),
            )
            members += self._empty.spread(request) if parts == 1 else (request,) * parts
        self._empty.check(tuple(members))
        return tuple(members)


def _records(path: Path) -> Iterator[tuple[int | None, _Record | str]]:
    """The lines of each job together, in the order of their first lines."""
    by_job: dict[str, list[Columns]] = {}
    first_lines: dict[str, int | None] = {}
    for line, row in _rows(path):
        job_id = (row.get("jobid") or row.get("jobidraw") or "").strip()
        if not job_id:
            raise InvalidInput(
                "JobID is empty; expected one in each line", file=str(path), line=line
            )
        if _STEP.fullmatch(job_id):
            yield line, JOB_STEP
            continue
        component = _COMPONENT.fullmatch(job_id)
        row["component"] = component[2] if component else ""
        job_id = component[1] if component else job_id
        by_job.setdefault(job_id, []).append(row)
        first_lines.setdefault(job_id, line)
    for job_id, rows in by_job.items():
        for _ in range(len(rows) - len({row["component"] for row in rows})):
            yield first_lines[job_id], EARLIER_RUN
        yield first_lines[job_id], _Record(job_id, tuple(rows))


def _rows(path: Path) -> Iterator[tuple[int | None, Columns]]:
    """The lines of a table with delimiters or of fixed width, or the jobs of a JSON document."""
    lines = ((line, text) for line, text in enumerate(text_lines(path), 1) if text.strip())
    line, first = next(lines, (1, ""))
    if first.lstrip().startswith("{"):
        text = first + "".join(text for _, text in lines)
        yield from ((None, row) for row in _json_rows(path, text))
        return
    delimiter = _delimiter_of(first)
    # With -p, a delimiter also ends each line.
    ending = delimiter if first.rstrip().endswith(delimiter) else ""
    header = _cells(first.lower(), delimiter, ending)
    _check_columns(header, path, line)
    spans: list[tuple[int, int]] = []
    for line, text in lines:
        if _DASHES.fullmatch(text.strip()):
            spans = [match.span() for match in re.finditer("-+", text)]
            continue
        if not (delimiter or spans):
            raise InvalidInput(
                "the columns have neither delimiters nor a line of dashes below their names; "
                f"expected the output of: {SACCT_COMMAND}",
                file=str(path),
                line=line,
            )
        if spans:
            values = [text[start:end].strip() for start, end in spans]
        else:
            values = _cells(text, delimiter, ending)
        if [value.lower() for value in values] == header:
            continue
        if len(values) != len(header):
            raise InvalidInput(
                f"the line has {len(values)} values; expected {len(header)}, as in the header "
                "(if a name contains the delimiter, use another --delimiter of sacct)",
                file=str(path),
                line=line,
            )
        row = dict(zip(header, values, strict=True))
        if spans:
            _refuse_cut_values(row, path, line)
        yield line, row


def _delimiter_of(header: str) -> str:
    return next((sign for sign in DELIMITERS if sign in header), "")


def _cells(text: str, delimiter: str, ending: str = "") -> list[str]:
    text = text.rstrip("\r\n").removesuffix(ending)
    return [cell.strip() for cell in (text.split(delimiter) if delimiter else text.split())]


def _check_columns(header: list[str], path: Path, line: int) -> None:
    for group in (
        tuple(sorted(ID_COLUMNS)),
        ("submit",),
        ("start",),
        ("elapsed", "elapsedraw", "end"),
        _GPU_COLUMNS,
    ):
        if not any(name in header for name in group):
            raise InvalidInput(
                f"column {' or '.join(group)} is missing; expected the output of: {SACCT_COMMAND}",
                file=str(path),
                line=line,
            )


def _refuse_cut_values(row: Columns, path: Path, line: int) -> None:
    for name in (*_GPU_COLUMNS, "submit", "start", "end", "elapsed", "timelimit"):
        if row.get(name, "").endswith("+"):
            raise InvalidInput(
                f"{name} is cut off ({row[name]!r}); expected whole values, as sacct -P writes",
                file=str(path),
                line=line,
            )


def _json_rows(path: Path, text: str) -> Iterator[Columns]:
    """The jobs of `sacct --json`, as lines of a table."""
    try:
        rows = [_json_row(job) for job in json.loads(text)["jobs"]]
    except (ArithmeticError, LookupError, TypeError, ValueError, AttributeError) as error:
        raise InvalidInput(
            f"not a document of sacct --json ({error!r}); expected that, or the output of: "
            f"{SACCT_COMMAND}",
            file=str(path),
        ) from error
    except RecursionError as error:
        raise InvalidInput("the values are nested too deeply", file=str(path)) from error
    yield from rows


def _json_row(job: Mapping[str, Any]) -> Columns:
    times, array, parts = job["time"], job.get("array") or {}, job.get("het") or {}
    job_id, task, offset = job["job_id"], _number(array.get("task_id")), ""
    if array.get("job_id") and task is not None:
        job_id = f"{array['job_id']}_{task}"
    if parts.get("job_id"):
        job_id, offset = parts["job_id"], f"+{_number(parts.get('job_offset')) or 0}"
    state = job["state"]["current"]
    limit = _number(times.get("limit"))
    return {
        "jobid": f"{job_id}{offset}",
        "jobname": job.get("name") or "",
        "user": job.get("user") or job.get("association", {}).get("user") or "",
        "account": job.get("account") or "",
        "partition": job.get("partition") or "",
        **{
            name: str(_number(times.get(key)) or "")
            for name, key in (
                ("submit", "submission"),
                ("eligible", "eligible"),
                ("start", "start"),
                ("end", "end"),
            )
        },
        "elapsedraw": str(_number(times.get("elapsed")) or 0),
        "timelimitraw": "" if limit is None else str(limit),
        "state": state[0] if isinstance(state, list) else state,
        "alloctres": _json_tres(job["tres"].get("allocated") or ()),
        "reqtres": _json_tres(job["tres"].get("requested") or ()),
    }


def _number(value: Any) -> int | None:
    """A number; newer versions write {"set": true, "infinite": false, "number": 4}."""
    if isinstance(value, dict):
        is_number = value.get("set") and not value.get("infinite")
        return int(value["number"]) if is_number else None
    return None if value in (None, "", "UNLIMITED") else int(value)


def _json_tres(amounts: Iterable[Mapping[str, Any]]) -> str:
    return ",".join(
        f"{one['type']}{'/' if one.get('name') else ''}{one.get('name') or ''}={one['count']}"
        for one in amounts
    )


def _last_runs(rows: Sequence[Columns]) -> list[Columns]:
    """The last run of each component that has started."""
    last: dict[str, Columns] = {}
    for row in rows:
        has_started = row.get("start", "").strip().lower() not in _NOTHING
        if has_started or row["component"] not in last:
            last[row["component"]] = row
    return [last[component] for component in sorted(last, key=lambda text: int(text or 0))]


def _state(row: Columns) -> str:
    """The state without what may follow it, as in `CANCELLED by 1001` or `CANCELLED+`."""
    words = row.get("state", "").lower().rstrip("+").split()
    return words[0] if words else ""


def _run_ms(
    row: Columns, start_ms: int | None, moment: Callable[[str, str], int | None]
) -> int | None:
    """The run time without suspensions; of a job that still runs, that so far."""
    if text := row.get("elapsedraw", "").strip():
        return thousandths(text, "ElapsedRaw")
    if text := row.get("elapsed", "").strip():
        return _duration_ms(text, "Elapsed")
    end_ms = moment(row.get("end", ""), "End")
    if start_ms is None or end_ms is None:
        return None
    if end_ms < start_ms:
        raise unexpected(row["end"], "End", f"a time after {row['start']}, its start")
    return end_ms - start_ms


def _limit_ms(row: Columns) -> int:
    text = row.get("timelimitraw", "").strip()
    if text.lower() not in _NO_LIMIT:
        return whole_number(text, "TimelimitRaw") * MINUTE_MS
    text = row.get("timelimit", "").strip()
    return 0 if text.lower() in _NO_LIMIT else _duration_ms(text, "Timelimit")


def _duration_ms(text: str, name: str) -> int:
    match = _DURATION.fullmatch(text)
    if match is None:
        raise unexpected(text, name, "a duration such as 2-12:30:00")
    days, hours, minutes, seconds = (whole_number(part or "0", name) for part in match.groups()[:4])
    whole_s = ((days * 24 + hours) * 60 + minutes) * 60 + seconds
    return whole_s * 1000 + (thousandths(f"0{match[5]}", name) if match[5] else 0)


def _moment_ms(text: str, name: str, zone: tzinfo) -> int | None:
    text = text.strip()
    if text.lower() in _NOTHING:
        return None
    if text.isascii() and text.isdigit():
        return whole_number(text, name) * 1000
    try:
        moment = datetime.fromisoformat(text)
        moment = moment if moment.tzinfo else moment.replace(tzinfo=zone)
        seconds = moment.timestamp()
    except (ValueError, OverflowError) as error:
        raise unexpected(
            text, name, "a time such as 2026-10-01T00:02:34 (SLURM_TIME_FORMAT=standard)"
        ) from error
    if seconds < 0:
        raise unexpected(text, name, "a time after 1970")
    return round(seconds * 1000)


def _held(row: Columns) -> _Amounts:
    """What the job held; its GPU models and number of nodes are those that it asked for."""
    asked, held = _tres(row.get("reqtres", "")), _tres(row.get("alloctres", ""))
    if not row.get("alloctres", "").strip():
        held = asked
    nodes = asked.nodes or held.nodes
    if not nodes:
        text = row.get("nnodes") or row.get("allocnodes") or row.get("reqnodes") or "1"
        nodes = whole_number(text.strip() or "1", "NNodes")
    gpus, models = held.gpus, asked.models
    if not gpus and not (row.get("reqtres") or row.get("alloctres")):
        # Before Slurm 21: AllocGRES is the sum, ReqGRES is for each node.
        found = gres(row.get("allocgres", ""))
        per_node = gres(row.get("reqgres", "")) if not found else {}
        gpus = sum(found.values()) or nodes * sum(per_node.values())
        models = tuple(sorted(model for model in gres(row.get("reqgres", "")) if model))
    cpu_milli = held.cpu_milli
    if not cpu_milli:
        cpus = row.get("alloccpus") or row.get("ncpus") or row.get("reqcpus") or "0"
        cpu_milli = thousandths(cpus.strip() or "0", "AllocCPUS")
    return replace(held, gpus=gpus, models=models, nodes=nodes, cpu_milli=cpu_milli)


def _tres(text: str) -> _Amounts:
    """Read `cpu=8,mem=64G,node=1,gres/gpu=2,gres/gpu:a100=2`."""
    amounts: dict[str, str] = {}
    for part in filter(None, (piece.strip() for piece in text.split(","))):
        name, equals, amount = part.partition("=")
        if not equals:
            raise unexpected(text, "TRES", "amounts such as cpu=8,mem=64G,gres/gpu=2")
        amounts[name.lower()] = amount
    by_model = {
        name.removeprefix(_TYPED_GPU): whole_number(amount, name)
        for name, amount in amounts.items()
        if name.startswith(_TYPED_GPU)
    }
    total = whole_number(amounts.get("gres/gpu", "0"), "gres/gpu")
    return _Amounts(
        gpus=total or sum(by_model.values()),
        models=tuple(sorted(by_model)),
        is_shared=any(name.startswith(("gres/shard", "gres/mps")) for name in amounts),
        cpu_milli=thousandths(amounts.get("cpu", "0"), "cpu"),
        memory_mb=_memory_mb(amounts.get("mem", "0"), "mem"),
        nodes=whole_number(amounts.get("node", "0"), "node"),
    )


def gres(text: str) -> dict[str, int]:
    """GPUs by model ('' without one) in `gpu:a100:8(S:0-1),gpu:2`; others are left out."""
    found: dict[str, int] = {}
    for item in re.findall(r"[^,(]+(?:\([^)]*\))?", text):
        words = re.sub(r"^gres[:/]|\(.*", "", item.strip()).split(":")
        if words[0] != "gpu":
            continue
        count = whole_number(words[-1], "gres/gpu") if words[-1].isdigit() else 1
        model = words[1] if len(words) > 1 and not words[1].isdigit() else ""
        found[model] = found.get(model, 0) + count
    return found


def _memory_mb(text: str, name: str) -> int:
    match = _AMOUNT.fullmatch(text.strip())
    if match is None:
        raise unexpected(text, name, "an amount such as 64G")
    return -(-thousandths(match[1], name) * _UNITS_KB[match[2]] // (1000 * MB_PER_GB))


# Nodes


def is_node_list(line: str) -> bool:
    """Whether a first line is from `scontrol show nodes`, or names the columns of `sinfo`."""
    cells = _cells(line.lower(), _delimiter_of(line))
    return line.startswith("NodeName=") or (
        any(name in cells for name in NODE_NAMES) and not ID_COLUMNS & set(cells)
    )


def read_slurm_nodes(path: Path) -> Cluster:
    """Read the nodes with GPUs, whatever their state. Their partitions become labels."""
    beginning = next(iter(text for text in text_lines(path) if text.strip()), "")
    is_scontrol = beginning.startswith("NodeName=")
    found: dict[str, Node] = {}
    rows = _scontrol_rows(path) if is_scontrol else _sinfo_rows(path)
    for _, nodes in read_items(path, rows, _nodes_of_row):
        for node in nodes:
            before = found.get(node.id, node)
            labels = tuple(sorted({*before.labels, *node.labels}))
            found[node.id] = replace(node, labels=labels)
    names = sorted(found)
    if not names:
        command = "scontrol show nodes" if is_scontrol else SINFO_COMMAND
        raise InvalidInput(
            f"the file lists no nodes with GPUs; expected the output of: {command}",
            file=str(path),
        )
    return Cluster.pool(replace(found[name], ordinal=ordinal) for ordinal, name in enumerate(names))


def _scontrol_rows(path: Path) -> Iterator[tuple[int, Columns]]:
    """The fields of each node, whether on one line or on several."""
    first, fields = 0, Columns()
    for line, text in enumerate(text_lines(path), 1):
        if text.lstrip().startswith("NodeName="):
            if fields:
                yield first, fields
            first, fields = line, Columns()
        for name, value in _KEY.findall(text):
            fields.setdefault(name.lower(), value)
    if fields:
        yield first, fields


def _sinfo_rows(path: Path) -> Iterator[tuple[int, Columns]]:
    header: list[str] = []
    delimiter = ""
    for line, text in enumerate(text_lines(path), 1):
        if not text.strip():
            continue
        if not header:
            delimiter = _delimiter_of(text)
            header = _cells(text.lower(), delimiter)
            if "gres" not in header:
                raise InvalidInput(
                    f"column GRES is missing; expected the output of: {SINFO_COMMAND}",
                    file=str(path),
                    line=line,
                )
            continue
        values = _cells(text, delimiter)
        if len(values) != len(header):
            raise InvalidInput(
                f"the line has {len(values)} values; expected {len(header)}, as in the output of: "
                f"{SINFO_COMMAND}",
                file=str(path),
                line=line,
            )
        row = dict(zip(header, values, strict=True))
        name = next(row[column] for column in NODE_NAMES if column in row)
        yield (
            line,
            {
                "nodename": name,
                "gres": row["gres"],
                "cputot": row.get("cpus", ""),
                "realmemory": row.get("memory", ""),
                "partitions": row.get("partition", "").rstrip("*"),
            },
        )


def _nodes_of_row(row: Columns, _number: int) -> list[Node]:
    gpus = gres(row.get("gres", ""))
    if not gpus:
        return []
    cpus = (row.get("cputot") or row.get("cpus") or "").rstrip("+")
    memory = row.get("realmemory", "").rstrip("+")
    partitions = [name for name in row.get("partitions", "").split(",") if name]
    group = NodeGroup(
        id="node",
        gpus=sum(gpus.values()),
        cpu_milli=thousandths(cpus, "CPUTot") if cpus else None,
        memory_mb=_memory_mb(memory, "RealMemory") if memory else None,
        labels=tuple((PARTITION_LABEL + name, "yes") for name in sorted(partitions)),
    )
    (alike,) = nodes_of([group])
    models = [model or DEFAULT_MODEL for model, count in gpus.items() for _ in range(count)]
    devices = tuple(
        Device(index=index, model=model, memory_mb=DEFAULT_GPU_MEMORY_MB)
        for index, model in enumerate(models)
    )
    return [replace(alike, id=name, devices=devices) for name in hosts(row["nodename"])]


def hosts(text: str) -> list[str]:
    """The names in a list such as `gpu[01-03,07],login1`."""
    names = [name for part in _HOSTS.findall(text) if part for name in _expanded(part)]
    if not names or len(names) > MOST_HOSTS:
        raise unexpected(text, "the list of nodes", "names such as gpu[01-03,07]")
    return names


def _expanded(part: str) -> list[str]:
    match = re.search(r"\[([^\[\]]*)\]", part)
    if match is None:
        return [part]
    before, after = part[: match.start()], _expanded(part[match.end() :])
    names: list[str] = []
    for piece in match[1].split(","):
        first, _, last = piece.partition("-")
        expected = f"names such as gpu[01-03,07], at most {MOST_HOSTS}"
        if not first.isdecimal() or (last and not last.isdecimal()):
            raise unexpected(part, "the list of nodes", expected)
        low, high = whole_number(first, "node"), whole_number(last or first, "node")
        if (high - low) * len(after) > MOST_HOSTS:
            raise unexpected(part, "the list of nodes", expected)
        for number in range(low, high + 1):
            names += (f"{before}{number:0{len(first)}d}{rest}" for rest in after)
    return names
