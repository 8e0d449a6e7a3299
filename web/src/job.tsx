// Everything about one job: what it is, why it waits, where it runs, its attempts and its log.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { act } from "./actions";
import type { Action } from "./actions";
import { call, useLive } from "./api";
import type { AttemptForm, AttemptList, Explanation, JobForm, MeasureForm } from "./api-types";
import { Chart } from "./chart";
import { Code, Facts, JobLink, Problem, State, Table, Who } from "./components";
import { duration, isNarrow, memory, plural, since, time, trim, until } from "./format";
import { line } from "./jobfile";
import { LogView } from "./log";

const ENDED = new Set(["completed", "failed", "cancelled"]);

export function JobPage({ id }: { id: string }): JSX.Element {
  const path = { job_id: id };
  const found = useLive((signal) => call("GET /jobs/{job_id}", { path, signal }), 2000, [id]);
  const job = found.data;
  const isOwn = job !== null && !job.redacted;
  const isOver = job !== null && ENDED.has(job.state);
  const why = useLive(async (signal) => (isOwn && !isOver ? call("GET /jobs/{job_id}/explain", { path, signal }) : null), 3000, [id, isOwn, isOver, job?.state]);
  const attempts = useLive(async (signal) => (isOwn ? call("GET /jobs/{job_id}/attempts", { path, signal }) : null), isOver ? 0 : 4000, [id, isOwn, job?.state, job?.attempt]);
  if (!job) return found.error ? <Problem error={found.error} /> : <p class="muted">Loading…</p>;
  return (
    <>
      <p class="crumbs">
        <a href="#/jobs">Queue</a> / {job.id}
      </p>
      <div class="title-row">
        <h1>
          {job.name || job.id} <State state={job.hold && job.state === "pending" ? "held" : job.state} />
        </h1>
        {isOwn ? <Actions job={job} refresh={found.refresh} /> : null}
      </div>
      <Problem error={found.error} />
      {job.redacted ? <p class="note">This is a job of {job.user}: only its size, its place and its times are shown.</p> : null}
      {why.data && why.data.state !== "running" ? <Why why={why.data} /> : job.reason ? <p class="note">{job.reason}</p> : null}
      <section class="card" aria-label="Facts">
        <Facts of={factsOf(job, attempts.data)} />
        {job.command.length ? <Code text={line(job.command)} /> : null}
      </section>
      {job.array ? <Tasks job={job} /> : null}
      {isOwn && job.attempt > 0 && !job.array ? <JobLog job={job} attempts={attempts.data?.attempts ?? []} /> : null}
      {isOwn && job.attempt > 0 && !job.array ? <Readings job={job} /> : null}
      {attempts.data?.attempts.length ? <Attempts attempts={attempts.data.attempts} /> : null}
      {isOwn ? <Surroundings job={job} /> : null}
    </>
  );
}

// GPU-hours and their cost, of all attempts; no cost where no price is set.
function spent(list: AttemptList | null): [string, string][] {
  const hours = (list?.attempts ?? []).reduce((sum, one) => sum + one.gpu_hours, 0);
  const cost = (list?.attempts ?? []).reduce((sum, one) => sum + (one.cost ?? 0), 0);
  return [
    ["GPU-hours", hours ? trim(hours, hours < 1 ? 4 : 2) : ""],
    ["Cost of GPUs", cost ? `${trim(cost, cost < 1 ? 4 : 2)} ${list?.currency ?? ""}` : ""],
  ];
}

function factsOf(job: JobForm, attempts: AttemptList | null): [string, JSX.Element | string | number | JSX.Element[] | null][] {
  const limit = job.time_limit_minutes;
  const ran = job.started_at && job.state !== "pending" ? since(job.started_at, job.ended_at ? Date.parse(job.ended_at) : Date.now()) : "";
  return [
    ["Job", job.id],
    ["User", <Who name={job.user} />],
    ["Tenant", job.tenant_id],
    ["GPUs", `${trim(job.gpu_count)}${job.members > 1 ? ` in ${plural(job.members, "member")}` : ""}${job.gpu_models.length ? `, ${job.gpu_models.join(" or ")}` : ""}`],
    ["GPU memory", job.gpu_memory_mb ? memory(job.gpu_memory_mb) : ""],
    ["CPUs and memory", [job.cpu_cores ? plural(job.cpu_cores, "core") : "", job.memory_mb ? memory(job.memory_mb) : ""].filter(Boolean).join(", ")],
    ["Priority", job.redacted ? "" : `${job.priority}, ${job.pool}${job.preemptible ? ", preemptible" : ""}`],
    ["Submitted", time(job.submitted_at)],
    ["Started", job.started_at ? time(job.started_at) : ""],
    ["Ended", job.ended_at ? time(job.ended_at) : ""],
    ["Ran for", ran],
    ["Expected end", job.expected_end ? `${time(job.expected_end)} (${until(job.expected_end)})` : ""],
    ["Time limit", limit ? duration(limit * 60) : ""],
    ["Exit", exitText(job)],
    ["Attempts", job.attempt > 1 ? `${job.attempt}, ${plural(job.preemptions, "preemption")}` : ""],
    ["Where", job.allocation.map((place) => <span class="mono" key={`${place.node} ${place.member} ${place.task}`}>{`${place.node}[${place.gpus.map((gpu) => (gpu.share < 1 ? `${gpu.index} at ${Math.round(gpu.share * 100)} %` : gpu.index)).join(",")}] `}</span>)],
    ...measured(job.measured),
    ["Deadline", job.deadline ? time(job.deadline) : ""],
    ["Not before", job.begin_at ? time(job.begin_at) : ""],
    ["After", job.dependencies.length ? job.dependencies.map((one) => <span key={one.job_id}>{one.type} <JobLink id={one.job_id} /> </span>) : ""],
    ["Sweep", job.sweep],
    ...spent(attempts),
    ["Image", job.image],
    ["Attach", job.attach.length ? job.attach.join(" ") : ""],
  ];
}

function measured(measure: MeasureForm | null): [string, string][] {
  if (!measure) return [];
  return [
    ["GPU utilisation", measure.utilisation_percent === null ? "" : `${measure.utilisation_percent} %, peak ${measure.peak_utilisation_percent ?? 0} %`],
    ["Peak GPU memory", memory(measure.peak_memory_mb)],
    ["Energy", measure.energy_wh === null ? "" : `${trim(measure.energy_wh, 1)} Wh`],
    ["Warning", measure.warning],
  ];
}

function exitText(job: { exit_code: number | null; signal: number | null }): string {
  if (job.signal) return `signal ${job.signal}`;
  return job.exit_code === null ? "" : `code ${job.exit_code}`;
}

function Actions({ job, refresh }: { job: JobForm; refresh: () => void }): JSX.Element {
  const possible: Action[] = ENDED.has(job.state) ? (job.state === "completed" ? [] : ["retry"]) : job.state === "pending" ? [job.hold ? "release" : "hold", "priority", "cancel"] : ["cancel"];
  return (
    <div class="buttons">
      {possible.map((action) => (
        <button key={action} type="button" class={action === "cancel" ? "danger" : ""} onClick={() => void act(action, [job.id], refresh, job.priority)}>
          {action}
        </button>
      ))}
      <a class="button" href={`#/submit/${encodeURIComponent(job.id)}`}>
        Submit again
      </a>
      {job.state === "pending" ? (
        <a class="button" href={`#/plan/${encodeURIComponent(job.id)}`}>
          Who is before it
        </a>
      ) : null}
    </div>
  );
}

function Why({ why }: { why: Explanation }): JSX.Element {
  return (
    <section class="card why" aria-label="Why it waits">
      <h2>Why it waits</h2>
      <p>{why.reason}</p>
      <Facts
        of={[
          ["Place in the queue", why.position],
          ["Expected start", why.expected_start ? `${time(why.expected_start)} (${until(why.expected_start)})` : why.start_unknown ? `unknown: ${why.start_unknown}` : ""],
          ["Four in five start", why.expected_start_earliest && why.expected_start_latest && !isNarrow(why.expected_start_earliest, why.expected_start_latest) ? `between ${time(why.expected_start_earliest)} and ${time(why.expected_start_latest)}` : ""],
          ["After the end of", why.expected_start_after ? <span><JobLink id={why.expected_start_after} /> ({why.expected_start_basis})</span> : ""],
          ["At the latest, by time limits", why.expected_start_limit ? time(why.expected_start_limit) : ""],
          ["Expected end", why.expected_end ? time(why.expected_end) : why.end_unknown ? `unknown: ${why.end_unknown}` : ""],
          ["Based on", why.basis],
        ]}
      />
    </section>
  );
}

function JobLog({ job, attempts }: { job: JobForm; attempts: AttemptForm[] }): JSX.Element {
  const [attempt, setAttempt] = useState(0);
  const [member, setMember] = useState(0);
  useEffect(() => setAttempt(0), [job.attempt]);
  return (
    <>
      {attempts.length > 1 || job.members > 1 ? (
        <div class="toolbar">
          {attempts.length > 1 ? (
            <label class="inline">
              Attempt
              <select value={attempt} onChange={(event) => setAttempt(Number(event.currentTarget.value))}>
                <option value={0}>last</option>
                {attempts.map((one) => (
                  <option key={one.attempt} value={one.attempt}>
                    {one.attempt}
                  </option>
                ))}
              </select>
            </label>
          ) : null}
          {job.members > 1 ? (
            <label class="inline">
              Member
              <input type="number" min={0} max={job.members - 1} value={member} onInput={(event) => setMember(Number(event.currentTarget.value) || 0)} />
            </label>
          ) : null}
        </div>
      ) : null}
      <LogView id={job.id} {...(attempt ? { attempt } : {})} {...(member ? { member } : {})} key={`${job.attempt} ${attempt} ${member}`} />
    </>
  );
}

function Attempts({ attempts }: { attempts: AttemptForm[] }): JSX.Element {
  return (
    <section class="card" aria-label="Attempts">
      <h2>Attempts</h2>
      <Table
        label="Attempts"
        rows={attempts}
        id={(one) => one.id}
        columns={[
          { name: "Attempt", of: (one) => (one.task === null ? one.attempt : `${one.task}.${one.attempt}`) },
          { name: "State", of: (one) => <State state={one.state} /> },
          { name: "Started", of: (one) => time(one.started_at) },
          { name: "Ran for", right: true, of: (one) => since(one.started_at, one.ended_at ? Date.parse(one.ended_at) : Date.now()) },
          { name: "Exit", of: exitText },
          { name: "Where", of: (one) => <span class="mono">{one.allocation.map((place) => `${place.node}[${place.gpus.map((gpu) => gpu.index).join(",")}]`).join(" ")}</span> },
          { name: "Busy", right: true, of: (one) => (one.measured?.utilisation_percent == null ? "–" : `${one.measured.utilisation_percent} %`) },
          { name: "Detail", grow: true, of: (one) => one.detail },
        ]}
      />
    </section>
  );
}

const QUANTITIES = [
  { name: "utilisation_percent", label: "GPU utilisation", unit: "%" },
  { name: "memory_used_mb", label: "GPU memory in use", unit: "MB" },
  { name: "power_watts", label: "Power", unit: "W" },
  { name: "temperature_c", label: "Temperature", unit: "°C" },
] as const;
const MOST_CURVES = 6;

// The GPUs of the last attempt, from its start on.
function Readings({ job }: { job: JobForm }): JSX.Element | null {
  const found = useLive((signal) => call("GET /jobs/{job_id}/readings", { path: { job_id: job.id }, signal }), ENDED.has(job.state) ? 0 : 5000, [job.id, job.state, job.attempt]);
  const { data } = found;
  const charts = useMemo(() => {
    if (!data?.start) return [];
    const begin = Date.parse(data.start) / 1000;
    const steps = Math.max(0, ...data.gpus.map((gpu) => gpu.utilisation_percent.length));
    const seconds = Array.from({ length: steps }, (_, step) => begin + step * data.step_seconds);
    return QUANTITIES.map((quantity) => ({
      ...quantity,
      seconds,
      series: data.gpus.slice(0, MOST_CURVES).map((gpu) => ({ name: `${gpu.node}:${gpu.index}`, values: seconds.map((_, step) => gpu[quantity.name][step] ?? null) })),
    })).filter((chart) => chart.series.some((one) => one.values.some((value) => value !== null && value > 0)));
  }, [data]);
  if (!data || !charts.length) return null;
  return (
    <section class="card" aria-label="GPU readings">
      <h2>GPUs from start to end</h2>
      {data.gpus.length > MOST_CURVES ? <p class="note">{`The first ${MOST_CURVES} of ${data.gpus.length} GPUs are drawn.`}</p> : null}
      <div class="two">
        {charts.map((chart) => (
          <Chart key={chart.name} label={chart.label} points={chart.seconds} series={chart.series} unit={chart.unit} height={160} />
        ))}
      </div>
    </section>
  );
}

function Tasks({ job }: { job: JobForm }): JSX.Element {
  const path = { job_id: job.id };
  const page = useLive((signal) => call("GET /jobs/{job_id}/tasks", { path, signal }), 3000, [job.id]);
  return (
    <section class="card" aria-label="Tasks">
      <h2>{plural(job.array?.count ?? 0, "task")}</h2>
      <Facts of={Object.entries(job.array?.states ?? {}).map(([state, tasks]): [string, string] => [state, `${/^\d+$/.test(tasks) ? "task" : "tasks"} ${tasks}`])} />
      {page.data?.tasks.length ? (
        <Table
          label="Tasks that have started"
          rows={page.data.tasks}
          id={(task) => task.id}
          columns={[
            { name: "Task", of: (task) => <JobLink id={task.id} /> },
            { name: "State", of: (task) => <State state={task.state} /> },
            { name: "Started", of: (task) => time(task.started_at) },
            { name: "Ran for", right: true, of: (task) => since(task.started_at, task.ended_at ? Date.parse(task.ended_at) : Date.now()) },
            { name: "Exit", grow: true, of: exitText },
          ]}
        />
      ) : null}
    </section>
  );
}

function Surroundings({ job }: { job: JobForm }): JSX.Element {
  const variables = Object.entries(job.environment);
  return (
    <section class="card" aria-label="Surroundings">
      <h2>Surroundings</h2>
      <Facts
        of={[
          ["Directory", <span class="mono">{job.working_directory}</span>],
          ["Output", job.output],
          ["Runner", job.runner],
          ["Retries", job.retries || ""],
          ["Notify", job.notify.join(", ")],
          ["Snapshot", job.snapshot ? <span class="mono">{`${job.snapshot.source} ${job.snapshot.commit.slice(0, 12)}${job.snapshot.dirty ? " with changes" : ""}`}</span> : ""],
          ...Object.entries(job.params).map(([name, value]): [string, string] => [`Parameter ${name}`, value]),
        ]}
      />
      {variables.length ? (
        <details>
          <summary>{plural(variables.length, "environment variable")}</summary>
          <Facts of={variables.map(([name, value]): [string, JSX.Element] => [name, <span class="mono">{value}</span>])} />
        </details>
      ) : null}
    </section>
  );
}
