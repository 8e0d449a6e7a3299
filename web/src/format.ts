// Numbers and times as people read them.
const clock = new Intl.DateTimeFormat(undefined, { hour: "2-digit", minute: "2-digit", hourCycle: "h23" });
const day = new Intl.DateTimeFormat(undefined, { weekday: "short", day: "numeric", month: "short" });

export function duration(seconds: number): string {
  const s = Math.max(0, Math.round(seconds));
  if (s < 60) return `${s} s`;
  if (s < 3600) return `${Math.floor(s / 60)} min${s % 60 && s < 180 ? ` ${s % 60} s` : ""}`;
  if (s < 86400) return `${Math.floor(s / 3600)} h${Math.floor((s % 3600) / 60) ? ` ${Math.floor((s % 3600) / 60)} min` : ""}`;
  return `${Math.floor(s / 86400)} d${Math.floor((s % 86400) / 3600) ? ` ${Math.floor((s % 86400) / 3600)} h` : ""}`;
}

export function time(text: string | null | undefined): string {
  if (!text) return "–";
  const at = new Date(text);
  return at.toDateString() === new Date().toDateString() ? clock.format(at) : `${day.format(at)}, ${clock.format(at)}`;
}

export function since(text: string | null | undefined, until: number = Date.now()): string {
  return text ? duration((until - Date.parse(text)) / 1000) : "–";
}

export function until(text: string | null | undefined): string {
  if (!text) return "–";
  const seconds = (Date.parse(text) - Date.now()) / 1000;
  return seconds <= 5 ? "now" : `in ${duration(seconds)}`;
}

// "in 40 min to 1 h 10 min": when something should happen, as a range if one is known.
export function untilRange(text: string | null, earliest: string | null, latest: string | null): string {
  if (!text || !earliest || !latest || isNarrow(earliest, latest)) return until(text);
  const [first, last] = [until(earliest), until(latest)];
  if (first === last) return first;
  return last === "now" ? "now" : `${first} to ${last.replace(/^in /, "")}`;
}

const NARROW_MS = 600_000;

/** A range of expected starts of less than ten minutes is shown as a point. */
export function isNarrow(earliest: string, latest: string): boolean {
  return Date.parse(latest) - Date.parse(earliest) < NARROW_MS;
}

/** The expected start of a job with its range; a narrow one is shown as a point. */
export function startTime(of: { expected_start?: string | null; expected_start_earliest?: string | null; expected_start_latest?: string | null }): string {
  const { expected_start: likely, expected_start_earliest: earliest, expected_start_latest: latest } = of;
  const text = `${time(likely)} (${until(likely)})`;
  if (!likely || !earliest || !latest || isNarrow(earliest, latest)) return text;
  return `likely ${text}, 80 % of such jobs start from ${time(earliest)} to ${time(latest)}`;
}

export function memory(mb: number | null | undefined): string {
  if (mb === null || mb === undefined) return "–";
  return mb < 1024 ? `${mb} MB` : `${trim(mb / 1024, mb < 10240 ? 1 : 0)} GB`;
}

export function trim(value: number, digits = 2): string {
  return String(Number(value.toFixed(digits)));
}

export function count(value: number): string {
  return value.toLocaleString("en-GB").replaceAll(",", "\u202f");
}

export function plural(value: number, one: string, many = `${one}s`): string {
  return `${count(value)} ${value === 1 ? one : many}`;
}

// A colour for each user or tenant, the same everywhere: a hue from the name.
export function hue(name: string): number {
  let hash = 2166136261;
  for (let i = 0; i < name.length; i += 1) hash = Math.imul(hash ^ name.charCodeAt(i), 16777619);
  return ((hash >>> 0) * 137.508) % 360;
}
