// Submit a job: a form and a job file that are the same job, checked while one types, and answered side by side by the engine.
import type { JSX } from "preact";
import { useEffect, useMemo, useState } from "preact/hooks";
import { ApiError, call, useLive } from "./api";
import type { JobRequest, SupposedJob, Validated, WhatIfForm } from "./api-types";
import { Code, JobLink, Problem, Table, notify } from "./components";
import type { Column } from "./components";
import { count, plural, startTime, time, trim } from "./format";
import { combinations, filledIn, jobFile, line, pythonText, readParams, requestOf, sweepName, tgpuLine, words } from "./jobfile";
import type { Params } from "./jobfile";

const CHECK_AFTER_MS = 400;
const ASK_AFTER_MS = 900;
const MOST_PREVIEWED = 60;
const GPU_STEPS = [1, 2, 4, 8];
const START: JobRequest = { command: ["python", "train.py"], gpu_count: 1, max_runtime_minutes: 240 };

export function Submit({ from }: { from: string }): JSX.Element {
  const [file, setFile] = useState(jobFile(START));
  const [command, setCommand] = useState(line(START.command ?? []));
  const [sweep, setSweep] = useState("");
  const [left, setLeft] = useState<string[]>([]);
  const [error, setError] = useState<ApiError | null>(null);
  const [sent, setSent] = useState<string[]>([]);
  const [isSending, setSending] = useState(false);
  useEffect(() => {
    if (!from) return;
    void call("GET /jobs/{job_id}", { path: { job_id: from } })
      .then((job) => {
        if (job.redacted) throw new ApiError(403, "forbidden", `${from} belongs to ${job.user}; only its own jobs can a user submit again`);
        const found = requestOf(job);
        setFile(jobFile(found.body));
        setCommand(line(found.body.command ?? []));
        setLeft(found.left);
      })
      .catch((problem: unknown) => setError(problem instanceof ApiError ? problem : null));
  }, [from]);
  const read = useMemo(() => readFile(file), [file]);
  const body = read.body;
  const params = useMemo(() => readSweep(sweep), [sweep]);
  const isSweep = Object.keys(params.found).length > 0;
  const jobs = useMemo(() => (body && isSweep ? combinations(params.found).map((values) => filledIn(body, values, "preview")) : []), [body, params, isSweep]);
  const first = isSweep ? (jobs[0] ?? null) : body;
  const checked = useChecked(first);
  // Another field changes one value of the file and leaves the rest as it was written.
  const change = (fields: Partial<Record<keyof JobRequest, unknown>>): void => {
    const made: Record<string, unknown> = { ...(body ?? {}), ...fields };
    for (const [name, value] of Object.entries(made)) if (value === undefined || value === "" || (Array.isArray(value) && value.length === 0 && name !== "command")) delete made[name];
    setFile(jobFile(made as JobRequest));
  };
  const submit = async (): Promise<void> => {
    if (!body) return;
    setSending(true);
    setError(null);
    try {
      if (isSweep) {
        const name = sweepName(body.name ?? "sweep");
        const answer = await call("POST /jobs/bulk", { body: combinations(params.found).map((values) => filledIn(body, values, body.sweep || name)) });
        setSent(answer.job_ids);
        notify(`Submitted ${plural(answer.count, "job")}.`);
      } else {
        const answer = await call("POST /jobs", { body });
        const id = "job_id" in answer ? answer.job_id : "";
        setSent([id]);
        notify(`Submitted ${id}.`);
      }
    } catch (problem) {
      setError(problem instanceof ApiError ? problem : new ApiError(0, "", "the server could not be reached; it is unknown whether it took the job"));
    }
    setSending(false);
  };
  return (
    <>
      <h1>{from ? `Submit ${from} again` : "Submit"}</h1>
      {left.length ? <p class="note">Not taken over: {left.join(", ")}.</p> : null}
      <Problem error={error} />
      {sent.length ? (
        <p class="note note-good" role="status">
          Submitted{" "}
          {sent.slice(0, 5).map((id) => (
            <span key={id}>
              <JobLink id={id} />{" "}
            </span>
          ))}
          {sent.length > 5 ? `and ${count(sent.length - 5)} more` : ""}
        </p>
      ) : null}
      <div class="two">
        <form
          class="card"
          onSubmit={(event) => {
            event.preventDefault();
            void submit();
          }}
        >
          <Fields
            body={body}
            command={command}
            setCommand={(text) => {
              setCommand(text);
              try {
                change({ command: words(text) });
              } catch {
                // Said below the field.
              }
            }}
            change={change}
          />
          <label>
            Sweep: one parameter in a line, as lr=0.1,0.01; use it as {"{lr}"} in the command
            <textarea rows={2} value={sweep} spellcheck={false} onInput={(event) => setSweep(event.currentTarget.value)} />
          </label>
          {params.problem ? <p class="note note-bad">{params.problem}</p> : null}
          <div class="buttons">
            <button type="submit" class="primary" disabled={!body || isSending || checked.error !== null || params.problem !== ""}>
              {isSweep ? `Submit ${plural(jobs.length, "job")}` : "Submit"}
            </button>
          </div>
        </form>
        <section class="card" aria-label="Job file">
          <label>
            Job file (the fields of the REST API)
            <textarea
              rows={14}
              value={file}
              spellcheck={false}
              onInput={(event) => {
                setFile(event.currentTarget.value);
                const { body: typed } = readFile(event.currentTarget.value);
                if (typed?.command) setCommand(line(typed.command));
              }}
            />
          </label>
          <Check problem={read.problem} checked={checked} />
        </section>
      </div>
      {first && !read.problem ? <Answers body={first} isValid={checked.valid !== null} change={change} /> : null}
      {isSweep && body ? <Preview params={params.found} jobs={jobs} /> : null}
      {body ? <Printed body={body} params={params.found} /> : null}
    </>
  );
}

function readFile(text: string): { body: JobRequest | null; problem: string } {
  try {
    const found = JSON.parse(text) as unknown;
    if (found === null || typeof found !== "object" || Array.isArray(found)) return { body: null, problem: "a job file is one object, in braces" };
    const { command } = found as JobRequest;
    if (command !== undefined && !(Array.isArray(command) && command.every((word) => typeof word === "string"))) return { body: null, problem: "command is a list of texts" };
    return { body: found, problem: "" };
  } catch (error) {
    return { body: null, problem: error instanceof Error ? error.message : "not JSON" };
  }
}

function readSweep(text: string): { found: Params; problem: string } {
  try {
    return { found: readParams(text), problem: "" };
  } catch (error) {
    return { found: {}, problem: error instanceof Error ? error.message : "" };
  }
}

// Asks the server a moment after the last change.
interface Checked {
  valid: Validated | null;
  error: ApiError | null;
}
function useChecked(body: JobRequest | null): Checked {
  const text = body ? JSON.stringify(body) : "";
  const [state, setState] = useState<Checked & { text: string }>({ valid: null, error: null, text: "" });
  useEffect(() => {
    if (!text) return undefined;
    const stop = new AbortController();
    const timer = window.setTimeout(() => {
      call("POST /jobs/validate", { body: JSON.parse(text) as JobRequest, signal: stop.signal })
        .then((valid) => setState({ valid, error: null, text }))
        .catch((error: unknown) => {
          if (error instanceof ApiError) setState({ valid: null, error, text });
        });
    }, CHECK_AFTER_MS);
    return () => {
      clearTimeout(timer);
      stop.abort();
    };
  }, [text]);
  return state.text === text ? state : { valid: null, error: null };
}

function Check({ problem, checked }: { problem: string; checked: Checked }): JSX.Element {
  const { valid, error } = checked;
  return (
    <div aria-live="polite" class="check">
      {problem ? (
        <p class="note note-bad">Not a job yet: {problem}</p>
      ) : error ? (
        <p class="note note-bad">{error.message}</p>
      ) : valid ? (
        <>
          <p class="note note-good">
            Would be accepted{valid.position ? `, as number ${valid.position} of the queue` : ""}.{" "}
            {valid.expected_start ? `Expected start ${startTime(valid)}${valid.expected_end ? `, end ${time(valid.expected_end)}` : ""}.` : valid.start_unknown ? `Its start is unknown: ${valid.start_unknown}.` : ""}
          </p>
          {valid.warnings.map((text) => (
            <p key={text} class="note">
              {text}
            </p>
          ))}
        </>
      ) : (
        <p class="muted">Checking…</p>
      )}
    </div>
  );
}

function Fields({ body, command, setCommand, change }: { body: JobRequest | null; command: string; setCommand: (text: string) => void; change: (fields: Partial<Record<keyof JobRequest, unknown>>) => void }): JSX.Element {
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 0, []);
  const models = [...new Set((nodes.data?.nodes ?? []).flatMap((node) => node.gpu_models))].sort();
  let problem = "";
  try {
    words(command);
  } catch (error) {
    problem = error instanceof Error ? error.message : "";
  }
  const number = (text: string): number | undefined => (text === "" || Number.isNaN(Number(text)) ? undefined : Number(text));
  return (
    <div class="form">
      <label class="wide">
        Command
        <input class="mono" value={command} spellcheck={false} disabled={!body} onInput={(event) => setCommand(event.currentTarget.value)} />
      </label>
      {problem ? <p class="note note-bad wide">{problem}</p> : null}
      <label>
        Name
        <input value={body?.name ?? ""} disabled={!body} onInput={(event) => change({ name: event.currentTarget.value })} />
      </label>
      <label>
        GPUs
        <input type="number" min={0} step={0.01} value={body?.gpu_count ?? ""} disabled={!body} onInput={(event) => change({ gpu_count: number(event.currentTarget.value) })} />
      </label>
      <label>
        GPU model
        <select value={body?.gpu_models?.[0] ?? ""} disabled={!body} onChange={(event) => change({ gpu_models: event.currentTarget.value ? [event.currentTarget.value] : [] })}>
          <option value="">any</option>
          {[...new Set([...models, ...(body?.gpu_models ?? [])])].map((model) => (
            <option key={model} value={model}>
              {model}
            </option>
          ))}
        </select>
      </label>
      <label>
        Time limit (minutes)
        <input type="number" min={1} value={body?.max_runtime_minutes ?? ""} disabled={!body} onInput={(event) => change({ max_runtime_minutes: number(event.currentTarget.value) })} />
      </label>
      <label>
        Priority
        <select
          value={String(body?.priority ?? 750)}
          disabled={!body}
          onChange={(event) => change({ priority: event.currentTarget.value === "750" ? undefined : (number(event.currentTarget.value) ?? event.currentTarget.value) })}
        >
          {[["250", "low"], ["750", "normal"], ["1500", "high"], ["2500", "urgent"]].map(([value, name]) => (
            <option key={value} value={value}>
              {name}
            </option>
          ))}
          {["250", "750", "1500", "2500"].includes(String(body?.priority ?? 750)) ? null : <option value={String(body?.priority)}>{String(body?.priority)}</option>}
        </select>
      </label>
      <label>
        CPU cores
        <input type="number" min={0} step={0.5} value={body?.cpu_cores ?? ""} disabled={!body} onInput={(event) => change({ cpu_cores: number(event.currentTarget.value) })} />
      </label>
      <label>
        Memory (MB)
        <input type="number" min={0} value={body?.memory_mb ?? ""} disabled={!body} onInput={(event) => change({ memory_mb: number(event.currentTarget.value) })} />
      </label>
      <label class="wide">
        Directory
        <input class="mono" value={body?.working_directory ?? ""} spellcheck={false} disabled={!body} onInput={(event) => change({ working_directory: event.currentTarget.value })} />
      </label>
    </div>
  );
}

// Side by side: the same job with other requests.

interface Variant {
  label: string;
  fields: Partial<JobRequest>;
}
interface Answered extends Variant {
  answer: SupposedJob;
}

function variantsOf(body: JobRequest, models: string[]): Variant[] {
  const gpus = body.gpu_count ?? 0;
  const minutes = body.max_runtime_minutes;
  const found: Variant[] = [{ label: "as written", fields: {} }];
  for (const other of GPU_STEPS) if (other !== gpus) found.push({ label: plural(other, "GPU"), fields: { gpu_count: other } });
  if (minutes && minutes > 1) found.push({ label: `limit ${trim(minutes / 2, 1)} min`, fields: { max_runtime_minutes: minutes / 2 } });
  const other = models.find((model) => !body.gpu_models?.includes(model));
  if (other && models.length > 1) found.push({ label: other, fields: { gpu_models: [other] } });
  found.push(body.priority === 1500 || body.priority === "high" ? { label: "priority normal", fields: { priority: 750 } } : { label: "priority high", fields: { priority: 1500 } });
  return found.slice(0, 8);
}

function Answers({ body, isValid, change }: { body: JobRequest; isValid: boolean; change: (fields: Partial<JobRequest>) => void }): JSX.Element {
  const nodes = useLive((signal) => call("GET /nodes", { signal }), 0, []);
  const [again, setAgain] = useState(0);
  const [state, setState] = useState<{ answer: WhatIfForm | null; variants: Variant[]; error: ApiError | null; isBusy: boolean }>({ answer: null, variants: [], error: null, isBusy: false });
  const text = JSON.stringify(body);
  const models = [...new Set((nodes.data?.nodes ?? []).flatMap((node) => node.gpu_models))].sort().join("\n");
  useEffect(() => {
    if (!isValid) return undefined;
    const stop = new AbortController();
    let retry = 0;
    const timer = window.setTimeout(() => {
      const job = JSON.parse(text) as JobRequest;
      const variants = variantsOf(job, models.split("\n"));
      setState((old) => ({ ...old, isBusy: true }));
      call("POST /what-if", { body: { jobs: variants.map((one) => ({ ...job, ...one.fields })) }, signal: stop.signal })
        .then((answer) => setState({ answer, variants, error: null, isBusy: false }))
        .catch((error: unknown) => {
          // The answer to what was typed before is still being made.
          if (error instanceof ApiError && error.status === 429) retry = window.setTimeout(() => setAgain((old) => old + 1), 1000);
          else if (error instanceof ApiError) setState((old) => ({ ...old, error, isBusy: false }));
        });
    }, ASK_AFTER_MS);
    return () => {
      clearTimeout(timer);
      clearTimeout(retry);
      stop.abort();
    };
  }, [text, models, isValid, again]);
  const rows: Answered[] = (state.answer?.jobs ?? []).flatMap((answer, place) => {
    const variant = state.variants[place];
    return variant ? [{ ...variant, answer }] : [];
  });
  const currency = state.answer?.currency ?? "";
  const columns: Column<Answered>[] = [
    { name: "With", of: (row) => row.label },
    { name: "Expected start", of: ({ answer }) => startText(answer) },
    { name: "Expected end", of: ({ answer }) => (answer.error ? "" : answer.expected_end ? time(answer.expected_end) : answer.expected_start && answer.latest_end ? `by ${time(answer.latest_end)}` : "unknown") },
    { name: "Cost of GPUs", of: ({ answer }) => (!answer.cost ? "–" : `${trim(answer.cost)} ${currency}`), right: true },
    { name: "Delays", of: ({ answer }) => (answer.effect?.later ? plural(answer.effect.later, "job") : answer.error ? "" : "nobody") },
    { name: "Where, or why not", of: ({ answer }) => <span class="muted">{answer.error || reasonText(answer)}</span>, wrap: true },
    {
      name: "",
      of: (row) =>
        Object.keys(row.fields).length && !row.answer.error ? (
          <button type="button" class="small" aria-label={`Take ${row.label}`} onClick={() => change(row.fields)}>
            Take
          </button>
        ) : null,
    },
  ];
  return (
    <section class="card" aria-label="Side by side" aria-busy={state.isBusy}>
      <div class="toolbar">
        <h2>Side by side</h2>
        <button type="button" class="small" onClick={() => setAgain(again + 1)}>
          Ask again
        </button>
        <span class="muted" role="status">
          {state.isBusy ? "The engine rolls the cluster forward…" : ""}
        </span>
      </div>
      <Problem error={state.error} />
      {rows.length ? <Table label="Answers" columns={columns} rows={rows} id={(row) => row.label} /> : <p class="muted">As soon as the job is valid, the engine answers here when it and its variants would start.</p>}
      {state.answer?.cut.map((text) => (
        <p key={text} class="note">
          {text}
        </p>
      ))}
    </section>
  );
}

function startText(answer: SupposedJob): string {
  if (answer.error) return "rejected";
  if (!answer.expected_start) return "unknown";
  return `${answer.depends_on.length ? "about " : ""}${Date.parse(answer.expected_start) - Date.now() < 5000 ? "now" : startTime(answer)}`;
}

function reasonText(answer: SupposedJob): string {
  if (answer.start_unknown) return answer.start_unknown;
  if (answer.depends_on.length) return `depends on the unknown end of ${answer.depends_on.join(", ")}`;
  return answer.places.map((place) => `${place.node}[${place.gpu_ids.join(",")}]`).join(" ");
}

function Preview({ params, jobs }: { params: Params; jobs: JobRequest[] }): JSX.Element {
  const names = Object.keys(params);
  const columns: Column<JobRequest>[] = [...names.map((name): Column<JobRequest> => ({ name, of: (job) => job.params?.[name] ?? "" })), { name: "Command", of: (job) => <span class="mono">{line(job.command ?? [])}</span>, grow: true }];
  const [rows, across] = names;
  return (
    <section class="card" aria-label="Sweep">
      <h2>Sweep of {plural(jobs.length, "job")}</h2>
      {names.length === 2 && rows && across ? (
        <div class="scroll" tabIndex={0} role="region" aria-label="Grid">
          <table>
            <thead>
              <tr>
                <th scope="col">
                  {rows} \ {across}
                </th>
                {params[across]?.map((value) => (
                  <th key={value} scope="col">
                    {value}
                  </th>
                ))}
              </tr>
            </thead>
            <tbody>
              {params[rows]?.map((value) => (
                <tr key={value}>
                  <th scope="row">{value}</th>
                  {params[across]?.map((other) => (
                    <td key={other} class="mono">
                      {line(jobs.find((job) => job.params?.[rows] === value && job.params[across] === other)?.command ?? [])}
                    </td>
                  ))}
                </tr>
              ))}
            </tbody>
          </table>
        </div>
      ) : (
        <Table label="Grid" columns={columns} rows={jobs.slice(0, MOST_PREVIEWED)} id={(job) => JSON.stringify(job.params)} />
      )}
      {names.length !== 2 && jobs.length > MOST_PREVIEWED ? <p class="muted">and {count(jobs.length - MOST_PREVIEWED)} more</p> : null}
    </section>
  );
}

function Printed({ body, params }: { body: JobRequest; params: Params }): JSX.Element {
  const command = tgpuLine(body, params);
  return (
    <div class="two">
      <section class="card" aria-label="Command line">
        <h2>As a command</h2>
        <Code text={command ?? `tgpu submit job.json   # with this file:\n${jobFile(body)}`} />
      </section>
      <section class="card" aria-label="Python">
        <h2>As Python</h2>
        <Code text={pythonText(body, params)} />
      </section>
    </div>
  );
}
