// For admins: nodes, GPUs, reservations, tenants, tokens, audit log, health, notifications, settings.
// Others see the parts that the API shows them, without the changes that it would reject.
import type { JSX } from "preact";
import { Audit, Tenants, Tokens } from "./admin-access";
import { Gpus, Nodes } from "./admin-nodes";
import { Health, Notifications, Reservations, Settings } from "./admin-operations";
import { me } from "./api";
import { Empty } from "./components";

interface Part {
  path: string;
  name: string;
  show: (about: string) => JSX.Element;
  adminOnly?: boolean;
}

const PARTS: Part[] = [
  { path: "health", name: "Health", show: () => <Health /> },
  { path: "nodes", name: "Nodes", show: () => <Nodes /> },
  { path: "gpus", name: "GPUs", show: (about) => <Gpus about={about} /> },
  { path: "reservations", name: "Reservations", show: () => <Reservations /> },
  { path: "tenants", name: "Tenants", show: () => <Tenants /> },
  { path: "tokens", name: "Tokens", show: () => <Tokens /> },
  { path: "notifications", name: "Notifications", show: () => <Notifications /> },
  { path: "audit", name: "Audit log", show: () => <Audit />, adminOnly: true },
  { path: "settings", name: "Settings", show: () => <Settings />, adminOnly: true },
];

export function Admin({ tab, about }: { tab: string; about: string }): JSX.Element {
  const parts = PARTS.filter((part) => !part.adminOnly || me.value?.role === "admin");
  const shown = parts.find((part) => part.path === (tab || "health"));
  return (
    <>
      <h1>Admin</h1>
      <nav class="parts" aria-label="Parts of this page">
        {parts.map((part) => (
          <a key={part.path} href={`#/admin/${part.path}`} aria-current={part === shown ? "page" : undefined}>
            {part.name}
          </a>
        ))}
      </nav>
      {shown ? shown.show(about) : me.value ? <Empty title="This part is for admins" /> : null}
    </>
  );
}
