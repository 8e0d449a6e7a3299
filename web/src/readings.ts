// The GPUs as they are now: a list, and a stream of what changes; without the stream, the list again and again.
import { useEffect, useMemo, useState } from "preact/hooks";
import { address, call, useLive } from "./api";
import type { ApiError } from "./api";
import type { GpuForm } from "./api-types";

const POLL_MS = 2000;
// The stream has no processes.
const POLL_BESIDE_STREAM_MS = 15_000;
const RETRY_MS = 5000;

type Changes = Map<string, Partial<GpuForm>>;
interface Message {
  whole?: boolean;
  gpus: (Partial<GpuForm> & { node: string; index: number })[];
  gone: [string, number][];
}

export function gpuId(gpu: { node: string; index: number }): string {
  return `${gpu.node}:${gpu.index}`;
}

export function useGpus(): { gpus: GpuForm[] | null; error: ApiError | null; refresh: () => void } {
  const [changes, setChanges] = useState<Changes | null>(null);
  const list = useLive((signal) => call("GET /gpus", { signal }), changes ? POLL_BESIDE_STREAM_MS : POLL_MS, [changes === null]);
  useEffect(() => {
    let socket: WebSocket;
    let timer = 0;
    let isOver = false;
    const open = (): void => {
      socket = new WebSocket(address("/gpus/stream"));
      socket.onmessage = (event) => setChanges((old) => merged(old, JSON.parse(String(event.data)) as Message));
      socket.onclose = () => {
        if (isOver) return;
        setChanges(null);
        timer = window.setTimeout(open, RETRY_MS);
      };
    };
    open();
    return () => {
      isOver = true;
      clearTimeout(timer);
      socket.close();
    };
  }, []);
  const known = list.data?.gpus ?? null;
  const gpus = useMemo(() => {
    if (!known || !changes) return known;
    const isListed = new Set(known.map(gpuId));
    // A GPU that the list does not have yet: all its fields have come in the stream.
    const added = [...changes].filter(([id]) => !isListed.has(id)).map(([, fields]) => ({ processes: [], ...fields }) as unknown as GpuForm);
    return [...known.filter((gpu) => changes.has(gpuId(gpu))).map((gpu) => ({ ...gpu, ...changes.get(gpuId(gpu)) })), ...added];
  }, [known, changes]);
  return { gpus, error: list.error, refresh: list.refresh };
}

function merged(old: Changes | null, message: Message): Changes {
  const found: Changes = new Map(message.whole ? [] : old);
  for (const [node, index] of message.gone) found.delete(gpuId({ node, index }));
  for (const gpu of message.gpus) found.set(gpuId(gpu), { ...found.get(gpuId(gpu)), ...gpu });
  return found;
}
