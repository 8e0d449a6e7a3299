// What can be done to jobs: one at a time or many, each asked for before and told about after.
import { call } from "./api";
import { ask, notify } from "./components";
import { plural } from "./format";

export type Action = "cancel" | "hold" | "release" | "retry" | "priority";

interface Wording {
  title: string;
  text: string;
  yes: string;
  done: string;
}
const WORDS: Record<Action, Wording> = {
  cancel: { title: "Cancel", text: "Running jobs are stopped; waiting ones leave the queue.", yes: "Cancel", done: "cancelled" },
  hold: { title: "Hold", text: "Held jobs keep their place but do not start until they are released.", yes: "Hold", done: "held" },
  release: { title: "Release", text: "They may start again.", yes: "Release", done: "released" },
  retry: { title: "Retry", text: "They go back into the queue.", yes: "Retry", done: "queued again" },
  priority: { title: "Change the priority of", text: "Higher starts earlier: low 250, normal 750, high 1500, urgent 2500; 0 to 10000.", yes: "Change", done: "changed" },
};
const UNDO: Partial<Record<Action, Action>> = { hold: "release", release: "hold", cancel: "retry" };
const AT_ONCE = 8;

function send(action: Action, id: string, value: string): Promise<unknown> {
  const path = { job_id: id };
  switch (action) {
    case "cancel":
      return call("DELETE /jobs/{job_id}", { path });
    case "priority": {
      const number = Number(value);
      return call("POST /jobs/{job_id}/priority", { path, body: { priority: Number.isNaN(number) ? value : number } });
    }
    case "retry":
      return call("POST /jobs/{job_id}/retry", { path });
    case "hold":
      return call("POST /jobs/{job_id}/hold", { path });
    case "release":
      return call("POST /jobs/{job_id}/release", { path });
  }
}

// Asks, acts on all, and offers to undo what can be undone.
export async function act(action: Action, ids: string[], after: () => void, current = 750): Promise<void> {
  const words = WORDS[action];
  const what = ids.length === 1 ? (ids[0] ?? "") : plural(ids.length, "job");
  const input = action === "priority" ? { input: { label: "Priority", value: String(current) } } : {};
  const answer = await ask(`${words.title} ${what}?`, words.text, words.yes, { danger: action === "cancel", ...input });
  if (answer === null) return;
  await apply(action, ids, answer);
  after();
}

async function apply(action: Action, ids: string[], value: string): Promise<void> {
  const done: string[] = [];
  const problems: string[] = [];
  const left = [...ids];
  const work = async (): Promise<void> => {
    for (let id = left.shift(); id !== undefined; id = left.shift()) {
      try {
        await send(action, id, value);
        done.push(id);
      } catch (error) {
        problems.push(error instanceof Error ? error.message : id);
      }
    }
  };
  await Promise.all(Array.from({ length: AT_ONCE }, work));
  if (done.length) {
    const back = UNDO[action];
    const what = done.length === 1 ? (done[0] ?? "") : plural(done.length, "job");
    notify(`${what} ${WORDS[action].done}.`, back ? { undo: () => void apply(back, done, "") } : {});
  }
  if (problems.length) notify(`${plural(problems.length, "job")} not changed: ${problems[0]}`, { bad: true });
}
