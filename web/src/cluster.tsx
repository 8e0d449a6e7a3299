// The cluster: every GPU in a map (drawn) beside a table (for everybody), and one GPU in detail.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { call, me, useLive } from "./api";
import type { GpuForm, NodeForm } from "./api-types";
import { Empty, Facts, Figures, JobLink, Meter, Problem, State, Table, Who, WindowedTable, ask, attempt } from "./components";
import type { Column, Figure } from "./components";
import { count, hue, memory, plural, trim } from "./format";
import { gpuId, useGpus } from "./readings";

const FEW_GPUS = 16;
const COLOURS = ["user", "utilisation", "memory", "temperature"] as const;
type ColourBy = (typeof COLOURS)[number];
const BAD_STATES = new Set(["unhealthy", "quarantined", "hot", "leaking"]);

export function Cluster(): JSX.Element {
  const { gpus, error, refresh } = useGpus();
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 5000, []);
  const status = useLive((signal) => call("GET /cluster/status", { signal }), 3000, []);
  const [chosen, setChosen] = useState("");
  const [colour, setColour] = useState<ColourBy>("user");
  const [words, setWords] = useState("");
  const shown = useMemo(() => gpus?.filter((gpu) => matches(gpu, words)) ?? [], [gpus, words]);
  if (!gpus || !nodes.data) return error ? <Problem error={error} /> : <p class="muted">Loading…</p>;
  const gpu = gpus.find((one) => gpuId(one) === chosen);
  const few = gpus.length <= FEW_GPUS;
  return (
    <>
      <h1>Cluster</h1>
      <Problem error={error} />
      <Summary gpus={gpus} running={status.data?.running_jobs ?? 0} waiting={status.data?.pending_jobs ?? 0} />
      {gpus.length === 0 ? (
        <Empty title="No GPUs yet">
          <p>
            A node appears here as soon as its agent has joined: <code>tgpu agent</code>. To try without GPUs: <code>tgpu up --simulate 8xA100-80GB</code>.
          </p>
        </Empty>
      ) : (
        <>
          <div class="toolbar">
            <label class="inline">
              Search
              <input type="search" value={words} placeholder="node, user, job, model, state" onInput={(event) => setWords(event.currentTarget.value)} />
            </label>
            {few ? null : (
              <label class="inline">
                Colour
                <select value={colour} onChange={(event) => setColour(event.currentTarget.value as ColourBy)}>
                  {COLOURS.map((one) => (
                    <option key={one} value={one}>
                      {one}
                    </option>
                  ))}
                </select>
              </label>
            )}
            <span class="muted">{words ? `${count(shown.length)} of ${plural(gpus.length, "GPU")}` : null}</span>
          </div>
          <div class={gpu ? "split" : ""}>
            <div>
              {few ? (
                <Tiles gpus={shown} nodes={nodes.data.nodes} chosen={chosen} choose={setChosen} />
              ) : (
                <GpuMap gpus={shown} nodes={nodes.data.nodes} colour={colour} chosen={chosen} choose={setChosen} />
              )}
              <h2>GPUs</h2>
              <GpuTable gpus={shown} chosen={chosen} choose={setChosen} />
            </div>
            {gpu ? <GpuDetail gpu={gpu} close={() => setChosen("")} refresh={refresh} /> : null}
          </div>
        </>
      )}
    </>
  );
}

function matches(gpu: GpuForm, words: string): boolean {
  const text = `${gpuId(gpu)} ${gpu.model} ${gpu.state} ${gpu.users.join(" ")} ${gpu.jobs.join(" ")}`.toLowerCase();
  return words.toLowerCase().split(/\s+/).every((word) => text.includes(word));
}

function Summary({ gpus, running, waiting }: { gpus: GpuForm[]; running: number; waiting: number }): JSX.Element {
  const used = gpus.reduce((sum, gpu) => sum + gpu.allocated_share, 0);
  const free = gpus.filter((gpu) => gpu.state === "free" && !gpu.why).length;
  const bad = gpus.filter((gpu) => gpu.why).length;
  const busy = gpus.filter((gpu) => gpu.utilisation_percent !== null);
  const load = busy.reduce((sum, gpu) => sum + (gpu.utilisation_percent ?? 0), 0) / Math.max(1, busy.length);
  const power = gpus.reduce((sum, gpu) => sum + (gpu.power_watts ?? 0), 0);
  const figures: Figure[] = [
    [`${trim(used, 1)}`, `of ${count(gpus.length)} GPUs allocated`],
    [count(free), "free"],
    [count(running), "jobs running", "#/jobs"],
    [count(waiting), "jobs waiting", "#/jobs"],
  ];
  if (busy.length) figures.push([`${Math.round(load)} %`, "mean utilisation"]);
  if (power) figures.push([power < 10_000 ? `${Math.round(power)} W` : `${trim(power / 1000, 1)} kW`, "power"]);
  if (bad) figures.push([count(bad), bad === 1 ? "GPU takes no work" : "GPUs take no work"]);
  return <Figures of={figures} />;
}

// A declared GPU has no sensors and reports 0.
function degrees(gpu: GpuForm): string {
  return gpu.temperature_c ? `${gpu.temperature_c} °C` : "–";
}

function watts(gpu: GpuForm): string {
  return gpu.power_watts ? `${Math.round(gpu.power_watts)} W` : "–";
}

// As in `tgpu gpus`: 0 of a GPU that also reports no load is not measured.
function usedMb(gpu: GpuForm): number | null {
  return gpu.memory_used_mb || gpu.utilisation_percent !== null ? gpu.memory_used_mb : null;
}

function usedMemory(gpu: GpuForm): string {
  return `${memory(usedMb(gpu))} of ${memory(gpu.memory_mb)}`;
}

function usedShare(gpu: GpuForm): number | null {
  const mb = usedMb(gpu);
  return mb === null ? null : mb / Math.max(1, gpu.memory_mb);
}

// One box: large meters.

function Tiles({ gpus, nodes, chosen, choose }: { gpus: GpuForm[]; nodes: NodeForm[]; chosen: string; choose: (id: string) => void }): JSX.Element {
  return (
    <>
      {nodes
        .filter((node) => gpus.some((gpu) => gpu.node === node.id))
        .map((node) => (
          <section key={node.id} aria-label={`node ${node.id}`}>
            <h2 class="node-title">
              {node.id} <State state={node.state} />
              <span class="muted">
                {[node.rack && `rack ${node.rack}`, ...node.gpu_models, node.problem].filter(Boolean).join(" · ")}
              </span>
            </h2>
            <div class="tiles">
              {gpus
                .filter((gpu) => gpu.node === node.id)
                .map((gpu) => (
                  <Tile key={gpu.index} gpu={gpu} chosen={chosen === gpuId(gpu)} choose={choose} />
                ))}
            </div>
          </section>
        ))}
    </>
  );
}

function Tile({ gpu, chosen, choose }: { gpu: GpuForm; chosen: boolean; choose: (id: string) => void }): JSX.Element {
  return (
    <article class={`tile tile-${gpu.state} ${chosen ? "chosen" : ""}`}>
      <div class="tile-head">
        <button type="button" class="link" onClick={() => choose(gpuId(gpu))} aria-label={`GPU ${gpu.index} of ${gpu.node}: details`}>
          GPU {gpu.index}
        </button>
        <State state={gpu.state} />
      </div>
      <p class="tile-who">
        {gpu.users.length ? gpu.users.map((user) => <Who key={user} name={user} />) : <span class="muted">{gpu.why || "free"}</span>}
        {gpu.jobs.slice(0, 3).map((job) => (
          <JobLink key={job} id={job} />
        ))}
        {gpu.jobs.length > 3 ? <span class="muted">and {gpu.jobs.length - 3} more</span> : null}
      </p>
      <Meter label="share" value={gpu.allocated_share} text={`${Math.round(gpu.allocated_share * 100)} %`} />
      <Meter
        label="memory"
        value={usedShare(gpu)}
        text={usedMemory(gpu)}
      />
      {gpu.utilisation_percent === null ? null : <Meter label="busy" value={gpu.utilisation_percent / 100} text={`${gpu.utilisation_percent} %`} tone="good" />}
      {gpu.temperature_c || gpu.power_watts ? <p class="tile-foot muted">{[degrees(gpu), watts(gpu)].join(" · ")}</p> : null}
    </article>
  );
}

// Many nodes: a map on a canvas.

interface Cell {
  x: number;
  y: number;
  gpu: GpuForm;
}
interface Layout {
  cells: Cell[];
  labels: { x: number; y: number; text: string; strong: boolean }[];
  lines: { x: number; y: number; width: number }[];
  size: number;
  height: number;
}

function layOut(gpus: GpuForm[], nodes: NodeForm[], width: number): Layout {
  const size = gpus.length > 400 ? 13 : 20;
  const gap = size > 16 ? 4 : 3;
  const labelWidth = size > 16 ? 110 : 76;
  const byNode = new Map<string, GpuForm[]>();
  for (const gpu of gpus) byNode.set(gpu.node, [...(byNode.get(gpu.node) ?? []), gpu]);
  const most = Math.max(1, ...[...byNode.values()].map((list) => list.length));
  const blockWidth = labelWidth + most * (size + gap) + 18;
  const perRow = Math.max(1, Math.floor(width / blockWidth));
  const rowHeight = size + gap + 5;
  const layout: Layout = { cells: [], labels: [], lines: [], size, height: 0 };
  const racks = [...new Set(nodes.map((node) => node.rack))].sort();
  let y = 4;
  for (const rack of racks) {
    const inRack = nodes.filter((node) => node.rack === rack && byNode.has(node.id));
    if (!inRack.length) continue;
    if (racks.length > 1 || rack) {
      layout.labels.push({ x: 0, y: y + 12, text: rack ? `rack ${rack}` : "no rack", strong: true });
      y += 20;
    }
    inRack.forEach((node, place) => {
      const left = (place % perRow) * blockWidth;
      const top = y + Math.floor(place / perRow) * rowHeight;
      const short = node.id.length > labelWidth / 7.5 ? `${node.id.slice(0, Math.floor(labelWidth / 7.5) - 1)}…` : node.id;
      layout.labels.push({ x: left, y: top + size - 3, text: node.state === "online" ? short : `! ${short}`, strong: false });
      const list = byNode.get(node.id) ?? [];
      list.forEach((gpu, index) => layout.cells.push({ x: left + labelWidth + index * (size + gap), y: top, gpu }));
      for (const island of node.islands) {
        const places = list.flatMap((gpu, index) => (island.includes(gpu.index) ? [index] : []));
        const first = places[0];
        const last = places.at(-1);
        if (first === undefined || last === undefined || places.length < 2) continue;
        layout.lines.push({ x: left + labelWidth + first * (size + gap), y: top + size + 2, width: (last - first) * (size + gap) + size });
      }
    });
    y += Math.ceil(inRack.length / perRow) * rowHeight + 6;
  }
  layout.height = y;
  return layout;
}

function GpuMap({ gpus, nodes, colour, chosen, choose }: { gpus: GpuForm[]; nodes: NodeForm[]; colour: ColourBy; chosen: string; choose: (id: string) => void }): JSX.Element {
  const canvas = useRef<HTMLCanvasElement>(null);
  const [width, setWidth] = useState(0);
  const [hovered, setHovered] = useState("");
  const shape = gpus.map(gpuId).join(" ");
  const layout = useMemo(() => layOut(gpus, nodes, width), [shape, nodes, width]);
  useEffect(() => {
    const element = canvas.current?.parentElement;
    if (!element) return undefined;
    const size = new ResizeObserver(() => setWidth(element.clientWidth));
    size.observe(element);
    return () => size.disconnect();
  }, []);
  const byId = useMemo(() => new Map(gpus.map((gpu) => [gpuId(gpu), gpu])), [gpus]);
  useEffect(() => {
    if (canvas.current && width) draw(canvas.current, layout, byId, colour, chosen, width);
  }, [layout, byId, colour, chosen, width]);
  const at = (event: MouseEvent): string => {
    const cell = layout.cells.find((one) => event.offsetX >= one.x && event.offsetX <= one.x + layout.size && event.offsetY >= one.y && event.offsetY <= one.y + layout.size);
    return cell ? gpuId(cell.gpu) : "";
  };
  const gpu = byId.get(hovered);
  return (
    <div class="map card">
      <canvas
        ref={canvas}
        role="img"
        aria-label={`Map of ${plural(gpus.length, "GPU")} on ${plural(nodes.length, "node")}; the table below has the same data`}
        onMouseMove={(event) => setHovered(at(event))}
        onMouseLeave={() => setHovered("")}
        onClick={(event) => choose(at(event))}
      />
      <p class="map-line" aria-hidden="true">
        {gpu
          ? `${gpuId(gpu)} · ${gpu.model} · ${gpu.state}${gpu.users.length ? ` · ${gpu.users.join(", ")} · ${gpu.jobs.join(", ")}` : ""}${
              gpu.utilisation_percent === null ? "" : ` · ${gpu.utilisation_percent} % busy`
            } · ${usedMemory(gpu)}${gpu.why ? ` · ${gpu.why}` : ""}`
          : "Point at a GPU to read it; click to open it. An underline joins GPUs of one NVLink island, × marks GPUs that take no work."}
      </p>
    </div>
  );
}

function draw(canvas: HTMLCanvasElement, layout: Layout, byId: Map<string, GpuForm>, colour: ColourBy, chosen: string, width: number): void {
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
  pen.textBaseline = "alphabetic";
  for (const label of layout.labels) {
    pen.fillStyle = label.strong ? css("--text") : css("--muted");
    pen.font = `${label.strong ? "600 " : ""}${layout.size > 16 ? 12 : 11}px ${css("--font")}`;
    pen.fillText(label.text, label.x, label.y);
  }
  pen.fillStyle = css("--muted");
  for (const line of layout.lines) pen.fillRect(line.x, line.y, line.width, 1);
  const size = layout.size;
  for (const cell of layout.cells) {
    const gpu = byId.get(gpuId(cell.gpu)) ?? cell.gpu;
    const { x, y } = cell;
    pen.fillStyle = css("--cell");
    pen.fillRect(x, y, size, size);
    const [part, paint] = fill(gpu, colour, dark);
    if (part > 0) {
      const height = Math.max(2, Math.round(size * Math.min(1, part)));
      pen.fillStyle = paint;
      pen.fillRect(x, y + size - height, size, height);
    }
    if (gpu.why || BAD_STATES.has(gpu.state)) {
      pen.strokeStyle = css(BAD_STATES.has(gpu.state) ? "--bad" : "--muted");
      pen.lineWidth = 1.5;
      pen.beginPath();
      pen.moveTo(x + 3, y + 3);
      pen.lineTo(x + size - 3, y + size - 3);
      pen.moveTo(x + size - 3, y + 3);
      pen.lineTo(x + 3, y + size - 3);
      pen.stroke();
    }
    if (gpuId(gpu) === chosen) {
      pen.strokeStyle = css("--text");
      pen.lineWidth = 2;
      pen.strokeRect(x - 1, y - 1, size + 2, size + 2);
    }
  }
}

function fill(gpu: GpuForm, colour: ColourBy, dark: boolean): [number, string] {
  if (colour === "user") {
    const user = gpu.users[0];
    return user ? [gpu.allocated_share, `hsl(${hue(user)} 62% ${dark ? 58 : 48}%)`] : [gpu.state === "foreign" ? 1 : 0, "#c77700"];
  }
  const part =
    colour === "utilisation"
      ? (gpu.utilisation_percent ?? 0) / 100
      : colour === "memory"
        ? (usedShare(gpu) ?? 0)
        : Math.max(0, ((gpu.temperature_c ?? 20) - 20) / 75);
  return [part > 0 ? 1 : 0, `hsl(${colour === "temperature" ? 220 - 220 * Math.min(1, part) : 215} 70% ${dark ? 22 + 45 * part : 88 - 48 * part}%)`];
}

// The same as a table.

function GpuTable({ gpus, chosen, choose }: { gpus: GpuForm[]; chosen: string; choose: (id: string) => void }): JSX.Element {
  const columns: Column<GpuForm>[] = [
    {
      name: "GPU",
      of: (gpu) => (
        <button type="button" class="link" onClick={() => choose(gpuId(gpu))}>
          {gpuId(gpu)}
        </button>
      ),
    },
    { name: "Model", of: (gpu) => gpu.model },
    { name: "State", of: (gpu) => <State state={gpu.state} /> },
    { name: "User", of: (gpu) => gpu.users.map((user) => <Who key={user} name={user} />) },
    { name: "Jobs", of: (gpu) => gpu.jobs.slice(0, 4).map((job) => <JobLink key={job} id={job} />) },
    { name: "Share", right: true, of: (gpu) => `${Math.round(gpu.allocated_share * 100)} %` },
    { name: "Memory", right: true, of: usedMemory },
    { name: "Busy", right: true, of: (gpu) => (gpu.utilisation_percent === null ? "–" : `${gpu.utilisation_percent} %`) },
    { name: "Temp.", right: true, of: degrees },
    { name: "Power", right: true, of: watts },
    { name: "Why it takes no work", grow: true, of: (gpu) => gpu.why },
  ];
  return <WindowedTable columns={columns} total={gpus.length} offset={0} rows={gpus} id={gpuId} label="GPUs" sort="" current={chosen} />;
}

function GpuDetail({ gpu, close, refresh }: { gpu: GpuForm; close: () => void; refresh: () => void }): JSX.Element {
  const change = async (verb: "pause" | "resume"): Promise<void> => {
    const id = gpuId(gpu);
    const text = verb === "pause" ? "It gets no new jobs. Those that run on it continue." : "It gets new jobs again.";
    if ((await ask(`${verb === "pause" ? "Pause" : "Resume"} ${id}?`, text, verb === "pause" ? "Pause" : "Resume")) === null) return;
    await attempt(() => call(`POST /gpus/{node}/{index}/${verb}`, { path: { node: gpu.node, index: gpu.index } }), `${id} is ${verb}d.`);
    refresh();
  };
  return (
    <aside class="card detail" aria-label={`GPU ${gpuId(gpu)}`}>
      <div class="tile-head">
        <h2>{gpuId(gpu)}</h2>
        <button type="button" class="small plain" aria-label="Close" onClick={close}>
          ×
        </button>
      </div>
      <State state={gpu.state} /> {gpu.why ? <p class="note">{gpu.why}</p> : null}
      <Facts
        of={[
          ["Model", gpu.model],
          ["UUID", <span class="mono">{gpu.uuid}</span>],
          ["MIG", gpu.mig.join(", ")],
          ["Users", gpu.users.map((user) => <Who key={user} name={user} />)],
          ["Jobs", gpu.jobs.length ? gpu.jobs.map((job) => <JobLink key={job} id={job} />) : "none"],
          ["Allocated", `${Math.round(gpu.allocated_share * 100)} %, ${memory(gpu.allocated_memory_mb)}`],
          ["Memory in use", usedMb(gpu) === null ? "" : usedMemory(gpu)],
          ["Utilisation", gpu.utilisation_percent === null ? "" : `${gpu.utilisation_percent} %`],
          ["Mean and peak", gpu.utilisation_mean_percent === null ? "" : `${gpu.utilisation_mean_percent} %, ${gpu.utilisation_peak_percent ?? 0} %`],
          ["Temperature", degrees(gpu)],
          ["Power", watts(gpu)],
        ]}
      />
      {gpu.processes.length ? (
        <>
          <h3>Processes</h3>
          <Table
            label="Processes"
            rows={gpu.processes}
            id={(process) => String(process.pid)}
            columns={[
              { name: "PID", of: (process) => process.pid },
              { name: "User", of: (process) => process.user },
              { name: "Memory", right: true, of: (process) => memory(process.memory_mb) },
              { name: "Job", of: (process) => (process.job_id ? <JobLink id={process.job_id} /> : "none: foreign") },
              { name: "Command", of: (process) => <span class="mono">{process.command}</span> },
            ]}
          />
        </>
      ) : null}
      {me.value?.role === "admin" ? (
        <div class="buttons">
          {gpu.paused || gpu.state === "quarantined" ? (
            <button type="button" onClick={() => void change("resume")}>
              Resume
            </button>
          ) : (
            <button type="button" onClick={() => void change("pause")}>
              Pause
            </button>
          )}
        </div>
      ) : null}
    </aside>
  );
}
