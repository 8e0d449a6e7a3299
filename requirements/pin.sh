#!/bin/sh
# Writes the hashed pins. Comes in: pyproject.toml, UV (the uv to use), UPGRADE (1: newest versions).
# Goes out: requirements/uv.txt, run.txt (what a user needs), kubernetes.txt and learned.txt (the same
# with the extra of this name) and dev.txt (all). Must never write an address into them.
set -eu
cd "$(dirname "$0")/.."
UV=${UV:-uv}
upgrade=
[ "${UPGRADE:-}" = 1 ] && upgrade=--upgrade

pin() { # pin FILE SOURCE [OPTION...]
    target=$1
    shift
    "$UV" pip compile --quiet --universal --python-version 3.11 --generate-hashes --no-header \
        --no-emit-index-url --no-emit-find-links $upgrade --output-file "$target" "$@" >/dev/null
    if grep -n '://' "$target"; then
        echo "pin.sh: $target names an address; the lines stand above" >&2
        exit 1
    fi
    printf '# Written by "make pins"; do not edit.\n' | cat - "$target" >"$target.new"
    mv "$target.new" "$target"
}

pin requirements/uv.txt requirements/uv.in
pin requirements/dev.txt pyproject.toml --group dev --extra kubernetes --extra learned
pin requirements/run.txt pyproject.toml --constraint requirements/dev.txt
for extra in kubernetes learned; do
    pin "requirements/$extra.txt" pyproject.toml --extra "$extra" --constraint requirements/dev.txt
done
