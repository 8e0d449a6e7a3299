// The frame of the dashboard: which page is shown, who looks, and the keys that work everywhere.
import { signal } from "@preact/signals";
import type { JSX } from "preact";
import { useEffect, useRef, useState } from "preact/hooks";
import { Admin } from "./admin";
import { call, me, needsLogin, online } from "./api";
import { Cluster } from "./cluster";
import { Empty, QuestionDialog, Toasts } from "./components";
import { JobPage } from "./job";
import { Login, Logout } from "./login";
import { People } from "./people";
import { Plan } from "./plan";
import { Queue } from "./queue";
import { ServicePage, Services } from "./services";
import { Submit } from "./submit";
import { SweepPage, Sweeps } from "./sweeps";
import { WhatIf } from "./whatif";

interface Page {
  path: string;
  name: string;
  key: string;
  show: (rest: string[]) => JSX.Element;
  adminOnly?: boolean;
}

const PAGES: Page[] = [
  { path: "cluster", name: "Cluster", key: "c", show: () => <Cluster /> },
  { path: "jobs", name: "Queue", key: "q", show: (rest) => (rest[0] ? <JobPage id={rest[0]} key={rest[0]} /> : <Queue />) },
  { path: "plan", name: "Plan", key: "p", show: (rest) => <Plan job={rest[0] ?? ""} key={rest[0] ?? ""} /> },
  { path: "submit", name: "Submit", key: "s", show: (rest) => <Submit from={rest[0] ?? ""} key={rest[0] ?? ""} /> },
  { path: "sweeps", name: "Sweeps", key: "g", show: (rest) => (rest[0] ? <SweepPage name={rest[0]} key={rest[0]} /> : <Sweeps />) },
  { path: "services", name: "Services", key: "v", show: (rest) => (rest[0] ? <ServicePage id={rest[0]} key={rest[0]} /> : <Services />) },
  { path: "people", name: "People", key: "u", show: () => <People /> },
  { path: "what-if", name: "What if", key: "w", show: () => <WhatIf />, adminOnly: true },
  { path: "admin", name: "Admin", key: "a", show: (rest) => <Admin tab={rest[0] ?? ""} about={rest[1] ?? ""} key={rest.join("/")} /> },
];
const KEYS: [string, string][] = [
  ["/", "search"],
  ["j or ↓", "next row"],
  ["k or ↑", "previous row"],
  ["Enter", "open the row"],
  ["Space", "select the row"],
  ["x", "cancel the row or the selection"],
  ["h", "hold or release it"],
  ["?", "this list"],
  ["Esc", "close, or leave the search"],
];

const route = signal(readRoute());
function readRoute(): string[] {
  const parts = location.hash.replace(/^#\/?/, "").split("/").filter(Boolean);
  return (parts.length ? parts : ["cluster"]).map(decodeURIComponent);
}
export function App(): JSX.Element {
  const [showsKeys, setShowsKeys] = useState(false);
  useEffect(() => {
    const follow = (): void => {
      route.value = readRoute();
      scrollTo(0, 0);
    };
    addEventListener("hashchange", follow);
    return () => removeEventListener("hashchange", follow);
  }, []);
  useEffect(() => {
    void call("GET /me")
      .then((found) => {
        me.value = found;
      })
      .catch(() => undefined);
  }, [needsLogin.value]);
  useEffect(() => {
    const press = (event: KeyboardEvent): void => {
      const inField = event.target instanceof HTMLElement && event.target.matches("input, textarea, select");
      if (inField || event.ctrlKey || event.metaKey || event.altKey) return;
      if (event.key === "?") {
        setShowsKeys(true);
        return;
      }
      const page = PAGES.find((one) => one.key.toUpperCase() === event.key);
      if (page && mayOpen(page)) location.hash = `#/${page.path}`;
      if (event.key === "/") {
        const search = document.querySelector<HTMLInputElement>("input[type=search]");
        if (search) {
          event.preventDefault();
          search.focus();
        }
      }
    };
    document.addEventListener("keydown", press);
    return () => document.removeEventListener("keydown", press);
  }, []);
  const [path, ...rest] = route.value;
  const page = PAGES.find((one) => one.path === path);
  useEffect(() => {
    document.title = `${rest[0] ?? page?.name ?? "not found"} · gpu-scheduler`;
  }, [route.value]);
  return (
    <>
      <a class="skip" href="#main" onClick={focusMain}>
        Skip to the content
      </a>
      <header>
        <a class="brand" href="#/cluster">
          <img src="/dashboard/icon.svg" alt="" width="22" height="22" />
          gpu-scheduler
        </a>
        <nav aria-label="Pages">
          {PAGES.filter(mayOpen).map((one) => (
            <a key={one.path} href={`#/${one.path}`} aria-current={one.path === path ? "page" : undefined}>
              {one.name}
            </a>
          ))}
        </nav>
        <div class="self">
          {me.value ? (
            <span title={me.value.via}>
              {me.value.user}
              <span class="muted"> {me.value.role}</span>
            </span>
          ) : null}
          <Logout />
          <button type="button" class="small plain" aria-label="Keys" onClick={() => setShowsKeys(true)}>
            ?
          </button>
        </div>
      </header>
      {online.value ? null : (
        <p class="banner" role="alert">
          The server does not answer. The page shows what it last knew, and tries again.
        </p>
      )}
      <main id="main" tabIndex={-1}>
        {needsLogin.value ? <Login /> : page ? page.show(rest) : <Empty title="There is no such page" />}
      </main>
      {showsKeys ? <KeyList close={() => setShowsKeys(false)} /> : null}
      <QuestionDialog />
      <Toasts />
    </>
  );
}

function mayOpen(page: Page): boolean {
  return !page.adminOnly || me.value?.role === "admin";
}

function focusMain(event: Event): void {
  event.preventDefault();
  document.getElementById("main")?.focus();
}

function KeyList({ close }: { close: () => void }): JSX.Element {
  const dialog = useRef<HTMLDialogElement>(null);
  useEffect(() => dialog.current?.showModal(), []);
  return (
    <dialog ref={dialog} onClose={close} aria-labelledby="keys-title">
      <h2 id="keys-title">Keys</h2>
      <dl class="keys">
        {[...KEYS, ...PAGES.filter(mayOpen).map((page): [string, string] => [page.key.toUpperCase(), page.name])].map(([key, does]) => (
          <div key={key}>
            <dt>
              <kbd>{key}</kbd>
            </dt>
            <dd>{does}</dd>
          </div>
        ))}
      </dl>
      <div class="buttons">
        <button type="button" class="primary" onClick={() => dialog.current?.close()}>
          Close
        </button>
      </div>
    </dialog>
  );
}
