// Tenants and users: quotas, fair share over time, waits, GPU-hours and their cost, idle GPUs, estimates.
import type { JSX } from "preact";
import { useMemo, useState } from "preact/hooks";
import { call, useLive } from "./api";
import type { AccountForm, FairShareForm, Invoice, JudgementForm, QuotaNodeForm, ReportForm, TenantForm } from "./api-types";
import { Chart } from "./chart";
import { Figures, JobLink, Meter, Problem, Table, Who } from "./components";
import type { Column, Figure } from "./components";
import { count, duration, plural, time, trim } from "./format";

const PERIODS = ["today", "week", "month", "year"] as const;
const REPORT_MS = 60_000;

export function People(): JSX.Element {
  const [period, setPeriod] = useState<(typeof PERIODS)[number]>("month");
  const query = { period, time_zone: Intl.DateTimeFormat().resolvedOptions().timeZone };
  const report = useLive((signal) => call("GET /report", { query, signal }), REPORT_MS, [period]);
  const share = useLive((signal) => call("GET /report/fair-share", { query, signal }), REPORT_MS, [period]);
  const invoice = useLive((signal) => call("GET /invoice", { query, signal }), REPORT_MS, [period]);
  const estimates = useLive((signal) => call("GET /report/estimates", { signal }), REPORT_MS, []);
  const tree = useLive((signal) => call("GET /quota/tree", { signal }), 4000, []);
  const tenants = useLive((signal) => call("GET /tenants", { signal }), 4000, []);
  return (
    <>
      <div class="title-row">
        <h1>People</h1>
        <label class="inline">
          Period
          <select value={period} onChange={(event) => setPeriod(event.currentTarget.value as (typeof PERIODS)[number])}>
            {PERIODS.map((one) => (
              <option key={one} value={one}>
                {one}
              </option>
            ))}
          </select>
        </label>
      </div>
      <Problem error={report.error ?? share.error ?? invoice.error ?? tree.error ?? tenants.error} />
      {report.data ? <Totals report={report.data} /> : <p class="muted">Loading…</p>}
      <h2>Quotas now</h2>
      {tree.data?.nodes.length ? <QuotaTree nodes={tree.data.nodes} /> : null}
      <TenantQuotas tenants={tenants.data?.tenants ?? []} />
      {share.data ? <FairShare share={share.data} /> : null}
      {report.data ? (
        <>
          <Users report={report.data} />
          <Idle report={report.data} />
        </>
      ) : null}
      {invoice.data ? <Bill invoice={invoice.data} /> : null}
      {estimates.data ? <Estimates estimates={estimates.data.estimates} ranges={estimates.data.ranges} open={estimates.data.open} /> : null}
    </>
  );
}

function Totals({ report }: { report: ReportForm }): JSX.Element {
  const { total, waits } = report;
  const figures: Figure[] = [
    [trim(total.gpu_hours, 1), "GPU-hours"],
    [`${trim(total.cost, 2)} ${report.currency}`, "cost"],
    [duration(waits.median_seconds), "median wait"],
    [duration(waits.p90_seconds), "90 % waited at most"],
    [count(total.completed), "jobs completed"],
    [count(total.failed), "failed"],
  ];
  if (total.mean_utilisation_percent !== null) figures.push([`${trim(total.mean_utilisation_percent, 0)} %`, "mean utilisation"]);
  if (total.energy_kwh) figures.push([`${trim(total.energy_kwh, 1)} kWh`, "energy"]);
  return <Figures of={figures} />;
}

function QuotaTree({ nodes }: { nodes: QuotaNodeForm[] }): JSX.Element {
  const models = [...new Set(nodes.map((node) => node.model))];
  const [model, setModel] = useState("*");
  const gpus = (value: number): string => trim(value, 2);
  return (
    <>
      {models.length > 1 ? (
        <div class="toolbar">
          <label class="inline">
            GPU model
            <select value={model} onChange={(event) => setModel(event.currentTarget.value)}>
              {models.map((one) => (
                <option key={one} value={one}>
                  {one === "*" ? "all" : one}
                </option>
              ))}
            </select>
          </label>
        </div>
      ) : null}
      <Table
        label="Quota tree"
        rows={nodes.filter((node) => node.model === model)}
        id={(node) => `${node.name} ${node.model}`}
        columns={[
          { name: "Node of the tree", of: (node) => <span class={`level-${Math.min(5, node.level)}`}>{node.name || "the cluster"}</span> },
          { name: "Used", right: true, of: (node) => gpus(node.used_gpus) },
          { name: "Guaranteed", right: true, of: (node) => gpus(node.guaranteed_gpus) },
          { name: "Borrowed", right: true, of: (node) => gpus(node.borrowed_gpus) },
          { name: "Lent", right: true, of: (node) => gpus(node.lent_gpus) },
          { name: "At most", right: true, of: (node) => (node.max_gpus === null ? "no limit" : gpus(node.max_gpus)) },
          {
            name: "Used of guaranteed",
            grow: true,
            of: (node) => <Meter label="" value={node.guaranteed_gpus ? node.used_gpus / node.guaranteed_gpus : null} text={node.borrowed_gpus ? `${gpus(node.borrowed_gpus)} borrowed` : ""} tone={node.borrowed_gpus ? "warn" : "good"} />,
          },
        ]}
      />
    </>
  );
}

function TenantQuotas({ tenants }: { tenants: TenantForm[] }): JSX.Element {
  const part = (used: number, limit: number | null): string => (limit === null ? `${trim(used, 1)}, no limit` : `${trim(used, 1)} of ${trim(limit, 1)}`);
  return (
    <Table
      label="Quotas of tenants"
      rows={tenants}
      id={(tenant) => tenant.id}
      columns={[
        { name: "Tenant", of: (tenant) => <Who name={tenant.name} /> },
        { name: "GPUs", right: true, of: (tenant) => part(tenant.current_gpus, tenant.max_gpus) },
        { name: "Jobs", right: true, of: (tenant) => part(tenant.current_jobs, tenant.max_concurrent_jobs) },
        { name: "Quota", of: (tenant) => (tenant.elastic ? "elastic: may borrow" : "fixed") },
        { name: "Budget in GPU-hours", right: true, of: (tenant) => `${part(tenant.used_gpu_hours, tenant.max_gpu_hours)}${tenant.budget_period && tenant.budget_period !== "total" ? ` a ${tenant.budget_period}` : ""}` },
        {
          name: "Budget used",
          grow: true,
          of: (tenant) => (tenant.max_gpu_hours ? <Meter label="" value={tenant.used_gpu_hours / tenant.max_gpu_hours} text={`${Math.round((100 * tenant.used_gpu_hours) / tenant.max_gpu_hours)} %`} /> : null),
        },
      ]}
    />
  );
}

function FairShare({ share }: { share: FairShareForm }): JSX.Element | null {
  const [chosen, setChosen] = useState("");
  const tenant = share.tenants.some((one) => one.tenant_id === chosen) ? chosen : (share.tenants[0]?.tenant_id ?? "");
  const seconds = useMemo(() => share.slices.map((slice) => Date.parse(slice.start) / 1000), [share]);
  const series = useMemo(
    () => [
      { name: "used", values: share.slices.map((slice) => slice.used[tenant] ?? 0) },
      { name: "deserved", values: share.slices.map((slice) => slice.deserved[tenant] ?? 0), dashed: true },
    ],
    [share, tenant],
  );
  if (!tenant) return null;
  return (
    <section aria-label="Fair share">
      <h2>Fair share</h2>
      <p class="muted">A tenant deserves its part, by weight, of what all tenants used that used GPUs in the period or wait for some.</p>
      <div class="two">
        <Table
          label="Deserved and used"
          rows={share.tenants}
          id={(one) => one.tenant_id}
          columns={[
            {
              name: "Tenant",
              of: (one) => (
                <button type="button" class="link" aria-pressed={one.tenant_id === tenant} onClick={() => setChosen(one.tenant_id)}>
                  {one.tenant_id}
                </button>
              ),
            },
            { name: "Weight", right: true, of: (one) => trim(one.weight) },
            { name: "Deserves", right: true, of: (one) => `${trim(one.deserved_gpu_hours, 2)} h (${trim(one.deserved_percent, 0)} %)` },
            { name: "Used", right: true, of: (one) => `${trim(one.used_gpu_hours, 2)} h` },
            { name: "Difference", grow: true, of: (one) => difference(one.used_gpu_hours - one.deserved_gpu_hours) },
          ]}
        />
        <div class="card">
          <Chart label={`GPU-hours of ${tenant}, used and deserved`} points={seconds} series={series} unit="GPU-hours" steps until={Date.parse(share.until) / 1000} />
        </div>
      </div>
    </section>
  );
}

function difference(hours: number): string {
  return `${hours > 0 ? "+" : ""}${trim(hours, 2)} h`;
}

function Users({ report }: { report: ReportForm }): JSX.Element {
  const columns: Column<AccountForm>[] = [
    { name: "User", of: (one) => <Who name={one.user ?? ""} /> },
    { name: "Tenant", of: (one) => one.tenant_id },
    { name: "GPU-hours", right: true, of: (one) => trim(one.sums.gpu_hours, 2) },
    { name: "Cost", right: true, of: (one) => `${trim(one.sums.cost, 2)} ${report.currency}` },
    { name: "Median wait", right: true, of: (one) => (one.waits.count ? duration(one.waits.median_seconds) : "–") },
    { name: "90 % waited at most", right: true, of: (one) => (one.waits.count ? duration(one.waits.p90_seconds) : "–") },
    { name: "Started", right: true, of: (one) => count(one.sums.started) },
    { name: "Failed", right: true, of: (one) => count(one.sums.failed) },
    { name: "Preempted", right: true, of: (one) => count(one.sums.preempted) },
    { name: "Utilisation", right: true, of: (one) => (one.sums.mean_utilisation_percent === null ? "–" : `${trim(one.sums.mean_utilisation_percent, 0)} %`) },
    { name: "Energy", grow: true, of: (one) => (one.sums.energy_kwh ? `${trim(one.sums.energy_kwh, 2)} kWh` : "–") },
  ];
  const rows = useMemo(() => [...report.users].sort((one, other) => other.sums.gpu_hours - one.sums.gpu_hours), [report]);
  const seconds = useMemo(() => report.slices.map((slice) => Date.parse(slice.start) / 1000), [report]);
  const series = useMemo(() => [{ name: "used", values: report.slices.map((slice) => slice.gpu_hours) }], [report]);
  return (
    <section aria-label="Users">
      <h2>Users</h2>
      <Table label="Usage and waits of users" rows={rows} id={(one) => `${one.tenant_id} ${one.user ?? ""}`} columns={columns} />
      {seconds.length > 1 ? (
        <div class="card chart-card">
          <Chart label="GPU-hours of everybody you may see" points={seconds} series={series} unit="GPU-hours" steps until={Date.parse(report.until) / 1000} />
        </div>
      ) : null}
    </section>
  );
}

function Idle({ report }: { report: ReportForm }): JSX.Element {
  return (
    <section aria-label="Idle GPUs">
      <h2>Who left GPUs idle</h2>
      {report.low_utilisation.length ? (
        <Table
          label="Jobs that used little of their GPUs"
          rows={report.low_utilisation}
          id={(one) => `${one.job_id} ${one.task ?? ""} ${one.gpu_hours}`}
          columns={[
            { name: "User", of: (one) => <Who name={one.user} /> },
            { name: "Job", of: (one) => <JobLink id={one.task === null ? one.job_id : `${one.job_id}_${one.task}`} /> },
            { name: "Name", of: (one) => <span class="cut">{one.name}</span> },
            { name: "GPU-hours", right: true, of: (one) => trim(one.gpu_hours, 2) },
            { name: "Mean utilisation", right: true, of: (one) => `${trim(one.mean_utilisation_percent, 0)} %` },
            { name: "Peak", grow: true, of: (one) => `${trim(one.peak_utilisation_percent, 0)} %` },
          ]}
        />
      ) : (
        <p class="muted">No job held GPUs for ten minutes with a mean utilisation below 20 %.</p>
      )}
    </section>
  );
}

function Bill({ invoice }: { invoice: Invoice }): JSX.Element {
  return (
    <section aria-label="Invoice">
      <h2>Invoice</h2>
      <p>
        <strong>{`${trim(Number(invoice.total), 2)} ${invoice.currency}`}</strong>{" "}
        <span class="muted">{`${time(invoice.start)} to ${time(invoice.until)}${invoice.is_final ? "" : ", not final"}`}</span>
      </p>
      {invoice.lines.length ? (
        <details>
          <summary>{plural(invoice.lines.length, "line")}</summary>
          <Table
            label="Invoice lines"
            rows={invoice.lines}
            id={(one) => `${one.tenant} ${one.user} ${one.item} ${one.model} ${one.price}`}
            columns={[
              { name: "Tenant", of: (one) => one.tenant },
              { name: "User", of: (one) => one.user },
              { name: "Item", of: (one) => [one.item, one.model].filter(Boolean).join(" ") },
              { name: "Amount", right: true, of: (one) => `${trim(Number(one.amount), 3)} ${one.unit}` },
              { name: "Price", right: true, of: (one) => one.price },
              { name: "Cost", grow: true, of: (one) => `${trim(Number(one.cost), 4)} ${one.currency}` },
            ]}
          />
        </details>
      ) : null}
    </section>
  );
}

function Estimates({ estimates, ranges, open }: { estimates: JudgementForm[]; ranges: { judged: number; within: number; within_percent: number | null }; open: number }): JSX.Element {
  return (
    <section aria-label="Estimates">
      <h2>Were the expected starts right?</h2>
      {estimates.some((one) => one.judged) ? (
        <Table
          label="Expected starts of the last 30 days"
          rows={estimates.filter((one) => one.judged)}
          id={(one) => one.basis}
          columns={[
            { name: "Basis", of: (one) => one.basis },
            { name: "Judged", right: true, of: (one) => count(one.judged) },
            { name: "Kept", right: true, of: (one) => (one.kept_percent === null ? "–" : `${trim(one.kept_percent, 1)} %`) },
            { name: "Later", right: true, of: (one) => count(one.late) },
            { name: "Earlier", right: true, of: (one) => count(one.early) },
            { name: "Median error", right: true, of: (one) => duration(one.median_error_seconds) },
            { name: "90 % within", grow: true, of: (one) => duration(one.p90_error_seconds) },
          ]}
        />
      ) : null}
      <p class="muted">
        {ranges.judged
          ? `${count(ranges.within)} of ${plural(ranges.judged, "start")} fell into the range that was shown (${ranges.within_percent ?? 0} %; four in five should). `
          : "No job that was given a range and waited more than a minute has started yet. "}
        {`${plural(open, "expected start")} still to be judged.`}
      </p>
    </section>
  );
}
