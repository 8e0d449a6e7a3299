// Calls the REST API. Paths, bodies and answers have the types that are generated from the server.
import { signal } from "@preact/signals";
import { useEffect, useRef, useState } from "preact/hooks";
import type { Bodies, ErrorForm, Myself, Responses } from "./api-types";

const API = "/api/v1";
type Values = Record<string, string | number | boolean | null | undefined>;
export type Key = keyof Responses;
export interface Options<K extends Key> {
  path?: Record<string, string | number>;
  query?: Values;
  body?: K extends keyof Bodies ? Bodies[K] : undefined;
  signal?: AbortSignal;
}

// Whether the last call reached the server, and whether it must ask for a token.
export const online = signal(true);
export const needsLogin = signal(false);
export const me = signal<Myself | null>(null);

export class ApiError extends Error {
  constructor(
    readonly status: number,
    readonly code: string,
    message: string,
  ) {
    super(message);
  }
}

export function address(path: string, values: Record<string, string | number> = {}, query: Values = {}): string {
  const filled = path.replace(/\{(\w+)\}/g, (_, name: string) => encodeURIComponent(String(values[name] ?? "")));
  const words = new URLSearchParams();
  for (const [name, value] of Object.entries(query)) {
    if (value !== undefined && value !== null && value !== "") words.set(name, String(value));
  }
  const text = words.toString();
  return API + filled + (text ? `?${text}` : "");
}

export async function call<K extends Key>(key: K, options: Options<K> = {}): Promise<Responses[K]> {
  const [method, path] = key.split(" ") as [string, string];
  const request: RequestInit = { method, credentials: "same-origin" };
  if (options.signal) request.signal = options.signal;
  const headers: Record<string, string> = {};
  if (options.body !== undefined) {
    request.body = JSON.stringify(options.body);
    headers["content-type"] = "application/json";
  }
  // A repeated request (a double click, a lost answer) then changes nothing twice.
  if (method !== "GET" && !/token|session|validate|what-if/.test(path)) {
    headers["idempotency-key"] = crypto.getRandomValues(new Uint32Array(4)).join("-");
  }
  request.headers = headers;
  let response: Response;
  try {
    response = await fetch(address(path, options.path, options.query), request);
  } catch (error) {
    if (!(error instanceof DOMException && error.name === "AbortError")) online.value = false;
    throw error;
  }
  online.value = true;
  if (!response.ok) throw await asError(response);
  return (await response.json()) as Responses[K];
}

export async function asError(response: Response): Promise<ApiError> {
  let form: Partial<ErrorForm> = {};
  try {
    form = (await response.json()) as ErrorForm;
  } catch {
    // Not one of our answers; the status has to do.
  }
  if (response.status === 401) needsLogin.value = true;
  return new ApiError(response.status, form.code ?? "", form.error ?? `the server answered ${response.status}`);
}

export interface Live<T> {
  data: T | null;
  error: ApiError | null;
  refresh: () => void;
}

// Asks again every `everyMs` while the page is visible; keeps the last answer if the server is away.
export function useLive<T>(ask: (signal: AbortSignal) => Promise<T>, everyMs: number, inputs: unknown[]): Live<T> {
  const [state, setState] = useState<{ data: T | null; error: ApiError | null }>({ data: null, error: null });
  const again = useRef<() => void>(() => undefined);
  useEffect(() => {
    const stop = new AbortController();
    let timer = 0;
    let busy = false;
    const run = async (): Promise<void> => {
      clearTimeout(timer);
      if (busy) return;
      busy = true;
      try {
        const data = await ask(stop.signal);
        if (!stop.signal.aborted) setState({ data, error: null });
      } catch (error) {
        if (!stop.signal.aborted && error instanceof ApiError) setState((old) => ({ data: old.data, error }));
      }
      busy = false;
      if (!stop.signal.aborted && everyMs > 0) timer = window.setTimeout(run, document.hidden ? everyMs * 10 : everyMs);
    };
    const wake = (): void => {
      if (!document.hidden && everyMs > 0) void run();
    };
    again.current = () => void run();
    document.addEventListener("visibilitychange", wake);
    void run();
    return () => {
      stop.abort();
      clearTimeout(timer);
      document.removeEventListener("visibilitychange", wake);
    };
  }, inputs);
  return { ...state, refresh: () => again.current() };
}
