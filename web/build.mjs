// Builds the dashboard: src/ in, the files that the server sends out. Nothing is minified or hashed,
// so that a change of the source is a readable change of the result.
import { copyFileSync, mkdirSync } from "node:fs";
import { dirname, join } from "node:path";
import { fileURLToPath } from "node:url";
import { build } from "esbuild";

const here = dirname(fileURLToPath(import.meta.url));
const target = process.argv[2] ?? join(here, "../src/gpu_scheduler/dashboard/static");

mkdirSync(target, { recursive: true });
for (const name of ["index.html", "icon.svg"]) copyFileSync(join(here, "src", name), join(target, name));
await build({
  absWorkingDir: here,
  entryPoints: { app: "src/main.tsx", style: "src/style.css" },
  outdir: target,
  bundle: true,
  format: "esm",
  target: "es2022",
  charset: "utf8",
  jsx: "automatic",
  jsxImportSource: "preact",
  legalComments: "inline",
  logLevel: "warning",
});
