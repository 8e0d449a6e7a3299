// Nodes (cordon, drain, labels, confirm dead) and GPUs (pause, resume, what happened to them).
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { call, me, useLive } from "./api";
import type { EventForm, GpuForm, NodeForm } from "./api-types";
import { Empty, Facts, JobLink, Meter, Problem, State, Table, WindowedTable, ask, askFor, attempt } from "./components";
import { count, memory, plural, since, time, until } from "./format";
import { gpuId, useGpus } from "./readings";

const GPU_EVENTS = "gpu_unhealthy,gpu_healthy,gpu_quarantined,gpu_hot,gpu_cool,gpu_paused,gpu_resumed,gpu_foreign,gpu_leak,gpu_free";

export function Nodes(): JSX.Element {
  const list = useLive((signal) => call("GET /nodes", { signal }), 2500, []);
  const [chosen, setChosen] = useState("");
  const nodes = list.data?.nodes;
  const node = nodes?.find((one) => one.id === chosen);
  if (!nodes) return list.error ? <Problem error={list.error} /> : <p class="muted">Loading…</p>;
  if (!nodes.length) return <Empty title="No nodes yet">A node appears here as soon as its agent has joined.</Empty>;
  return (
    <div class={node ? "split" : ""}>
      <div>
        <Problem error={list.error} />
        <WindowedTable
          label="Nodes"
          total={nodes.length}
          offset={0}
          rows={nodes}
          id={(one) => one.id}
          sort=""
          current={chosen}
          columns={[
            {
              name: "Node",
              of: (one) => (
                <button type="button" class="link" onClick={() => setChosen(one.id)}>
                  {one.id}
                </button>
              ),
            },
            { name: "State", of: (one) => <State state={one.state} /> },
            { name: "Free GPUs", right: true, of: (one) => `${one.free_gpus} of ${one.gpus}` },
            { name: "Jobs", right: true, of: (one) => one.running },
            { name: "Rack", of: (one) => one.rack },
            { name: "Version", of: (one) => one.version },
            { name: "Labels", of: (one) => <span class="cut">{labelsText(one.labels)}</span> },
            { name: "Problem", grow: true, of: (one) => <span title={problemText(one)}>{problemText(one)}</span> },
          ]}
        />
      </div>
      {node ? <NodeDetail node={node} close={() => setChosen("")} refresh={list.refresh} /> : null}
    </div>
  );
}

// Labels with this prefix are set by the node's agent.
const OF_AGENT = "tgpu.";

function labelsText(labels: Record<string, string>): string {
  return Object.entries(labels)
    .filter(([name]) => !name.startsWith(OF_AGENT))
    .map(([name, value]) => `${name}=${value}`)
    .join(" ");
}

function problemText(node: NodeForm): string {
  return [node.problem, node.closed?.reason].filter(Boolean).join(" · ");
}

// "zone=b rack=3" as the labels it means; those that are gone are removed.
function readLabels(text: string, old: Record<string, string>): Record<string, string | null> {
  const labels: Record<string, string | null> = Object.fromEntries(
    Object.keys(old)
      .filter((name) => !name.startsWith(OF_AGENT))
      .map((name) => [name, null]),
  );
  for (const word of text.split(/\s+/).filter(Boolean)) {
    const [name, ...value] = word.split("=");
    if (name) labels[name] = value.join("=");
  }
  return labels;
}

function NodeDetail({ node, close, refresh }: { node: NodeForm; close: () => void; refresh: () => void }): JSX.Element {
  const path = { node: node.id };
  const found = useLive((signal) => call("GET /nodes/{node}", { path, signal }), 2500, [node.id]);
  const jobs = found.data?.jobs ?? [];
  const used = useGpus().gpus?.filter((gpu) => gpu.node === node.id && gpu.allocated_share > 0).length ?? 0;
  const isAdmin = me.value?.role === "admin";
  const change = async (send: () => Promise<unknown>, done: string, undo?: () => Promise<unknown>): Promise<void> => {
    await attempt(send, done, undo && (() => void attempt(undo, `${node.id} takes work again.`).then(refresh)));
    refresh();
    found.refresh();
  };
  const open = (): Promise<unknown> => call("POST /nodes/{node}/uncordon", { path });
  const cordon = async (): Promise<void> => {
    const reason = await ask(`Cordon ${node.id}?`, "It gets no new jobs. Those that run there continue.", "Cordon", { input: { label: "Reason", value: "" } });
    if (reason !== null) await change(() => call("POST /nodes/{node}/cordon", { path, body: { reason } }), `${node.id} is cordoned.`, open);
  };
  const drain = async (): Promise<void> => {
    const answers = await askFor(
      `Drain ${node.id}?`,
      "It gets no new jobs. Without a deadline its jobs run to their end; at the deadline they are stopped and go back into the queue.",
      "Drain",
      [
        { name: "reason", label: "Reason" },
        { name: "minutes", label: "Deadline in minutes", type: "number" },
        { name: "requeue", label: "Requeue its jobs now", type: "checkbox" },
      ],
      true,
    );
    if (!answers) return;
    const minutes = answers["minutes"] ?? "";
    const body = { reason: answers["reason"] ?? "", requeue: answers["requeue"] === "yes", deadline_seconds: minutes ? Math.round(Number(minutes) * 60) : null };
    await change(() => call("POST /nodes/{node}/drain", { path, body }), `${node.id} is draining.`, open);
  };
  const label = async (): Promise<void> => {
    const text = await ask(`Labels of ${node.id}`, "NAME=VALUE, with spaces between.", "Set", { input: { label: "Labels", value: labelsText(node.labels) } });
    if (text !== null) await change(() => call("PATCH /nodes/{node}", { path, body: { labels: readLabels(text, node.labels) } }), `${node.id} has these labels now.`);
  };
  const confirmDead = async (): Promise<void> => {
    const text = "Only if you know that it is off or cannot reach its GPUs: its jobs start on other nodes, and a job that still runs there would run twice.";
    if ((await ask(`Declare ${node.id} dead?`, text, "It is dead", { danger: true })) !== null) await change(() => call("POST /nodes/{node}/confirm-dead", { path }), `${node.id} is declared dead.`);
  };
  const remove = async (): Promise<void> => {
    if ((await ask(`Remove ${node.id}?`, "It is forgotten until its agent joins again.", "Remove", { danger: true })) === null) return;
    await change(() => call("DELETE /nodes/{node}", { path }), `${node.id} is removed.`);
    close();
  };
  const isClosed = node.closed !== null;
  const isSilent = node.silent_since !== null;
  return (
    <aside class="card detail" aria-label={`Node ${node.id}`}>
      <div class="tile-head">
        <h2>{node.id}</h2>
        <button type="button" class="small plain" aria-label="Close" onClick={close}>
          ×
        </button>
      </div>
      <State state={node.state} /> {node.problem ? <p class="note note-bad">{node.problem}</p> : null}
      {node.closed?.drains ? (
        <section aria-label="Drain">
          <Meter label="left" value={used / Math.max(1, node.gpus)} text={plural(node.running, "job")} tone="warn" />
          <p class="muted">
            {node.running ? `${plural(used, "GPU")} still used` : "Nothing runs here any more: the node is drained."}
            {node.running && node.closed.requeue_at ? `; jobs are requeued ${until(node.closed.requeue_at)}` : ""}
          </p>
        </section>
      ) : null}
      <Facts
        of={[
          ["Closed", node.closed ? `by ${node.closed.by}, ${since(node.closed.since)} ago${node.closed.reason ? `: ${node.closed.reason}` : ""}` : ""],
          ["Silent since", node.silent_since ? time(node.silent_since) : ""],
          ["Address", node.address],
          ["GPUs", `${used} of ${node.gpus} used${node.gpu_models.length ? `, ${node.gpu_models.join(", ")}` : ""}`],
          ["CPU cores", `${count(node.free_cpu_cores)} of ${count(node.cpu_cores)} free`],
          ["Memory", `${memory(node.free_memory_mb)} of ${memory(node.memory_mb)} free`],
          ["Labels", labelsText(node.labels)],
          ["Rack", node.rack],
          ["Jobs", jobs.slice(0, 20).map((job) => <span key={job}><JobLink id={job} /> </span>)],
        ]}
      />
      {isAdmin ? (
        <div class="buttons">
          {isClosed ? (
            <button type="button" onClick={() => void change(open, `${node.id} takes work again.`)}>
              Uncordon
            </button>
          ) : (
            <button type="button" onClick={() => void cordon()}>
              Cordon
            </button>
          )}
          {node.closed?.drains ? null : (
            <button type="button" class="danger" onClick={() => void drain()}>
              Drain
            </button>
          )}
          <button type="button" onClick={() => void label()}>
            Labels
          </button>
          {isSilent ? (
            <>
              <button type="button" class="danger" onClick={() => void confirmDead()}>
                Confirm dead
              </button>
              <button type="button" class="danger" onClick={() => void remove()}>
                Remove
              </button>
            </>
          ) : null}
        </div>
      ) : null}
    </aside>
  );
}

export function Gpus({ about }: { about: string }): JSX.Element {
  const { gpus, error, refresh } = useGpus();
  const [onlyClosed, setOnlyClosed] = useState(false);
  const shown = useMemo(() => gpus?.filter((gpu) => !onlyClosed || gpu.why) ?? [], [gpus, onlyClosed]);
  if (!gpus) return error ? <Problem error={error} /> : <p class="muted">Loading…</p>;
  const change = async (gpu: GpuForm, verb: "pause" | "resume"): Promise<void> => {
    const send = (what: "pause" | "resume"): Promise<unknown> => call(`POST /gpus/{node}/{index}/${what}`, { path: { node: gpu.node, index: gpu.index } });
    const back = verb === "pause" ? "resume" : "pause";
    await attempt(() => send(verb), `${gpuId(gpu)} is ${verb}d.`, () => void attempt(() => send(back), `${gpuId(gpu)} is ${back}d.`).then(refresh));
    refresh();
  };
  return (
    <>
      <Problem error={error} />
      <div class="toolbar">
        <label class="inline">
          <input type="checkbox" checked={onlyClosed} onChange={(event) => setOnlyClosed(event.currentTarget.checked)} /> Only those that take no work
        </label>
        <span class="muted">{plural(shown.length, "GPU")}</span>
      </div>
      <WindowedTable
        label="GPUs"
        total={shown.length}
        offset={0}
        rows={shown}
        id={gpuId}
        sort=""
        current={about}
        columns={[
          { name: "GPU", of: (gpu) => <a href={`#/admin/gpus/${encodeURIComponent(gpuId(gpu))}`}>{gpuId(gpu)}</a> },
          { name: "Model", of: (gpu) => gpu.model },
          { name: "State", of: (gpu) => <State state={gpu.state} /> },
          { name: "Jobs", of: (gpu) => gpu.jobs.slice(0, 4).map((job) => <JobLink key={job} id={job} />) },
          {
            name: "",
            key: "change",
            of: (gpu) =>
              me.value?.role !== "admin" ? null : gpu.paused || gpu.state === "quarantined" ? (
                <button type="button" class="small" aria-label={`Resume ${gpuId(gpu)}`} onClick={() => void change(gpu, "resume")}>
                  Resume
                </button>
              ) : (
                <button type="button" class="small" aria-label={`Pause ${gpuId(gpu)}`} onClick={() => void change(gpu, "pause")}>
                  Pause
                </button>
              ),
          },
          { name: "Why it takes no work", grow: true, of: (gpu) => <span title={gpu.why}>{gpu.why}</span> },
        ]}
      />
      <GpuHistory about={about} />
    </>
  );
}

// Faults (XID numbers), temperature, pauses and quarantines: of one GPU, or of all.
function GpuHistory({ about }: { about: string }): JSX.Element {
  const cut = about.lastIndexOf(":");
  const query = { newest: true, kind: GPU_EVENTS, limit: 200, ...(cut > 0 ? { node: about.slice(0, cut), gpu: about.slice(cut + 1) } : {}) };
  const found = useLive((signal) => call("GET /events", { query, signal }), 10_000, [about]);
  const events = found.data?.events ?? [];
  return (
    <section aria-label="History of GPUs">
      <h2>{about ? `What happened to ${about}` : "What happened to GPUs"}</h2>
      <Problem error={found.error} />
      {events.length ? (
        <Table
          label="History"
          rows={events}
          id={(event) => String(event.sequence)}
          columns={[
            { name: "When", of: (event) => time(event.at) },
            { name: "GPU", of: (event) => `${event.data["node"] ?? ""}:${event.data["gpu"] ?? ""}` },
            { name: "What", of: (event) => event.kind.replace("gpu_", "") },
            { name: "XID", right: true, of: (event) => event.data["xid"] || "–" },
            { name: "Detail", grow: true, of: (event) => <span title={eventText(event)}>{eventText(event)}</span> },
          ]}
        />
      ) : (
        <p class="muted">{found.data ? "Nothing in the events that are kept." : ""}</p>
      )}
    </section>
  );
}

function eventText(event: EventForm): string {
  return Object.entries(event.data)
    .filter(([name, value]) => !["node", "gpu", "xid"].includes(name) && value !== "")
    .map(([name, value]) => (name === "why" ? String(value) : `${name.replaceAll("_", " ")} ${value}`))
    .concat(event.user ? [`by ${event.user}`] : [])
    .join(", ");
}
