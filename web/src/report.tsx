// A report in one file, as `tgpu simulate --report` and `tgpu report --html` write it: data in, a page out.
// The forms are those of simulator/report/document.py.
import type { JSX } from "preact";
import { Chart, COLOURS } from "./chart";
import type { Axis, Series } from "./chart";
import { Code, Facts, Figures, Meter, Table } from "./components";
import { count } from "./format";

interface BarRow {
  name: string;
  bars: ({ value: number; text: string } | null)[];
  note: string;
}
type Block =
  | { kind: "text"; text: string }
  | { kind: "figures"; figures: { name: string; value: string; foot: string }[] }
  | { kind: "chart"; title: string; note: string; axis: Axis; points: number[]; series: Series[]; unit: string }
  | { kind: "bars"; title: string; note: string; first: string; series: string[]; rows: BarRow[]; last: string }
  | { kind: "table"; columns: { name: string; meaning: string; right: boolean }[]; rows: string[][]; best: [number, number][]; title: string; left_out: number };
type Of<K extends Block["kind"]> = Extract<Block, { kind: K }>;

export interface ReportPage {
  title: string;
  command: string;
  facts: [string, string][];
  sections: { name: string; blocks: Block[] }[];
}

export function Report({ page }: { page: ReportPage }): JSX.Element {
  return (
    <>
      <header>
        <span class="brand">gpu-scheduler</span>
        <nav aria-label="Sections">
          {page.sections.map((section) => (
            <a key={section.name} href={`#${anchor(section.name)}`}>
              {section.name}
            </a>
          ))}
        </nav>
      </header>
      <main class="report">
        <h1>{page.title}</h1>
        <Facts of={page.facts} />
        {page.command ? <Code text={page.command} /> : null}
        {page.sections.map((section) => (
          <section key={section.name} id={anchor(section.name)} aria-label={section.name}>
            <h2>{section.name}</h2>
            <div class="two">
              {section.blocks.map((block, place) => (
                <Shown key={place} block={block} />
              ))}
            </div>
          </section>
        ))}
      </main>
    </>
  );
}

function anchor(name: string): string {
  return name.toLowerCase().replaceAll(" ", "-");
}

function Shown({ block }: { block: Block }): JSX.Element {
  switch (block.kind) {
    case "text":
      return <p class="muted wide">{block.text}</p>;
    case "figures":
      return (
        <div class="wide">
          <Figures of={block.figures.map((one) => [one.value, one.name, "", one.foot])} />
        </div>
      );
    case "chart":
      return (
        <div class="card">
          <Chart label={block.title} note={block.note} points={block.points} series={block.series} unit={block.unit} axis={block.axis} height={230} />
        </div>
      );
    case "bars":
      return <Bars block={block} />;
    case "table":
      return block.title ? (
        <details class="wide">
          <summary>{block.title}</summary>
          <Numbers block={block} />
        </details>
      ) : (
        <div class="wide">
          <Numbers block={block} />
        </div>
      );
  }
}

// Each row has a name and a bar for each series; all bars have one scale.
function Bars({ block }: { block: Of<"bars"> }): JSX.Element {
  const most = Math.max(0, ...block.rows.flatMap((row) => row.bars.map((bar) => bar?.value ?? 0))) || 1;
  const notes = block.last ? [{ name: block.last, right: true, of: (row: BarRow) => row.note }] : [];
  return (
    <figure class={`card chart ${block.series.length > 2 ? "wide" : ""}`} aria-label={block.title}>
      <figcaption>{block.title}</figcaption>
      {block.note ? <p class="muted">{block.note}</p> : null}
      <Table
        label={block.title}
        rows={block.rows}
        id={(row) => row.name}
        columns={[
          { name: block.first, of: (row) => <span class="cut">{row.name}</span> },
          ...block.series.map((name, place) => ({
            name,
            key: String(place),
            of: (row: BarRow) => {
              const bar = row.bars[place];
              return bar ? <Meter label="" value={bar.value / most} text={bar.text} tone={`colour-${place % COLOURS.length}`} /> : "–";
            },
          })),
          ...notes,
        ]}
      />
    </figure>
  );
}

function Numbers({ block }: { block: Of<"table"> }): JSX.Element {
  const best = new Set(block.best.map(([row, column]) => `${row} ${column}`));
  const rows = block.rows.map((cells, number) => ({ cells, number }));
  return (
    <>
      <Table
        label={block.title || "Numbers"}
        rows={rows}
        id={(row) => String(row.number)}
        columns={block.columns.map((column, place) => ({
          name: column.name,
          key: String(place),
          title: column.meaning,
          right: column.right,
          of: ({ cells, number }: (typeof rows)[number]) => (best.has(`${number} ${place}`) ? <strong class="good">{cells[place]}</strong> : cells[place]),
        }))}
      />
      {block.left_out ? <p class="muted">{`and ${count(block.left_out)} more`}</p> : null}
    </>
  );
}
