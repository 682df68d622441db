#!/bin/sh
# Cargo's runner for the test programs of `cargo xtask test` as root: each one runs as an ordinary
# user without a network, as it does in `cargo test` alone. What needs root runs as root: programs
# called `privileged_…`, and tests in modules called `as_root`.
set -eu

user=65534 # `nobody`

# Shows a directory at its place though one above it lets no other user through.
show() {
    closed=
    above=$1
    while [ "$above" != / ]; do
        above=$(dirname "$above")
        case $(stat -c %a "$above") in
            *[1357]) ;;
            *) closed=$above ;;
        esac
    done
    [ -n "$closed" ] || return 0
    aside=$(mktemp -d)
    mount --bind "$1" "$aside"
    mount -t tmpfs -o mode=755 none "$closed"
    mkdir -p "$1"
    mount --bind "$aside" "$1"
    umount "$aside"
    rmdir "$aside"
}

if [ "$1" = --apart ]; then
    shift
    ip link set lo up
    built=$(dirname "$(dirname "$1")")
    show "$(dirname "$(dirname "$(readlink -f "$0")")")"
    show "$built"
    cd "$PWD"
    # Cargo built it for the tests of its own package; this user has neither cargo nor the right.
    export OUTLIVE_TEST_AGENT="$built/outlive-agent"
    home=$(mktemp -d)
    chown "$user:$user" "$home"
    ulimit -S -n 1024 # What a login gives on most machines.
    code=0
    HOME=$home setpriv --reuid "$user" --regid "$user" --clear-groups "$@" || code=$?
    rm -rf "$home"
    exit "$code"
fi

case $1 in
    */deps/privileged_* | */rustdoctest*) exec "$@" ;;
    */deps/supervisor-*)
        "$@" as_root
        set -- "$@" --skip as_root
        ;;
esac
exec unshare --mount --net "$(readlink -f "$0")" --apart "$@"
