// Services: programs of which a number of replicas is kept running, with their probes and endpoints.
import type { JSX } from "preact";
import { ask, attempt, Code, Empty, Facts, JobLink, Problem, State, Table, Who } from "./components";
import { call, useLive } from "./api";
import type { ReadinessForm, ReplicaForm, ServiceForm } from "./api-types";
import { plural, since, time, trim } from "./format";
import { line } from "./jobfile";

const POLL_MS = 2000;

export function Services(): JSX.Element {
  const list = useLive((signal) => call("GET /services", { signal }), POLL_MS, []);
  const services = list.data?.services;
  return (
    <>
      <h1>Services</h1>
      <Problem error={list.error} />
      {services === undefined ? (
        <p class="muted">Loading…</p>
      ) : services.length ? (
        <Table
          label="Services"
          rows={services}
          id={(service) => service.id}
          columns={[
            { name: "Service", of: (service) => <a href={`#/services/${encodeURIComponent(service.id)}`}>{service.name}</a> },
            { name: "State", of: (service) => <State state={service.state} /> },
            { name: "Ready", right: true, of: (service) => `${service.ready} of ${service.replicas}` },
            { name: "Restarts", right: true, of: (service) => service.restarts },
            { name: "User", of: (service) => <Who name={service.user} /> },
            { name: "Tenant", of: (service) => service.tenant_id },
            { name: "GPUs each", right: true, of: (service) => trim(service.gpu_count) },
            { name: "Problem", grow: true, of: (service) => <span title={service.problem}>{service.problem}</span> },
          ]}
        />
      ) : (
        <Empty title="You have no services">
          <p>
            A service keeps replicas of a program running: <code>tgpu service create --name llama --replicas 2 --gpus 1 --http /health -- vllm serve …</code>
          </p>
        </Empty>
      )}
    </>
  );
}

export function ServicePage({ id }: { id: string }): JSX.Element {
  const path = { service: id };
  const found = useLive((signal) => call("GET /services/{service}", { path, signal }), POLL_MS, [id]);
  const endpoints = useLive((signal) => call("GET /services/{service}/endpoints", { path, signal }), POLL_MS, [id]);
  const service = found.data;
  if (!service) return found.error ? <Problem error={found.error} /> : <p class="muted">Loading…</p>;
  return (
    <>
      <p class="crumbs">
        <a href="#/services">Services</a> / {service.name}
      </p>
      <div class="title-row">
        <h1>
          {service.name} <State state={service.state} />
        </h1>
        <Actions service={service} refresh={found.refresh} />
      </div>
      <Problem error={found.error} />
      {service.problem ? <p class="note note-bad">{service.problem}</p> : null}
      <section class="card" aria-label="Facts">
        <Facts
          of={[
            ["Ready", `${service.ready} of ${plural(service.replicas, "replica")}`],
            ["User", <Who name={service.user} />],
            ["Tenant", service.tenant_id],
            ["GPUs of a replica", trim(service.gpu_count)],
            ["Priority", `${service.priority}${service.preemptible ? ", preemptible" : ""}`],
            ["Port", service.port || "a free one for each replica"],
            ["Readiness probe", probeText(service.readiness)],
            ["Restart", `${service.restart.policy}, after ${service.restart.backoff_seconds} s, at most ${service.restart.max_backoff_seconds} s`],
            ["Changed", `${time(service.changed_at)}, generation ${service.generation}`],
            ["Updated replicas", service.updated < service.replicas ? `${service.updated} of ${service.replicas}` : ""],
            ["Image", service.image],
          ]}
        />
        {service.command.length ? <Code text={line(service.command)} /> : null}
      </section>
      <h2>Replicas</h2>
      <Table label="Replicas" rows={service.members} id={(one) => `${one.replica} ${one.job_id}`} columns={REPLICA_COLUMNS} />
      <h2>Endpoints</h2>
      {endpoints.data?.endpoints.length ? (
        <Table
          label="Endpoints"
          rows={endpoints.data.endpoints}
          id={(one) => `${one.replica} ${one.job_id}`}
          columns={[
            { name: "Address", of: (one) => <span class="mono">{`${one.host}:${one.port}`}</span> },
            { name: "Replica", right: true, of: (one) => one.replica },
            { name: "Node", of: (one) => one.node },
            { name: "Job", grow: true, of: (one) => <JobLink id={one.job_id} /> },
          ]}
        />
      ) : (
        <p class="muted">No replica is ready yet.</p>
      )}
    </>
  );
}

const REPLICA_COLUMNS = [
  { name: "Replica", right: true, of: (one: ReplicaForm) => one.replica },
  { name: "State", of: (one: ReplicaForm) => <State state={one.ready ? "ready" : one.state} /> },
  { name: "Job", of: (one: ReplicaForm) => (one.job_id ? <JobLink id={one.job_id} /> : "–") },
  { name: "Node", of: (one: ReplicaForm) => one.node || "–" },
  { name: "Address", of: (one: ReplicaForm) => <span class="mono">{one.port ? `${one.host}:${one.port}` : "–"}</span> },
  { name: "Since", right: true, of: (one: ReplicaForm) => since(one.since) },
  { name: "Restarts", right: true, of: (one: ReplicaForm) => one.restarts },
  { name: "Version", of: (one: ReplicaForm) => (one.is_current ? "current" : "earlier") },
  { name: "Probe and last end", grow: true, of: (one: ReplicaForm) => <span title={one.detail}>{[one.detail, one.last_end].filter(Boolean).join(" · ")}</span> },
];

function probeText(probe: ReadinessForm | null): string {
  if (!probe) return "none: a replica is ready when it runs";
  const what = { http: `HTTP ${probe.path}`, command: line(probe.command) }[probe.kind] ?? "TCP connection";
  return `${what}, every ${probe.interval_seconds} s, ${plural(probe.failures, "failure")} to be not ready, first within ${probe.grace_seconds} s`;
}

function Actions({ service, refresh }: { service: ServiceForm; refresh: () => void }): JSX.Element {
  const path = { service: service.id };
  const scaleTo = (replicas: number): Promise<boolean> =>
    attempt(() => call("POST /services/{service}/scale", { path, body: { replicas } }), `${service.name} has ${plural(replicas, "replica")} now.`, () =>
      void attempt(() => call("POST /services/{service}/scale", { path, body: { replicas: service.replicas } }), `${service.name} has ${plural(service.replicas, "replica")} again.`).then(refresh),
    );
  const scale = async (): Promise<void> => {
    const answer = await ask(`Scale ${service.name}?`, "Replicas are started or stopped until there are this many.", "Scale", {
      input: { label: "Replicas", value: String(service.replicas) },
    });
    if (answer === null || !/^\d+$/.test(answer.trim())) return;
    await scaleTo(Number(answer));
    refresh();
  };
  const remove = async (): Promise<void> => {
    if ((await ask(`Delete ${service.name}?`, "All its replicas are stopped.", "Delete", { danger: true })) === null) return;
    if (await attempt(() => call("DELETE /services/{service}", { path }), `${service.name} is being deleted.`)) location.hash = "#/services";
  };
  return (
    <div class="buttons">
      <button type="button" onClick={() => void scale()}>
        Scale
      </button>
      <button type="button" class="danger" onClick={() => void remove()}>
        Delete
      </button>
    </div>
  );
}
