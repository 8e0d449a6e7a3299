// Lines drawn by uPlot, and the same figures as a table for those who do not see them.
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import uPlot from "uplot";
import { Table } from "./components";
import { duration, time, trim } from "./format";

export interface Series {
  name: string;
  values: (number | null)[];
  dashed?: boolean;
}

// What the points are: seconds since 1970, seconds since a start, durations on a logarithmic axis, or numbers of nodes.
export type Axis = "time" | "elapsed" | "log" | "nodes";

interface Drawn {
  label: string;
  note?: string;
  points: number[];
  series: Series[];
  unit: string;
  axis?: Axis;
  height?: number;
  steps?: boolean;
  until?: number;
}

const LEAST_SECONDS = 60;
export const COLOURS = ["--bar", "--wait", "--good", "--other", "--bad", "--muted"];
const POINT_NAMES: Record<Axis, string> = { time: "Time", elapsed: "Since the start", log: "Up to", nodes: "Nodes" };
const MINUTE = 60;
const HOUR = 3600;
const DAY = 86_400;
const ELAPSED_STEPS = [1, 2, 5, 10, 15, 30, ...[1, 2, 5, 10, 15, 30].map((n) => n * MINUTE), ...[1, 2, 3, 6, 12].map((n) => n * HOUR), ...[1, 2, 7, 14, 28, 91, 182, 365].map((n) => n * DAY)];
const LOG_STEPS = [1, 10, MINUTE, 10 * MINUTE, HOUR, 6 * HOUR, DAY, 7 * DAY, 30 * DAY, 365 * DAY];

function pointText(axis: Axis, point: number): string {
  if (axis === "time") return time(new Date(point * 1000).toISOString());
  return axis === "nodes" ? String(point) : duration(point);
}

export function Chart({ label, note, points, series, unit, axis = "time", height = 200, steps = false, until }: Drawn): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const [isOpen, setOpen] = useState(false);
  const shape = series.map((one) => `${one.name} ${one.dashed ?? false}`).join("\n");
  const data = drawable(points, series, axis, steps ? until : undefined);
  useEffect(() => {
    const box = place.current;
    if (!box) return undefined;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const draw = (): void => {
      plot.current?.destroy();
      plot.current = new uPlot(options(series, unit, axis, box.clientWidth, height, steps), plot.current?.data ?? data, box);
    };
    draw();
    const size = new ResizeObserver(() => plot.current?.setSize({ width: box.clientWidth, height }));
    size.observe(box);
    dark.addEventListener("change", draw);
    return () => {
      size.disconnect();
      dark.removeEventListener("change", draw);
      plot.current?.destroy();
      plot.current = null;
    };
  }, [shape, unit, axis, height, steps]);
  useEffect(() => plot.current?.setData(data), [points, series, until]);
  return (
    <figure class="chart" aria-label={label}>
      <figcaption>{label}</figcaption>
      {note ? <p class="muted">{note}</p> : null}
      <div ref={place} aria-hidden="true" />
      <details onToggle={(event) => setOpen(event.currentTarget.open)}>
        <summary>As a table</summary>
        {isOpen ? (
          <Table
            label={label}
            rows={points.map((point, row) => ({ point, row }))}
            id={({ row }) => String(row)}
            columns={[
              { name: POINT_NAMES[axis], of: ({ point }) => pointText(axis, point) },
              ...series.map((one) => ({ name: `${one.name} (${unit})`, right: true, of: ({ row }: { row: number }) => figure(one.values[row] ?? null) })),
            ]}
          />
        ) : null}
      </details>
    </figure>
  );
}

// A step lasts to the next one, so the last needs an end; one point alone has no width.
function drawable(points: number[], series: Series[], axis: Axis, until: number | undefined): uPlot.AlignedData {
  const last = points.at(-1);
  if (last !== undefined && until !== undefined && until > last) return [[...points, until], ...series.map((one) => [...one.values, one.values.at(-1) ?? null])];
  if (last !== undefined && points.length === 1 && axis === "time") return [[last, last + LEAST_SECONDS], ...series.map((one) => [...one.values, null])];
  return [points, ...series.map((one) => one.values)];
}

function figure(value: number | null): string {
  return value === null ? "–" : trim(value, 2);
}

function options(series: Series[], unit: string, axis: Axis, width: number, height: number, steps: boolean): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const css = (name: string): string => style.getPropertyValue(name).trim();
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  const rule = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: `11px ${css("--font")}` };
  return {
    width,
    height,
    series: [
      { label: POINT_NAMES[axis], value: (_, point) => (point == null ? "–" : pointText(axis, point)) },
      ...series.map((one, place) => ({
        label: one.name,
        stroke: css(COLOURS[place % COLOURS.length] ?? "--bar"),
        width: 2,
        ...(one.dashed || place >= COLOURS.length ? { dash: [6, 4] } : {}),
        ...(steps && stepped ? { paths: stepped } : {}),
        points: { show: one.values.length < 3 || axis === "nodes" },
        value: (_: uPlot, value: number | null) => (value === null ? "–" : `${figure(value)} ${unit}`),
      })),
    ],
    axes: [{ ...rule, ...pointAxis(axis) }, { ...rule, size: 56, values: (_, ticks) => ticks.map((tick) => String(Number(tick.toPrecision(3)))) }],
    scales: { x: { time: axis === "time", distr: axis === "log" ? 3 : 1 }, y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 0) > 0 ? (high ?? 0) * 1.05 : 1] } },
    cursor: { points: { size: 6 } },
  };
}

// Round durations and whole numbers; uPlot itself knows times.
function pointAxis(axis: Axis): uPlot.Axis {
  const values = (_: uPlot, ticks: number[]): string[] => ticks.map((tick) => pointText(axis, tick));
  if (axis === "elapsed") return { values, incrs: ELAPSED_STEPS, space: 80 };
  if (axis === "log") return { values, filter: (_, ticks) => ticks, splits: (plot) => LOG_STEPS.filter((step) => step >= (plot.scales["x"]?.min ?? 0) && step <= (plot.scales["x"]?.max ?? 0)) };
  return axis === "nodes" ? { values, incrs: [1, 2, 5, 10, 20, 50, 100, 200, 500, 1000] } : {};
}
