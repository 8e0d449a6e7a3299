// A job as people write it: a command line as words, a sweep as combinations, and the same job as a line of tgpu or Python.
import type { JobForm, JobRequest } from "./api-types";

export const MOST_COMBINATIONS = 10_000;
const HIDDEN = "***";
const PRIORITIES = new Map([
  [250, "low"],
  [750, "normal"],
  [1500, "high"],
  [2500, "urgent"],
]);

// Splits a command line like a shell, without expansions; throws where a quote stays open.
export function words(line: string): string[] {
  const found: string[] = [];
  let word = "";
  let isOpen = false;
  let quote = "";
  for (let i = 0; i < line.length; i += 1) {
    const letter = line.charAt(i);
    if (quote) {
      if (letter === quote) quote = "";
      else if (letter === "\\" && quote === '"' && /["\\$`]/.test(line.charAt(i + 1))) word += line.charAt((i += 1));
      else word += letter;
    } else if (letter === "'" || letter === '"') {
      quote = letter;
      isOpen = true;
    } else if (letter === "\\" && i + 1 < line.length) {
      word += line.charAt((i += 1));
      isOpen = true;
    } else if (/\s/.test(letter)) {
      if (isOpen) found.push(word);
      word = "";
      isOpen = false;
    } else {
      word += letter;
      isOpen = true;
    }
  }
  if (quote) throw new Error(`a quote ${quote} is not closed`);
  if (isOpen) found.push(word);
  return found;
}

export function quoted(word: string): string {
  return /^[\w@%+=:,./-]+$/.test(word) ? word : `'${word.replaceAll("'", "'\\''")}'`;
}

export function line(command: string[]): string {
  return command.map(quoted).join(" ");
}

// What can be submitted again of a job; hidden values are left out and named.
export function requestOf(job: JobForm): { body: JobRequest; left: string[] } {
  const body: JobRequest = { command: job.command, gpu_count: job.gpu_count };
  const left: string[] = [];
  if (job.name) body.name = job.name;
  if (job.tenant_id !== "default") body.tenant_id = job.tenant_id;
  if (job.priority !== 750) body.priority = job.priority;
  if (job.gpu_models.length) body.gpu_models = job.gpu_models;
  if (job.gpu_memory_mb) body.gpu_memory_mb = job.gpu_memory_mb;
  if (job.cpu_cores) body.cpu_cores = job.cpu_cores;
  if (job.memory_mb) body.memory_mb = job.memory_mb;
  if (job.max_runtime_minutes) body.max_runtime_minutes = job.max_runtime_minutes;
  if (job.image) body.image = job.image;
  if (job.working_directory) body.working_directory = job.working_directory;
  if (job.runner && job.runner !== "process") body.runner = job.runner as NonNullable<JobRequest["runner"]>;
  if (job.pool === "online") body.pool = job.pool;
  if (!job.preemptible) body.preemptible = false;
  if (job.interactive) body.interactive = true;
  if (job.retries) body.retries = job.retries;
  if (job.output) body.output = job.output;
  if (job.array) body.array = `${job.array.tasks}${job.array.max_running ? `%${job.array.max_running}` : ""}`;
  if (job.members > 1) Object.assign(body, { members: job.members, gang_scheduling: true, gpu_count: job.gpu_count / job.members });
  const shown = Object.entries(job.environment).filter(([, value]) => value !== HIDDEN);
  if (shown.length) body.environment = Object.fromEntries(shown);
  if (shown.length < Object.keys(job.environment).length) left.push("hidden values of environment variables");
  if (job.dependencies.length) left.push("its dependencies");
  if (job.snapshot) left.push("its snapshot of the code");
  return { body, left };
}

function clock(seconds: number): string {
  const whole = Math.round(seconds);
  const two = (value: number): string => String(value).padStart(2, "0");
  return `${two(Math.floor(whole / 3600))}:${two(Math.floor((whole % 3600) / 60))}:${two(whole % 60)}`;
}

// The line of tgpu for a job, or null if only a job file can say all of it.
export function tgpuLine(body: JobRequest, params: Params = {}): string | null {
  const options: string[] = [];
  const add = (...parts: string[]): number => options.push(...parts.map(quoted));
  for (const [name, value] of Object.entries(body) as [keyof JobRequest, unknown][]) {
    if (value === null || value === undefined || name === "command" || name === "gang_scheduling") continue;
    if (name === "gpu_count") add("-G", String(value));
    else if (name === "gpu_models") add("--gpu-model", (value as string[]).join(","));
    else if (name === "gpu_model") add("--gpu-model", String(value));
    else if (name === "gpu_memory_mb") add("--gpu-memory", `${value as number}M`);
    else if (name === "max_runtime_minutes") add("-t", clock((value as number) * 60));
    else if (name === "max_runtime_seconds") add("-t", clock(value as number));
    else if (name === "estimate_seconds") add("--estimate", clock(value as number));
    else if (name === "cpu_cores") add("-c", String(value));
    else if (name === "memory_mb") add("-m", `${value as number}M`);
    else if (name === "name") add("-J", String(value));
    else if (name === "priority" && (typeof value === "string" || (value as number) > 10)) add("-p", PRIORITIES.get(value as number) ?? String(value));
    else if (name === "tenant_id") add("-T", String(value));
    else if (name === "image") add("--image", String(value));
    else if (name === "runner") add("--runner", String(value));
    else if (name === "working_directory") add("-D", String(value));
    else if (name === "output") add("-o", String(value));
    else if (name === "array" && typeof value === "string") add("-a", value);
    else if (name === "retries") add("--retries", String(value));
    else if (name === "members" && typeof value === "number") add("-N", String(value));
    else if (name === "min_members") add("--min-members", String(value));
    else if (name === "pool") add("--pool", String(value));
    else if (name === "topology") add("--topology", String(value));
    else if (name === "sweep") add("--sweep", String(value));
    else if (name === "environment") for (const [key, text] of Object.entries(value as Record<string, string>)) add("-e", `${key}=${text}`);
    else if (name === "hold" || name === "exclusive" || name === "contiguous" || name === "interactive") {
      if (value) add(`--${name}`);
    } else if (name === "preemptible") {
      if (!value) add("--no-preempt");
    } else return null;
  }
  for (const [name, values] of Object.entries(params)) add("--param", `${name}=${values.join(",")}`);
  return ["tgpu submit", ...options, "--", line(body.command ?? [])].join(" ");
}

export function jobFile(body: JobRequest): string {
  return JSON.stringify(body, null, 2);
}

// The same as a program; JSON and Python write most values alike.
export function pythonText(body: JobRequest, params: Params = {}): string {
  const { command, ...fields } = body;
  const arguments_ = Object.entries(fields).map(([name, value]) => `${name}=${pythonValue(value)}`);
  if (!Object.keys(params).length) {
    const given = [pythonValue(command ?? []), ...arguments_].map((text) => `    ${text},`).join("\n");
    return `from gpu_scheduler import Client\n\nwith Client() as client:\n    job = client.submit(\n${given.replaceAll(/^/gm, "    ")}\n    )\n    print(job.id)\n`;
  }
  const loops = Object.entries(params).map(([key, values]) => `    ${pythonValue(key)}: ${pythonValue(values)},`);
  const filled = `[word.format(**values) for word in ${pythonValue(command ?? [])}]`;
  const rest = arguments_.filter((text) => !text.startsWith("sweep="));
  return [
    "from itertools import product",
    "from gpu_scheduler import Client",
    "",
    "params = {",
    ...loops,
    "}",
    "rows = [dict(zip(params, row)) for row in product(*params.values())]",
    "with Client() as client:",
    "    jobs = client.submit_many(",
    `        dict(command=${filled}, params=values, sweep=${pythonValue(fields.sweep || "my-sweep")}${rest.length ? `, ${rest.join(", ")}` : ""})`,
    "        for values in rows",
    "    )",
    "    print(jobs)",
    "",
  ].join("\n");
}

function pythonValue(value: unknown): string {
  if (value === null || value === undefined) return "None";
  if (typeof value === "boolean") return value ? "True" : "False";
  if (Array.isArray(value)) return `[${value.map(pythonValue).join(", ")}]`;
  if (typeof value === "object") return `{${Object.entries(value).map(([key, one]) => `${JSON.stringify(key)}: ${pythonValue(one)}`).join(", ")}}`;
  return JSON.stringify(value);
}

// Sweeps.

export type Params = Record<string, string[]>;

export function readParams(text: string): Params {
  const params: Params = {};
  for (const row of text.split("\n").map((one) => one.trim()).filter(Boolean)) {
    const match = /^([A-Za-z_]\w*)=(.+)$/.exec(row);
    const name = match?.[1];
    if (!name || !match[2]) throw new Error(`"${row}" is no parameter; write a name and values, as lr=0.1,0.01`);
    if (Object.keys(params).some((other) => other.toUpperCase() === name.toUpperCase())) throw new Error(`parameter "${name}" is there twice`);
    params[name] = match[2].split(",");
  }
  const combinations = Object.values(params).reduce((product, values) => product * values.length, 1);
  if (combinations > MOST_COMBINATIONS) throw new Error(`${combinations} combinations; at most ${MOST_COMBINATIONS} are sent at once`);
  return params;
}

export function combinations(params: Params): Record<string, string>[] {
  let rows: Record<string, string>[] = [{}];
  for (const [name, values] of Object.entries(params)) rows = rows.flatMap((row) => values.map((value) => ({ ...row, [name]: value })));
  return rows;
}

// One job of a sweep: as tgpu submit fills it in.
export function filledIn(body: JobRequest, values: Record<string, string>, sweep: string): JobRequest {
  const fill = (text: string): string => text.replace(/\{([A-Za-z_]\w*)\}/g, (all, name: string) => values[name] ?? all);
  const label = Object.entries(values)
    .map(([name, value]) => `${name}=${value}`)
    .join(",");
  const name = body.name ? fill(body.name) : "";
  const made: JobRequest = { ...body, name: (name && name !== body.name ? name : `${body.name ?? ""} ${label}`.trim()).slice(0, 256), params: values, sweep };
  if (body.command) made.command = body.command.map(fill);
  if (body.output) made.output = fill(body.output);
  if (body.working_directory) made.working_directory = fill(body.working_directory);
  const variables = Object.entries(body.environment ?? {}).map(([key, text]): [string, string] => [key, fill(text)]);
  const own = Object.entries(values).map(([key, text]): [string, string] => [`TGPU_PARAM_${key.toUpperCase()}`, text]);
  made.environment = Object.fromEntries([...variables, ...own, ["TGPU_SWEEP", sweep]]);
  return made;
}

export function sweepName(given: string): string {
  const stem = given.replace(/[^A-Za-z0-9._-]+/g, "-").replace(/^[^A-Za-z]+|[-.]+$/g, "");
  return `${stem || "sweep"}-${[...crypto.getRandomValues(new Uint8Array(3))].map((byte) => byte.toString(16).padStart(2, "0")).join("")}`.slice(-64);
}
