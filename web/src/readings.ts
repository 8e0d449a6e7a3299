// The GPUs as they are now.
import { call, useLive } from "./api";
import type { ApiError } from "./api";
import type { GpuForm } from "./api-types";

const POLL_MS = 2000;

export function gpuId(gpu: { node: string; index: number }): string {
  return `${gpu.node}:${gpu.index}`;
}

export function useGpus(): { gpus: GpuForm[] | null; error: ApiError | null; refresh: () => void } {
  const list = useLive((signal) => call("GET /gpus", { signal }), POLL_MS, []);
  return { gpus: list.data?.gpus ?? null, error: list.error, refresh: list.refresh };
}
