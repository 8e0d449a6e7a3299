// Running and waiting jobs in the order of the scheduler, and the ended ones; any number of them.
import type { JSX } from "preact";
import { useCallback, useLayoutEffect, useState } from "preact/hooks";
import { act } from "./actions";
import type { Action } from "./actions";
import { call, useLive } from "./api";
import type { JobForm, JobLine } from "./api-types";
import { Empty, JobLink, Problem, State, Who, WindowedTable } from "./components";
import type { Column } from "./components";
import { count, plural, since, time, trim, until, untilRange } from "./format";

const PAGE = 200;
const ENDED = "completed,failed,cancelled";
const GROUPS = ["none", "user", "tenant", "name", "state"] as const;
type Group = (typeof GROUPS)[number];
const CHOICES = ["User", "Tenant", "GPUs", "Priority", "Place", "Where", "Since", "Starts", "Ends", "Why"] as const;

interface Row {
  id: string;
  name: string;
  user: string;
  tenant: string;
  state: string;
  reason: string;
  gpus: number;
  priority: number;
  places: string;
  position: number | null;
  since: string | null;
  start: string | null;
  earliest: string | null;
  latest: string | null;
  end: string | null;
  tasks: string;
  hold: boolean;
  mayChange: boolean;
}

function ofLine(line: JobLine): Row {
  return {
    ...line,
    tenant: line.tenant_id,
    places: line.places.join(" "),
    since: line.started_at ?? line.submitted_at,
    start: line.expected_start,
    earliest: line.expected_start_earliest,
    latest: line.expected_start_latest,
    end: line.expected_end,
    mayChange: line.may_change,
  };
}

function ofJob(job: JobForm): Row {
  return {
    ...job,
    tenant: job.tenant_id,
    gpus: job.gpu_count,
    places: job.allocation.map((place) => place.node).join(" "),
    position: null,
    since: job.ended_at,
    start: null,
    earliest: null,
    latest: null,
    end: null,
    tasks: job.array?.tasks ?? "",
    mayChange: !job.redacted,
  };
}

interface PageOfJobs {
  rows: Row[];
  offset: number;
  total: number;
  counts: Record<string, number>;
}

export function Queue(): JSX.Element {
  const [ended, setEnded] = useState(false);
  const [words, setWords] = useState("");
  const [mine, setMine] = useState(false);
  const [sort, setSort] = useState("queue");
  const [group, setGroup] = useState<Group>("none");
  const [offset, setOffset] = useState(0);
  const [selected, setSelected] = useState<ReadonlySet<string>>(new Set());
  const [current, setCurrent] = useState(-1);
  const [hiddenColumns, setHiddenColumns] = useState<ReadonlySet<string>>(new Set(["Tenant"]));
  const order = group === "none" ? sort : group;
  const page = useLive<PageOfJobs>((signal) => (ended ? endedJobs(words, mine, offset, signal) : activeJobs(words, mine, order, offset, signal)), 2500, [
    ended,
    words,
    mine,
    order,
    offset,
  ]);
  const onWindow = useCallback((first: number, rows: number) => {
    // The next page is asked for before the end of this one comes into view.
    setOffset((old) => (first < old || first + rows > old + PAGE ? Math.max(0, Math.round(first - (PAGE - rows) / 2)) : old));
  }, []);
  const { data } = page;
  const rows = data?.rows ?? [];
  const toggle = (row: Row): void =>
    setSelected((old) => {
      const next = new Set(old);
      if (!next.delete(row.id)) next.add(row.id);
      return next;
    });
  const run = (action: Action, ids = [...selected]): void => {
    const one = rows.find((row) => row.id === ids[0]);
    if (ids.length)
      void act(
        action,
        ids,
        () => {
          setSelected(new Set());
          page.refresh();
        },
        one?.priority,
      );
  };
  // Before the next key, so that quick typing acts on what is shown.
  useLayoutEffect(() => {
    const press = (event: KeyboardEvent): void => {
      const inField = event.target instanceof HTMLElement && event.target.matches("input:not([type=checkbox]), textarea, select, button, a, dialog *");
      if (inField || event.ctrlKey || event.metaKey || event.altKey || document.querySelector("dialog[open]")) return;
      const row = rows[current];
      const ids = selected.size ? [...selected] : row?.mayChange ? [row.id] : [];
      if (event.key === "j" || event.key === "ArrowDown") setCurrent((old) => Math.min(rows.length - 1, old + 1));
      else if (event.key === "k" || event.key === "ArrowUp") setCurrent((old) => Math.max(0, old - 1));
      else if (event.key === "Enter" && row) location.hash = `#/jobs/${row.id}`;
      else if (event.key === " " && row?.mayChange) toggle(row);
      else if (event.key === "x" && !ended) run("cancel", ids);
      else if (event.key === "h" && !ended) run(row?.hold && !selected.size ? "release" : "hold", ids);
      else return;
      event.preventDefault();
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  });
  const restart = (change: () => void): void => {
    change();
    setOffset(0);
    setSelected(new Set());
    setCurrent(-1);
    document.querySelector(".windowed")?.scrollTo(0, 0);
  };
  return (
    <div class="page-tall">
      <h1>Queue</h1>
      <div class="toolbar">
        <div class="tabs" role="group" aria-label="Which jobs">
          <button type="button" aria-pressed={!ended} onClick={() => restart(() => setEnded(false))}>
            Running and waiting
          </button>
          <button type="button" aria-pressed={ended} onClick={() => restart(() => setEnded(true))}>
            Ended
          </button>
        </div>
        <label class="inline">
          Search
          <input type="search" value={words} placeholder={ended ? "name" : "id, name, user, state"} onInput={(event) => restart(() => setWords(event.currentTarget.value))} />
        </label>
        <label class="inline">
          <input type="checkbox" checked={mine} onChange={(event) => restart(() => setMine(event.currentTarget.checked))} /> Mine
        </label>
        {ended ? null : (
          <label class="inline">
            Group by
            <select value={group} onChange={(event) => restart(() => setGroup(event.currentTarget.value as Group))}>
              {GROUPS.map((one) => (
                <option key={one} value={one}>
                  {one}
                </option>
              ))}
            </select>
          </label>
        )}
        <ColumnChoice hidden={hiddenColumns} change={setHiddenColumns} />
        <span class="muted counts">{ended ? (data ? plural(data.total, "job") : "") : countsText(data?.counts)}</span>
      </div>
      <Problem error={page.error} />
      {selected.size ? (
        <div class="toolbar chosen-bar" role="toolbar" aria-label="Actions on the selected jobs">
          <strong>{plural(selected.size, "job")} selected</strong>
          {(ended ? (["retry"] as const) : (["cancel", "hold", "release", "priority"] as const)).map((action) => (
            <button key={action} type="button" class={action === "cancel" ? "danger" : ""} onClick={() => run(action)}>
              {action}
            </button>
          ))}
          <button type="button" class="plain" onClick={() => setSelected(new Set())}>
            Clear
          </button>
        </div>
      ) : null}
      {data && data.total === 0 ? (
        <Nothing ended={ended} filtered={Boolean(words) || mine} />
      ) : (
        <WindowedTable
          columns={columnsFor(ended, selected, toggle, hiddenColumns)}
          total={data?.total ?? 0}
          offset={data?.offset ?? 0}
          rows={rows}
          id={(row) => row.id}
          label={ended ? "Ended jobs" : "Running and waiting jobs"}
          sort={group === "none" ? sort : group}
          {...(ended ? {} : { onSort: (next: string) => restart(() => { setGroup("none"); setSort(next); }) })}
          onWindow={onWindow}
          current={rows[current]?.id ?? ""}
          rowClass={(row, index) => (group !== "none" && isFirst(rows, index - (data?.offset ?? 0), group) ? "first-of-group" : selected.has(row.id) ? "selected" : "")}
        />
      )}
    </div>
  );
}

function startTitle(row: Row): string {
  const range = row.earliest && row.latest ? `; four in five such jobs start between ${time(row.earliest)} and ${time(row.latest)}` : "";
  return `${time(row.start)}${range}`;
}

function isFirst(rows: Row[], place: number, group: Exclude<Group, "none">): boolean {
  return place > 0 && rows[place]?.[group] !== rows[place - 1]?.[group];
}

async function activeJobs(words: string, mine: boolean, sort: string, offset: number, signal: AbortSignal): Promise<PageOfJobs> {
  const query = { filter: words, user: mine ? "@me" : "", sort, offset, limit: PAGE, without_gpus: true };
  const found = await call("GET /overview", { query, signal });
  return { rows: found.jobs.map(ofLine), offset: found.offset, total: found.total, counts: found.counts };
}

async function endedJobs(words: string, mine: boolean, offset: number, signal: AbortSignal): Promise<PageOfJobs> {
  const query = { state: ENDED, name: words, user: mine ? "@me" : "", sort: "-ended_at", offset, limit: PAGE };
  const found = await call("GET /jobs", { query, signal });
  return { rows: found.jobs.map(ofJob), offset, total: found.total, counts: {} };
}

function countsText(counts: Record<string, number> | undefined): string {
  return counts
    ? Object.entries(counts)
        .filter(([, number]) => number > 0)
        .map(([state, number]) => `${count(number)} ${state}`)
        .join(" · ")
    : "";
}

function Nothing({ ended, filtered }: { ended: boolean; filtered: boolean }): JSX.Element {
  if (filtered) return <Empty title="No job matches">Change the search, or show the jobs of everybody.</Empty>;
  return ended ? (
    <Empty title="No job has ended yet" />
  ) : (
    <Empty title="The queue is empty">
      <p>
        Submit one: <code>tgpu submit --gpus 1 -- python train.py</code>
      </p>
    </Empty>
  );
}

function columnsFor(ended: boolean, selected: ReadonlySet<string>, toggle: (row: Row) => void, hidden: ReadonlySet<string>): Column<Row>[] {
  const all: (Column<Row> | null)[] = [
    {
      name: "",
      key: "select",
      of: (row) =>
        row.mayChange ? <input type="checkbox" aria-label={`Select ${row.id}`} checked={selected.has(row.id)} onChange={() => toggle(row)} /> : null,
    },
    { name: "Job", sort: "number", of: (row) => <JobLink id={row.id} /> },
    { name: "Name", sort: "name", of: (row) => <span class="cut">{row.name}{row.tasks ? <span class="muted"> [{row.tasks}]</span> : null}</span> },
    { name: "State", sort: "state", of: (row) => <State state={row.hold && row.state === "pending" ? "held" : row.state} /> },
    { name: "User", sort: "user", of: (row) => <Who name={row.user} /> },
    { name: "Tenant", sort: "tenant", of: (row) => row.tenant },
    { name: "GPUs", sort: "gpus", right: true, of: (row) => trim(row.gpus) },
    { name: "Priority", sort: "priority", right: true, of: (row) => row.priority || "" },
    ended ? null : { name: "Place", sort: "queue", right: true, of: (row) => row.position ?? "" },
    { name: "Where", of: (row) => <span class="cut mono">{row.places}</span> },
    ended
      ? { name: "Ended", right: true, key: "Since", of: (row) => time(row.since) }
      : { name: "Since", sort: "time", right: true, of: (row) => since(row.since) },
    ended ? null : { name: "Starts", right: true, of: (row) => (row.position === null ? "" : row.start ? <span title={startTitle(row)}>{untilRange(row.start, row.earliest, row.latest)}</span> : "unknown") },
    ended ? null : { name: "Ends", right: true, of: (row) => (row.end ? <span title={time(row.end)}>{until(row.end)}</span> : "") },
    { name: "Why", grow: true, of: (row) => <span title={row.reason}>{row.reason}</span> },
  ];
  return all.filter((column): column is Column<Row> => column !== null && !hidden.has(column.key ?? column.name));
}

function ColumnChoice({ hidden, change }: { hidden: ReadonlySet<string>; change: (hidden: ReadonlySet<string>) => void }): JSX.Element {
  return (
    <details class="choice">
      <summary>Columns</summary>
      <div>
        {CHOICES.map((name) => (
          <label key={name}>
            <input
              type="checkbox"
              checked={!hidden.has(name)}
              onChange={() => {
                const next = new Set(hidden);
                if (!next.delete(name)) next.add(name);
                change(next);
              }}
            />
            {name}
          </label>
        ))}
      </div>
    </details>
  );
}
