#!/bin/sh
# Looks up known vulnerabilities of every pinned package; run it by "make audit".
# Comes in: PIP_AUDIT (the pip-audit to use), AUDIT_SERVICE (pypi or osv: ask only that one).
# Exit codes: 0 none known; 1 some are; 2 the data could not be had, so nothing was checked.
set -u
cd "$(dirname "$0")/.."
PIP_AUDIT=${PIP_AUDIT:-pip-audit}
work=$(mktemp -d)
trap 'rm -rf "$work"' EXIT

ask() { # ask SERVICE FILE: installs nothing; a package that cannot be looked up is an error
    "$PIP_AUDIT" --strict --progress-spinner off --disable-pip --no-deps \
        --vulnerability-service "$1" --requirement "$2"
}

# A mirror may know packages and no vulnerabilities. A service has data if it knows of these, published in 2019.
echo 'jinja2==2.10' >"$work/vulnerable.txt"
for service in ${AUDIT_SERVICE:-pypi osv}; do
    ask "$service" "$work/vulnerable.txt" >"$work/answer" 2>"$work/errors"
    if [ $? = 1 ] && grep -q 'PYSEC\|CVE\|GHSA' "$work/answer"; then
        found=0
        # run.txt, kubernetes.txt and learned.txt are parts of dev.txt.
        for pins in requirements/dev.txt requirements/uv.txt; do
            ask "$service" "$pins" || found=1
        done
        exit $found
    fi
    echo "audit: no vulnerability data from $service: $(tail -1 "$work/errors" | cut -c 1-300)" >&2
done
echo "audit: nothing was checked. Run 'make audit' on a machine that reaches PyPI or OSV." >&2
exit 2
