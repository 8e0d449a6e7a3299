from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class AgentMessage(_message.Message):
    __slots__ = ("hello", "inventory", "facts", "telemetry", "log_chunk", "heartbeat", "terminal_data", "terminal_credit", "terminal_close")
    HELLO_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    FACTS_FIELD_NUMBER: _ClassVar[int]
    TELEMETRY_FIELD_NUMBER: _ClassVar[int]
    LOG_CHUNK_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_DATA_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_CREDIT_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_CLOSE_FIELD_NUMBER: _ClassVar[int]
    hello: Hello
    inventory: Inventory
    facts: Facts
    telemetry: Telemetry
    log_chunk: LogChunk
    heartbeat: Heartbeat
    terminal_data: TerminalData
    terminal_credit: TerminalCredit
    terminal_close: TerminalClose
    def __init__(self, hello: _Optional[_Union[Hello, _Mapping]] = ..., inventory: _Optional[_Union[Inventory, _Mapping]] = ..., facts: _Optional[_Union[Facts, _Mapping]] = ..., telemetry: _Optional[_Union[Telemetry, _Mapping]] = ..., log_chunk: _Optional[_Union[LogChunk, _Mapping]] = ..., heartbeat: _Optional[_Union[Heartbeat, _Mapping]] = ..., terminal_data: _Optional[_Union[TerminalData, _Mapping]] = ..., terminal_credit: _Optional[_Union[TerminalCredit, _Mapping]] = ..., terminal_close: _Optional[_Union[TerminalClose, _Mapping]] = ...) -> None: ...

class Hello(_message.Message):
    __slots__ = ("node", "version", "protocol", "boot_id", "instance", "token", "inventory", "held", "runners", "least_protocol", "term", "address", "boot_ms", "abilities")
    NODE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    BOOT_ID_FIELD_NUMBER: _ClassVar[int]
    INSTANCE_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    INVENTORY_FIELD_NUMBER: _ClassVar[int]
    HELD_FIELD_NUMBER: _ClassVar[int]
    RUNNERS_FIELD_NUMBER: _ClassVar[int]
    LEAST_PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    ADDRESS_FIELD_NUMBER: _ClassVar[int]
    BOOT_MS_FIELD_NUMBER: _ClassVar[int]
    ABILITIES_FIELD_NUMBER: _ClassVar[int]
    node: str
    version: str
    protocol: int
    boot_id: str
    instance: str
    token: str
    inventory: Inventory
    held: _containers.RepeatedCompositeFieldContainer[HeldWork]
    runners: _containers.RepeatedScalarFieldContainer[str]
    least_protocol: int
    term: int
    address: str
    boot_ms: int
    abilities: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, node: _Optional[str] = ..., version: _Optional[str] = ..., protocol: _Optional[int] = ..., boot_id: _Optional[str] = ..., instance: _Optional[str] = ..., token: _Optional[str] = ..., inventory: _Optional[_Union[Inventory, _Mapping]] = ..., held: _Optional[_Iterable[_Union[HeldWork, _Mapping]]] = ..., runners: _Optional[_Iterable[str]] = ..., least_protocol: _Optional[int] = ..., term: _Optional[int] = ..., address: _Optional[str] = ..., boot_ms: _Optional[int] = ..., abilities: _Optional[_Iterable[str]] = ...) -> None: ...

class HeldWork(_message.Message):
    __slots__ = ("allocation_id", "member")
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    allocation_id: str
    member: int
    def __init__(self, allocation_id: _Optional[str] = ..., member: _Optional[int] = ...) -> None: ...

class Heartbeat(_message.Message):
    __slots__ = ("at_ms", "boot_ms", "log_bytes", "leftovers", "log_cuts")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    BOOT_MS_FIELD_NUMBER: _ClassVar[int]
    LOG_BYTES_FIELD_NUMBER: _ClassVar[int]
    LEFTOVERS_FIELD_NUMBER: _ClassVar[int]
    LOG_CUTS_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    boot_ms: int
    log_bytes: int
    leftovers: int
    log_cuts: _containers.RepeatedCompositeFieldContainer[LogCut]
    def __init__(self, at_ms: _Optional[int] = ..., boot_ms: _Optional[int] = ..., log_bytes: _Optional[int] = ..., leftovers: _Optional[int] = ..., log_cuts: _Optional[_Iterable[_Union[LogCut, _Mapping]]] = ...) -> None: ...

class LogCut(_message.Message):
    __slots__ = ("allocation_id", "member", "cut_bytes", "reason")
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    CUT_BYTES_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    allocation_id: str
    member: int
    cut_bytes: int
    reason: str
    def __init__(self, allocation_id: _Optional[str] = ..., member: _Optional[int] = ..., cut_bytes: _Optional[int] = ..., reason: _Optional[str] = ...) -> None: ...

class Inventory(_message.Message):
    __slots__ = ("cpu_milli", "memory_mb", "devices", "labels", "rack", "detection", "problem", "adapters", "numa_nodes", "direct_storage", "unfit")
    class LabelsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    LABELS_FIELD_NUMBER: _ClassVar[int]
    RACK_FIELD_NUMBER: _ClassVar[int]
    DETECTION_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    ADAPTERS_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODES_FIELD_NUMBER: _ClassVar[int]
    DIRECT_STORAGE_FIELD_NUMBER: _ClassVar[int]
    UNFIT_FIELD_NUMBER: _ClassVar[int]
    cpu_milli: int
    memory_mb: int
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    labels: _containers.ScalarMap[str, str]
    rack: str
    detection: str
    problem: str
    adapters: _containers.RepeatedCompositeFieldContainer[Adapter]
    numa_nodes: int
    direct_storage: bool
    unfit: str
    def __init__(self, cpu_milli: _Optional[int] = ..., memory_mb: _Optional[int] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., labels: _Optional[_Mapping[str, str]] = ..., rack: _Optional[str] = ..., detection: _Optional[str] = ..., problem: _Optional[str] = ..., adapters: _Optional[_Iterable[_Union[Adapter, _Mapping]]] = ..., numa_nodes: _Optional[int] = ..., direct_storage: _Optional[bool] = ..., unfit: _Optional[str] = ...) -> None: ...

class Adapter(_message.Message):
    __slots__ = ("name", "port", "link", "rate_gbps", "numa_node", "active")
    NAME_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    LINK_FIELD_NUMBER: _ClassVar[int]
    RATE_GBPS_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    ACTIVE_FIELD_NUMBER: _ClassVar[int]
    name: str
    port: int
    link: str
    rate_gbps: int
    numa_node: int
    active: bool
    def __init__(self, name: _Optional[str] = ..., port: _Optional[int] = ..., link: _Optional[str] = ..., rate_gbps: _Optional[int] = ..., numa_node: _Optional[int] = ..., active: _Optional[bool] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("index", "uuid", "model", "memory_mb", "island", "bandwidth_gbps", "mig_slices", "pci_bus_id", "path", "numa_node")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UUID_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    ISLAND_FIELD_NUMBER: _ClassVar[int]
    BANDWIDTH_GBPS_FIELD_NUMBER: _ClassVar[int]
    MIG_SLICES_FIELD_NUMBER: _ClassVar[int]
    PCI_BUS_ID_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    NUMA_NODE_FIELD_NUMBER: _ClassVar[int]
    index: int
    uuid: str
    model: str
    memory_mb: int
    island: int
    bandwidth_gbps: int
    mig_slices: _containers.RepeatedCompositeFieldContainer[MigSlice]
    pci_bus_id: str
    path: str
    numa_node: int
    def __init__(self, index: _Optional[int] = ..., uuid: _Optional[str] = ..., model: _Optional[str] = ..., memory_mb: _Optional[int] = ..., island: _Optional[int] = ..., bandwidth_gbps: _Optional[int] = ..., mig_slices: _Optional[_Iterable[_Union[MigSlice, _Mapping]]] = ..., pci_bus_id: _Optional[str] = ..., path: _Optional[str] = ..., numa_node: _Optional[int] = ...) -> None: ...

class MigSlice(_message.Message):
    __slots__ = ("profile", "count", "uuids")
    PROFILE_FIELD_NUMBER: _ClassVar[int]
    COUNT_FIELD_NUMBER: _ClassVar[int]
    UUIDS_FIELD_NUMBER: _ClassVar[int]
    profile: str
    count: int
    uuids: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, profile: _Optional[str] = ..., count: _Optional[int] = ..., uuids: _Optional[_Iterable[str]] = ...) -> None: ...

class Telemetry(_message.Message):
    __slots__ = ("at_ms", "readings", "problem")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    READINGS_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    readings: _containers.RepeatedCompositeFieldContainer[DeviceReading]
    problem: str
    def __init__(self, at_ms: _Optional[int] = ..., readings: _Optional[_Iterable[_Union[DeviceReading, _Mapping]]] = ..., problem: _Optional[str] = ...) -> None: ...

class DeviceReading(_message.Message):
    __slots__ = ("index", "utilisation_percent", "memory_used_mb", "temperature_c", "power_mw", "power_limit_mw", "sm_clock_mhz", "throttle_reasons", "ecc_errors", "xid", "healthy", "processes", "load_percent", "power_known", "why", "unexplained_mb", "trusted")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    UTILISATION_PERCENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_USED_MB_FIELD_NUMBER: _ClassVar[int]
    TEMPERATURE_C_FIELD_NUMBER: _ClassVar[int]
    POWER_MW_FIELD_NUMBER: _ClassVar[int]
    POWER_LIMIT_MW_FIELD_NUMBER: _ClassVar[int]
    SM_CLOCK_MHZ_FIELD_NUMBER: _ClassVar[int]
    THROTTLE_REASONS_FIELD_NUMBER: _ClassVar[int]
    ECC_ERRORS_FIELD_NUMBER: _ClassVar[int]
    XID_FIELD_NUMBER: _ClassVar[int]
    HEALTHY_FIELD_NUMBER: _ClassVar[int]
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    LOAD_PERCENT_FIELD_NUMBER: _ClassVar[int]
    POWER_KNOWN_FIELD_NUMBER: _ClassVar[int]
    WHY_FIELD_NUMBER: _ClassVar[int]
    UNEXPLAINED_MB_FIELD_NUMBER: _ClassVar[int]
    TRUSTED_FIELD_NUMBER: _ClassVar[int]
    index: int
    utilisation_percent: int
    memory_used_mb: int
    temperature_c: int
    power_mw: int
    power_limit_mw: int
    sm_clock_mhz: int
    throttle_reasons: int
    ecc_errors: int
    xid: int
    healthy: bool
    processes: _containers.RepeatedCompositeFieldContainer[DeviceProcess]
    load_percent: int
    power_known: bool
    why: str
    unexplained_mb: int
    trusted: int
    def __init__(self, index: _Optional[int] = ..., utilisation_percent: _Optional[int] = ..., memory_used_mb: _Optional[int] = ..., temperature_c: _Optional[int] = ..., power_mw: _Optional[int] = ..., power_limit_mw: _Optional[int] = ..., sm_clock_mhz: _Optional[int] = ..., throttle_reasons: _Optional[int] = ..., ecc_errors: _Optional[int] = ..., xid: _Optional[int] = ..., healthy: _Optional[bool] = ..., processes: _Optional[_Iterable[_Union[DeviceProcess, _Mapping]]] = ..., load_percent: _Optional[int] = ..., power_known: _Optional[bool] = ..., why: _Optional[str] = ..., unexplained_mb: _Optional[int] = ..., trusted: _Optional[int] = ...) -> None: ...

class DeviceProcess(_message.Message):
    __slots__ = ("pid", "user", "command", "memory_mb", "allocation_id", "load_percent")
    PID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    COMMAND_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    LOAD_PERCENT_FIELD_NUMBER: _ClassVar[int]
    pid: int
    user: str
    command: str
    memory_mb: int
    allocation_id: str
    load_percent: int
    def __init__(self, pid: _Optional[int] = ..., user: _Optional[str] = ..., command: _Optional[str] = ..., memory_mb: _Optional[int] = ..., allocation_id: _Optional[str] = ..., load_percent: _Optional[int] = ...) -> None: ...

class Facts(_message.Message):
    __slots__ = ("facts",)
    FACTS_FIELD_NUMBER: _ClassVar[int]
    facts: _containers.RepeatedCompositeFieldContainer[Fact]
    def __init__(self, facts: _Optional[_Iterable[_Union[Fact, _Mapping]]] = ...) -> None: ...

class Fact(_message.Message):
    __slots__ = ("at_ms", "allocation_id", "member", "began", "over", "saved", "prepared", "ready", "container")
    AT_MS_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    BEGAN_FIELD_NUMBER: _ClassVar[int]
    OVER_FIELD_NUMBER: _ClassVar[int]
    SAVED_FIELD_NUMBER: _ClassVar[int]
    PREPARED_FIELD_NUMBER: _ClassVar[int]
    READY_FIELD_NUMBER: _ClassVar[int]
    CONTAINER_FIELD_NUMBER: _ClassVar[int]
    at_ms: int
    allocation_id: str
    member: int
    began: Began
    over: Over
    saved: Saved
    prepared: Prepared
    ready: Ready
    container: Container
    def __init__(self, at_ms: _Optional[int] = ..., allocation_id: _Optional[str] = ..., member: _Optional[int] = ..., began: _Optional[_Union[Began, _Mapping]] = ..., over: _Optional[_Union[Over, _Mapping]] = ..., saved: _Optional[_Union[Saved, _Mapping]] = ..., prepared: _Optional[_Union[Prepared, _Mapping]] = ..., ready: _Optional[_Union[Ready, _Mapping]] = ..., container: _Optional[_Union[Container, _Mapping]] = ...) -> None: ...

class Container(_message.Message):
    __slots__ = ("phase",)
    PHASE_FIELD_NUMBER: _ClassVar[int]
    phase: str
    def __init__(self, phase: _Optional[str] = ...) -> None: ...

class Began(_message.Message):
    __slots__ = ("pid",)
    PID_FIELD_NUMBER: _ClassVar[int]
    pid: int
    def __init__(self, pid: _Optional[int] = ...) -> None: ...

class Over(_message.Message):
    __slots__ = ("exit_code", "signal", "ran", "run_ms", "stopped_by", "detail", "prolog_failed", "epilog_failed", "ago_ms", "image_digest")
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    SIGNAL_FIELD_NUMBER: _ClassVar[int]
    RAN_FIELD_NUMBER: _ClassVar[int]
    RUN_MS_FIELD_NUMBER: _ClassVar[int]
    STOPPED_BY_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PROLOG_FAILED_FIELD_NUMBER: _ClassVar[int]
    EPILOG_FAILED_FIELD_NUMBER: _ClassVar[int]
    AGO_MS_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    exit_code: int
    signal: int
    ran: bool
    run_ms: int
    stopped_by: str
    detail: str
    prolog_failed: str
    epilog_failed: str
    ago_ms: int
    image_digest: str
    def __init__(self, exit_code: _Optional[int] = ..., signal: _Optional[int] = ..., ran: _Optional[bool] = ..., run_ms: _Optional[int] = ..., stopped_by: _Optional[str] = ..., detail: _Optional[str] = ..., prolog_failed: _Optional[str] = ..., epilog_failed: _Optional[str] = ..., ago_ms: _Optional[int] = ..., image_digest: _Optional[str] = ...) -> None: ...

class Saved(_message.Message):
    __slots__ = ("ago_ms",)
    AGO_MS_FIELD_NUMBER: _ClassVar[int]
    ago_ms: int
    def __init__(self, ago_ms: _Optional[int] = ...) -> None: ...

class Prepared(_message.Message):
    __slots__ = ("port",)
    PORT_FIELD_NUMBER: _ClassVar[int]
    port: int
    def __init__(self, port: _Optional[int] = ...) -> None: ...

class Ready(_message.Message):
    __slots__ = ("is_ready", "detail", "port")
    IS_READY_FIELD_NUMBER: _ClassVar[int]
    DETAIL_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    is_ready: bool
    detail: str
    port: int
    def __init__(self, is_ready: _Optional[bool] = ..., detail: _Optional[str] = ..., port: _Optional[int] = ...) -> None: ...

class LogChunk(_message.Message):
    __slots__ = ("request_id", "data", "offset", "end", "problem")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    data: bytes
    offset: int
    end: bool
    problem: str
    def __init__(self, request_id: _Optional[int] = ..., data: _Optional[bytes] = ..., offset: _Optional[int] = ..., end: _Optional[bool] = ..., problem: _Optional[str] = ...) -> None: ...

class ServerMessage(_message.Message):
    __slots__ = ("welcome", "orders", "log_request", "log_cancel", "goodbye", "log_credit", "trust", "renewal", "terminal_open", "terminal_data", "terminal_credit", "terminal_close")
    WELCOME_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    LOG_REQUEST_FIELD_NUMBER: _ClassVar[int]
    LOG_CANCEL_FIELD_NUMBER: _ClassVar[int]
    GOODBYE_FIELD_NUMBER: _ClassVar[int]
    LOG_CREDIT_FIELD_NUMBER: _ClassVar[int]
    TRUST_FIELD_NUMBER: _ClassVar[int]
    RENEWAL_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_OPEN_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_DATA_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_CREDIT_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_CLOSE_FIELD_NUMBER: _ClassVar[int]
    welcome: Welcome
    orders: Orders
    log_request: LogRequest
    log_cancel: LogCancel
    goodbye: Goodbye
    log_credit: LogCredit
    trust: Trust
    renewal: Renewal
    terminal_open: TerminalOpen
    terminal_data: TerminalData
    terminal_credit: TerminalCredit
    terminal_close: TerminalClose
    def __init__(self, welcome: _Optional[_Union[Welcome, _Mapping]] = ..., orders: _Optional[_Union[Orders, _Mapping]] = ..., log_request: _Optional[_Union[LogRequest, _Mapping]] = ..., log_cancel: _Optional[_Union[LogCancel, _Mapping]] = ..., goodbye: _Optional[_Union[Goodbye, _Mapping]] = ..., log_credit: _Optional[_Union[LogCredit, _Mapping]] = ..., trust: _Optional[_Union[Trust, _Mapping]] = ..., renewal: _Optional[_Union[Renewal, _Mapping]] = ..., terminal_open: _Optional[_Union[TerminalOpen, _Mapping]] = ..., terminal_data: _Optional[_Union[TerminalData, _Mapping]] = ..., terminal_credit: _Optional[_Union[TerminalCredit, _Mapping]] = ..., terminal_close: _Optional[_Union[TerminalClose, _Mapping]] = ...) -> None: ...

class Welcome(_message.Message):
    __slots__ = ("version", "protocol", "term", "heartbeat_ms")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    PROTOCOL_FIELD_NUMBER: _ClassVar[int]
    TERM_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_MS_FIELD_NUMBER: _ClassVar[int]
    version: str
    protocol: int
    term: int
    heartbeat_ms: int
    def __init__(self, version: _Optional[str] = ..., protocol: _Optional[int] = ..., term: _Optional[int] = ..., heartbeat_ms: _Optional[int] = ...) -> None: ...

class Renewal(_message.Message):
    __slots__ = ("term", "boot_ms")
    TERM_FIELD_NUMBER: _ClassVar[int]
    BOOT_MS_FIELD_NUMBER: _ClassVar[int]
    term: int
    boot_ms: int
    def __init__(self, term: _Optional[int] = ..., boot_ms: _Optional[int] = ...) -> None: ...

class Orders(_message.Message):
    __slots__ = ("term", "orders")
    TERM_FIELD_NUMBER: _ClassVar[int]
    ORDERS_FIELD_NUMBER: _ClassVar[int]
    term: int
    orders: _containers.RepeatedCompositeFieldContainer[Order]
    def __init__(self, term: _Optional[int] = ..., orders: _Optional[_Iterable[_Union[Order, _Mapping]]] = ...) -> None: ...

class Order(_message.Message):
    __slots__ = ("allocation_id", "member", "start", "stop", "forget", "warn", "commit")
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    FORGET_FIELD_NUMBER: _ClassVar[int]
    WARN_FIELD_NUMBER: _ClassVar[int]
    COMMIT_FIELD_NUMBER: _ClassVar[int]
    allocation_id: str
    member: int
    start: Start
    stop: Stop
    forget: Forget
    warn: Warn
    commit: Commit
    def __init__(self, allocation_id: _Optional[str] = ..., member: _Optional[int] = ..., start: _Optional[_Union[Start, _Mapping]] = ..., stop: _Optional[_Union[Stop, _Mapping]] = ..., forget: _Optional[_Union[Forget, _Mapping]] = ..., warn: _Optional[_Union[Warn, _Mapping]] = ..., commit: _Optional[_Union[Commit, _Mapping]] = ...) -> None: ...

class Start(_message.Message):
    __slots__ = ("job_id", "task", "attempt", "name", "argv", "script", "workdir", "environment", "uid", "gid", "user", "umask", "runner", "image", "mounts", "conda", "output", "devices", "cpu_milli", "memory_mb", "max_processes", "limit_ms", "warn_signal", "warn_before_ms", "grace_ms", "rendezvous", "captured", "prepare_only", "prepare_ms", "lease_ms", "probe", "port", "pick_port", "conda_exe", "image_digest", "terminal")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    ATTEMPT_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    SCRIPT_FIELD_NUMBER: _ClassVar[int]
    WORKDIR_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    GID_FIELD_NUMBER: _ClassVar[int]
    USER_FIELD_NUMBER: _ClassVar[int]
    UMASK_FIELD_NUMBER: _ClassVar[int]
    RUNNER_FIELD_NUMBER: _ClassVar[int]
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    MOUNTS_FIELD_NUMBER: _ClassVar[int]
    CONDA_FIELD_NUMBER: _ClassVar[int]
    OUTPUT_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    CPU_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    MAX_PROCESSES_FIELD_NUMBER: _ClassVar[int]
    LIMIT_MS_FIELD_NUMBER: _ClassVar[int]
    WARN_SIGNAL_FIELD_NUMBER: _ClassVar[int]
    WARN_BEFORE_MS_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    CAPTURED_FIELD_NUMBER: _ClassVar[int]
    PREPARE_ONLY_FIELD_NUMBER: _ClassVar[int]
    PREPARE_MS_FIELD_NUMBER: _ClassVar[int]
    LEASE_MS_FIELD_NUMBER: _ClassVar[int]
    PROBE_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    PICK_PORT_FIELD_NUMBER: _ClassVar[int]
    CONDA_EXE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_DIGEST_FIELD_NUMBER: _ClassVar[int]
    TERMINAL_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    task: int
    attempt: int
    name: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    script: str
    workdir: str
    environment: _containers.ScalarMap[str, str]
    uid: int
    gid: int
    user: str
    umask: int
    runner: str
    image: str
    mounts: _containers.RepeatedCompositeFieldContainer[Mount]
    conda: str
    output: str
    devices: _containers.RepeatedCompositeFieldContainer[HeldDevice]
    cpu_milli: int
    memory_mb: int
    max_processes: int
    limit_ms: int
    warn_signal: str
    warn_before_ms: int
    grace_ms: int
    rendezvous: Rendezvous
    captured: bool
    prepare_only: bool
    prepare_ms: int
    lease_ms: int
    probe: Probe
    port: int
    pick_port: bool
    conda_exe: str
    image_digest: str
    terminal: Terminal
    def __init__(self, job_id: _Optional[str] = ..., task: _Optional[int] = ..., attempt: _Optional[int] = ..., name: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., script: _Optional[str] = ..., workdir: _Optional[str] = ..., environment: _Optional[_Mapping[str, str]] = ..., uid: _Optional[int] = ..., gid: _Optional[int] = ..., user: _Optional[str] = ..., umask: _Optional[int] = ..., runner: _Optional[str] = ..., image: _Optional[str] = ..., mounts: _Optional[_Iterable[_Union[Mount, _Mapping]]] = ..., conda: _Optional[str] = ..., output: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[HeldDevice, _Mapping]]] = ..., cpu_milli: _Optional[int] = ..., memory_mb: _Optional[int] = ..., max_processes: _Optional[int] = ..., limit_ms: _Optional[int] = ..., warn_signal: _Optional[str] = ..., warn_before_ms: _Optional[int] = ..., grace_ms: _Optional[int] = ..., rendezvous: _Optional[_Union[Rendezvous, _Mapping]] = ..., captured: _Optional[bool] = ..., prepare_only: _Optional[bool] = ..., prepare_ms: _Optional[int] = ..., lease_ms: _Optional[int] = ..., probe: _Optional[_Union[Probe, _Mapping]] = ..., port: _Optional[int] = ..., pick_port: _Optional[bool] = ..., conda_exe: _Optional[str] = ..., image_digest: _Optional[str] = ..., terminal: _Optional[_Union[Terminal, _Mapping]] = ...) -> None: ...

class Terminal(_message.Message):
    __slots__ = ("rows", "columns", "idle_ms", "attach_within_ms", "keep")
    ROWS_FIELD_NUMBER: _ClassVar[int]
    COLUMNS_FIELD_NUMBER: _ClassVar[int]
    IDLE_MS_FIELD_NUMBER: _ClassVar[int]
    ATTACH_WITHIN_MS_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    rows: int
    columns: int
    idle_ms: int
    attach_within_ms: int
    keep: bool
    def __init__(self, rows: _Optional[int] = ..., columns: _Optional[int] = ..., idle_ms: _Optional[int] = ..., attach_within_ms: _Optional[int] = ..., keep: _Optional[bool] = ...) -> None: ...

class Probe(_message.Message):
    __slots__ = ("kind", "path", "argv", "port", "interval_ms", "timeout_ms", "failures", "grace_ms")
    KIND_FIELD_NUMBER: _ClassVar[int]
    PATH_FIELD_NUMBER: _ClassVar[int]
    ARGV_FIELD_NUMBER: _ClassVar[int]
    PORT_FIELD_NUMBER: _ClassVar[int]
    INTERVAL_MS_FIELD_NUMBER: _ClassVar[int]
    TIMEOUT_MS_FIELD_NUMBER: _ClassVar[int]
    FAILURES_FIELD_NUMBER: _ClassVar[int]
    GRACE_MS_FIELD_NUMBER: _ClassVar[int]
    kind: str
    path: str
    argv: _containers.RepeatedScalarFieldContainer[str]
    port: int
    interval_ms: int
    timeout_ms: int
    failures: int
    grace_ms: int
    def __init__(self, kind: _Optional[str] = ..., path: _Optional[str] = ..., argv: _Optional[_Iterable[str]] = ..., port: _Optional[int] = ..., interval_ms: _Optional[int] = ..., timeout_ms: _Optional[int] = ..., failures: _Optional[int] = ..., grace_ms: _Optional[int] = ...) -> None: ...

class Mount(_message.Message):
    __slots__ = ("source", "target", "read_only")
    SOURCE_FIELD_NUMBER: _ClassVar[int]
    TARGET_FIELD_NUMBER: _ClassVar[int]
    READ_ONLY_FIELD_NUMBER: _ClassVar[int]
    source: str
    target: str
    read_only: bool
    def __init__(self, source: _Optional[str] = ..., target: _Optional[str] = ..., read_only: _Optional[bool] = ...) -> None: ...

class HeldDevice(_message.Message):
    __slots__ = ("index", "share_milli", "memory_mb", "mig_profile")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    SHARE_MILLI_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MB_FIELD_NUMBER: _ClassVar[int]
    MIG_PROFILE_FIELD_NUMBER: _ClassVar[int]
    index: int
    share_milli: int
    memory_mb: int
    mig_profile: str
    def __init__(self, index: _Optional[int] = ..., share_milli: _Optional[int] = ..., memory_mb: _Optional[int] = ..., mig_profile: _Optional[str] = ...) -> None: ...

class Rendezvous(_message.Message):
    __slots__ = ("rank", "world_size", "master_address", "master_port", "hosts", "gpus", "nodes")
    RANK_FIELD_NUMBER: _ClassVar[int]
    WORLD_SIZE_FIELD_NUMBER: _ClassVar[int]
    MASTER_ADDRESS_FIELD_NUMBER: _ClassVar[int]
    MASTER_PORT_FIELD_NUMBER: _ClassVar[int]
    HOSTS_FIELD_NUMBER: _ClassVar[int]
    GPUS_FIELD_NUMBER: _ClassVar[int]
    NODES_FIELD_NUMBER: _ClassVar[int]
    rank: int
    world_size: int
    master_address: str
    master_port: int
    hosts: _containers.RepeatedScalarFieldContainer[str]
    gpus: _containers.RepeatedScalarFieldContainer[int]
    nodes: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, rank: _Optional[int] = ..., world_size: _Optional[int] = ..., master_address: _Optional[str] = ..., master_port: _Optional[int] = ..., hosts: _Optional[_Iterable[str]] = ..., gpus: _Optional[_Iterable[int]] = ..., nodes: _Optional[_Iterable[str]] = ...) -> None: ...

class Stop(_message.Message):
    __slots__ = ("why",)
    WHY_FIELD_NUMBER: _ClassVar[int]
    why: str
    def __init__(self, why: _Optional[str] = ...) -> None: ...

class Commit(_message.Message):
    __slots__ = ("rendezvous",)
    RENDEZVOUS_FIELD_NUMBER: _ClassVar[int]
    rendezvous: Rendezvous
    def __init__(self, rendezvous: _Optional[_Union[Rendezvous, _Mapping]] = ...) -> None: ...

class Warn(_message.Message):
    __slots__ = ("text",)
    TEXT_FIELD_NUMBER: _ClassVar[int]
    text: str
    def __init__(self, text: _Optional[str] = ...) -> None: ...

class Trust(_message.Message):
    __slots__ = ("device", "mark", "ago_ms")
    DEVICE_FIELD_NUMBER: _ClassVar[int]
    MARK_FIELD_NUMBER: _ClassVar[int]
    AGO_MS_FIELD_NUMBER: _ClassVar[int]
    device: int
    mark: int
    ago_ms: int
    def __init__(self, device: _Optional[int] = ..., mark: _Optional[int] = ..., ago_ms: _Optional[int] = ...) -> None: ...

class Forget(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogRequest(_message.Message):
    __slots__ = ("request_id", "job_id", "allocation_id", "member", "offset", "limit", "follow", "chunks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    OFFSET_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    job_id: str
    allocation_id: str
    member: int
    offset: int
    limit: int
    follow: bool
    chunks: int
    def __init__(self, request_id: _Optional[int] = ..., job_id: _Optional[str] = ..., allocation_id: _Optional[str] = ..., member: _Optional[int] = ..., offset: _Optional[int] = ..., limit: _Optional[int] = ..., follow: _Optional[bool] = ..., chunks: _Optional[int] = ...) -> None: ...

class LogCredit(_message.Message):
    __slots__ = ("request_id", "chunks")
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    chunks: int
    def __init__(self, request_id: _Optional[int] = ..., chunks: _Optional[int] = ...) -> None: ...

class LogCancel(_message.Message):
    __slots__ = ("request_id",)
    REQUEST_ID_FIELD_NUMBER: _ClassVar[int]
    request_id: int
    def __init__(self, request_id: _Optional[int] = ...) -> None: ...

class TerminalOpen(_message.Message):
    __slots__ = ("terminal_id", "allocation_id", "member", "uid", "chunks")
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    ALLOCATION_ID_FIELD_NUMBER: _ClassVar[int]
    MEMBER_FIELD_NUMBER: _ClassVar[int]
    UID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    terminal_id: int
    allocation_id: str
    member: int
    uid: int
    chunks: int
    def __init__(self, terminal_id: _Optional[int] = ..., allocation_id: _Optional[str] = ..., member: _Optional[int] = ..., uid: _Optional[int] = ..., chunks: _Optional[int] = ...) -> None: ...

class TerminalData(_message.Message):
    __slots__ = ("terminal_id", "data")
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    DATA_FIELD_NUMBER: _ClassVar[int]
    terminal_id: int
    data: bytes
    def __init__(self, terminal_id: _Optional[int] = ..., data: _Optional[bytes] = ...) -> None: ...

class TerminalCredit(_message.Message):
    __slots__ = ("terminal_id", "chunks")
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    CHUNKS_FIELD_NUMBER: _ClassVar[int]
    terminal_id: int
    chunks: int
    def __init__(self, terminal_id: _Optional[int] = ..., chunks: _Optional[int] = ...) -> None: ...

class TerminalClose(_message.Message):
    __slots__ = ("terminal_id", "problem")
    TERMINAL_ID_FIELD_NUMBER: _ClassVar[int]
    PROBLEM_FIELD_NUMBER: _ClassVar[int]
    terminal_id: int
    problem: str
    def __init__(self, terminal_id: _Optional[int] = ..., problem: _Optional[str] = ...) -> None: ...

class Goodbye(_message.Message):
    __slots__ = ("reason", "final")
    REASON_FIELD_NUMBER: _ClassVar[int]
    FINAL_FIELD_NUMBER: _ClassVar[int]
    reason: str
    final: bool
    def __init__(self, reason: _Optional[str] = ..., final: _Optional[bool] = ...) -> None: ...
