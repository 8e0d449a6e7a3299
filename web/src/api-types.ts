// Written by `make web` from the OpenAPI document; do not edit.

export interface AccountForm {
  tenant_id: string;
  user: string | null;
  sums: SumsForm;
  waits: SpreadForm;
  run_times: SpreadForm;
}

export interface AdapterForm {
  name: string;
  port: number;
  link: string;
  rate_gbps: number;
  numa_node: number;
  active: boolean;
}

export interface AddedNodes {
  count: number;
  like: string;
}

export interface ArrayForm {
  tasks: string;
  count: number;
  max_running: number;
  states: Record<string, string>;
}

export interface ArrayRequest {
  tasks: string;
  max_running?: number;
}

export interface ArrayTask {
  id: string;
  task: number;
  state: string;
  attempt: number;
  preemptions: number;
  exit_code: number | null;
  signal: number | null;
  started_at: string | null;
  ended_at: string | null;
}

export interface ArrayTaskPage {
  job_id: string;
  states: Record<string, string>;
  tasks: ArrayTask[];
  next_task: number | null;
}

export interface AttemptForm {
  id: string;
  job_id: string;
  task: number | null;
  attempt: number;
  state: string;
  started_at: string | null;
  ended_at: string | null;
  exit_code: number | null;
  signal: number | null;
  detail: string;
  allocation: Place[];
  measured: MeasureForm | null;
  gpu_hours: number;
  cost: number | null;
}

export interface AttemptList {
  attempts: AttemptForm[];
  next_task: number | null;
  currency: string;
}

export interface AuditForm {
  number: number;
  at: string;
  user: string;
  origin: string;
  via: string;
  action: string;
  target: string;
  outcome: string;
  code: string;
  detail: string;
  count: number;
}

export interface AuditPage {
  records: AuditForm[];
  next_before: number | null;
}

export type BudgetPeriod = "month" | "total" | "week";

export interface Changed {
  job_id: string;
  status: string;
  message: string;
}

export interface ClosedForm {
  by: string;
  reason: string;
  since: string | null;
  drains: boolean;
  requeue_at: string | null;
  is_fault: boolean;
}

export interface ClusterStatus {
  total_nodes: number;
  online_nodes: number;
  total_gpus: number;
  available_gpus: number;
  total_jobs: number;
  running_jobs: number;
  pending_jobs: number;
  scheduled_jobs: number;
  completed_jobs: number;
  failed_jobs: number;
  cancelled_jobs: number;
  queued_tasks: number;
  allocated_gpus: number;
  usable_gpus: number;
  users: Record<string, number>;
  pending_by_priority: Record<string, number> | null;
  pools: PoolUse[];
}

export interface CordonRequest {
  reason?: string;
}

export interface CorrectedUsage {
  job_id: string;
  task: number | null;
  attempt: number;
  run_seconds_before: number;
  run_seconds: number;
}

export interface DependencyForm {
  type: string;
  job_id: string;
}

export type DependencyKind = "afterany" | "afternotok" | "afterok";

export interface DependencyRequest {
  job_id: string | number;
  type?: DependencyKind;
}

export interface DeviceForm {
  node: string;
  index: number;
  model: string;
  allocated_percent: number;
  gpu_hours: number;
  mean_utilisation_percent: number | null;
  peak_utilisation_percent: number | null;
  energy_kwh: number | null;
  peak_temperature_c: number | null;
}

export interface DrainRequest {
  reason?: string;
  deadline_seconds?: number | null;
  requeue?: boolean;
}

export interface Effect {
  compared: number;
  earlier: number;
  later: number;
  started: number;
  stranded: number;
  gained_seconds: number;
  lost_seconds: number;
  moved: MovedStart[];
  owners: OwnerEffect[];
}

export interface Endpoint {
  host: string;
  port: number;
  replica: number;
  job_id: string;
  node: string;
}

export interface EndpointList {
  service: string;
  endpoints: Endpoint[];
}

export interface ErrorForm {
  error: string;
  code: string;
  details: Record<string, unknown>;
}

export interface EstimatesForm {
  since: string | null;
  open: number;
  estimates: JudgementForm[];
  ranges: RangesForm;
}

export interface EventForm {
  sequence: number;
  at: string;
  kind: string;
  job_id: string | null;
  task: number | null;
  data: Record<string, string | number>;
  user: string;
}

export interface EventPage {
  events: EventForm[];
  last: number;
}

export interface Explanation {
  job_id: string;
  state: string;
  reason: string;
  code: string;
  position: number | null;
  expected_start: string | null;
  expected_end: string | null;
  details: Record<string, unknown>;
  basis: string;
  start_unknown: string;
  end_unknown: string;
  expected_start_earliest: string | null;
  expected_start_latest: string | null;
  expected_start_limit: string | null;
  expected_start_after: string | null;
  expected_start_basis: string;
  preemption_risk: string;
}

export interface FairShareForm {
  period: string;
  start: string;
  end: string;
  until: string;
  tenants: SharerForm[];
  slices: SharedSlice[];
}

export interface GpuChanged {
  node: string;
  index: number;
  paused: boolean;
  message: string;
}

export interface GpuForm {
  node: string;
  index: number;
  uuid: string;
  model: string;
  memory_mb: number;
  state: string;
  allocated_share: number;
  allocated_memory_mb: number;
  jobs: string[];
  users: string[];
  paused: boolean;
  utilisation_percent: number | null;
  utilisation_mean_percent: number | null;
  utilisation_peak_percent: number | null;
  memory_used_mb: number | null;
  temperature_c: number | null;
  power_watts: number | null;
  processes: GpuProcess[];
  why: string;
  mig: string[];
}

export interface GpuList {
  gpus: GpuForm[];
}

export interface GpuProcess {
  pid: number;
  user: string;
  memory_mb: number;
  job_id: string;
  command: string;
  leaked: boolean;
}

export interface GpuReadings {
  node: string;
  index: number;
  utilisation_percent: (number | null)[];
  memory_used_mb: (number | null)[];
  power_watts: (number | null)[];
  temperature_c: (number | null)[];
}

export interface Health {
  status: string;
  version: string;
  uptime_seconds: number;
  checks: Record<string, string>;
  reasons: HealthReason[];
  leadership: LeadershipForm | null;
}

export interface HealthReason {
  check: string;
  status: string;
  detail: string;
  remedy: string;
}

export interface HeldGpu {
  index: number;
  share: number;
  memory_mb: number;
  mig_profile: string;
}

export interface IdlerForm {
  job_id: string;
  task: number | null;
  name: string;
  user: string;
  tenant_id: string;
  gpu_hours: number;
  mean_utilisation_percent: number;
  peak_utilisation_percent: number;
}

export interface Invoice {
  period: string;
  start: string;
  end: string;
  until: string;
  is_final: boolean;
  currency: string;
  lines: InvoiceLine[];
  tenants: Record<string, string>;
  total: string;
}

export interface InvoiceLine {
  tenant: string;
  user: string;
  item: string;
  model: string;
  amount: string;
  unit: string;
  price: string;
  cost: string;
  currency: string;
}

export interface JobForm {
  id: string;
  job_id: string;
  number: number;
  name: string;
  tenant_id: string;
  user: string;
  state: string;
  reason: string;
  priority: number;
  gpu_count: number;
  gpu_memory_mb: number;
  cpu_cores: number;
  memory_mb: number;
  command: string[];
  image: string;
  working_directory: string;
  environment: Record<string, string>;
  pool: string;
  interactive: boolean;
  preemptible: boolean;
  gang_scheduling: boolean;
  members: number;
  min_members: number;
  max_runtime_minutes: number | null;
  submitted_at: string | null;
  started_at: string | null;
  ended_at: string | null;
  attempt: number;
  preemptions: number;
  exit_code: number | null;
  signal: number | null;
  array: ArrayForm | null;
  allocation: Place[];
  dependencies: DependencyForm[];
  hold: boolean;
  retries: number;
  deadline: string | null;
  begin_at: string | null;
  runner: string;
  gpu_models: string[];
  output: string;
  notify: string[];
  task: number | null;
  attach: string[];
  sweep: string;
  params: Record<string, string>;
  snapshot: SnapshotForm | null;
  expected_end: string | null;
  redacted: boolean;
  allow_idle: boolean;
  measured: MeasureForm | null;
  time_limit_minutes: number | null;
  placed_members: number | null;
  script: string;
  expected_start: string | null;
  expected_start_earliest: string | null;
  expected_start_latest: string | null;
}

export interface JobLine {
  id: string;
  name: string;
  user: string;
  tenant_id: string;
  state: string;
  reason: string;
  gpus: number;
  members: number;
  priority: number;
  interactive: boolean;
  hold: boolean;
  tasks: string;
  submitted_at: string | null;
  started_at: string | null;
  max_runtime_minutes: number | null;
  places: string[];
  may_change: boolean;
  expected_start: string | null;
  expected_end: string | null;
  position: number | null;
  time_limit_minutes: number | null;
  expected_start_earliest: string | null;
  expected_start_latest: string | null;
}

export interface JobPage {
  jobs: JobForm[];
  total: number;
  next_cursor: string | null;
}

export interface JobPatch {
  name?: string;
  priority?: number | string;
  gpu_count?: number;
  gpu_memory_mb?: number;
  gpu_memory_mb_per_gpu?: number;
  gpu_models?: string[];
  exclusive?: boolean;
  cpu_cores?: number;
  memory_mb?: number;
  max_runtime_minutes?: number;
  max_runtime_seconds?: number;
  estimate_seconds?: number;
  deadline?: string | number | null;
  begin_at?: string | number | null;
  dependencies?: (string | DependencyRequest)[];
  retries?: number;
  preemptible?: boolean;
  hold?: boolean;
  notify?: string[];
}

export interface JobRequest {
  gpu_count?: number;
  gpu_memory_mb?: number;
  gpu_memory_mb_per_gpu?: number;
  gpu_model?: string;
  gpu_models?: string[];
  mig_profile?: string;
  allowed_gpus?: number[] | string;
  exclusive?: boolean;
  cpu_cores?: number | null;
  memory_mb?: number;
  node_labels?: Record<string, string>;
  nodes?: string[];
  exclude_nodes?: string[];
  topology?: Topology;
  contiguous?: boolean;
  min_bandwidth_gbps?: number;
  name?: string;
  tenant_id?: string;
  priority?: number | string;
  command?: string[];
  args?: string[];
  script?: string;
  image?: string;
  environment?: Record<string, string>;
  captured_environment?: Record<string, string> | null;
  working_directory?: string;
  umask?: number | null;
  gang_scheduling?: boolean;
  members?: number | MemberRequest[];
  min_members?: number;
  same_rack?: boolean;
  pool?: Pool;
  interactive?: boolean;
  preemptible?: boolean;
  max_runtime_minutes?: number;
  max_runtime_seconds?: number;
  estimate_seconds?: number;
  deadline?: string | number | null;
  begin_at?: string | number | null;
  dependencies?: (string | DependencyRequest)[];
  array?: string | ArrayRequest | null;
  hold?: boolean;
  retries?: number;
  retry_exit_codes?: number[];
  requeue_on_node_loss?: boolean;
  allow_idle?: boolean;
  runner?: Runner | null;
  mounts?: string[];
  conda?: string;
  output?: string;
  signal?: string;
  grace_seconds?: number | null;
  max_processes?: number;
  sweep?: string;
  params?: Record<string, string>;
  snapshot?: SnapshotRequest | null;
  notify?: string[];
  terminal?: TerminalRequest | null;
}

export interface JoinTokenForm {
  id: string;
  name: string;
  nodes: string[];
  uses: number;
  used: number;
  state: string;
  created_by: string;
  created_at: string | null;
  expires_at: string | null;
  revoked_at: string | null;
}

export interface JoinTokenList {
  tokens: JoinTokenForm[];
}

export interface JoinTokenRequest {
  uses?: number;
  nodes?: string[];
  name?: string;
  expires_in_seconds?: number;
}

export interface JudgementForm {
  basis: string;
  judged: number;
  kept: number;
  kept_percent: number | null;
  late: number;
  early: number;
  median_error_seconds: number;
  p90_error_seconds: number;
}

export interface LeadershipForm {
  role: string;
  name: string;
  term: number;
  leader: string;
  leader_address: string;
  standbys: StandbyForm[];
  trouble: string;
}

export interface LimitForm {
  tenant_id: string;
  user: string | null;
  resource: string;
  limit: number;
  used: number;
  left: number;
  period: string | null;
  turns_at: string | null;
}

export interface LimitList {
  limits: LimitForm[];
}

export interface MeasureForm {
  energy_wh: number | null;
  utilisation_percent: number | null;
  peak_utilisation_percent: number | null;
  peak_memory_mb: number;
  warning: string;
}

export interface MemberRequest {
  gpu_count?: number;
  gpu_memory_mb?: number;
  gpu_memory_mb_per_gpu?: number;
  gpu_model?: string;
  gpu_models?: string[];
  mig_profile?: string;
  allowed_gpus?: number[] | string;
  exclusive?: boolean;
  cpu_cores?: number | null;
  memory_mb?: number;
  node_labels?: Record<string, string>;
  nodes?: string[];
  exclude_nodes?: string[];
  topology?: Topology;
  contiguous?: boolean;
  min_bandwidth_gbps?: number;
}

export interface ModelForm {
  state: string;
  jobs_learnt: number;
  jobs_needed: number;
  trained_jobs: number | null;
  trained_until: string | null;
  trainings: number;
  error: string;
}

export interface MovedStart {
  job_id: string;
  user: string;
  tenant_id: string;
  gpus: number;
  before: string | null;
  after: string | null;
  seconds: number | null;
  is_guess: boolean;
}

export interface Myself {
  user: string;
  uid: number | null;
  role: string;
  tenant_id: string;
  tenants: string[];
  administers: string[];
  via: string;
}

export interface NewJoinToken {
  id: string;
  name: string;
  nodes: string[];
  uses: number;
  used: number;
  state: string;
  created_by: string;
  created_at: string | null;
  expires_at: string | null;
  revoked_at: string | null;
  token: string;
}

export interface NewToken {
  id: string;
  name: string;
  user: string;
  tenant_id: string;
  role: string;
  state: string;
  created_by: string;
  created_at: string | null;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
  token: string;
}

export interface NodeDetail {
  id: string;
  state: string;
  gpus: number;
  free_gpus: number;
  cpu_cores: number;
  free_cpu_cores: number;
  memory_mb: number;
  free_memory_mb: number;
  gpu_models: string[];
  labels: Record<string, string>;
  rack: string;
  running: number;
  problem: string;
  closed: ClosedForm | null;
  address: string;
  version: string;
  silent_since: string | null;
  islands: number[][];
  jobs: string[];
  numa_nodes: number;
  direct_storage: boolean;
  adapters: AdapterForm[];
}

export interface NodeForm {
  id: string;
  state: string;
  gpus: number;
  free_gpus: number;
  cpu_cores: number;
  free_cpu_cores: number;
  memory_mb: number;
  free_memory_mb: number;
  gpu_models: string[];
  labels: Record<string, string>;
  rack: string;
  running: number;
  problem: string;
  closed: ClosedForm | null;
  address: string;
  version: string;
  silent_since: string | null;
  islands: number[][];
}

export interface NodeKeyForm {
  node: string;
  fingerprint: string;
  state: string;
  token_id: string;
  issued_at: string | null;
  expires_at: string | null;
  revoked_at: string | null;
}

export interface NodeKeyList {
  keys: NodeKeyForm[];
  pin: string;
  authority: string;
}

export interface NodeList {
  nodes: NodeForm[];
}

export interface NodePatch {
  labels: Record<string, string | null>;
}

export interface NodeRemoved {
  id: string;
  message: string;
}

export interface Overview {
  version: string;
  now: string | null;
  uptime_seconds: number;
  nodes: number;
  online_nodes: number;
  problem: string;
  counts: Record<string, number>;
  gpus: GpuForm[];
  jobs: JobLine[];
  offset: number;
  total: number;
  found: number | null;
}

export interface OwnerEffect {
  user: string;
  tenant_id: string;
  earlier: number;
  later: number;
  gained_seconds: number;
  lost_seconds: number;
}

export interface Place {
  node: string;
  gpus: HeldGpu[];
  member: number;
  task: number | null;
  cpu_cores: number;
  memory_mb: number;
}

export interface PlanForm {
  made_at: string | null;
  begin: string | null;
  end: string | null;
  nodes: PlannedNode[];
  next_node: string;
  runs: PlannedRun[];
  reservations: ReservationForm[];
  waiting: number;
  forecast: number;
  whole: boolean;
  cut: string[];
}

export interface PlannedGpu {
  index: number;
  model: string;
}

export interface PlannedNode {
  id: string;
  rack: string;
  state: string;
  takes_work: boolean;
  gpus: PlannedGpu[];
}

export interface PlannedPlace {
  node: string;
  gpu_ids: number[];
  shares: number[];
}

export interface PlannedRun {
  kind: string;
  job_id: string;
  task: number | null;
  name: string;
  user: string;
  tenant_id: string;
  state: string;
  start: string | null;
  end: string | null;
  latest_end: string | null;
  end_unknown: boolean;
  depends_on: string[];
  places: PlannedPlace[];
  expected_start: string | null;
  expected_start_earliest: string | null;
  expected_start_latest: string | null;
  expected_start_limit: string | null;
  expected_start_after: string | null;
  expected_start_basis: string;
}

export type Pool = "batch" | "online";

export interface PoolUse {
  pool: string;
  percent: number | null;
  elastic: boolean;
  held_gpus: number;
  sure_of_gpus: number | null;
  borrowed_gpus: number;
  running_jobs: number;
  waiting_jobs: number;
}

export interface PredictorScoreForm {
  tenant_id: string | null;
  jobs: number;
  history_loss: number | null;
  model_loss: number | null;
  gain_percent: number | null;
  used: string;
  why: string;
}

export interface PredictorsForm {
  model: ModelForm;
  scores: PredictorScoreForm[];
}

export interface PriorityRequest {
  priority: number | string;
}

export interface QuotaForm {
  online_percent: number;
  batch_percent: number;
  elastic: boolean;
}

export interface QuotaNodeForm {
  name: string;
  parent: string;
  level: number;
  model: string;
  used_gpus: number;
  guaranteed_gpus: number;
  max_gpus: number | null;
  borrowed_gpus: number;
  lent_gpus: number;
}

export interface QuotaRequest {
  online_percent: number;
  batch_percent?: number;
  elastic?: boolean;
}

export interface QuotaTreeForm {
  nodes: QuotaNodeForm[];
  warnings: string[];
}

export interface RangesForm {
  judged: number;
  within: number;
  within_percent: number | null;
  early: number;
  late: number;
}

export interface ReadinessForm {
  kind: string;
  path: string;
  command: string[];
  interval_seconds: number;
  timeout_seconds: number;
  failures: number;
  grace_seconds: number;
}

export interface ReadinessRequest {
  http?: string;
  tcp?: boolean;
  command?: string[];
  interval_seconds?: number;
  timeout_seconds?: number;
  failures?: number;
  grace_seconds?: number;
}

export interface ReadingsForm {
  attempt: number;
  start: string | null;
  step_seconds: number;
  gpus: GpuReadings[];
}

export interface Removed {
  id: string;
  message: string;
  status: string;
}

export interface ReplicaForm {
  replica: number;
  job_id: string;
  state: string;
  ready: boolean;
  is_current: boolean;
  node: string;
  host: string;
  port: number;
  restarts: number;
  last_end: string;
  detail: string;
  since: string | null;
}

export interface ReportForm {
  period: string;
  start: string;
  end: string;
  time_zone: string;
  until: string;
  currency: string;
  total: SumsForm;
  waits: SpreadForm;
  run_times: SpreadForm;
  tenants: AccountForm[];
  users: AccountForm[];
  gpus: DeviceForm[];
  slices: SliceForm[];
  low_utilisation: IdlerForm[];
}

export interface ReservationForm {
  id: string;
  state: string;
  tenant_id: string;
  user: string;
  name: string;
  gpus: number;
  start: string | null;
  end: string | null;
  places: ReservedGpus[];
  preempt: boolean;
  made_by: string;
  made_at: string | null;
  over_at: string | null;
}

export interface ReservationList {
  reservations: ReservationForm[];
}

export interface ReservationRequest {
  gpus: number;
  tenant_id: string;
  start?: string | number;
  end?: string | number;
  duration_minutes?: number;
  user?: string;
  name?: string;
  node?: string;
  gpu_model?: string;
  gpu_ids?: number[];
  preempt?: boolean;
}

export interface ReservedGpus {
  node: string;
  gpu_ids: number[];
}

export type Restart = "always" | "never" | "on-failure";

export interface RestartForm {
  policy: string;
  backoff_seconds: number;
  max_backoff_seconds: number;
  reset_after_seconds: number;
}

export interface RestartRequest {
  policy?: Restart;
  backoff_seconds?: number;
  max_backoff_seconds?: number;
  reset_after_seconds?: number;
}

export interface Retried {
  job_id: string;
  status: string;
  message: string;
  tasks: string | null;
  left: number;
}

export type Role = "admin" | "tenant-admin" | "user" | "viewer";

export type Runner = "container" | "process" | "screen" | "terminal" | "tmux";

export interface ScaleRequest {
  replicas: number;
}

export interface ServiceForm {
  id: string;
  name: string;
  tenant_id: string;
  user: string;
  state: string;
  replicas: number;
  ready: number;
  updated: number;
  restarts: number;
  generation: number;
  port: number;
  gpu_count: number;
  priority: number;
  preemptible: boolean;
  requeue_on_node_loss: boolean;
  surge: boolean;
  command: string[];
  image: string;
  restart: RestartForm;
  readiness: ReadinessForm | null;
  made_at: string | null;
  changed_at: string | null;
  problem: string;
  members: ReplicaForm[];
}

export interface ServiceList {
  services: ServiceForm[];
}

export interface ServiceRequest {
  gpu_count?: number;
  gpu_memory_mb?: number;
  gpu_memory_mb_per_gpu?: number;
  gpu_model?: string;
  gpu_models?: string[];
  mig_profile?: string;
  allowed_gpus?: number[] | string;
  exclusive?: boolean;
  cpu_cores?: number | null;
  memory_mb?: number;
  node_labels?: Record<string, string>;
  nodes?: string[];
  exclude_nodes?: string[];
  topology?: Topology;
  contiguous?: boolean;
  min_bandwidth_gbps?: number;
  name: string;
  replicas?: number;
  port?: number;
  readiness?: ReadinessRequest | null;
  restart?: Restart | RestartRequest;
  surge?: boolean;
  tenant_id?: string;
  priority?: number | string;
  preemptible?: boolean;
  requeue_on_node_loss?: boolean;
  command?: string[];
  args?: string[];
  script?: string;
  image?: string;
  environment?: Record<string, string>;
  working_directory?: string;
  umask?: number | null;
  runner?: "container" | "process" | null;
  mounts?: string[];
  conda?: string;
  grace_seconds?: number | null;
  max_processes?: number;
  notify?: string[];
}

export interface SessionForm {
  user: string;
  status: string;
}

export interface SettingForm {
  key: string;
  value: string;
  default: string;
  changed: boolean;
  about: string;
}

export interface SettingList {
  settings: SettingForm[];
}

export interface SharedSlice {
  start: string;
  used: Record<string, number>;
  deserved: Record<string, number>;
}

export interface SharerForm {
  tenant_id: string;
  weight: number;
  deserved_percent: number;
  deserved_gpu_hours: number;
  used_gpu_hours: number;
}

export interface SliceForm {
  start: string;
  gpu_hours: number;
  energy_kwh: number;
  started: number;
  completed: number;
  failed: number;
  preempted: number;
}

export interface SnapshotForm {
  path: string;
  source: string;
  tree: string;
  commit: string;
  dirty: boolean;
}

export interface SnapshotRequest {
  path: string;
  source: string;
  tree: string;
  commit?: string;
  dirty?: boolean;
}

export interface SpreadForm {
  count: number;
  mean_seconds: number;
  median_seconds: number;
  p90_seconds: number;
  max_seconds: number;
}

export interface StandbyForm {
  name: string;
  address: string;
  version: string;
  seen_seconds_ago: number;
}

export interface Submitted {
  job_id: string;
  status: string;
  message: string;
  tasks: number;
}

export interface SubmittedMany {
  job_ids: string[];
  count: number;
  status: string;
}

export interface SumsForm {
  gpu_hours: number;
  gpu_memory_gb_hours: number;
  cpu_hours: number;
  memory_gb_hours: number;
  energy_kwh: number;
  mean_utilisation_percent: number | null;
  started: number;
  completed: number;
  failed: number;
  cancelled: number;
  preempted: number;
  cost: number;
}

export interface SupposedJob {
  error: string;
  code: string;
  expected_start: string | null;
  start_unknown: string;
  depends_on: string[];
  expected_end: string | null;
  end_unknown: string;
  latest_end: string | null;
  gpus: number;
  cost: number | null;
  places: PlannedPlace[];
  effect: Effect | null;
  expected_start_earliest: string | null;
  expected_start_latest: string | null;
  expected_start_limit: string | null;
  expected_start_after: string | null;
  expected_start_basis: string;
}

export interface SupposedQuota {
  tenant_id: string;
  max_gpus: number | null;
}

export interface SweepForm {
  name: string;
  user: string;
  jobs: number;
  states: Record<string, number>;
  first_job_id: string;
  last_job_id: string;
  submitted_at: string | null;
}

export interface SweepList {
  sweeps: SweepForm[];
}

export interface TargetForm {
  name: string;
  kind: string;
  events: string[];
  tenants: string[];
  for_jobs: boolean;
  is_default: boolean;
  waiting: number | null;
  oldest_at: string | null;
  next_try_at: string | null;
  last_error: string | null;
  delivered: number | null;
  failed_tries: number | null;
  given_up: number | null;
}

export interface TargetList {
  targets: TargetForm[];
  job_webhooks: boolean;
}

export interface TargetTested {
  target: string;
  delivered: boolean;
  error: string;
}

export interface TaskAccepted {
  task_id: string;
  status: string;
}

export interface TaskChanged {
  task_id: string;
  job_id: string;
  status: string;
  message: string;
}

export interface TaskForm {
  task_id: string;
  status: string;
  command: string;
  priority: number;
  gpu_count: number;
  name: string;
  exit_code: number | null;
  created_at: string | null;
  started_at: string | null;
  finished_at: string | null;
  reason: string;
  cancelled: boolean;
}

export interface TaskPage {
  tasks: TaskForm[];
  total: number;
}

export interface TaskRequest {
  command: string;
  priority?: number | string;
  gpu_count?: number;
  gpu_model?: string;
  env?: Record<string, string>;
  name?: string;
}

export interface TenantForm {
  id: string;
  name: string;
  max_gpus: number | null;
  max_gpu_memory_mb: number | null;
  max_cpu_cores: number | null;
  max_memory_mb: number | null;
  max_concurrent_jobs: number | null;
  max_gpu_hours: number | null;
  priority_tier: string;
  fair_share_weight: number;
  allow_preemption: boolean;
  can_preempt_others: boolean;
  max_preemptions: number;
  elastic: boolean;
  current_gpus: number;
  current_gpu_memory_mb: number;
  current_cpu_cores: number;
  current_memory_mb: number;
  current_jobs: number;
  used_gpu_hours: number;
  max_pending_jobs: number | null;
  budget_period: string | null;
  user_max_gpus: number | null;
  user_max_jobs: number | null;
  user_max_pending_jobs: number | null;
  user_max_gpu_hours: number | null;
  linux_groups: string[];
  users: string[];
  admins: string[];
  warnings: string[];
}

export interface TenantList {
  tenants: TenantForm[];
}

export interface TenantPatch {
  name?: string;
  max_gpus?: number | null;
  max_gpu_memory_mb?: number | null;
  max_cpu_cores?: number | null;
  max_memory_mb?: number | null;
  max_concurrent_jobs?: number | null;
  max_gpu_hours?: number | null;
  priority_tier?: Tier;
  fair_share_weight?: number;
  allow_preemption?: boolean;
  can_preempt_others?: boolean;
  max_preemptions?: number;
  elastic?: boolean;
  max_pending_jobs?: number | null;
  budget_period?: BudgetPeriod | null;
  user_max_gpus?: number | null;
  user_max_jobs?: number | null;
  user_max_pending_jobs?: number | null;
  user_max_gpu_hours?: number | null;
  linux_groups?: string[];
  users?: string[];
  admins?: string[];
}

export interface TenantRequest {
  max_gpus?: number | null;
  max_gpu_memory_mb?: number | null;
  max_cpu_cores?: number | null;
  max_memory_mb?: number | null;
  max_concurrent_jobs?: number | null;
  max_gpu_hours?: number | null;
  priority_tier?: Tier;
  fair_share_weight?: number;
  allow_preemption?: boolean;
  can_preempt_others?: boolean;
  max_preemptions?: number;
  elastic?: boolean;
  max_pending_jobs?: number | null;
  budget_period?: BudgetPeriod | null;
  user_max_gpus?: number | null;
  user_max_jobs?: number | null;
  user_max_pending_jobs?: number | null;
  user_max_gpu_hours?: number | null;
  linux_groups?: string[];
  users?: string[];
  admins?: string[];
  name: string;
  id?: string;
}

export interface TerminalRequest {
  rows?: number;
  columns?: number;
  idle_seconds?: number;
  attach_within_seconds?: number;
  on_disconnect?: "end" | "keep";
}

export type Tier = "critical" | "high" | "low" | "medium";

export interface TokenForm {
  id: string;
  name: string;
  user: string;
  tenant_id: string;
  role: string;
  state: string;
  created_by: string;
  created_at: string | null;
  expires_at: string | null;
  last_used_at: string | null;
  revoked_at: string | null;
}

export interface TokenList {
  tokens: TokenForm[];
}

export interface TokenRequest {
  tenant_id?: string;
  role?: Role;
  user?: string;
  name?: string;
  expires_in_seconds?: number;
}

export type Topology = "any" | "prefer_island" | "require_island";

export interface UsageCorrection {
  attempt: number;
  run_seconds: number;
  reason: string;
}

export interface UsageForm {
  tenant_id: string;
  user: string | null;
  period: string;
  gpu_hours: number;
  gpu_memory_gb_hours: number;
  cpu_hours: number;
  memory_gb_hours: number;
  completed: number;
  failed: number;
  cancelled: number;
  preemptions: number;
  lost_gpu_hours: number;
  energy_kwh: number;
}

export interface UsageList {
  usage: UsageForm[];
}

export interface Validated {
  count: number;
  tasks: number;
  position: number | null;
  expected_start: string | null;
  basis: string;
  start_unknown: string;
  expected_end: string | null;
  end_unknown: string;
  warnings: string[];
  status: string;
  expected_start_earliest: string | null;
  expected_start_latest: string | null;
}

export interface WhatIfForm {
  made_at: string | null;
  waiting: number;
  currency: string;
  effect: Effect | null;
  reserved: ReservedGpus[];
  jobs: SupposedJob[];
  cut: string[];
}

export interface WhatIfRequest {
  jobs?: JobRequest[];
  drain_nodes?: string[];
  add_nodes?: AddedNodes | null;
  reservation?: ReservationRequest | null;
  quotas?: SupposedQuota[];
  policy?: string;
}

export interface Responses {
  "GET /audit": AuditPage;
  "GET /cluster/status": ClusterStatus;
  "GET /events": EventPage;
  "GET /gpus": GpuList;
  "POST /gpus/{index}/pause": GpuChanged;
  "POST /gpus/{index}/resume": GpuChanged;
  "POST /gpus/{node}/{index}/pause": GpuChanged;
  "POST /gpus/{node}/{index}/resume": GpuChanged;
  "GET /health": Health;
  "GET /invoice": Invoice;
  "GET /jobs": JobPage;
  "POST /jobs": Submitted | SubmittedMany;
  "POST /jobs/bulk": SubmittedMany;
  "POST /jobs/validate": Validated;
  "DELETE /jobs/{job_id}": Changed;
  "GET /jobs/{job_id}": JobForm;
  "PATCH /jobs/{job_id}": JobForm;
  "GET /jobs/{job_id}/attempts": AttemptList;
  "POST /jobs/{job_id}/correct-usage": CorrectedUsage;
  "GET /jobs/{job_id}/explain": Explanation;
  "POST /jobs/{job_id}/hold": Changed;
  "GET /jobs/{job_id}/logs": string;
  "POST /jobs/{job_id}/priority": Changed;
  "GET /jobs/{job_id}/readings": ReadingsForm;
  "POST /jobs/{job_id}/release": Changed;
  "POST /jobs/{job_id}/resubmit": Submitted;
  "POST /jobs/{job_id}/retry": Retried;
  "GET /jobs/{job_id}/tasks": ArrayTaskPage;
  "GET /limits": LimitList;
  "GET /me": Myself;
  "GET /nodes": NodeList;
  "GET /nodes/keys": NodeKeyList;
  "DELETE /nodes/keys/{node}": Removed;
  "GET /nodes/tokens": JoinTokenList;
  "POST /nodes/tokens": NewJoinToken;
  "DELETE /nodes/tokens/{token_id}": Removed;
  "DELETE /nodes/{node}": NodeRemoved;
  "GET /nodes/{node}": NodeDetail;
  "PATCH /nodes/{node}": NodeDetail;
  "POST /nodes/{node}/confirm-dead": NodeDetail;
  "POST /nodes/{node}/cordon": NodeDetail;
  "POST /nodes/{node}/drain": NodeDetail;
  "POST /nodes/{node}/uncordon": NodeDetail;
  "GET /notifications": TargetList;
  "POST /notifications/{target}/test": TargetTested;
  "GET /overview": Overview;
  "GET /plan": PlanForm;
  "GET /quota": QuotaForm;
  "PUT /quota": QuotaForm;
  "GET /quota/tree": QuotaTreeForm;
  "GET /report": ReportForm;
  "GET /report/estimates": EstimatesForm;
  "GET /report/fair-share": FairShareForm;
  "GET /report/predictors": PredictorsForm;
  "GET /reservations": ReservationList;
  "POST /reservations": ReservationForm;
  "DELETE /reservations/{reservation_id}": ReservationForm;
  "GET /reservations/{reservation_id}": ReservationForm;
  "GET /services": ServiceList;
  "POST /services": ServiceForm;
  "DELETE /services/{service}": ServiceForm;
  "GET /services/{service}": ServiceForm;
  "PUT /services/{service}": ServiceForm;
  "GET /services/{service}/endpoints": EndpointList;
  "POST /services/{service}/scale": ServiceForm;
  "DELETE /session": SessionForm;
  "POST /session": SessionForm;
  "GET /settings": SettingList;
  "GET /sweeps": SweepList;
  "GET /tasks": TaskPage;
  "POST /tasks": TaskAccepted;
  "DELETE /tasks/{job_id}": TaskChanged;
  "GET /tasks/{job_id}": TaskForm;
  "GET /tenants": TenantList;
  "POST /tenants": TenantForm;
  "DELETE /tenants/{tenant_id}": Removed;
  "GET /tenants/{tenant_id}": TenantForm;
  "PATCH /tenants/{tenant_id}": TenantForm;
  "PUT /tenants/{tenant_id}": TenantForm;
  "GET /tokens": TokenList;
  "POST /tokens": NewToken;
  "DELETE /tokens/{token_id}": Removed;
  "GET /usage": UsageList;
  "POST /what-if": WhatIfForm;
}

export interface Bodies {
  "POST /jobs": JobRequest | JobRequest[];
  "POST /jobs/bulk": JobRequest[];
  "POST /jobs/validate": JobRequest | JobRequest[];
  "PATCH /jobs/{job_id}": JobPatch;
  "POST /jobs/{job_id}/correct-usage": UsageCorrection;
  "POST /jobs/{job_id}/priority": PriorityRequest;
  "POST /nodes/tokens": JoinTokenRequest;
  "PATCH /nodes/{node}": NodePatch;
  "POST /nodes/{node}/cordon": CordonRequest;
  "POST /nodes/{node}/drain": DrainRequest;
  "PUT /quota": QuotaRequest;
  "POST /reservations": ReservationRequest;
  "POST /services": ServiceRequest;
  "PUT /services/{service}": ServiceRequest;
  "POST /services/{service}/scale": ScaleRequest;
  "POST /tasks": TaskRequest;
  "POST /tenants": TenantRequest;
  "PATCH /tenants/{tenant_id}": TenantPatch;
  "PUT /tenants/{tenant_id}": TenantPatch;
  "POST /tokens": TokenRequest;
  "POST /what-if": WhatIfRequest;
}
