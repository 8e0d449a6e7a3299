// Tenants and their quotas, tokens, and the audit log.
import type { JSX } from "preact";
import { useState } from "preact/hooks";
import { call, me, useLive } from "./api";
import type { AuditForm, Role, TenantForm, TenantPatch, Tier } from "./api-types";
import { Code, Empty, Problem, State, Table, Who, ask, askFor, attempt } from "./components";
import type { Answers, Field } from "./components";
import { count, time, trim } from "./format";

const TIERS: readonly Tier[] = ["low", "medium", "high", "critical"];
const ROLES: readonly Role[] = ["viewer", "user", "tenant-admin", "admin"];

export function Tenants(): JSX.Element {
  const list = useLive((signal) => call("GET /tenants", { signal }), 4000, []);
  const isAdmin = me.value?.role === "admin";
  const create = async (): Promise<void> => {
    const answers = await askFor("New tenant", "Empty limits mean no limit.", "Create", [{ name: "name", label: "Name", needed: true }, ...limitFields(null)]);
    if (answers) await attempt(() => call("POST /tenants", { body: { name: answers["name"] ?? "", ...patchOf(answers) } }), `Tenant ${answers["name"]} is created.`);
    list.refresh();
  };
  const change = async (tenant: TenantForm): Promise<void> => {
    const path = { tenant_id: tenant.id };
    const answers = await askFor(`Change ${tenant.name}`, "Empty limits mean no limit. Running jobs continue.", "Change", limitFields(tenant));
    if (answers) {
      const undo = (): void => void attempt(() => call("PATCH /tenants/{tenant_id}", { path, body: limitsOf(tenant) }), `${tenant.name} is as before.`).then(list.refresh);
      await attempt(() => call("PATCH /tenants/{tenant_id}", { path, body: patchOf(answers) }), `${tenant.name} is changed.`, undo);
    }
    list.refresh();
  };
  const remove = async (tenant: TenantForm): Promise<void> => {
    if ((await ask(`Remove ${tenant.name}?`, "Only a tenant without jobs and reservations can be removed.", "Remove", { danger: true })) === null) return;
    await attempt(() => call("DELETE /tenants/{tenant_id}", { path: { tenant_id: tenant.id } }), `${tenant.name} is removed.`);
    list.refresh();
  };
  return (
    <>
      {isAdmin ? (
        <div class="toolbar">
          <button type="button" class="primary" onClick={() => void create()}>
            New tenant
          </button>
        </div>
      ) : null}
      <Problem error={list.error} />
      <Table
        label="Tenants"
        rows={list.data?.tenants ?? []}
        id={(tenant) => tenant.id}
        columns={[
          { name: "Tenant", of: (tenant) => tenant.name },
          { name: "GPUs", right: true, of: (tenant) => ofLimit(tenant.current_gpus, tenant.max_gpus) },
          { name: "Jobs", right: true, of: (tenant) => ofLimit(tenant.current_jobs, tenant.max_concurrent_jobs) },
          { name: "GPU-hours", right: true, of: (tenant) => ofLimit(tenant.used_gpu_hours, tenant.max_gpu_hours) },
          { name: "Tier", of: (tenant) => tenant.priority_tier },
          { name: "Weight", right: true, of: (tenant) => trim(tenant.fair_share_weight) },
          { name: "Members", of: (tenant) => <span class="cut">{[...tenant.linux_groups.map((group) => `group ${group}`), ...tenant.users].join(", ")}</span> },
          { name: "Admins", of: (tenant) => tenant.admins.join(", ") },
          {
            name: "",
            of: (tenant) =>
              isAdmin ? (
                <span class="buttons">
                  <button type="button" class="small" aria-label={`Change ${tenant.name}`} onClick={() => void change(tenant)}>
                    Change
                  </button>
                  <button type="button" class="small plain" aria-label={`Remove ${tenant.name}`} onClick={() => void remove(tenant)}>
                    ×
                  </button>
                </span>
              ) : null,
          },
          { name: "Warnings", grow: true, of: (tenant) => tenant.warnings.join(" · ") },
        ]}
      />
    </>
  );
}

function ofLimit(used: number, limit: number | null): string {
  return limit === null ? trim(used, 1) : `${trim(used, 1)} of ${trim(limit, 1)}`;
}

function limitFields(tenant: TenantForm | null): Field[] {
  const number = (value: number | null | undefined): string => (value === null || value === undefined ? "" : String(value));
  return [
    { name: "max_gpus", label: "GPUs at most", type: "number", value: number(tenant?.max_gpus) },
    { name: "max_concurrent_jobs", label: "Jobs at most", type: "number", value: number(tenant?.max_concurrent_jobs) },
    { name: "max_gpu_hours", label: "GPU-hours budget", type: "number", value: number(tenant?.max_gpu_hours) },
    { name: "fair_share_weight", label: "Fair-share weight", type: "number", value: String(tenant?.fair_share_weight ?? 1), needed: true },
    { name: "priority_tier", label: "Priority tier", options: TIERS, value: tenant?.priority_tier ?? "medium" },
    { name: "users", label: "Users", value: tenant?.users.join(" ") ?? "" },
    { name: "admins", label: "Admins", value: tenant?.admins.join(" ") ?? "" },
  ];
}

function patchOf(answers: Answers): TenantPatch {
  const limit = (name: string): number | null => (answers[name] ? Number(answers[name]) : null);
  const words = (name: string): string[] => (answers[name] ?? "").split(/[\s,]+/).filter(Boolean);
  return {
    max_gpus: limit("max_gpus"),
    max_concurrent_jobs: limit("max_concurrent_jobs"),
    max_gpu_hours: limit("max_gpu_hours"),
    fair_share_weight: Number(answers["fair_share_weight"] ?? 1),
    priority_tier: (answers["priority_tier"] ?? "medium") as Tier,
    users: words("users"),
    admins: words("admins"),
  };
}

function limitsOf(tenant: TenantForm): TenantPatch {
  const { max_gpus, max_concurrent_jobs, max_gpu_hours, fair_share_weight, users, admins } = tenant;
  return { max_gpus, max_concurrent_jobs, max_gpu_hours, fair_share_weight, users, admins, priority_tier: tenant.priority_tier as Tier };
}

export function Tokens(): JSX.Element {
  const list = useLive((signal) => call("GET /tokens", { signal }), 5000, []);
  const [secret, setSecret] = useState("");
  const create = async (): Promise<void> => {
    const answers = await askFor("New token", "For callers on other machines. Its secret is shown once.", "Create", [
      { name: "name", label: "Name" },
      { name: "user", label: "User", value: me.value?.user ?? "" },
      { name: "tenant_id", label: "Tenant", value: me.value?.tenant_id ?? "" },
      { name: "role", label: "Role", options: ROLES, value: "user" },
      { name: "days", label: "Valid for days", type: "number", value: "30", needed: true },
    ]);
    if (!answers) return;
    await attempt(async () => {
      const { name = "", user = "", tenant_id = "", role, days } = answers;
      const made = await call("POST /tokens", { body: { name, user, tenant_id, role: role as Role, expires_in_seconds: Number(days) * 86_400 } });
      setSecret(made.token);
    }, "The token is made.");
    list.refresh();
  };
  const revoke = async (id: string): Promise<void> => {
    if ((await ask(`Revoke ${id}?`, "Callers that use it are rejected at once. This cannot be undone.", "Revoke", { danger: true })) === null) return;
    await attempt(() => call("DELETE /tokens/{token_id}", { path: { token_id: id } }), `${id} is revoked.`);
    list.refresh();
  };
  return (
    <>
      <div class="toolbar">
        <button type="button" class="primary" onClick={() => void create()}>
          New token
        </button>
      </div>
      {secret ? (
        <section class="card" aria-label="The new token">
          <p>Copy it now; it is not shown again.</p>
          <Code text={secret} />
        </section>
      ) : null}
      <Problem error={list.error} />
      {list.data && !list.data.tokens.length ? (
        <Empty title="No tokens">Callers on this machine need none; those on other machines send one.</Empty>
      ) : (
        <Table
          label="Tokens"
          rows={list.data?.tokens ?? []}
          id={(token) => token.id}
          columns={[
            { name: "Token", of: (token) => token.id },
            { name: "Name", of: (token) => token.name },
            { name: "State", of: (token) => <State state={token.state} /> },
            { name: "User", of: (token) => <Who name={token.user} /> },
            { name: "Tenant", of: (token) => token.tenant_id },
            { name: "Role", of: (token) => token.role },
            { name: "Made by", of: (token) => token.created_by },
            { name: "Last used", of: (token) => time(token.last_used_at) },
            { name: "Valid until", grow: true, of: (token) => time(token.expires_at) },
            {
              name: "",
              of: (token) =>
                token.revoked_at ? null : (
                  <button type="button" class="small danger" aria-label={`Revoke ${token.id}`} onClick={() => void revoke(token.id)}>
                    Revoke
                  </button>
                ),
            },
          ]}
        />
      )}
    </>
  );
}

export function Audit(): JSX.Element {
  const [user, setUser] = useState("");
  const [action, setAction] = useState("");
  const [outcome, setOutcome] = useState("");
  const [before, setBefore] = useState<(number | null)[]>([null]);
  const last = before.at(-1) ?? null;
  const query = { user, action, outcome, before: last, limit: 100 };
  const found = useLive((signal) => call("GET /audit", { query, signal }), last === null ? 5000 : 0, [user, action, outcome, last]);
  const narrow = (set: (value: string) => void, value: string): void => {
    set(value);
    setBefore([null]);
  };
  const next = found.data?.next_before ?? null;
  return (
    <>
      <div class="toolbar">
        <label class="inline">
          User
          <input value={user} onInput={(event) => narrow(setUser, event.currentTarget.value.trim())} />
        </label>
        <label class="inline">
          Action
          <input value={action} placeholder="submit, cancel, …" onInput={(event) => narrow(setAction, event.currentTarget.value.trim())} />
        </label>
        <label class="inline">
          Outcome
          <select value={outcome} onChange={(event) => narrow(setOutcome, event.currentTarget.value)}>
            <option value="">all</option>
            <option value="done">done</option>
            <option value="refused">refused</option>
          </select>
        </label>
      </div>
      <Problem error={found.error} />
      <Table
        label="Audit log"
        rows={found.data?.records ?? []}
        id={(record) => String(record.number)}
        columns={[
          { name: "When", of: (record) => time(record.at) },
          { name: "User", of: (record) => record.user },
          { name: "Action", of: (record) => record.action },
          { name: "On", of: (record) => record.target },
          { name: "Outcome", of: (record) => <State state={record.outcome === "refused" ? "rejected" : record.outcome} /> },
          { name: "From", of: originText },
          { name: "Times", right: true, of: (record) => count(record.count) },
          { name: "Detail", grow: true, of: (record) => <span title={record.detail}>{[record.code, record.detail].filter(Boolean).join(": ")}</span> },
        ]}
      />
      <div class="buttons">
        <button type="button" disabled={before.length < 2} onClick={() => setBefore(before.slice(0, -1))}>
          Newer
        </button>
        <button type="button" disabled={next === null} onClick={() => setBefore([...before, next])}>
          Older
        </button>
      </div>
    </>
  );
}

function originText(record: AuditForm): string {
  return [record.origin, record.via].filter(Boolean).join(", ");
}
