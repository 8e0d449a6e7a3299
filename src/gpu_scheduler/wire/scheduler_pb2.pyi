import datetime

from google.protobuf import any_pb2 as _any_pb2
from google.protobuf import duration_pb2 as _duration_pb2
from google.protobuf import timestamp_pb2 as _timestamp_pb2
from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class SubmitJobRequest(_message.Message):
    __slots__ = ("job", "dry_run")
    JOB_FIELD_NUMBER: _ClassVar[int]
    DRY_RUN_FIELD_NUMBER: _ClassVar[int]
    job: JobSpec
    dry_run: bool
    def __init__(self, job: _Optional[_Union[JobSpec, _Mapping]] = ..., dry_run: _Optional[bool] = ...) -> None: ...

class SubmitJobAnswer(_message.Message):
    __slots__ = ("job_id", "status", "message", "tasks", "validated")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    VALIDATED_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    status: str
    message: str
    tasks: int
    validated: Validated
    def __init__(self, job_id: _Optional[str] = ..., status: _Optional[str] = ..., message: _Optional[str] = ..., tasks: _Optional[int] = ..., validated: _Optional[_Union[Validated, _Mapping]] = ...) -> None: ...

class Validated(_message.Message):
    __slots__ = ("count", "tasks", "position", "expected_start", "basis", "start_unknown", "expected_end", "end_unknown", "warnings", "status", "expected_start_earliest", "expected_start_latest")
    COUNT_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_FIELD_NUMBER: _ClassVar[int]
    BASIS_FIELD_NUMBER: _ClassVar[int]
    START_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_END_FIELD_NUMBER: _ClassVar[int]
    END_UNKNOWN_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_EARLIEST_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_LATEST_FIELD_NUMBER: _ClassVar[int]
    count: int
    tasks: int
    position: int
    expected_start: _timestamp_pb2.Timestamp
    basis: str
    start_unknown: str
    expected_end: _timestamp_pb2.Timestamp
    end_unknown: str
    warnings: _containers.RepeatedScalarFieldContainer[str]
    status: str
    expected_start_earliest: _timestamp_pb2.Timestamp
    expected_start_latest: _timestamp_pb2.Timestamp
    def __init__(self, count: _Optional[int] = ..., tasks: _Optional[int] = ..., position: _Optional[int] = ..., expected_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., basis: _Optional[str] = ..., start_unknown: _Optional[str] = ..., expected_end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., end_unknown: _Optional[str] = ..., warnings: _Optional[_Iterable[str]] = ..., status: _Optional[str] = ..., expected_start_earliest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expected_start_latest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class SubmitJobsRequest(_message.Message):
    __slots__ = ("jobs",)
    JOBS_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[JobSpec]
    def __init__(self, jobs: _Optional[_Iterable[_Union[JobSpec, _Mapping]]] = ...) -> None: ...

class SubmitJobsAnswer(_message.Message):
    __slots__ = ("job_ids", "count", "status")
    JOB_IDS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    job_ids: _containers.RepeatedScalarFieldContainer[str]
    count: int
    status: str
    def __init__(self, job_ids: _Optional[_Iterable[str]] = ..., count: _Optional[int] = ..., status: _Optional[str] = ...) -> None: ...

class JobSpec(_message.Message):
    __slots__ = ("name", "tenant_id", "priority", "priority_name", "command", "args", "script", "image", "environment", "captured_environment", "working_directory", "umask", "gang_scheduling", "members", "member_specs", "min_members", "same_rack", "pool", "interactive", "preemptible", "max_runtime_minutes", "max_runtime_seconds", "estimate_seconds", "deadline", "begin_at", "dependencies", "array", "hold", "retries", "retry_exit_codes", "requeue_on_node_loss", "allow_idle", "runner", "mounts", "conda", "output", "signal", "grace_seconds", "max_processes", "sweep", "params", "snapshot", "notify", "terminal", "gpu_count", "gpu_memory_mb", "gpu_memory_mb_per_gpu", "gpu_model", "gpu_models", "mig_profile", "allowed_gpus", "exclusive", "cpu_cores", "memory_mb", "node_labels", "topology", "contiguous", "min_bandwidth_gbps", "nodes", "exclude_nodes")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class NodeLabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class Terminal(_message.Message):
        __slots__ = ("rows", "columns", "idle_seconds", "attach_within_seconds", "on_disconnect")
        ROWS_FIELD_NUMBER: _ClassVar[int]
        COLUMNS_FIELD_NUMBER: _ClassVar[int]
        IDLE_SECONDS_FIELD_NUMBER: _ClassVar[int]
        ATTACH_WITHIN_SECONDS_FIELD_NUMBER: _ClassVar[int]
        ON_DISCONNECT_FIELD_NUMBER: _ClassVar[int]
        rows: int
        columns: int
        idle_seconds: float
        attach_within_seconds: float
        on_disconnect: str
        def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., idle_seconds: _Optional[float] = ..., attach_within_seconds: _Optional[float] = ..., on_disconnect: _Optional[str] = ...) -> None: ...
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_NAME_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    ARGS_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    WORKING_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    UMASK_FIELD_NUMBER: _ClassVar[int]
    GANG_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_SPECS_FIELD_NUMBER: _ClassVar[int]
    MIN_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SAME_RACK_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNTIME_MINUTES_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNTIME_SECONDS_FIELD_NUMBER: _ClassVar[int]
    ESTIMATE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_AT_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    RETRY_EXIT_CODES_FIELD_NUMBER: _ClassVar[int]
    REQUEUE_ON_NODE_LOSS_FIELD_NUMBER: _ClassVar[int]
    ALLOW_IDLE_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    CONDA_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    GRACE_SECONDS_FIELD_NUMBER: _ClassVar[int]
    MAX_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MB_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    GPU_MODELS_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_GPUS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    NODE_LABELS_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    CONTIGUOUS_FIELD_NUMBER: _ClassVar[int]
    MIN_BANDWIDTH_GBPS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_NODES_FIELD_NUMBER: _ClassVar[int]
    name: str
    tenant_id: str
    priority: int
    priority_name: str
    command: _containers.RepeatedScalarFieldContainer[str]
    args: _containers.RepeatedScalarFieldContainer[str]
    script: str
    image: str
    environment: _containers.ScalarMap[str, str]
    captured_environment: Variables
    working_directory: str
    umask: int
    gang_scheduling: bool
    members: int
    member_specs: _containers.RepeatedCompositeFieldContainer[MemberSpec]
    min_members: int
    same_rack: bool
    pool: str
    interactive: bool
    preemptible: bool
    max_runtime_minutes: float
    max_runtime_seconds: float
    estimate_seconds: float
    deadline: str
    begin_at: str
    dependencies: _containers.RepeatedCompositeFieldContainer[Dependency]
    array: ArraySpec
    hold: bool
    retries: int
    retry_exit_codes: _containers.RepeatedScalarFieldContainer[int]
    requeue_on_node_loss: bool
    allow_idle: bool
    runner: str
    mounts: _containers.RepeatedScalarFieldContainer[str]
    conda: str
    output: str
    signal: str
    grace_seconds: float
    max_processes: int
    sweep: str
    params: _containers.ScalarMap[str, str]
    snapshot: Snapshot
    notify: _containers.RepeatedScalarFieldContainer[str]
    terminal: JobSpec.Terminal
    gpu_count: float
    gpu_memory_mb: int
    gpu_memory_mb_per_gpu: int
    gpu_model: str
    gpu_models: _containers.RepeatedScalarFieldContainer[str]
    mig_profile: str
    allowed_gpus: _containers.RepeatedScalarFieldContainer[int]
    exclusive: bool
    cpu_cores: float
    memory_mb: int
    node_labels: _containers.ScalarMap[str, str]
    topology: str
    contiguous: bool
    min_bandwidth_gbps: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    exclude_nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, name: _Optional[str] = ..., tenant_id: _Optional[str] = ..., priority: _Optional[int] = ..., priority_name: _Optional[str] = ..., command: _Optional[_Iterable[str]] = ..., args: _Optional[_Iterable[str]] = ..., script: _Optional[str] = ..., image: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., captured_environment: _Optional[_Union[Variables, _Mapping]] = ..., working_directory: _Optional[str] = ..., umask: _Optional[int] = ..., gang_scheduling: _Optional[bool] = ..., members: _Optional[int] = ..., member_specs: _Optional[_Iterable[_Union[MemberSpec, _Mapping]]] = ..., min_members: _Optional[int] = ..., same_rack: _Optional[bool] = ..., pool: _Optional[str] = ..., interactive: _Optional[bool] = ..., preemptible: _Optional[bool] = ..., max_runtime_minutes: _Optional[float] = ..., max_runtime_seconds: _Optional[float] = ..., estimate_seconds: _Optional[float] = ..., deadline: _Optional[str] = ..., begin_at: _Optional[str] = ..., dependencies: _Optional[_Iterable[_Union[Dependency, _Mapping]]] = ..., array: _Optional[_Union[ArraySpec, _Mapping]] = ..., hold: _Optional[bool] = ..., retries: _Optional[int] = ..., retry_exit_codes: _Optional[_Iterable[int]] = ..., requeue_on_node_loss: _Optional[bool] = ..., allow_idle: _Optional[bool] = ..., runner: _Optional[str] = ..., mounts: _Optional[_Iterable[str]] = ..., conda: _Optional[str] = ..., output: _Optional[str] = ..., signal: _Optional[str] = ..., grace_seconds: _Optional[float] = ..., max_processes: _Optional[int] = ..., sweep: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., notify: _Optional[_Iterable[str]] = ..., terminal: _Optional[_Union[JobSpec.Terminal, _Mapping]] = ..., gpu_count: _Optional[float] = ..., gpu_memory_mb: _Optional[int] = ..., gpu_memory_mb_per_gpu: _Optional[int] = ..., gpu_model: _Optional[str] = ..., gpu_models: _Optional[_Iterable[str]] = ..., mig_profile: _Optional[str] = ..., allowed_gpus: _Optional[_Iterable[int]] = ..., exclusive: _Optional[bool] = ..., cpu_cores: _Optional[float] = ..., memory_mb: _Optional[int] = ..., node_labels: _Optional[_Mapping[str, str]] = ..., topology: _Optional[str] = ..., contiguous: _Optional[bool] = ..., min_bandwidth_gbps: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., exclude_nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class MemberSpec(_message.Message):
    __slots__ = ("gpu_count", "gpu_memory_mb", "gpu_memory_mb_per_gpu", "gpu_model", "gpu_models", "mig_profile", "allowed_gpus", "exclusive", "cpu_cores", "memory_mb", "node_labels", "topology", "contiguous", "min_bandwidth_gbps", "nodes", "exclude_nodes")
    class NodeLabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MB_PER_GPU_FIELD_NUMBER: _ClassVar[int]
    GPU_MODEL_FIELD_NUMBER: _ClassVar[int]
    GPU_MODELS_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    ALLOWED_GPUS_FIELD_NUMBER: _ClassVar[int]
    EXCLUSIVE_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    NODE_LABELS_FIELD_NUMBER: _ClassVar[int]
    TOPOLOGY_FIELD_NUMBER: _ClassVar[int]
    CONTIGUOUS_FIELD_NUMBER: _ClassVar[int]
    MIN_BANDWIDTH_GBPS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    EXCLUDE_NODES_FIELD_NUMBER: _ClassVar[int]
    gpu_count: float
    gpu_memory_mb: int
    gpu_memory_mb_per_gpu: int
    gpu_model: str
    gpu_models: _containers.RepeatedScalarFieldContainer[str]
    mig_profile: str
    allowed_gpus: _containers.RepeatedScalarFieldContainer[int]
    exclusive: bool
    cpu_cores: float
    memory_mb: int
    node_labels: _containers.ScalarMap[str, str]
    topology: str
    contiguous: bool
    min_bandwidth_gbps: int
    nodes: _containers.RepeatedScalarFieldContainer[str]
    exclude_nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, gpu_count: _Optional[float] = ..., gpu_memory_mb: _Optional[int] = ..., gpu_memory_mb_per_gpu: _Optional[int] = ..., gpu_model: _Optional[str] = ..., gpu_models: _Optional[_Iterable[str]] = ..., mig_profile: _Optional[str] = ..., allowed_gpus: _Optional[_Iterable[int]] = ..., exclusive: _Optional[bool] = ..., cpu_cores: _Optional[float] = ..., memory_mb: _Optional[int] = ..., node_labels: _Optional[_Mapping[str, str]] = ..., topology: _Optional[str] = ..., contiguous: _Optional[bool] = ..., min_bandwidth_gbps: _Optional[int] = ..., nodes: _Optional[_Iterable[str]] = ..., exclude_nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class Variables(_message.Message):
    __slots__ = ("values",)
    class ValuesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.ScalarMap[str, str]
    def __init__(self, values: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Dependency(_message.Message):
    __slots__ = ("type", "job_id")
    TYPE_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    type: str
    job_id: str
    def __init__(self, type: _Optional[str] = ..., job_id: _Optional[str] = ...) -> None: ...

class ArraySpec(_message.Message):
    __slots__ = ("tasks", "max_running")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    tasks: str
    max_running: int
    def __init__(self, tasks: _Optional[str] = ..., max_running: _Optional[int] = ...) -> None: ...

class Snapshot(_message.Message):
    __slots__ = ("path", "source", "tree", "commit", "dirty")
    PATH_FIELD_NUMBER: _ClassVar[int]
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TREE_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    DIRTY_FIELD_NUMBER: _ClassVar[int]
    path: str
    source: str
    tree: str
    commit: str
    dirty: bool
    def __init__(self, path: _Optional[str] = ..., source: _Optional[str] = ..., tree: _Optional[str] = ..., commit: _Optional[str] = ..., dirty: _Optional[bool] = ...) -> None: ...

class CancelJobRequest(_message.Message):
    __slots__ = ("job_id", "tasks")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    tasks: str
    def __init__(self, job_id: _Optional[str] = ..., tasks: _Optional[str] = ...) -> None: ...

class CancelJobAnswer(_message.Message):
    __slots__ = ("job_id", "status", "message")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    STATUS_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    status: str
    message: str
    def __init__(self, job_id: _Optional[str] = ..., status: _Optional[str] = ..., message: _Optional[str] = ...) -> None: ...

class GetJobStatusRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ListJobsRequest(_message.Message):
    __slots__ = ("states", "tenant_id", "user", "name", "sort", "limit", "offset", "cursor", "archived", "since", "sweep", "ended_since", "ended_before")
    STATES_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    SORT_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    CURSOR_FIELD_NUMBER: _ClassVar[int]
    ARCHIVED_FIELD_NUMBER: _ClassVar[int]
    SINCE_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    ENDED_SINCE_FIELD_NUMBER: _ClassVar[int]
    ENDED_BEFORE_FIELD_NUMBER: _ClassVar[int]
    states: _containers.RepeatedScalarFieldContainer[str]
    tenant_id: str
    user: str
    name: str
    sort: str
    limit: int
    offset: int
    cursor: str
    archived: bool
    since: str
    sweep: str
    ended_since: str
    ended_before: str
    def __init__(self, states: _Optional[_Iterable[str]] = ..., tenant_id: _Optional[str] = ..., user: _Optional[str] = ..., name: _Optional[str] = ..., sort: _Optional[str] = ..., limit: _Optional[int] = ..., offset: _Optional[int] = ..., cursor: _Optional[str] = ..., archived: _Optional[bool] = ..., since: _Optional[str] = ..., sweep: _Optional[str] = ..., ended_since: _Optional[str] = ..., ended_before: _Optional[str] = ...) -> None: ...

class ListJobsAnswer(_message.Message):
    __slots__ = ("jobs", "total", "next_cursor")
    JOBS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_FIELD_NUMBER: _ClassVar[int]
    NEXT_CURSOR_FIELD_NUMBER: _ClassVar[int]
    jobs: _containers.RepeatedCompositeFieldContainer[Job]
    total: int
    next_cursor: str
    def __init__(self, jobs: _Optional[_Iterable[_Union[Job, _Mapping]]] = ..., total: _Optional[int] = ..., next_cursor: _Optional[str] = ...) -> None: ...

class Job(_message.Message):
    __slots__ = ("id", "job_id", "number", "name", "tenant_id", "user", "state", "reason", "priority", "gpu_count", "gpu_memory_mb", "cpu_cores", "memory_mb", "command", "image", "working_directory", "environment", "pool", "interactive", "preemptible", "gang_scheduling", "members", "min_members", "max_runtime_minutes", "submitted_at", "started_at", "ended_at", "attempt", "preemptions", "exit_code", "signal", "array", "allocation", "dependencies", "hold", "retries", "deadline", "begin_at", "runner", "gpu_models", "output", "notify", "task", "attach", "sweep", "params", "snapshot", "expected_end", "redacted", "allow_idle", "measured", "time_limit_minutes", "placed_members", "script", "expected_start", "expected_start_earliest", "expected_start_latest")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    class ParamsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    NUMBER_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_FIELD_NUMBER: _ClassVar[int]
    GPU_COUNT_FIELD_NUMBER: _ClassVar[int]
    GPU_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    WORKING_DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    POOL_FIELD_NUMBER: _ClassVar[int]
    INTERACTIVE_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIBLE_FIELD_NUMBER: _ClassVar[int]
    GANG_SCHEDULING_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MIN_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNTIME_MINUTES_FIELD_NUMBER: _ClassVar[int]
    SUBMITTED_AT_FIELD_NUMBER: _ClassVar[int]
    STARTED_AT_FIELD_NUMBER: _ClassVar[int]
    ENDED_AT_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    ARRAY_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_FIELD_NUMBER: _ClassVar[int]
    DEPENDENCIES_FIELD_NUMBER: _ClassVar[int]
    HOLD_FIELD_NUMBER: _ClassVar[int]
    RETRIES_FIELD_NUMBER: _ClassVar[int]
    DEADLINE_FIELD_NUMBER: _ClassVar[int]
    BEGIN_AT_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    GPU_MODELS_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    NOTIFY_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTACH_FIELD_NUMBER: _ClassVar[int]
    SWEEP_FIELD_NUMBER: _ClassVar[int]
    PARAMS_FIELD_NUMBER: _ClassVar[int]
    SNAPSHOT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_END_FIELD_NUMBER: _ClassVar[int]
    REDACTED_FIELD_NUMBER: _ClassVar[int]
    ALLOW_IDLE_FIELD_NUMBER: _ClassVar[int]
    MEASURED_FIELD_NUMBER: _ClassVar[int]
    TIME_LIMIT_MINUTES_FIELD_NUMBER: _ClassVar[int]
    PLACED_MEMBERS_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_EARLIEST_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_START_LATEST_FIELD_NUMBER: _ClassVar[int]
    id: str
    job_id: str
    number: int
    name: str
    tenant_id: str
    user: str
    state: str
    reason: str
    priority: int
    gpu_count: float
    gpu_memory_mb: int
    cpu_cores: float
    memory_mb: int
    command: _containers.RepeatedScalarFieldContainer[str]
    image: str
    working_directory: str
    environment: _containers.ScalarMap[str, str]
    pool: str
    interactive: bool
    preemptible: bool
    gang_scheduling: bool
    members: int
    min_members: int
    max_runtime_minutes: float
    submitted_at: _timestamp_pb2.Timestamp
    started_at: _timestamp_pb2.Timestamp
    ended_at: _timestamp_pb2.Timestamp
    attempt: int
    preemptions: int
    exit_code: int
    signal: int
    array: Array
    allocation: _containers.RepeatedCompositeFieldContainer[Place]
    dependencies: _containers.RepeatedCompositeFieldContainer[Dependency]
    hold: bool
    retries: int
    deadline: _timestamp_pb2.Timestamp
    begin_at: _timestamp_pb2.Timestamp
    runner: str
    gpu_models: _containers.RepeatedScalarFieldContainer[str]
    output: str
    notify: _containers.RepeatedScalarFieldContainer[str]
    task: int
    attach: _containers.RepeatedScalarFieldContainer[str]
    sweep: str
    params: _containers.ScalarMap[str, str]
    snapshot: Snapshot
    expected_end: _timestamp_pb2.Timestamp
    redacted: bool
    allow_idle: bool
    measured: Measure
    time_limit_minutes: float
    placed_members: int
    script: str
    expected_start: _timestamp_pb2.Timestamp
    expected_start_earliest: _timestamp_pb2.Timestamp
    expected_start_latest: _timestamp_pb2.Timestamp
    def __init__(self, id: _Optional[str] = ..., job_id: _Optional[str] = ..., number: _Optional[int] = ..., name: _Optional[str] = ..., tenant_id: _Optional[str] = ..., user: _Optional[str] = ..., state: _Optional[str] = ..., reason: _Optional[str] = ..., priority: _Optional[int] = ..., gpu_count: _Optional[float] = ..., gpu_memory_mb: _Optional[int] = ..., cpu_cores: _Optional[float] = ..., memory_mb: _Optional[int] = ..., command: _Optional[_Iterable[str]] = ..., image: _Optional[str] = ..., working_directory: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., pool: _Optional[str] = ..., interactive: _Optional[bool] = ..., preemptible: _Optional[bool] = ..., gang_scheduling: _Optional[bool] = ..., members: _Optional[int] = ..., min_members: _Optional[int] = ..., max_runtime_minutes: _Optional[float] = ..., submitted_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., started_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., ended_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., attempt: _Optional[int] = ..., preemptions: _Optional[int] = ..., exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., array: _Optional[_Union[Array, _Mapping]] = ..., allocation: _Optional[_Iterable[_Union[Place, _Mapping]]] = ..., dependencies: _Optional[_Iterable[_Union[Dependency, _Mapping]]] = ..., hold: _Optional[bool] = ..., retries: _Optional[int] = ..., deadline: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., begin_at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., runner: _Optional[str] = ..., gpu_models: _Optional[_Iterable[str]] = ..., output: _Optional[str] = ..., notify: _Optional[_Iterable[str]] = ..., task: _Optional[int] = ..., attach: _Optional[_Iterable[str]] = ..., sweep: _Optional[str] = ..., params: _Optional[_Mapping[str, str]] = ..., snapshot: _Optional[_Union[Snapshot, _Mapping]] = ..., expected_end: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., redacted: _Optional[bool] = ..., allow_idle: _Optional[bool] = ..., measured: _Optional[_Union[Measure, _Mapping]] = ..., time_limit_minutes: _Optional[float] = ..., placed_members: _Optional[int] = ..., script: _Optional[str] = ..., expected_start: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expected_start_earliest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., expected_start_latest: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ...) -> None: ...

class Array(_message.Message):
    __slots__ = ("tasks", "count", "max_running", "states")
    class StatesEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    TASKS_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    MAX_RUNNING_FIELD_NUMBER: _ClassVar[int]
    STATES_FIELD_NUMBER: _ClassVar[int]
    tasks: str
    count: int
    max_running: int
    states: _containers.ScalarMap[str, str]
    def __init__(self, tasks: _Optional[str] = ..., count: _Optional[int] = ..., max_running: _Optional[int] = ..., states: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Place(_message.Message):
    __slots__ = ("node", "gpus", "member", "task", "cpu_cores", "memory_mb")
    NODE_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    node: str
    gpus: _containers.RepeatedCompositeFieldContainer[HeldGpu]
    member: int
    task: int
    cpu_cores: float
    memory_mb: int
    def __init__(self, node: _Optional[str] = ..., gpus: _Optional[_Iterable[_Union[HeldGpu, _Mapping]]] = ..., member: _Optional[int] = ..., task: _Optional[int] = ..., cpu_cores: _Optional[float] = ..., memory_mb: _Optional[int] = ...) -> None: ...

class HeldGpu(_message.Message):
    __slots__ = ("index", "share", "memory_mb", "mig_profile")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    index: int
    share: float
    memory_mb: int
    mig_profile: str
    def __init__(self, index: _Optional[int] = ..., share: _Optional[float] = ..., memory_mb: _Optional[int] = ..., mig_profile: _Optional[str] = ...) -> None: ...

class Measure(_message.Message):
    __slots__ = ("energy_wh", "utilisation_percent", "peak_utilisation_percent", "peak_memory_mb", "warning")
    ENERGY_WH_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    PEAK_UTILISATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    PEAK_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    WARNING_FIELD_NUMBER: _ClassVar[int]
    energy_wh: float
    utilisation_percent: float
    peak_utilisation_percent: int
    peak_memory_mb: int
    warning: str
    def __init__(self, energy_wh: _Optional[float] = ..., utilisation_percent: _Optional[float] = ..., peak_utilisation_percent: _Optional[int] = ..., peak_memory_mb: _Optional[int] = ..., warning: _Optional[str] = ...) -> None: ...

class WatchEventsRequest(_message.Message):
    __slots__ = ("after",)
    AFTER_FIELD_NUMBER: _ClassVar[int]
    after: int
    def __init__(self, after: _Optional[int] = ...) -> None: ...

class Event(_message.Message):
    __slots__ = ("sequence", "at", "kind", "job_id", "task", "data", "user")
    class DataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    AT_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    sequence: int
    at: _timestamp_pb2.Timestamp
    kind: str
    job_id: str
    task: int
    data: _containers.ScalarMap[str, str]
    user: str
    def __init__(self, sequence: _Optional[int] = ..., at: _Optional[_Union[datetime.datetime, _timestamp_pb2.Timestamp, _Mapping]] = ..., kind: _Optional[str] = ..., job_id: _Optional[str] = ..., task: _Optional[int] = ..., data: _Optional[_Mapping[str, str]] = ..., user: _Optional[str] = ...) -> None: ...

class UpdateTenantQuotaRequest(_message.Message):
    __slots__ = ("tenant_id", "max_gpus", "max_gpu_memory_mb", "max_cpu_cores", "max_memory_mb", "max_concurrent_jobs", "max_gpu_hours", "max_pending_jobs", "budget_period", "user_max_gpus", "user_max_jobs", "user_max_pending_jobs", "user_max_gpu_hours", "fair_share_weight", "elastic", "unlimited")
    TENANT_ID_FIELD_NUMBER: _ClassVar[int]
    MAX_GPUS_FIELD_NUMBER: _ClassVar[int]
    MAX_GPU_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    MAX_CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MAX_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_JOBS_FIELD_NUMBER: _ClassVar[int]
    MAX_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    MAX_PENDING_JOBS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_PERIOD_FIELD_NUMBER: _ClassVar[int]
    USER_MAX_GPUS_FIELD_NUMBER: _ClassVar[int]
    USER_MAX_JOBS_FIELD_NUMBER: _ClassVar[int]
    USER_MAX_PENDING_JOBS_FIELD_NUMBER: _ClassVar[int]
    USER_MAX_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    FAIR_SHARE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ELASTIC_FIELD_NUMBER: _ClassVar[int]
    UNLIMITED_FIELD_NUMBER: _ClassVar[int]
    tenant_id: str
    max_gpus: float
    max_gpu_memory_mb: int
    max_cpu_cores: float
    max_memory_mb: int
    max_concurrent_jobs: int
    max_gpu_hours: float
    max_pending_jobs: int
    budget_period: str
    user_max_gpus: float
    user_max_jobs: int
    user_max_pending_jobs: int
    user_max_gpu_hours: float
    fair_share_weight: float
    elastic: bool
    unlimited: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, tenant_id: _Optional[str] = ..., max_gpus: _Optional[float] = ..., max_gpu_memory_mb: _Optional[int] = ..., max_cpu_cores: _Optional[float] = ..., max_memory_mb: _Optional[int] = ..., max_concurrent_jobs: _Optional[int] = ..., max_gpu_hours: _Optional[float] = ..., max_pending_jobs: _Optional[int] = ..., budget_period: _Optional[str] = ..., user_max_gpus: _Optional[float] = ..., user_max_jobs: _Optional[int] = ..., user_max_pending_jobs: _Optional[int] = ..., user_max_gpu_hours: _Optional[float] = ..., fair_share_weight: _Optional[float] = ..., elastic: _Optional[bool] = ..., unlimited: _Optional[_Iterable[str]] = ...) -> None: ...

class Tenant(_message.Message):
    __slots__ = ("id", "name", "max_gpus", "max_gpu_memory_mb", "max_cpu_cores", "max_memory_mb", "max_concurrent_jobs", "max_gpu_hours", "priority_tier", "fair_share_weight", "allow_preemption", "can_preempt_others", "max_preemptions", "elastic", "current_gpus", "current_gpu_memory_mb", "current_cpu_cores", "current_memory_mb", "current_jobs", "used_gpu_hours", "max_pending_jobs", "budget_period", "user_max_gpus", "user_max_jobs", "user_max_pending_jobs", "user_max_gpu_hours", "linux_groups", "users", "admins", "warnings")
    ID_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    MAX_GPUS_FIELD_NUMBER: _ClassVar[int]
    MAX_GPU_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    MAX_CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    MAX_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    MAX_CONCURRENT_JOBS_FIELD_NUMBER: _ClassVar[int]
    MAX_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    PRIORITY_TIER_FIELD_NUMBER: _ClassVar[int]
    FAIR_SHARE_WEIGHT_FIELD_NUMBER: _ClassVar[int]
    ALLOW_PREEMPTION_FIELD_NUMBER: _ClassVar[int]
    CAN_PREEMPT_OTHERS_FIELD_NUMBER: _ClassVar[int]
    MAX_PREEMPTIONS_FIELD_NUMBER: _ClassVar[int]
    ELASTIC_FIELD_NUMBER: _ClassVar[int]
    CURRENT_GPUS_FIELD_NUMBER: _ClassVar[int]
    CURRENT_GPU_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    CURRENT_CPU_CORES_FIELD_NUMBER: _ClassVar[int]
    CURRENT_MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    CURRENT_JOBS_FIELD_NUMBER: _ClassVar[int]
    USED_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    MAX_PENDING_JOBS_FIELD_NUMBER: _ClassVar[int]
    BUDGET_PERIOD_FIELD_NUMBER: _ClassVar[int]
    USER_MAX_GPUS_FIELD_NUMBER: _ClassVar[int]
    USER_MAX_JOBS_FIELD_NUMBER: _ClassVar[int]
    USER_MAX_PENDING_JOBS_FIELD_NUMBER: _ClassVar[int]
    USER_MAX_GPU_HOURS_FIELD_NUMBER: _ClassVar[int]
    LINUX_GROUPS_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    ADMINS_FIELD_NUMBER: _ClassVar[int]
    WARNINGS_FIELD_NUMBER: _ClassVar[int]
    id: str
    name: str
    max_gpus: float
    max_gpu_memory_mb: int
    max_cpu_cores: float
    max_memory_mb: int
    max_concurrent_jobs: int
    max_gpu_hours: float
    priority_tier: str
    fair_share_weight: float
    allow_preemption: bool
    can_preempt_others: bool
    max_preemptions: int
    elastic: bool
    current_gpus: float
    current_gpu_memory_mb: int
    current_cpu_cores: float
    current_memory_mb: int
    current_jobs: int
    used_gpu_hours: float
    max_pending_jobs: int
    budget_period: str
    user_max_gpus: float
    user_max_jobs: int
    user_max_pending_jobs: int
    user_max_gpu_hours: float
    linux_groups: _containers.RepeatedScalarFieldContainer[str]
    users: _containers.RepeatedScalarFieldContainer[str]
    admins: _containers.RepeatedScalarFieldContainer[str]
    warnings: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, id: _Optional[str] = ..., name: _Optional[str] = ..., max_gpus: _Optional[float] = ..., max_gpu_memory_mb: _Optional[int] = ..., max_cpu_cores: _Optional[float] = ..., max_memory_mb: _Optional[int] = ..., max_concurrent_jobs: _Optional[int] = ..., max_gpu_hours: _Optional[float] = ..., priority_tier: _Optional[str] = ..., fair_share_weight: _Optional[float] = ..., allow_preemption: _Optional[bool] = ..., can_preempt_others: _Optional[bool] = ..., max_preemptions: _Optional[int] = ..., elastic: _Optional[bool] = ..., current_gpus: _Optional[float] = ..., current_gpu_memory_mb: _Optional[int] = ..., current_cpu_cores: _Optional[float] = ..., current_memory_mb: _Optional[int] = ..., current_jobs: _Optional[int] = ..., used_gpu_hours: _Optional[float] = ..., max_pending_jobs: _Optional[int] = ..., budget_period: _Optional[str] = ..., user_max_gpus: _Optional[float] = ..., user_max_jobs: _Optional[int] = ..., user_max_pending_jobs: _Optional[int] = ..., user_max_gpu_hours: _Optional[float] = ..., linux_groups: _Optional[_Iterable[str]] = ..., users: _Optional[_Iterable[str]] = ..., admins: _Optional[_Iterable[str]] = ..., warnings: _Optional[_Iterable[str]] = ...) -> None: ...

class GetMetricsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class GetMetricsAnswer(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class GetClusterStatusRequest(_message.Message):
    __slots__ = ("detailed",)
    DETAILED_FIELD_NUMBER: _ClassVar[int]
    detailed: bool
    def __init__(self, detailed: _Optional[bool] = ...) -> None: ...

class ClusterStatus(_message.Message):
    __slots__ = ("total_nodes", "online_nodes", "total_gpus", "available_gpus", "total_jobs", "running_jobs", "pending_jobs", "scheduled_jobs", "completed_jobs", "failed_jobs", "cancelled_jobs", "queued_tasks", "allocated_gpus", "usable_gpus", "users", "pending_by_priority", "pools")
    class UsersEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    class PendingByPriorityEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    TOTAL_NODES_FIELD_NUMBER: _ClassVar[int]
    ONLINE_NODES_FIELD_NUMBER: _ClassVar[int]
    TOTAL_GPUS_FIELD_NUMBER: _ClassVar[int]
    AVAILABLE_GPUS_FIELD_NUMBER: _ClassVar[int]
    TOTAL_JOBS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_JOBS_FIELD_NUMBER: _ClassVar[int]
    PENDING_JOBS_FIELD_NUMBER: _ClassVar[int]
    SCHEDULED_JOBS_FIELD_NUMBER: _ClassVar[int]
    COMPLETED_JOBS_FIELD_NUMBER: _ClassVar[int]
    FAILED_JOBS_FIELD_NUMBER: _ClassVar[int]
    CANCELLED_JOBS_FIELD_NUMBER: _ClassVar[int]
    QUEUED_TASKS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATED_GPUS_FIELD_NUMBER: _ClassVar[int]
    USABLE_GPUS_FIELD_NUMBER: _ClassVar[int]
    USERS_FIELD_NUMBER: _ClassVar[int]
    PENDING_BY_PRIORITY_FIELD_NUMBER: _ClassVar[int]
    POOLS_FIELD_NUMBER: _ClassVar[int]
    total_nodes: int
    online_nodes: int
    total_gpus: int
    available_gpus: int
    total_jobs: int
    running_jobs: int
    pending_jobs: int
    scheduled_jobs: int
    completed_jobs: int
    failed_jobs: int
    cancelled_jobs: int
    queued_tasks: int
    allocated_gpus: float
    usable_gpus: int
    users: _containers.ScalarMap[str, float]
    pending_by_priority: _containers.ScalarMap[str, int]
    pools: _containers.RepeatedCompositeFieldContainer[PoolUse]
    def __init__(self, total_nodes: _Optional[int] = ..., online_nodes: _Optional[int] = ..., total_gpus: _Optional[int] = ..., available_gpus: _Optional[int] = ..., total_jobs: _Optional[int] = ..., running_jobs: _Optional[int] = ..., pending_jobs: _Optional[int] = ..., scheduled_jobs: _Optional[int] = ..., completed_jobs: _Optional[int] = ..., failed_jobs: _Optional[int] = ..., cancelled_jobs: _Optional[int] = ..., queued_tasks: _Optional[int] = ..., allocated_gpus: _Optional[float] = ..., usable_gpus: _Optional[int] = ..., users: _Optional[_Mapping[str, float]] = ..., pending_by_priority: _Optional[_Mapping[str, int]] = ..., pools: _Optional[_Iterable[_Union[PoolUse, _Mapping]]] = ...) -> None: ...

class PoolUse(_message.Message):
    __slots__ = ("pool", "percent", "elastic", "held_gpus", "sure_of_gpus", "borrowed_gpus", "running_jobs", "waiting_jobs")
    POOL_FIELD_NUMBER: _ClassVar[int]
    PERCENT_FIELD_NUMBER: _ClassVar[int]
    ELASTIC_FIELD_NUMBER: _ClassVar[int]
    HELD_GPUS_FIELD_NUMBER: _ClassVar[int]
    SURE_OF_GPUS_FIELD_NUMBER: _ClassVar[int]
    BORROWED_GPUS_FIELD_NUMBER: _ClassVar[int]
    RUNNING_JOBS_FIELD_NUMBER: _ClassVar[int]
    WAITING_JOBS_FIELD_NUMBER: _ClassVar[int]
    pool: str
    percent: int
    elastic: bool
    held_gpus: float
    sure_of_gpus: float
    borrowed_gpus: float
    running_jobs: int
    waiting_jobs: int
    def __init__(self, pool: _Optional[str] = ..., percent: _Optional[int] = ..., elastic: _Optional[bool] = ..., held_gpus: _Optional[float] = ..., sure_of_gpus: _Optional[float] = ..., borrowed_gpus: _Optional[float] = ..., running_jobs: _Optional[int] = ..., waiting_jobs: _Optional[int] = ...) -> None: ...

class ErrorStatus(_message.Message):
    __slots__ = ("code", "message", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    message: str
    details: _containers.RepeatedCompositeFieldContainer[_any_pb2.Any]
    def __init__(self, code: _Optional[int] = ..., message: _Optional[str] = ..., details: _Optional[_Iterable[_Union[_any_pb2.Any, _Mapping]]] = ...) -> None: ...

class ErrorInfo(_message.Message):
    __slots__ = ("reason", "domain", "metadata")
    class MetadataEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    REASON_FIELD_NUMBER: _ClassVar[int]
    DOMAIN_FIELD_NUMBER: _ClassVar[int]
    METADATA_FIELD_NUMBER: _ClassVar[int]
    reason: str
    domain: str
    metadata: _containers.ScalarMap[str, str]
    def __init__(self, reason: _Optional[str] = ..., domain: _Optional[str] = ..., metadata: _Optional[_Mapping[str, str]] = ...) -> None: ...

class RetryInfo(_message.Message):
    __slots__ = ("retry_delay",)
    RETRY_DELAY_FIELD_NUMBER: _ClassVar[int]
    retry_delay: _duration_pb2.Duration
    def __init__(self, retry_delay: _Optional[_Union[datetime.timedelta, _duration_pb2.Duration, _Mapping]] = ...) -> None: ...
