// What if: which expected starts move if the cluster or its rules change. Asks the engine, changes nothing.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { ApiError, call, useLive } from "./api";
import type { Effect, MovedStart, OwnerEffect, WhatIfForm, WhatIfRequest } from "./api-types";
import { Empty, Figures, JobLink, Problem, Table, Who } from "./components";
import type { Column, Figure } from "./components";
import { count, duration, plural, time, trim } from "./format";

// Presets that do not work by preempting running jobs, which a forecast does not count on.
const POLICIES = ["fair", "fifo", "sjf", "skip", "easy", "conservative", "short", "best_fit", "fgd", "balance", "packing"];

interface Draft {
  drained: string[];
  added: string;
  like: string;
  gpus: string;
  reservedFor: string;
  inHours: string;
  forHours: string;
  tenant: string;
  quota: string;
  policy: string;
}
const EMPTY: Draft = { drained: [], added: "", like: "", gpus: "", reservedFor: "default", inHours: "1", forHours: "4", tenant: "", quota: "", policy: "" };

export function WhatIf(): JSX.Element {
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 0, []);
  const tenants = useLive((signal) => call("GET /tenants", { signal }), 0, []);
  const [draft, setDraft] = useState<Draft>(EMPTY);
  const [state, setState] = useState<{ answer: WhatIfForm | null; error: ApiError | null; isBusy: boolean; asked: string }>({ answer: null, error: null, isBusy: false, asked: "" });
  const names = (nodes.data?.nodes ?? []).map((node) => node.id);
  const owners = [...new Set(["default", ...(tenants.data?.tenants ?? []).map((tenant) => tenant.id)])];
  const set = (fields: Partial<Draft>): void => setDraft({ ...draft, ...fields });
  const request = requestOf(draft, names[0] ?? "");
  const asked = describe(draft, names[0] ?? "");
  const ask = async (): Promise<void> => {
    setState({ ...state, error: null, isBusy: true });
    try {
      setState({ answer: await call("POST /what-if", { body: request }), error: null, isBusy: false, asked });
    } catch (error) {
      setState({ answer: null, error: error instanceof ApiError ? error : new ApiError(0, "", "the server could not be reached"), isBusy: false, asked });
    }
  };
  return (
    <>
      <h1>What if</h1>
      <p class="muted">The engine answers on a copy of the cluster. Nothing is changed, and scheduling does not wait.</p>
      <form
        class="card"
        onSubmit={(event) => {
          event.preventDefault();
          void ask();
        }}
      >
        <div class="sets">
          <fieldset>
            <legend>Nodes</legend>
            <label>
              Drained
              <select multiple size={Math.min(5, Math.max(2, names.length))} onChange={(event) => set({ drained: [...event.currentTarget.selectedOptions].map((one) => one.value) })}>
                {names.map((name) => (
                  <option key={name} value={name} selected={draft.drained.includes(name)}>
                    {name}
                  </option>
                ))}
              </select>
            </label>
            <div class="form">
              <Field label="Added" value={draft.added} set={(added) => set({ added })} />
              <Select label="Like" value={draft.like || (names[0] ?? "")} of={names} set={(like) => set({ like })} />
            </div>
          </fieldset>
          <fieldset>
            <legend>Reservation</legend>
            <div class="form">
              <Field label="GPUs" value={draft.gpus} set={(gpus) => set({ gpus })} />
              <Select label="For tenant" value={draft.reservedFor} of={owners} set={(reservedFor) => set({ reservedFor })} />
              <Field label="Begins in hours" value={draft.inHours} set={(inHours) => set({ inHours })} />
              <Field label="Lasts hours" value={draft.forHours} set={(forHours) => set({ forHours })} />
            </div>
          </fieldset>
          <fieldset>
            <legend>Rules</legend>
            <div class="form">
              <Select label="Quota of tenant" value={draft.tenant} of={["", ...owners]} none="none changes" set={(tenant) => set({ tenant })} />
              <Field label="Quota in GPUs" value={draft.quota} hint="no limit" set={(quota) => set({ quota })} />
              <Select label="Policy" value={draft.policy} of={["", ...POLICIES]} none="as it is" set={(policy) => set({ policy })} />
            </div>
          </fieldset>
        </div>
        <div class="buttons">
          <button type="submit" class="primary" disabled={!asked || state.isBusy}>
            Ask
          </button>
          <button type="button" onClick={() => setDraft(EMPTY)}>
            Clear
          </button>
          <span class="muted" role="status">
            {state.isBusy ? "The engine rolls the cluster forward…" : asked || "Suppose something first."}
          </span>
        </div>
      </form>
      <Problem error={state.error} />
      {state.answer ? <Answer answer={state.answer} asked={state.asked} /> : null}
    </>
  );
}

function Field({ label, value, set, hint }: { label: string; value: string; set: (value: string) => void; hint?: string }): JSX.Element {
  return (
    <label>
      {label}
      <input type="number" min={0} step="any" value={value} placeholder={hint ?? ""} onInput={(event) => set(event.currentTarget.value)} />
    </label>
  );
}

function Select({ label, value, of, none, set }: { label: string; value: string; of: string[]; none?: string; set: (value: string) => void }): JSX.Element {
  return (
    <label>
      {label}
      <select value={value} onChange={(event) => set(event.currentTarget.value)}>
        {of.map((one) => (
          <option key={one} value={one}>
            {one || none}
          </option>
        ))}
      </select>
    </label>
  );
}

function requestOf(draft: Draft, firstNode: string): WhatIfRequest {
  const request: WhatIfRequest = {};
  if (draft.drained.length) request.drain_nodes = draft.drained;
  if (Number(draft.added) > 0) request.add_nodes = { count: Number(draft.added), like: draft.like || firstNode };
  if (draft.policy) request.policy = draft.policy;
  if (draft.tenant) request.quotas = [{ tenant_id: draft.tenant, max_gpus: draft.quota === "" ? null : Number(draft.quota) }];
  if (Number(draft.gpus) > 0) {
    const start = Date.now() / 1000 + Number(draft.inHours) * 3600;
    request.reservation = { gpus: Number(draft.gpus), tenant_id: draft.reservedFor, start, duration_minutes: Number(draft.forHours) * 60 };
  }
  return request;
}

function describe(draft: Draft, firstNode: string): string {
  const parts: string[] = [];
  if (draft.drained.length) parts.push(`${draft.drained.join(", ")} drained`);
  if (Number(draft.added) > 0) parts.push(`${plural(Number(draft.added), "node")} like ${draft.like || firstNode} added`);
  if (draft.policy) parts.push(`policy ${draft.policy}`);
  if (draft.tenant) parts.push(`quota of ${draft.tenant}: ${draft.quota === "" ? "no limit" : plural(Number(draft.quota), "GPU")}`);
  if (Number(draft.gpus) > 0) parts.push(`${plural(Number(draft.gpus), "GPU")} reserved for ${draft.reservedFor} in ${draft.inHours} h, for ${draft.forHours} h`);
  return parts.join("; ");
}

function Answer({ answer, asked }: { answer: WhatIfForm; asked: string }): JSX.Element {
  const { effect } = answer;
  return (
    <section aria-label="Answer">
      <h2>Supposed: {asked}</h2>
      {answer.cut.map((text) => (
        <p key={text} class="note">
          {text}
        </p>
      ))}
      {answer.reserved.length ? <p class="note">The reservation would get {answer.reserved.map((place) => `${place.node}[${place.gpu_ids.join(",")}]`).join(" ")}.</p> : null}
      {effect ? <Effects effect={effect} waiting={answer.waiting} /> : null}
    </section>
  );
}

function moveText(seconds: number): string {
  return `${duration(Math.abs(seconds))} ${seconds > 0 ? "later" : "earlier"}`;
}

function Effects({ effect, waiting }: { effect: Effect; waiting: number }): JSX.Element {
  const figures: Figure[] = [
    [count(effect.earlier), effect.earlier ? `start earlier, ${duration(effect.gained_seconds)} in all` : "start earlier"],
    [count(effect.later), effect.later ? `start later, ${duration(effect.lost_seconds)} in all` : "start later"],
    [count(effect.compared - effect.earlier - effect.later), `of ${plural(waiting, "waiting job")} stay`],
  ];
  if (effect.started) figures.push([count(effect.started), "get an expected start"]);
  if (effect.stranded) figures.push([count(effect.stranded), "have none any more"]);
  const owners: Column<OwnerEffect>[] = [
    { name: "User", of: (one) => <Who name={one.user} /> },
    { name: "Tenant", of: (one) => one.tenant_id },
    { name: "In all", of: (one) => balance(one.lost_seconds - one.gained_seconds) },
    { name: "Earlier", of: (one) => count(one.earlier), right: true },
    { name: "Later", of: (one) => count(one.later), right: true },
  ];
  const moved: Column<MovedStart>[] = [
    { name: "Job", of: (one) => <JobLink id={one.job_id} /> },
    { name: "User", of: (one) => <Who name={one.user} /> },
    { name: "GPUs", of: (one) => trim(one.gpus), right: true },
    { name: "Before", of: (one) => (one.before ? time(one.before) : "unknown") },
    { name: "After", of: (one) => (one.after ? time(one.after) : "unknown") },
    { name: "Moves", of: (one) => (one.seconds === null ? (one.after ? "gets a start" : <span class="bad">no start any more</span>) : balance(one.seconds)) },
    { name: "Sure", of: (one) => (one.is_guess ? "depends on an unknown run time" : ""), grow: true },
  ];
  return (
    <>
      <Figures of={figures} />
      {effect.moved.length ? (
        <>
          {effect.owners.length ? (
            <>
              <h2>Who loses and who gains</h2>
              <Table label="Users" columns={owners} rows={effect.owners} id={(one) => `${one.tenant_id} ${one.user}`} />
            </>
          ) : null}
          <h2>Starts that move most</h2>
          <Table label="Moved starts" columns={moved} rows={effect.moved} id={(one) => one.job_id} />
        </>
      ) : (
        <Empty title="No expected start moves" />
      )}
    </>
  );
}

function balance(seconds: number): JSX.Element {
  return <span class={seconds > 0 ? "bad" : "good"}>{moveText(seconds)}</span>;
}
