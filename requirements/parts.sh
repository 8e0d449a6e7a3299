#!/bin/sh
# Installs the programs that some tests use, where that is possible: as root, with apt-get.
# Never fails: what is missing makes its tests skip, and they say so. PARTS=no leaves all as it is.
set -u
[ "${PARTS:-}" = no ] && exit 0

missing=
want() { # want PROGRAM PACKAGE...
    program=$1
    shift
    command -v "$program" >/dev/null 2>&1 || missing="$missing $*"
}
want tmux tmux
want screen screen
want podman podman
[ -e /usr/libexec/podman/catatonit ] || want catatonit catatonit
want runc runc
want newuidmap uidmap
want fuse-overlayfs fuse-overlayfs
want busybox busybox-static
want promtool prometheus
want curl curl
want jq jq
want gcc gcc libc6-dev
want ip iproute2
want openssl openssl
want systemd-analyze systemd
want chromium chromium
[ -x /usr/sbin/sshd ] || want sshd openssh-server
want ssh openssh-client
# Debian keeps the server of PostgreSQL off the PATH.
ls /usr/lib/postgresql/*/bin/initdb >/dev/null 2>&1 || want initdb postgresql

[ -z "$missing" ] && exit 0
if [ "$(id -u)" != 0 ] || ! command -v apt-get >/dev/null 2>&1; then
    echo "parts: not here, so some tests will skip:$missing" >&2
    exit 0
fi
echo "parts: installing$missing" >&2
export DEBIAN_FRONTEND=noninteractive
# A package whose service starts by itself would take ports that tests do not own.
policy=/usr/sbin/policy-rc.d
if [ ! -e "$policy" ]; then
    printf '#!/bin/sh\nexit 101\n' >"$policy" && chmod +x "$policy"
    trap 'rm -f "$policy"' EXIT
fi
# shellcheck disable=SC2086
if ! apt-get install -qq -y --no-install-recommends $missing >/dev/null 2>&1; then
    apt-get update -qq >/dev/null 2>&1
    for package in $missing; do
        apt-get install -qq -y --no-install-recommends "$package" >/dev/null 2>&1 ||
            echo "parts: $package could not be installed, so some tests will skip" >&2
    done
fi
exit 0
