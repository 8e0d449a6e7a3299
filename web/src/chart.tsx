// A time series drawn by uPlot, and the same figures as a table for those who do not see it.
import type { JSX } from "preact";
import { useEffect, useRef } from "preact/hooks";
import uPlot from "uplot";
import { Table } from "./components";
import { time, trim } from "./format";

export interface Series {
  name: string;
  values: (number | null)[];
  dashed?: boolean;
}

interface Drawn {
  label: string;
  seconds: number[];
  series: Series[];
  unit: string;
  height?: number;
  steps?: boolean;
  until?: number;
}

const LEAST_SECONDS = 60;
const COLOURS = ["--bar", "--other", "--good", "--bad", "--wait", "--muted"];

export function TimeChart({ label, seconds, series, unit, height = 200, steps = false, until }: Drawn): JSX.Element {
  const place = useRef<HTMLDivElement>(null);
  const plot = useRef<uPlot | null>(null);
  const shape = series.map((one) => `${one.name} ${one.dashed ?? false}`).join("\n");
  const data = drawable(seconds, series, steps ? until : undefined);
  useEffect(() => {
    const box = place.current;
    if (!box) return undefined;
    const dark = matchMedia("(prefers-color-scheme: dark)");
    const draw = (): void => {
      plot.current?.destroy();
      plot.current = new uPlot(options(series, unit, box.clientWidth, height, steps), plot.current?.data ?? data, box);
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
  }, [shape, unit, height, steps]);
  useEffect(() => plot.current?.setData(data), [seconds, series, until]);
  return (
    <figure class="chart" aria-label={label}>
      <figcaption>{label}</figcaption>
      <div ref={place} aria-hidden="true" />
      <details>
        <summary>As a table</summary>
        <Table
          label={label}
          rows={seconds.map((second, row) => ({ second, row }))}
          id={({ row }) => String(row)}
          columns={[
            { name: "Time", of: ({ second }) => time(new Date(second * 1000).toISOString()) },
            ...series.map((one) => ({ name: `${one.name} (${unit})`, right: true, of: ({ row }: { row: number }) => figure(one.values[row] ?? null) })),
          ]}
        />
      </details>
    </figure>
  );
}

// A step lasts to the next one, so the last needs an end; one point alone has no width.
function drawable(seconds: number[], series: Series[], until: number | undefined): uPlot.AlignedData {
  const last = seconds.at(-1);
  if (last !== undefined && until !== undefined && until > last) return [[...seconds, until], ...series.map((one) => [...one.values, one.values.at(-1) ?? null])];
  if (last !== undefined && seconds.length === 1) return [[last, last + LEAST_SECONDS], ...series.map((one) => [...one.values, null])];
  return [seconds, ...series.map((one) => one.values)];
}

function figure(value: number | null): string {
  return value === null ? "–" : trim(value, 2);
}

function options(series: Series[], unit: string, width: number, height: number, steps: boolean): uPlot.Options {
  const style = getComputedStyle(document.documentElement);
  const css = (name: string): string => style.getPropertyValue(name).trim();
  const stepped = uPlot.paths.stepped?.({ align: 1 });
  const axis = { stroke: css("--muted"), grid: { stroke: css("--line"), width: 1 }, ticks: { stroke: css("--line"), width: 1 }, font: `11px ${css("--font")}` };
  return {
    width,
    height,
    series: [
      { value: (_, second) => (second == null ? "–" : time(new Date(second * 1000).toISOString())) },
      ...series.map((one, place) => ({
        label: one.name,
        stroke: css(COLOURS[place % COLOURS.length] ?? "--bar"),
        width: 2,
        ...(one.dashed ? { dash: [6, 4] } : {}),
        ...(steps && stepped ? { paths: stepped } : {}),
        points: { show: one.values.length < 3 },
        value: (_: uPlot, value: number | null) => (value === null ? "–" : `${figure(value)} ${unit}`),
      })),
    ],
    axes: [axis, { ...axis, size: 56, values: (_, ticks) => ticks.map((tick) => String(Number(tick.toPrecision(3)))) }],
    scales: { y: { range: (_, low, high) => [Math.min(0, low ?? 0), (high ?? 0) > 0 ? (high ?? 0) * 1.05 : 1] } },
    cursor: { points: { size: 6 } },
  };
}
