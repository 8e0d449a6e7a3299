// Small parts that several pages use.
import { signal } from "@preact/signals";
import type { ComponentChildren, JSX } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "./api";
import { hue } from "./format";

export function State({ state }: { state: string }): JSX.Element {
  return <span class={`state state-${state.replace(/[^a-z-]/g, "")}`}>{state}</span>;
}

export function Who({ name }: { name: string }): JSX.Element {
  const dot = useRef<HTMLSpanElement>(null);
  useLayoutEffect(() => dot.current?.style.setProperty("--hue", String(hue(name))), [name]);
  return (
    <span class="who">
      <span class="dot" ref={dot} aria-hidden="true" />
      {name}
    </span>
  );
}

export function JobLink({ id, children }: { id: string; children?: ComponentChildren }): JSX.Element {
  return <a href={`#/jobs/${encodeURIComponent(id)}`}>{children ?? id}</a>;
}

// A bar from 0 to 1; the number beside it says the same in words.
export function Meter({ label, value, text, tone }: { label: string; value: number | null; text: string; tone?: string }): JSX.Element {
  const bar = useRef<HTMLSpanElement>(null);
  useLayoutEffect(() => bar.current?.style.setProperty("--part", String(Math.min(1, Math.max(0, value ?? 0)))), [value]);
  return (
    <div class="meter">
      <span class="meter-label">{label}</span>
      <span class={`meter-bar ${tone ?? ""} ${value === null ? "meter-none" : ""}`} ref={bar} aria-hidden="true" />
      <span class="meter-text">{text}</span>
    </div>
  );
}

export function Empty({ title, children }: { title: string; children?: ComponentChildren }): JSX.Element {
  return (
    <div class="empty">
      <h2>{title}</h2>
      {children}
    </div>
  );
}

export function Problem({ error }: { error: ApiError | null }): JSX.Element | null {
  return error && error.status !== 401 ? (
    <p class="note note-bad" role="alert">
      {error.message}
    </p>
  ) : null;
}

export function Facts({ of }: { of: [string, ComponentChildren][] }): JSX.Element {
  return (
    <dl class="facts">
      {of
        .filter(([, value]) => value !== null && value !== undefined && value !== "" && !(Array.isArray(value) && value.length === 0))
        .map(([name, value]) => (
          <div key={name}>
            <dt>{name}</dt>
            <dd>{value}</dd>
          </div>
        ))}
    </dl>
  );
}

export type Figure = [value: string, name: string, link?: string, foot?: string];

// The numbers that matter most, with their names.
export function Figures({ of }: { of: Figure[] }): JSX.Element {
  return (
    <ul class="figures">
      {of.map(([value, name, link, foot]) => (
        <li key={name}>
          <strong>{value}</strong>
          {link ? <a href={link}>{name}</a> : <span>{name}</span>}
          {foot ? <small class="muted">{foot}</small> : null}
        </li>
      ))}
    </ul>
  );
}

export function Code({ text }: { text: string }): JSX.Element {
  const copy = (): void => {
    void navigator.clipboard?.writeText(text).then(() => notify("Copied."));
  };
  return (
    <div class="code">
      <pre tabIndex={0}>{text}</pre>
      <button type="button" class="small" onClick={copy}>
        Copy
      </button>
    </div>
  );
}

// Tables whose rows are all shown.

export interface Column<T> {
  name: string;
  of: (row: T) => ComponentChildren;
  right?: boolean;
  grow?: boolean;
  wrap?: boolean;
  title?: string;
  sort?: string;
  key?: string;
}

export function Table<T>({ columns, rows, id, label }: { columns: Column<T>[]; rows: T[]; id: (row: T) => string; label: string }): JSX.Element {
  return (
    <div class="scroll" tabIndex={0} role="region" aria-label={label}>
      <table>
        <thead>
          <tr>
            {columns.map((column) => (
              <th key={column.key ?? column.name} scope="col" title={column.title} class={`${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`}>
                {column.name}
              </th>
            ))}
          </tr>
        </thead>
        <tbody>
          {rows.map((row) => (
            <tr key={id(row)}>
              {columns.map((column) => (
                <td key={column.key ?? column.name} class={`${column.right ? "right" : ""} ${column.grow ? "grow" : ""} ${column.wrap ? "wrap" : ""}`}>
                  {column.of(row)}
                </td>
              ))}
            </tr>
          ))}
        </tbody>
      </table>
    </div>
  );
}

// A table of any length: only the rows in view are in the page.

export const ROW_PX = 34;
const SPARE_ROWS = 12;

interface Windowed<T> {
  columns: Column<T>[];
  total: number;
  offset: number;
  rows: T[];
  id: (row: T) => string;
  label: string;
  sort: string;
  onSort?: (sort: string) => void;
  onWindow?: (first: number, count: number) => void;
  rowClass?: (row: T, index: number) => string;
  current?: string;
}

export function WindowedTable<T>(props: Windowed<T>): JSX.Element {
  const { columns, total, offset, rows, id, label, sort, onSort, onWindow, rowClass, current } = props;
  const box = useRef<HTMLDivElement>(null);
  const [view, setView] = useState({ first: 0, count: 60 });
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    let frame = 0;
    const measure = (): void => {
      cancelAnimationFrame(frame);
      frame = requestAnimationFrame(() => {
        const first = Math.max(0, Math.floor(element.scrollTop / ROW_PX) - SPARE_ROWS);
        const rowsInView = Math.ceil(element.clientHeight / ROW_PX) + 2 * SPARE_ROWS;
        setView((old) => (old.first === first && old.count === rowsInView ? old : { first, count: rowsInView }));
        onWindow?.(first, rowsInView);
      });
    };
    measure();
    element.addEventListener("scroll", measure, { passive: true });
    const size = new ResizeObserver(measure);
    size.observe(element);
    return () => {
      cancelAnimationFrame(frame);
      element.removeEventListener("scroll", measure);
      size.disconnect();
    };
  }, [onWindow]);
  const first = Math.min(Math.max(view.first, offset), Math.max(offset, offset + rows.length));
  const last = Math.min(view.first + view.count, offset + rows.length);
  const shown = rows.slice(first - offset, Math.max(first, last) - offset);
  return (
    <div class="scroll windowed" ref={box} tabIndex={0} role="region" aria-label={label}>
      <table aria-rowcount={total + 1}>
        <thead>
          <tr aria-rowindex={1}>
            {columns.map((column) => (
              <Heading key={column.key ?? column.name} column={column} sort={sort} onSort={onSort} />
            ))}
          </tr>
        </thead>
        <tbody>
          <Spacer rows={first} columns={columns.length} />
          {shown.map((row, place) => (
            <tr
              key={id(row)}
              aria-rowindex={first + place + 2}
              class={`${rowClass?.(row, first + place) ?? ""} ${current === id(row) ? "current" : ""}`}
            >
              {columns.map((column) => (
                <td key={column.key ?? column.name} class={`${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`}>
                  {column.of(row)}
                </td>
              ))}
            </tr>
          ))}
          <Spacer rows={Math.max(0, total - first - shown.length)} columns={columns.length} />
        </tbody>
      </table>
    </div>
  );
}

function Heading<T>({ column, sort, onSort }: { column: Column<T>; sort: string; onSort: ((sort: string) => void) | undefined }): JSX.Element {
  const isUp = sort === column.sort;
  const isDown = sort === `-${column.sort}`;
  const side = `${column.right ? "right" : ""} ${column.grow ? "grow" : ""}`;
  if (!column.sort || !onSort) {
    return (
      <th scope="col" class={side}>
        {column.name || <span class="hidden">select</span>}
      </th>
    );
  }
  const next = isUp ? `-${column.sort}` : column.sort;
  return (
    <th scope="col" class={side} aria-sort={isUp ? "ascending" : isDown ? "descending" : "none"}>
      <button type="button" class="heading" onClick={() => onSort(next)}>
        {column.name}
        <span aria-hidden="true">{isUp ? " ↑" : isDown ? " ↓" : ""}</span>
      </button>
    </th>
  );
}

function Spacer({ rows, columns }: { rows: number; columns: number }): JSX.Element | null {
  const cell = useRef<HTMLTableCellElement>(null);
  useLayoutEffect(() => {
    if (cell.current) cell.current.style.height = `${rows * ROW_PX}px`;
  }, [rows]);
  return rows > 0 ? (
    <tr class="spacer" aria-hidden="true">
      <td ref={cell} colSpan={columns} />
    </tr>
  ) : null;
}

// Messages at the edge, and questions.

interface Toast {
  number: number;
  text: string;
  bad: boolean;
  undo?: () => void;
}
const toasts = signal<Toast[]>([]);
let nextToast = 1;

export function notify(text: string, options: { bad?: boolean; undo?: () => void } = {}): void {
  const toast: Toast = { number: nextToast, text, bad: options.bad ?? false };
  if (options.undo) toast.undo = options.undo;
  nextToast += 1;
  toasts.value = [...toasts.value.slice(-3), toast];
  window.setTimeout(() => dismiss(toast.number), options.undo || options.bad ? 12_000 : 5_000);
}

function dismiss(number: number): void {
  toasts.value = toasts.value.filter((one) => one.number !== number);
}

export function Toasts(): JSX.Element {
  return (
    <div class="toasts" role="status" aria-live="polite">
      {toasts.value.map((toast) => (
        <div key={toast.number} class={`toast ${toast.bad ? "toast-bad" : ""}`}>
          <span>{toast.text}</span>
          {toast.undo ? (
            <button
              type="button"
              class="small"
              onClick={() => {
                dismiss(toast.number);
                toast.undo?.();
              }}
            >
              Undo
            </button>
          ) : null}
          <button type="button" class="small plain" aria-label="Dismiss" onClick={() => dismiss(toast.number)}>
            ×
          </button>
        </div>
      ))}
    </div>
  );
}

// Runs a change and tells how it went; returns whether it was made.
export async function attempt(change: () => Promise<unknown>, done: string, undo?: () => void): Promise<boolean> {
  try {
    await change();
    notify(done, undo ? { undo } : {});
    return true;
  } catch (error) {
    notify(error instanceof Error ? error.message : "the server could not be reached", { bad: true });
    return false;
  }
}

export interface Field {
  name: string;
  label: string;
  value?: string;
  type?: "text" | "number" | "datetime-local" | "checkbox";
  options?: readonly string[];
  needed?: boolean;
}
export type Answers = Record<string, string>;

interface Question {
  title: string;
  text: string;
  yes: string;
  danger: boolean;
  fields: Field[];
  answer: (values: Answers | null) => void;
}
const question = signal<Question | null>(null);

// Asks for several values before something is changed; null if the person says no. A checked box is "yes".
export function askFor(title: string, text: string, yes: string, fields: Field[], danger = false): Promise<Answers | null> {
  return new Promise((answer) => {
    question.value = { title, text, yes, danger, fields, answer };
  });
}

// Asks before something is changed; null if the person says no.
export async function ask(title: string, text: string, yes: string, options: { danger?: boolean; input?: { label: string; value: string } } = {}): Promise<string | null> {
  const fields = options.input ? [{ name: "value", ...options.input }] : [];
  const values = await askFor(title, text, yes, fields, options.danger);
  return values && (values["value"] ?? "");
}

export function QuestionDialog(): JSX.Element | null {
  const asked = question.value;
  const dialog = useRef<HTMLDialogElement>(null);
  const form = useRef<HTMLFormElement>(null);
  useEffect(() => {
    if (asked && dialog.current && !dialog.current.open) dialog.current.showModal();
  }, [asked]);
  if (!asked) return null;
  const close = (values: Answers | null): void => {
    question.value = null;
    asked.answer(values);
  };
  return (
    <dialog ref={dialog} aria-labelledby="question-title" onCancel={() => close(null)}>
      <form
        ref={form}
        method="dialog"
        onSubmit={(event) => {
          event.preventDefault();
          const entries = form.current ? [...new FormData(form.current).entries()] : [];
          close(Object.fromEntries(entries.map(([name, value]) => [name, String(value)])));
        }}
      >
        <h2 id="question-title">{asked.title}</h2>
        <p>{asked.text}</p>
        <div class={asked.fields.length > 2 ? "form" : ""}>
          {asked.fields.map((field) => (
            <AskedField key={field.name} field={field} />
          ))}
        </div>
        <div class="buttons">
          <button type="button" onClick={() => close(null)}>
            Back
          </button>
          <button type="submit" class={asked.danger ? "danger" : "primary"}>
            {asked.yes}
          </button>
        </div>
      </form>
    </dialog>
  );
}

function AskedField({ field }: { field: Field }): JSX.Element {
  if (field.type === "checkbox") {
    return (
      <label class="inline">
        <input type="checkbox" name={field.name} value="yes" defaultChecked={field.value === "yes"} /> {field.label}
      </label>
    );
  }
  return (
    <label>
      {field.label}
      {field.options ? (
        <select name={field.name} defaultValue={field.value}>
          {field.options.map((one) => (
            <option key={one} value={one} selected={one === field.value}>
              {one}
            </option>
          ))}
        </select>
      ) : (
        <input name={field.name} type={field.type ?? "text"} step={field.type === "number" ? "any" : undefined} required={field.needed} defaultValue={field.value ?? ""} />
      )}
    </label>
  );
}
