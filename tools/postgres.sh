#!/usr/bin/env bash
# Finds or fetches a PostgreSQL older than 16 for the tests, which also run on a newer one:  tools/postgres.sh
#
# In order: the folder that $RUNCUE_TEST_PG_PROGRAMS names, one of Debian's packages that is installed, one that was
# fetched before, and Debian's package, which is unpacked into .cache/postgresql with the libraries that it needs. That
# needs apt-get and dpkg-deb, but neither root nor any change of the system. Prints the folder of its programs.
set -euo pipefail
cd "$(dirname "$0")/.."

home=.cache/postgresql

say() { echo "postgres: $*" >&2; }
# shellcheck source=tools/debian.sh
. tools/debian.sh

give_up() {
    say "$*"
    say "Install one older than 16, or name the folder of its programs in RUNCUE_TEST_PG_PROGRAMS."
    exit 1
}

is_old() { # a folder of programs
    [ -x "$1/postgres" ] && [ -x "$1/initdb" ] || return 1
    local version
    version=$(LD_LIBRARY_PATH="$1/../lib" "$1/postgres" --version) || return 1
    version=${version#*) }
    [ "${version%%[!0-9]*}" -lt 16 ]
}

finish() { # a folder of programs
    mkdir -p "$home"
    touch "$home/.ready"
    echo "$1"
    exit 0
}

find_old() {
    local folder
    for folder in "${RUNCUE_TEST_PG_PROGRAMS:-}" /usr/lib/postgresql/*/bin "$home"/usr/lib/postgresql/*/bin; do
        if is_old "$folder"; then finish "$folder"; fi
    done
}

fetch() {
    local version=15 programs library
    say "fetching Debian's PostgreSQL $version into $home (about 60 MB, once)"
    debian_unpack "$home" "postgresql-$version" || give_up "Debian's PostgreSQL $version could not be fetched."
    programs=$home/root/usr/lib/postgresql/$version
    mkdir -p "$home/usr/lib/postgresql/$version/bin" "$home/usr/share/postgresql"
    mv "$programs"/bin/{postgres,initdb} "$home/usr/lib/postgresql/$version/bin"
    mv "$programs/lib" "$home/usr/lib/postgresql/$version/lib"
    mv "$home/root/usr/share/postgresql/$version" "$home/usr/share/postgresql/$version"
    # What its programs need beyond the C library goes beside them; all else is in nobody's way any more.
    LD_LIBRARY_PATH=$(find "$home/root" -name '*.so*' -printf '%h\n' | sort -u | paste -sd :) \
        ldd "$home/usr/lib/postgresql/$version"/bin/* | sed -n 's/.* => \([^ ]*\) (.*/\1/p' | sort -u |
        while read -r library; do
            case $library in "$home"/*) cp -L "$library" "$home/usr/lib/postgresql/$version/lib/" ;; esac
        done
    rm -rf "$home/root" "$home/usr/lib/postgresql/$version/lib"/{bitcode,llvmjit*}
}

find_old
fetch
find_old
give_up "What was unpacked from Debian's packages does not run here."
