// The live log of a job, in bounded memory: the last lines are kept, the rest is a download away.
import type { JSX } from "preact";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { AnsiReader } from "./ansi";
import type { Piece } from "./ansi";
import { address, asError } from "./api";
import { count } from "./format";

const TAIL_BYTES = 512 * 1024;
const MOST_LINES = 20_000;
const MOST_LINE_CHARS = 20_000;
const LINE_PX = 18;
const RETRY_MS = 3000;
const PAINT_MS = 150;

interface Log {
  lines: Piece[][];
  dropped: boolean;
  problem: string;
  ended: boolean;
}

function useLog(id: string, query: Record<string, number | undefined>): Log {
  const [log, setLog] = useState<Log>({ lines: [], dropped: false, problem: "", ended: false });
  useEffect(() => {
    const stop = new AbortController();
    void follow(id, query, stop.signal, setLog).catch(() => undefined);
    return () => stop.abort();
  }, [id, JSON.stringify(query)]);
  return log;
}

async function follow(id: string, query: Record<string, number | undefined>, signal: AbortSignal, show: (log: Log) => void): Promise<void> {
  while (!signal.aborted) {
    let lines: Piece[][] = [];
    let dropped = false;
    let paintTimer = 0;
    const paint = (problem = "", ended = false): void => {
      clearTimeout(paintTimer);
      paintTimer = 0;
      if (!signal.aborted) show({ lines: [...lines], dropped, problem, ended });
    };
    try {
      const response = await fetch(address("/jobs/{job_id}/logs", { job_id: id }, { ...query, offset: -TAIL_BYTES, follow: 1 }), { signal });
      if (!response.ok || !response.body) {
        paint((await asError(response)).message);
        if (response.status < 500 && response.status !== 429) return;
      } else {
        const ansi = new AnsiReader();
        let rest = "";
        let bytes = 0;
        const reader = response.body.pipeThrough(new TextDecoderStream()).getReader();
        for (let part = await reader.read(); !part.done; part = await reader.read()) {
          bytes += part.value.length;
          dropped ||= bytes >= TAIL_BYTES;
          const split = (rest + part.value).split("\n");
          rest = (split.pop() ?? "").slice(-MOST_LINE_CHARS);
          for (const line of split) lines.push(ansi.line(line.slice(0, MOST_LINE_CHARS)));
          if (lines.length > MOST_LINES) {
            lines = lines.slice(-MOST_LINES);
            dropped = true;
          }
          if (!paintTimer) paintTimer = window.setTimeout(paint, PAINT_MS);
        }
        if (rest) lines.push(ansi.line(rest));
        paint("", true);
        return;
      }
    } catch (error) {
      if (signal.aborted) return;
      paint(error instanceof Error ? `The log was interrupted: ${error.message}` : "The log was interrupted.");
    }
    await new Promise((resolve) => setTimeout(resolve, RETRY_MS));
  }
}

export function LogView({ id, attempt, member, task }: { id: string; attempt?: number; member?: number; task?: number }): JSX.Element {
  const query = { attempt, member, task };
  const log = useLog(id, query);
  const [words, setWords] = useState("");
  const [follows, setFollows] = useState(true);
  const [top, setTop] = useState(0);
  const [height, setHeight] = useState(400);
  const box = useRef<HTMLDivElement>(null);
  const space = useRef<HTMLDivElement>(null);
  const body = useRef<HTMLDivElement>(null);
  const needle = words.toLowerCase();
  const lines = useMemo(
    () => (needle ? log.lines.filter((line) => line.map((piece) => piece.text).join("").toLowerCase().includes(needle)) : log.lines),
    [log.lines, needle],
  );
  const first = Math.max(0, Math.floor(top / LINE_PX) - 10);
  const shown = lines.slice(first, first + Math.ceil(height / LINE_PX) + 20);
  useEffect(() => {
    const element = box.current;
    if (!element) return undefined;
    const size = new ResizeObserver(() => setHeight(element.clientHeight));
    size.observe(element);
    return () => size.disconnect();
  }, []);
  useEffect(() => {
    if (space.current) space.current.style.height = `${lines.length * LINE_PX}px`;
    if (body.current) body.current.style.transform = `translateY(${first * LINE_PX}px)`;
    if (follows && box.current) box.current.scrollTop = lines.length * LINE_PX;
  }, [lines, first, follows]);
  return (
    <section class="card log" aria-label="Log">
      <div class="toolbar">
        <h2>Log</h2>
        <label class="inline">
          Search
          <input type="search" value={words} onInput={(event) => setWords(event.currentTarget.value)} placeholder="lines that contain" />
        </label>
        {needle ? <span class="muted">{`${count(lines.length)} of ${count(log.lines.length)} lines`}</span> : null}
        <label class="inline">
          <input type="checkbox" checked={follows} onChange={(event) => setFollows(event.currentTarget.checked)} /> Follow
        </label>
        <a class="button" href={address("/jobs/{job_id}/logs", { job_id: id }, query)} download={`${id}.log`}>
          Download
        </a>
      </div>
      {log.dropped ? <p class="note">This is the end of a long log. The download has all of it.</p> : null}
      {log.problem ? <p class="note note-bad">{log.problem}</p> : null}
      <div
        class="log-box"
        ref={box}
        tabIndex={0}
        role="log"
        aria-live="off"
        aria-label="Output of the job"
        onScroll={(event) => {
          const element = event.currentTarget;
          setTop(element.scrollTop);
          setFollows(element.scrollTop + element.clientHeight >= element.scrollHeight - LINE_PX);
        }}
      >
        <div class="log-space" ref={space}>
          <div class="log-lines" ref={body}>
            {shown.map((line, place) => (
              <div key={first + place} class="log-line">
                {line.map((piece, index) => (
                  <span key={index} class={piece.style}>
                    {piece.text}
                  </span>
                ))}
              </div>
            ))}
          </div>
        </div>
        {lines.length === 0 ? <p class="muted">{needle ? "No line contains that." : log.ended ? "The job has written nothing." : "Nothing written yet."}</p> : null}
      </div>
    </section>
  );
}
