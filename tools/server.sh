#!/usr/bin/env bash
# Fetches a program of Debian's for the tests:  tools/server.sh pgbouncer|mariadb
#
# It is unpacked into .cache with the libraries that it needs; that needs apt-get and dpkg-deb, but neither root nor any
# change of the system. tests/programs.py says where tests look for it.
set -euo pipefail
cd "$(dirname "$0")/.."

name=${1:-}
case $name in
    pgbouncer) package=pgbouncer program=usr/sbin/pgbouncer needs=() ;;
    mariadb) package=mariadb-server-core program=usr/sbin/mariadbd needs=(usr/share/mysql/english usr/share/mysql/charsets) ;;
    *)
        echo "server: expected pgbouncer or mariadb, got '$name'." >&2
        exit 2
        ;;
esac
home=.cache/$name

say() { echo "$name: $*" >&2; }
# shellcheck source=tools/debian.sh
. tools/debian.sh

give_up() {
    say "$*"
    say "Install $package, or go without: the tests that need it are skipped then."
    exit 1
}

runs() { LD_LIBRARY_PATH=$home/lib "$home/$program" --version >/dev/null 2>&1; }

fetch() {
    local file library
    say "fetching Debian's $package into $home (once)"
    debian_unpack "$home" "$package" || give_up "Debian's $package could not be fetched."
    mkdir -p "$home/lib"
    # What the program needs beyond the C library goes beside it; all else is in nobody's way any more.
    LD_LIBRARY_PATH=$(find "$home/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd :) \
        ldd "$home/root/$program" | sed -n 's/.* => \([^ ]*\) (.*/\1/p' | sort -u |
        while read -r library; do
            case $library in "$home"/*) cp -L "$library" "$home/lib/" ;; esac
        done
    for file in "$program" "${needs[@]}"; do
        mkdir -p "$home/$(dirname "$file")"
        mv "$home/root/$file" "$home/$file"
    done
    rm -rf "$home/root"
}

if ! [ -x "$home/$program" ] || ! runs; then fetch; fi
runs || give_up "What was unpacked from Debian's packages does not run here."
touch "$home/.ready"
