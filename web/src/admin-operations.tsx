// Health with what to do, advance reservations, notifications, and the settings of the running server.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { asError, call, me, useLive } from "./api";
import type { Health as HealthForm, ReservationForm, TargetForm } from "./api-types";
import { Empty, Facts, Problem, State, Table, ask, askFor, attempt } from "./components";
import { count, duration, plural, time } from "./format";

// An unhealthy server answers 503 with the same form.
async function health(signal: AbortSignal): Promise<HealthForm> {
  const response = await fetch("/api/v1/health", { signal });
  if (response.status !== 200 && response.status !== 503) throw await asError(response);
  return (await response.json()) as HealthForm;
}

export function Health(): JSX.Element {
  const found = useLive(health, 3000, []);
  const data = found.data;
  if (!data) return found.error ? <Problem error={found.error} /> : <p class="muted">Loading…</p>;
  return (
    <>
      <p>
        <State state={data.status} /> <span class="muted">{`version ${data.version}, up for ${duration(data.uptime_seconds)}`}</span>
      </p>
      {data.reasons.length ? (
        <section aria-label="Problems">
          {data.reasons.map((reason) => (
            <article key={`${reason.check} ${reason.detail}`} class="card">
              <h2>
                {reason.check} <State state={reason.status} />
              </h2>
              <p>{reason.detail}</p>
              {reason.remedy ? (
                <p>
                  <strong>What to do:</strong> {reason.remedy}
                </p>
              ) : null}
            </article>
          ))}
        </section>
      ) : (
        <p class="note note-good">Everything that the server checks is in order.</p>
      )}
      <h2>Checks</h2>
      <Table
        label="Checks"
        rows={Object.entries(data.checks)}
        id={([name]) => name}
        columns={[
          { name: "Check", of: ([name]) => name.replaceAll("_", " ") },
          { name: "Result", grow: true, of: ([, result]) => <State state={result} /> },
        ]}
      />
      {data.leadership ? (
        <section class="card" aria-label="Leadership">
          <h2>Leadership</h2>
          <Facts
            of={[
              ["This server", `${data.leadership.name}, ${data.leadership.role}`],
              ["Leader", data.leadership.leader],
              ["Term", data.leadership.term],
              ["Standbys", data.leadership.standbys.map((one) => <span key={one.name}>{`${one.name} (${one.address}), seen ${duration(one.seen_seconds_ago)} ago `}</span>)],
              ["Trouble", data.leadership.trouble],
            ]}
          />
        </section>
      ) : null}
    </>
  );
}

export function Reservations(): JSX.Element {
  const [all, setAll] = useState(false);
  const list = useLive((signal) => call("GET /reservations", { query: { all }, signal }), 4000, [all]);
  const isAdmin = me.value?.role === "admin";
  const create = async (): Promise<void> => {
    const answers = await askFor("Reserve GPUs", "They are kept for this tenant from the start on; jobs that would still run then are not started on them.", "Reserve", [
      { name: "gpus", label: "GPUs", type: "number", value: "1", needed: true },
      { name: "tenant_id", label: "Tenant", value: me.value?.tenant_id ?? "", needed: true },
      { name: "user", label: "Only for user" },
      { name: "name", label: "Name" },
      { name: "start", label: "Start (empty: now)", type: "datetime-local" },
      { name: "hours", label: "Hours", type: "number", value: "2", needed: true },
      { name: "node", label: "On node" },
      { name: "gpu_model", label: "GPU model" },
      { name: "preempt", label: "Stop jobs that are in the way", type: "checkbox" },
    ]);
    if (!answers) return;
    const start = answers["start"] ? { start: new Date(answers["start"]).toISOString() } : {};
    const words = Object.fromEntries(["user", "name", "node", "gpu_model"].map((name) => [name, answers[name] ?? ""]).filter(([, value]) => value));
    const body = {
      gpus: Number(answers["gpus"]),
      tenant_id: answers["tenant_id"] ?? "",
      duration_minutes: Math.round(Number(answers["hours"]) * 60),
      preempt: answers["preempt"] === "yes",
      ...start,
      ...words,
    };
    await attempt(() => call("POST /reservations", { body }), `${plural(body.gpus, "GPU")} reserved.`);
    list.refresh();
  };
  const release = async (one: ReservationForm): Promise<void> => {
    if ((await ask(`Release ${one.name || one.id}?`, "Its GPUs are for everybody again.", "Release", { danger: true })) === null) return;
    await attempt(() => call("DELETE /reservations/{reservation_id}", { path: { reservation_id: one.id } }), `${one.name || one.id} is released.`);
    list.refresh();
  };
  return (
    <>
      <div class="toolbar">
        {isAdmin ? (
          <button type="button" class="primary" onClick={() => void create()}>
            Reserve GPUs
          </button>
        ) : null}
        <label class="inline">
          <input type="checkbox" checked={all} onChange={(event) => setAll(event.currentTarget.checked)} /> Also ended ones
        </label>
      </div>
      <Problem error={list.error} />
      {list.data && !list.data.reservations.length ? (
        <Empty title="No reservations" />
      ) : (
        <Table
          label="Reservations"
          rows={list.data?.reservations ?? []}
          id={(one) => one.id}
          columns={[
            { name: "Reservation", of: (one) => one.name || one.id },
            { name: "State", of: (one) => <State state={one.state} /> },
            { name: "For", of: (one) => (one.user ? `${one.user} of ${one.tenant_id}` : one.tenant_id) },
            { name: "GPUs", right: true, of: (one) => one.gpus },
            { name: "Start", of: (one) => time(one.start) },
            { name: "End", of: (one) => time(one.end) },
            { name: "Made by", of: (one) => one.made_by },
            { name: "Where", grow: true, of: (one) => <span class="mono">{one.places.map((place) => `${place.node}[${place.gpu_ids.join(",")}]`).join(" ")}</span> },
            {
              name: "",
              of: (one) =>
                isAdmin && !one.over_at ? (
                  <button type="button" class="small danger" aria-label={`Release ${one.name || one.id}`} onClick={() => void release(one)}>
                    Release
                  </button>
                ) : null,
            },
          ]}
        />
      )}
    </>
  );
}

export function Notifications(): JSX.Element {
  const list = useLive((signal) => call("GET /notifications", { signal }), 5000, []);
  const test = async (target: TargetForm): Promise<void> => {
    await attempt(async () => {
      const found = await call("POST /notifications/{target}/test", { path: { target: target.name } });
      if (!found.delivered) throw new Error(`${target.name}: ${found.error}`);
    }, `A test has reached ${target.name}.`);
    list.refresh();
  };
  const targets = list.data?.targets;
  if (targets && !targets.length) return <Empty title="No notification targets">They are set up in the settings (notifications.targets).</Empty>;
  return (
    <>
      <Problem error={list.error} />
      <Table
        label="Notification targets"
        rows={targets ?? []}
        id={(one) => one.name}
        columns={[
          { name: "Target", of: (one) => one.name },
          { name: "Kind", of: (one) => one.kind },
          { name: "Events", of: (one) => one.events.join(", ") },
          { name: "Delivered", right: true, of: (one) => (one.delivered === null ? "–" : count(one.delivered)) },
          { name: "Pending", right: true, of: (one) => one.waiting ?? "–" },
          { name: "Given up", right: true, of: (one) => one.given_up ?? "–" },
          { name: "Next try", of: (one) => time(one.next_try_at) },
          {
            name: "",
            of: (one) => (
              <button type="button" class="small" aria-label={`Test ${one.name}`} onClick={() => void test(one)}>
                Test
              </button>
            ),
          },
          { name: "Last error", grow: true, of: (one) => <span title={one.last_error ?? ""}>{one.last_error}</span> },
        ]}
      />
    </>
  );
}

export function Settings(): JSX.Element {
  const found = useLive((signal) => call("GET /settings", { signal }), 0, []);
  const [words, setWords] = useState("");
  const [onlyChanged, setOnlyChanged] = useState(false);
  const shown = useMemo(
    () =>
      (found.data?.settings ?? []).filter(
        (one) => (one.changed || !onlyChanged) && words.toLowerCase().split(/\s+/).every((word) => `${one.key} ${one.about} ${one.value}`.toLowerCase().includes(word)),
      ),
    [found.data, words, onlyChanged],
  );
  return (
    <>
      <p>
        The settings with which this server runs. They are read from its file, variables and options at its start: <code>tgpu config check</code> checks a file before.
      </p>
      <div class="toolbar">
        <label class="inline">
          Search
          <input type="search" value={words} onInput={(event) => setWords(event.currentTarget.value)} />
        </label>
        <label class="inline">
          <input type="checkbox" checked={onlyChanged} onChange={(event) => setOnlyChanged(event.currentTarget.checked)} /> Only changed ones
        </label>
        <span class="muted">{plural(shown.length, "setting")}</span>
      </div>
      <Problem error={found.error} />
      <Table
        label="Settings"
        rows={shown}
        id={(one) => one.key}
        columns={[
          { name: "Setting", of: (one) => <code>{one.key}</code> },
          { name: "Value", of: (one) => <span class={`cut mono ${one.changed ? "strong" : ""}`} title={one.value}>{one.value}</span> },
          { name: "Default", of: (one) => <span class="cut mono muted">{one.changed ? one.default : "the same"}</span> },
          { name: "Meaning", grow: true, of: (one) => <span title={one.about}>{one.about}</span> },
        ]}
      />
    </>
  );
}
