// Sweeps: jobs that were submitted together, as a grid over their parameters with the state of every cell.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { act } from "./actions";
import { call, useLive } from "./api";
import type { JobForm, SweepForm } from "./api-types";
import { Empty, JobLink, Problem, State, Table } from "./components";
import { count, duration, plural, time } from "./format";

const PAGE = 1000;
const MOST_JOBS = 5000;
const STATES = ["running", "scheduled", "pending", "preempted", "failed", "cancelled", "completed"];
const UNFINISHED = new Set(["running", "scheduled", "pending", "preempted"]);

export function Sweeps(): JSX.Element {
  const list = useLive((signal) => call("GET /sweeps", { signal }), 4000, []);
  const sweeps = list.data?.sweeps;
  return (
    <>
      <h1>Sweeps</h1>
      <Problem error={list.error} />
      {sweeps === undefined ? (
        <p class="muted">Loading…</p>
      ) : sweeps.length ? (
        <Table
          label="Your sweeps"
          rows={sweeps}
          id={(sweep) => sweep.name}
          columns={[
            { name: "Sweep", of: (sweep) => <a href={`#/sweeps/${encodeURIComponent(sweep.name)}`}>{sweep.name}</a> },
            { name: "Jobs", right: true, of: (sweep) => count(sweep.jobs) },
            { name: "States", of: (sweep) => <States of={sweep.states} /> },
            { name: "Submitted", of: (sweep) => time(sweep.submitted_at) },
            { name: "From", grow: true, of: (sweep) => <JobLink id={sweep.first_job_id} /> },
          ]}
        />
      ) : (
        <Empty title="You have no sweeps">
          <p>
            A sweep is one job for each combination of parameters: <code>tgpu submit --param lr=0.1,0.01 --param seed=1,2,3 -- python train.py</code>, or the page{" "}
            <a href="#/submit">Submit</a>.
          </p>
        </Empty>
      )}
    </>
  );
}

function States({ of }: { of: SweepForm["states"] }): JSX.Element {
  return (
    <span class="states">
      {STATES.filter((state) => of[state]).map((state) => (
        <span key={state} class={`state state-${state}`}>{`${count(of[state] ?? 0)} ${state}`}</span>
      ))}
    </span>
  );
}

async function jobsOf(sweep: string, signal: AbortSignal): Promise<{ jobs: JobForm[]; total: number }> {
  const jobs: JobForm[] = [];
  let cursor: string | null = "";
  let total = 0;
  while (cursor !== null && jobs.length < MOST_JOBS) {
    const page: { jobs: JobForm[]; total: number; next_cursor: string | null } = await call("GET /jobs", { query: { sweep, user: "@me", limit: PAGE, cursor }, signal });
    jobs.push(...page.jobs);
    total = Math.max(total, page.total);
    cursor = page.next_cursor;
  }
  return { jobs, total };
}

export function SweepPage({ name }: { name: string }): JSX.Element {
  const [busyMs, setBusyMs] = useState(3000);
  const found = useLive(
    async (signal) => {
      const answer = await jobsOf(name, signal);
      setBusyMs(answer.jobs.some((job) => UNFINISHED.has(job.state)) ? (answer.jobs.length > PAGE ? 15_000 : 3000) : 30_000);
      return answer;
    },
    busyMs,
    [name, busyMs],
  );
  const jobs = found.data?.jobs ?? [];
  const states: Record<string, number> = {};
  for (const job of jobs) states[job.state] = (states[job.state] ?? 0) + 1;
  const failed = jobs.filter((job) => job.state === "failed").map((job) => job.id);
  const waiting = jobs.filter((job) => UNFINISHED.has(job.state)).map((job) => job.id);
  return (
    <>
      <p class="crumbs">
        <a href="#/sweeps">Sweeps</a> / {name}
      </p>
      <div class="title-row">
        <h1>{name}</h1>
        <div class="buttons">
          {failed.length ? (
            <button type="button" onClick={() => void act("retry", failed, found.refresh)}>
              {`Retry ${plural(failed.length, "failed job")}`}
            </button>
          ) : null}
          {waiting.length ? (
            <button type="button" class="danger" onClick={() => void act("cancel", waiting, found.refresh)}>
              {`Cancel ${plural(waiting.length, "unfinished job")}`}
            </button>
          ) : null}
        </div>
      </div>
      <Problem error={found.error} />
      {found.data === null ? (
        found.error ? null : <p class="muted">Loading…</p>
      ) : jobs.length === 0 ? (
        <Empty title="There is no such sweep of yours" />
      ) : (
        <>
          <p>
            <States of={states} />
          </p>
          {found.data.total > jobs.length ? <p class="note">{`The newest ${count(jobs.length)} of ${count(found.data.total)} jobs are shown.`}</p> : null}
          <Grid jobs={jobs} />
        </>
      )}
    </>
  );
}

interface Cells {
  columns: string[];
  rows: { key: string; values: string[]; cells: Map<string, JobForm[]> }[];
}

// Numbers in their order, then words in theirs.
function byValue(one: string, other: string): number {
  const [a, b] = [Number(one), Number(other)];
  return Number.isNaN(a) || Number.isNaN(b) ? one.localeCompare(other, undefined, { numeric: true }) : a - b;
}

function cellsOf(jobs: JobForm[], down: string[], across: string): Cells {
  const rows = new Map<string, Cells["rows"][number]>();
  const columns = new Set<string>();
  for (const job of jobs) {
    const values = down.map((name) => job.params[name] ?? "");
    const key = JSON.stringify(values);
    const row = rows.get(key) ?? { key, values, cells: new Map<string, JobForm[]>() };
    rows.set(key, row);
    const column = across ? (job.params[across] ?? "") : "";
    columns.add(column);
    row.cells.set(column, [job, ...(row.cells.get(column) ?? [])]);
  }
  const order = (one: string[], other: string[]): number => one.map((value, place) => byValue(value, other[place] ?? "")).find((sign) => sign !== 0) ?? 0;
  return { columns: [...columns].sort(byValue), rows: [...rows.values()].sort((one, other) => order(one.values, other.values)) };
}

// The parameter whose values make the columns: the last one, unless most cells would then be empty.
function columnParameter(jobs: JobForm[], names: string[]): string {
  const last = names.at(-1);
  if (names.length < 2 || !last) return "";
  const cells = cellsOf(jobs, names.slice(0, -1), last);
  return cells.rows.length * cells.columns.length <= 2 * jobs.length ? last : "";
}

function Grid({ jobs }: { jobs: JobForm[] }): JSX.Element {
  const names = useMemo(() => [...new Set(jobs.flatMap((job) => Object.keys(job.params)))], [jobs]);
  const [chosen, setChosen] = useState<string | null>(null);
  const across = chosen ?? columnParameter(jobs, names);
  const down = names.filter((name) => name !== across);
  const { columns, rows } = useMemo(() => cellsOf(jobs, down, across), [jobs, across]);
  return (
    <>
      {names.length > 1 ? (
        <div class="toolbar">
          <label class="inline">
            Columns
            <select value={across} onChange={(event) => setChosen(event.currentTarget.value)}>
              <option value="">none</option>
              {names.map((name) => (
                <option key={name} value={name}>
                  {name}
                </option>
              ))}
            </select>
          </label>
        </div>
      ) : null}
      <div class="scroll sweep" tabIndex={0} role="region" aria-label="Jobs by parameter">
        <table>
          <thead>
            <tr>
              {down.map((name) => (
                <th key={name} scope="col">
                  {name}
                </th>
              ))}
              {columns.map((value) => (
                <th key={value} scope="col">
                  {across ? `${across} = ${value}` : "Job"}
                </th>
              ))}
            </tr>
          </thead>
          <tbody>
            {rows.map((row) => (
              <tr key={row.key}>
                {row.values.map((value, place) => (
                  <th key={place} scope="row">
                    {value}
                  </th>
                ))}
                {columns.map((column) => (
                  <td key={column}>
                    {(row.cells.get(column) ?? []).map((job) => (
                      <Cell key={job.id} job={job} />
                    ))}
                  </td>
                ))}
              </tr>
            ))}
          </tbody>
        </table>
      </div>
    </>
  );
}

function Cell({ job }: { job: JobForm }): JSX.Element {
  const ran = job.started_at ? duration(((job.ended_at ? Date.parse(job.ended_at) : Date.now()) - Date.parse(job.started_at)) / 1000) : "";
  return (
    <a class={`cell cell-${job.state}`} href={`#/jobs/${job.id}`} title={[job.id, job.reason].filter(Boolean).join(": ")}>
      <State state={job.hold && job.state === "pending" ? "held" : job.state} />
      <span class="muted">{job.state === "failed" && job.exit_code !== null ? `exit ${job.exit_code}` : ran}</span>
    </a>
  );
}
