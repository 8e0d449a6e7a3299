// The plan: every GPU on a time line (drawn) beside a table (for everybody); one job and what is before it.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { call, useLive } from "./api";
import type { PlanForm, PlannedRun, ReservationForm } from "./api-types";
import { Empty, Facts, Figures, JobLink, Problem, Table, Who } from "./components";
import type { Column, Figure } from "./components";
import { count, duration, hue, plural, startTime, time, trim, until } from "./format";

const POLL_MS = 5000;
const LABEL_PX = 116;
const NARROW_LABEL_PX = 64;
const ROW_PX = 20;
const HEAD_PX = 22;
const NODE_GAP_PX = 10;
const HOURS = [1, 3, 6, 12, 24, 72, 168, 720] as const;
const PAST = [0, 1, 6, 24, 168] as const;

interface Bar {
  x: number;
  y: number;
  width: number;
  height: number;
  run: PlannedRun;
}
interface Layout {
  bars: Bar[];
  rows: { y: number; text: string; strong: boolean; height: number }[];
  windows: { x: number; y: number; width: number; height: number; reservation: ReservationForm }[];
  ticks: { x: number; text: string }[];
  nowX: number;
  left: number;
  height: number;
}

function runId(run: PlannedRun): string {
  return `${run.kind} ${run.job_id} ${run.task ?? ""} ${run.start ?? ""} ${run.places.map((place) => `${place.node}${place.gpu_ids.join("")}`).join(" ")}`;
}

export function Plan({ job }: { job: string }): JSX.Element {
  const [ahead, setAhead] = useState(job ? 72 : 12);
  const [back, setBack] = useState(job ? 0 : 1);
  const [pages, setPages] = useState<string[]>([]);
  const after = pages.at(-1) ?? "";
  const query = job ? { job, hours_ahead: ahead, hours_back: back } : { after, hours_ahead: ahead, hours_back: back };
  const plan = useLive((signal) => call("GET /plan", { query, signal }), POLL_MS, [job, after, ahead, back]);
  const [chosen, setChosen] = useState("");
  const found = plan.data;
  const run = found?.runs.find((one) => runId(one) === chosen) ?? null;
  const [isFitted, setFitted] = useState(!job);
  const focus = job && found ? (found.runs.find((one) => one.job_id === job && one.kind !== "past") ?? null) : null;
  // A job's page begins with the hours up to its end.
  useEffect(() => {
    if (isFitted || !found) return;
    const needed = focus?.start ? (Date.parse(focus.end && !focus.end_unknown ? focus.end : focus.start) - Date.now()) / 3_600_000 : HOURS[HOURS.length - 1];
    const hours = HOURS.find((one) => one > (needed ?? 0) * 1.15) ?? 720;
    if (focus || hours === ahead) setFitted(true);
    setAhead(hours);
  }, [found, focus, isFitted]);
  return (
    <>
      {job ? (
        <p class="crumbs">
          <a href="#/plan">Plan</a> / <JobLink id={job} />
        </p>
      ) : null}
      <div class="title-row">
        <h1>{job ? `Before ${job}` : "Plan"}</h1>
        <div class="toolbar">
          <Choice label="Past" value={back} of={PAST} set={setBack} none="none" />
          <Choice label="Ahead" value={ahead} of={HOURS} set={setAhead} />
        </div>
      </div>
      <Problem error={plan.error} />
      {found ? (
        <>
          {job ? null : <Summary plan={found} />}
          {found.cut.map((text) => (
            <p key={text} class="note">
              {text}
            </p>
          ))}
          {job ? <Before plan={found} run={focus} /> : null}
          {found.nodes.length ? (
            <>
              <Legend />
              <div class={run ? "split" : ""}>
                <Gantt plan={found} chosen={chosen} choose={setChosen} focus={focus} />
                {run ? <RunDetail run={run} close={() => setChosen("")} /> : null}
              </div>
              {pages.length || found.next_node ? (
                <div class="buttons">
                  <button type="button" disabled={!pages.length} onClick={() => setPages(pages.slice(0, -1))}>
                    Previous nodes
                  </button>
                  <button type="button" disabled={!found.next_node} onClick={() => setPages([...pages, found.next_node])}>
                    Next nodes
                  </button>
                </div>
              ) : null}
              <h2>The same as a table</h2>
              <RunTable plan={found} choose={setChosen} />
              {found.reservations.length ? <Reservations list={found.reservations} /> : null}
            </>
          ) : (
            <Empty title={job ? "The forecast has no place for this job" : "No nodes yet"}>
              {job ? (
                <p>
                  <JobLink id={job}>Its page</JobLink> says why it waits.
                </p>
              ) : null}
            </Empty>
          )}
        </>
      ) : plan.error ? null : (
        <p class="muted">Loading…</p>
      )}
    </>
  );
}

// The job, or its task.
function nameOf(run: PlannedRun): string {
  return `${run.job_id}${run.task === null ? "" : `_${run.task}`}`;
}

function hoursText(hours: number): string {
  return hours < 48 ? `${hours} h` : `${hours / 24} d`;
}

function Choice({ label, value, of, set, none }: { label: string; value: number; of: readonly number[]; set: (value: number) => void; none?: string }): JSX.Element {
  return (
    <label class="inline">
      {label}
      <select value={value} onChange={(event) => set(Number(event.currentTarget.value))}>
        {of.map((hours) => (
          <option key={hours} value={hours}>
            {hours ? hoursText(hours) : none}
          </option>
        ))}
      </select>
    </label>
  );
}

function Summary({ plan }: { plan: PlanForm }): JSX.Element {
  const estimates = useLive((signal) => call("GET /report/estimates", { signal }), 300_000, []);
  const kept = estimates.data?.ranges;
  const running = plan.runs.filter((run) => run.kind === "running").length;
  const figures: Figure[] = [
    [count(running), running === 1 ? "job runs on these nodes" : "jobs run on these nodes"],
    [count(plan.waiting), plan.waiting === 1 ? "job could start" : "jobs could start"],
    [count(plan.forecast), "of them have an expected start"],
  ];
  if (kept?.judged && kept.within_percent !== null) figures.push([`${trim(kept.within_percent, 1)} %`, `of ${count(kept.judged)} starts fell into their range of 80 %`]);
  if (plan.reservations.length) figures.push([count(plan.reservations.length), plan.reservations.length === 1 ? "advance reservation" : "advance reservations"]);
  return <Figures of={figures} />;
}

function Legend(): JSX.Element {
  return (
    <ul class="legend" aria-label="Legend">
      <li class="legend-past">ran</li>
      <li class="legend-running">runs, until its expected end</li>
      <li class="legend-reserved">reserved</li>
      <li class="legend-forecast">forecast</li>
      <li class="legend-window">advance reservation</li>
      <li class="legend-unknown">? nothing says when it ends</li>
    </ul>
  );
}

// Who is before a job: on each of its GPUs the run that ends last before it starts.
function predecessors(plan: PlanForm, run: PlannedRun): PlannedRun[] {
  const found = new Map<string, PlannedRun>();
  for (const place of run.places) {
    for (const gpu of place.gpu_ids) {
      let last: PlannedRun | null = null;
      for (const one of plan.runs) {
        if (one === run || one.kind === "past" || !one.end || !run.start || one.end > run.start) continue;
        if (!one.places.some((other) => other.node === place.node && other.gpu_ids.includes(gpu))) continue;
        if (!last || (last.end ?? "") < one.end) last = one;
      }
      if (last) found.set(runId(last), last);
    }
  }
  return [...found.values()];
}

function Before({ plan, run }: { plan: PlanForm; run: PlannedRun | null }): JSX.Element {
  if (!run) return <p class="note">No start of this job is expected within the hours shown. Look further ahead.</p>;
  if (run.kind === "running") return <p class="note note-good">It runs since {time(run.start)}{run.end ? ` and should end ${time(run.end)}` : ""}.</p>;
  const before = predecessors(plan, run);
  return (
    <section class="card" aria-label="Before it">
      <Facts
        of={[
          ["Expected start", run.expected_start ? startTime(run) : `${time(run.start)} (${until(run.start)})`],
          ["By time limits", run.expected_start_limit ? `${time(run.expected_start_limit)} if all jobs before it use their full limits` : ""],
          ["After", run.expected_start_after ? <span><JobLink id={run.expected_start_after} /> ({run.expected_start_basis})</span> : ""],
          ["Expected end", run.end ? (run.end_unknown ? "unknown" : time(run.end)) : "never by itself"],
          ["By its time limit", run.latest_end ? time(run.latest_end) : ""],
          ["How sure", run.kind === "reserved" ? "reserved: later jobs do not delay it" : "forecast: later submissions may come first"],
          ["On", placesText(run)],
        ]}
      />
      {run.depends_on.length ? (
        <p class="note note-bad">
          This start depends on the unknown end of{" "}
          {run.depends_on.map((id, place) => (
            <span key={id}>
              {place ? ", " : ""}
              <JobLink id={id} />
            </span>
          ))}
          : nothing says how long {run.depends_on.length === 1 ? "it runs" : "they run"}.
        </p>
      ) : null}
      {before.length ? (
        <>
          <h2>Before it on its GPUs</h2>
          <ul>
            {before.map((one) => (
              <li key={runId(one)}>
                {one.job_id ? <JobLink id={one.job_id}>{nameOf(one)}</JobLink> : "a job"} of {one.user || "another user"}, until {one.end_unknown ? "an unknown time (its time limit or default ends " : ""}
                {time(one.end_unknown ? (one.latest_end ?? one.end) : one.end)}
                {one.end_unknown ? ")" : ""}
              </li>
            ))}
          </ul>
        </>
      ) : (
        <p>No other job is before it on its GPUs.</p>
      )}
    </section>
  );
}

function placesText(run: PlannedRun): string {
  return run.places.map((place) => `${place.node}[${place.gpu_ids.map((gpu, index) => ((place.shares[index] ?? 1) < 1 ? `${gpu} at ${Math.round((place.shares[index] ?? 1) * 100)} %` : gpu)).join(",")}]`).join(" ");
}

function RunDetail({ run, close }: { run: PlannedRun; close: () => void }): JSX.Element {
  return (
    <aside class="card detail" aria-label="The chosen run">
      <div class="tile-head">
        <h2>{run.job_id ? nameOf(run) : "A job of another user"}</h2>
        <button type="button" class="small plain" aria-label="Close" onClick={close}>
          ×
        </button>
      </div>
      <Facts
        of={[
          ["What", run.kind],
          ["Name", run.name],
          ["User", run.user ? <Who name={run.user} /> : ""],
          ["Start", time(run.start)],
          ["Expected start", run.expected_start ? startTime(run) : ""],
          [run.kind === "past" ? "End" : "Expected end", run.end ? (run.end_unknown ? "unknown" : time(run.end)) : "never by itself"],
          ["By its time limit", run.latest_end ? time(run.latest_end) : ""],
          ["On", placesText(run)],
        ]}
      />
      {run.job_id ? (
        <p class="buttons">
          <JobLink id={run.job_id}>Open the job</JobLink>
          {run.kind === "past" ? null : <a href={`#/plan/${encodeURIComponent(run.job_id)}`}>Who is before it</a>}
        </p>
      ) : null}
    </aside>
  );
}

function RunTable({ plan, choose }: { plan: PlanForm; choose: (id: string) => void }): JSX.Element {
  const [most, setMost] = useState(100);
  const columns: Column<PlannedRun>[] = [
    { name: "What", of: (run) => <span class={`state state-${run.kind === "running" ? "running" : run.kind === "reserved" ? "upcoming" : "plain"}`}>{run.kind}</span> },
    { name: "Job", of: (run) => (run.job_id ? <JobLink id={run.job_id}>{nameOf(run)}</JobLink> : "–") },
    { name: "User", of: (run) => (run.user ? <Who name={run.user} /> : "–") },
    { name: "Start", of: (run) => `${time(run.start)}${run.depends_on.length ? " ?" : ""}` },
    { name: "End", of: (run) => (run.end ? (run.end_unknown ? "unknown" : time(run.end)) : "–") },
    { name: "GPUs", of: (run) => trim(run.places.reduce((sum, place) => sum + place.shares.reduce((all, share) => all + share, 0), 0)), right: true },
    { name: "Where", of: (run) => <span class="mono">{placesText(run)}</span>, grow: true },
    {
      name: "",
      of: (run) => (
        <button type="button" class="small plain" aria-label={`Details of ${run.job_id || "the run"}`} onClick={() => choose(runId(run))}>
          …
        </button>
      ),
    },
  ];
  const rows = useMemo(() => [...plan.runs].sort((one, other) => (one.start ?? "").localeCompare(other.start ?? "")), [plan]);
  return (
    <>
      <Table label="Runs" columns={columns} rows={rows.slice(0, most)} id={runId} />
      {rows.length > most ? (
        <p>
          <button type="button" onClick={() => setMost(most + 400)}>
            Show more of {plural(rows.length, "run")}
          </button>
        </p>
      ) : null}
    </>
  );
}

function Reservations({ list }: { list: ReservationForm[] }): JSX.Element {
  const columns: Column<ReservationForm>[] = [
    { name: "Reservation", of: (one) => one.id },
    { name: "For", of: (one) => (one.user ? `${one.user} of ${one.tenant_id}` : one.tenant_id) },
    { name: "Start", of: (one) => time(one.start) },
    { name: "End", of: (one) => time(one.end) },
    { name: "Where", of: (one) => <span class="mono">{one.places.map((place) => `${place.node}[${place.gpu_ids.join(",")}]`).join(" ")}</span>, grow: true },
  ];
  return (
    <>
      <h2>Advance reservations</h2>
      <Table label="Advance reservations" columns={columns} rows={list} id={(one) => one.id} />
    </>
  );
}

// The drawing.

function layOut(plan: PlanForm, width: number): Layout {
  const left = width < 560 ? NARROW_LABEL_PX : LABEL_PX;
  const begin = Date.parse(plan.begin ?? "");
  const end = Date.parse(plan.end ?? "");
  const scale = Math.max(1, width - left) / Math.max(1, end - begin);
  const x = (at: number): number => left + (Math.min(Math.max(at, begin), end) - begin) * scale;
  const layout: Layout = { bars: [], rows: [], windows: [], ticks: [], nowX: x(Date.parse(plan.made_at ?? "")), left, height: HEAD_PX };
  const rowOf = new Map<string, number>();
  for (const node of plan.nodes) {
    layout.height += NODE_GAP_PX;
    layout.rows.push({ y: layout.height, text: `${node.takes_work ? "" : "! "}${node.id}`, strong: true, height: ROW_PX });
    layout.height += ROW_PX;
    for (const gpu of node.gpus) {
      rowOf.set(`${node.id}:${gpu.index}`, layout.height);
      layout.rows.push({ y: layout.height, text: left > 100 ? `${gpu.index} ${gpu.model}` : String(gpu.index), strong: false, height: ROW_PX });
      layout.height += ROW_PX;
    }
  }
  layout.height += 4;
  // Shares of one GPU lie above one another, in the order of their starts.
  const used = new Map<string, { until: number; top: number; share: number }[]>();
  for (const run of [...plan.runs].sort((one, other) => (one.start ?? "").localeCompare(other.start ?? ""))) {
    const from = Date.parse(run.start ?? "");
    const to = run.end ? Math.max(from + 1, Date.parse(run.end)) : end;
    for (const place of run.places) {
      place.gpu_ids.forEach((gpu, index) => {
        const key = `${place.node}:${gpu}`;
        const y = rowOf.get(key);
        if (y === undefined) return;
        const share = Math.min(1, place.shares[index] ?? 1);
        const held = (used.get(key) ?? []).filter((one) => one.until > from);
        let top = 0;
        for (const one of [...held].sort((a, b) => a.top - b.top)) if (one.top < top + share && top < one.top + one.share) top = one.top + one.share;
        top = Math.min(top, 1 - share);
        used.set(key, [...held, { until: to, top, share }]);
        const inner = ROW_PX - 3;
        layout.bars.push({ x: x(from), y: y + 1 + top * inner, width: Math.max(1.5, x(to) - x(from) - 1), height: Math.max(2, share * inner), run });
      });
    }
  }
  for (const reservation of plan.reservations) {
    const from = x(Date.parse(reservation.start ?? ""));
    const to = x(Date.parse(reservation.end ?? ""));
    for (const place of reservation.places) {
      for (const gpu of place.gpu_ids) {
        const y = rowOf.get(`${place.node}:${gpu}`);
        if (y !== undefined) layout.windows.push({ x: from, y, width: to - from, height: ROW_PX - 1, reservation });
      }
    }
  }
  const spanHours = (end - begin) / 3_600_000;
  const step = [0.25, 0.5, 1, 2, 3, 6, 12, 24, 48, 168].find((hours) => ((width - left) / spanHours) * hours > 76) ?? 168;
  const offset = new Date().getTimezoneOffset() * 60_000;
  const stepMs = step * 3_600_000;
  for (let at = Math.ceil((begin - offset) / stepMs) * stepMs + offset; at < end; at += stepMs) layout.ticks.push({ x: x(at), text: tickText(new Date(at), step) });
  return layout;
}

function tickText(at: Date, stepHours: number): string {
  const clock = `${String(at.getHours()).padStart(2, "0")}:${String(at.getMinutes()).padStart(2, "0")}`;
  if (stepHours >= 24 || clock === "00:00") return `${at.getDate()} ${at.toLocaleString("en", { month: "short" })}`;
  return clock;
}

function Gantt({ plan, chosen, choose, focus }: { plan: PlanForm; chosen: string; choose: (id: string) => void; focus: PlannedRun | null }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hovered, setHovered] = useState<Bar | null>(null);
  const layout = useMemo(() => layOut(plan, width), [plan, width]);
  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (!element) return undefined;
    const size = new ResizeObserver(() => {
      const style = getComputedStyle(element);
      setWidth(element.clientWidth - parseFloat(style.paddingLeft) - parseFloat(style.paddingRight));
    });
    size.observe(element);
    return () => size.disconnect();
  }, []);
  useEffect(() => {
    const again = (): void => {
      if (canvas.current && width > 0) draw(canvas.current, layout, width, chosen, focus?.job_id ?? "");
    };
    again();
    const theme = matchMedia("(prefers-color-scheme: dark)");
    theme.addEventListener("change", again);
    return () => theme.removeEventListener("change", again);
  }, [layout, width, chosen, focus]);
  const at = (event: MouseEvent): Bar | null =>
    layout.bars.findLast((bar) => event.offsetX >= bar.x - 1 && event.offsetX <= bar.x + bar.width + 1 && event.offsetY >= bar.y && event.offsetY <= bar.y + bar.height) ?? null;
  const run = hovered?.run;
  return (
    <div class="map card">
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Time line of ${plural(plan.nodes.reduce((sum, node) => sum + node.gpus.length, 0), "GPU")} with ${plural(plan.runs.length, "run")}; the table below has the same data`}
        onMouseMove={(event) => setHovered(at(event))}
        onMouseLeave={() => setHovered(null)}
        onClick={(event) => {
          const bar = at(event);
          choose(bar ? runId(bar.run) : "");
        }}
      />
      <p class="map-line" aria-hidden="true">
        {run
          ? `${run.job_id || "a job of another user"}${run.name ? ` ${run.name}` : ""} · ${run.user || "–"} · ${run.kind} · ${time(run.start)} to ${run.end ? (run.end_unknown ? "an unknown end" : time(run.end)) : "until it is stopped"}${
              run.start && run.end && !run.end_unknown ? ` (${duration((Date.parse(run.end) - Date.parse(run.start)) / 1000)})` : ""
            }${run.depends_on.length ? ` · depends on the unknown end of ${run.depends_on.join(", ")}` : ""}`
          : "Point at a bar to read it; click to open it. A colour is a user; the line is now."}
      </p>
    </div>
  );
}

function draw(canvas: HTMLCanvasElement, layout: Layout, width: number, chosen: string, focus: string): void {
  const ratio = devicePixelRatio || 1;
  canvas.width = Math.round(width * ratio);
  canvas.height = Math.round(layout.height * ratio);
  canvas.style.width = `${width}px`;
  canvas.style.height = `${layout.height}px`;
  const pen = canvas.getContext("2d");
  if (!pen) return;
  const style = getComputedStyle(document.documentElement);
  const css = (name: string): string => style.getPropertyValue(name).trim();
  const dark = css("--dark") === "1";
  pen.scale(ratio, ratio);
  pen.clearRect(0, 0, width, layout.height);
  const font = css("--font");
  pen.font = `11px ${font}`;
  for (const row of layout.rows) {
    if (!row.strong) {
      pen.fillStyle = css("--cell");
      pen.globalAlpha = 0.55;
      pen.fillRect(layout.left, row.y + 1, width - layout.left, row.height - 3);
      pen.globalAlpha = 1;
    }
    pen.fillStyle = css(row.strong ? "--text" : "--muted");
    pen.font = `${row.strong ? "600 12px" : "11px"} ${font}`;
    pen.fillText(fitted(pen, row.text, row.strong ? width : layout.left - 8), 0, row.y + row.height - 6);
  }
  pen.font = `11px ${font}`;
  for (const tick of layout.ticks) {
    pen.fillStyle = css("--line");
    pen.fillRect(tick.x, HEAD_PX - 4, 1, layout.height - HEAD_PX);
    pen.fillStyle = css("--muted");
    if (tick.x + pen.measureText(tick.text).width < width) pen.fillText(tick.text, tick.x, 12);
  }
  for (const one of layout.windows) {
    pen.fillStyle = css("--other-soft");
    pen.fillRect(one.x, one.y, one.width, one.height);
    pen.strokeStyle = css("--other");
    pen.setLineDash([4, 3]);
    pen.strokeRect(one.x + 0.5, one.y + 0.5, Math.max(1, one.width - 1), one.height - 1);
    pen.setLineDash([]);
    pen.fillStyle = css("--other");
    if (one.width > 60) pen.fillText(fitted(pen, `${one.reservation.id} ${one.reservation.user || one.reservation.tenant_id}`, one.width - 8), one.x + 4, one.y + 13);
  }
  for (const bar of layout.bars) drawBar(pen, bar, dark, css, bar.run.job_id !== "" && bar.run.job_id === focus, runId(bar.run) === chosen);
  pen.fillStyle = css("--bad");
  pen.fillRect(layout.nowX - 0.75, HEAD_PX - 8, 1.5, layout.height - HEAD_PX + 8);
  pen.globalAlpha = 1;
}

function drawBar(pen: CanvasRenderingContext2D, bar: Bar, dark: boolean, css: (name: string) => string, isFocus: boolean, isChosen: boolean): void {
  const { x, y, width, height, run } = bar;
  const tone = run.user ? hue(run.user) : 0;
  const saturation = run.user ? 60 : 0;
  const colour = (light: number): string => `hsl(${tone} ${saturation}% ${light}%)`;
  pen.save();
  pen.beginPath();
  pen.rect(x, y, width, height);
  pen.clip();
  const isSolid = run.kind === "past" || run.kind === "running";
  pen.fillStyle = isSolid ? colour(dark ? (run.kind === "past" ? 30 : 42) : run.kind === "past" ? 68 : 38) : colour(dark ? 21 : 90);
  pen.fillRect(x, y, width, height);
  if (run.kind === "reserved") {
    pen.strokeStyle = colour(dark ? 52 : 62);
    pen.lineWidth = 2;
    pen.beginPath();
    for (let at = x - height; at < x + width; at += 7) {
      pen.moveTo(at, y + height);
      pen.lineTo(at + height, y);
    }
    pen.stroke();
  }
  if (!isSolid) {
    pen.strokeStyle = colour(dark ? 55 : 55);
    pen.lineWidth = 1;
    if (run.kind === "forecast") pen.setLineDash([3, 3]);
    pen.strokeRect(x + 0.5, y + 0.5, width - 1, height - 1);
    pen.setLineDash([]);
  }
  if (height > 10 && width > 26) {
    const mark = run.end_unknown || run.depends_on.length ? " ?" : "";
    const text = fitted(pen, `${run.job_id ? run.job_id.replace("job-", "") : ""}${run.task === null ? "" : `_${run.task}`}${mark} ${run.name || run.user}`, width - 8);
    if (run.kind === "reserved" && text) {
      pen.fillStyle = colour(dark ? 21 : 90);
      pen.fillRect(x + 2, y + 2, pen.measureText(text).width + 4, height - 4);
    }
    pen.fillStyle = run.kind === "running" ? "#ffffff" : run.kind === "past" ? (dark ? "#ffffff" : "#10131a") : css("--text");
    pen.fillText(text, x + 4, y + height / 2 + 4);
  }
  pen.restore();
  if (isFocus || isChosen) {
    pen.strokeStyle = css("--text");
    pen.lineWidth = 2;
    pen.strokeRect(x, y, width, height);
    pen.lineWidth = 1;
  }
}

function fitted(pen: CanvasRenderingContext2D, text: string, width: number): string {
  if (pen.measureText(text).width <= width) return text;
  let length = Math.min(text.length, Math.floor(width / 4));
  while (length > 0 && pen.measureText(`${text.slice(0, length)}…`).width > width) length -= 1;
  return length > 1 ? `${text.slice(0, length)}…` : "";
}
