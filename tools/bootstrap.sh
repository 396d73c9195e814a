#!/usr/bin/env bash
# Makes .venv from a lock file:  tools/bootstrap.sh run|test
#
# Needs Python 3.11 or newer. uv is used when it is on PATH, else installed into .cache/uv; where that does
# not work, plain pip does the same more slowly. Nothing outside the checkout changes, with one exception:
# as root on Debian a missing venv module is installed with apt-get.
#
#   PYTHON=python3.12   the interpreter to build on
#   RUNCUE_NO_UV=1      use plain pip
set -euo pipefail
cd "$(dirname "$0")/.."

kind=${1:-run}
case $kind in
    run | test) ;;
    *)
        echo "bootstrap: expected 'run' or 'test', got '$kind'." >&2
        exit 2
        ;;
esac
lock=requirements/$kind.txt

export UV_COMPILE_BYTECODE=1 UV_PYTHON_DOWNLOADS=never UV_NO_PROGRESS=1
export PIP_DISABLE_PIP_VERSION_CHECK=1
# uv brings its own list of certificate authorities; the system's also knows a company's own.
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}; fi

say() { echo "bootstrap: $*" >&2; }

find_python() {
    local candidate
    for candidate in ${PYTHON:-python3 python3.14 python3.13 python3.12 python3.11 python}; do
        if "$candidate" -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null; then
            "$candidate" -c 'import sys; print(sys.executable)'
            return
        fi
    done
    say "no Python 3.11 or newer found${PYTHON:+ as '$PYTHON'}. Install one (Debian: apt-get install python3" \
        "python3-venv python3-pip) or name it: make test PYTHON=/path/to/python3"
    exit 1
}

has_venv() { "$python" -c 'import ensurepip, venv' 2>/dev/null; }

need_venv() {
    has_venv && return
    if [ "$(id -u)" = 0 ] && [ -e /etc/debian_version ] && command -v apt-get >/dev/null; then
        say "this Python has no venv module: apt-get install python3-venv"
        { apt-get update -qq && DEBIAN_FRONTEND=noninteractive apt-get install -y -qq python3-venv; } >&2 || true
        has_venv && return
    fi
    say "$python has no venv module. On Debian or Ubuntu: apt-get install python3-venv; then try again."
    exit 1
}

# Sets $uv, or leaves it empty.
find_uv() {
    uv=
    [ -z "${RUNCUE_NO_UV:-}" ] || return 0
    if command -v uv >/dev/null; then
        uv=$(command -v uv)
        return
    fi
    if ! .cache/uv/bin/uv --version >/dev/null 2>&1; then
        need_venv
        say "installing a private uv into .cache/uv"
        rm -rf .cache/uv
        mkdir -p .cache
        if ! { "$python" -m venv .cache/uv &&
            .cache/uv/bin/python -m pip install --quiet --require-hashes -r requirements/uv.txt; } >&2; then
            rm -rf .cache/uv
            say "uv could not be installed; going on with pip"
            return
        fi
    fi
    uv=.cache/uv/bin/uv
}

venv_is_ours() { # it works, and was made here: a copied checkout brings an environment that points elsewhere
    [ "$(cat .venv/.place 2>/dev/null)" = "$PWD" ] &&
        .venv/bin/python -c 'import sys; sys.exit(sys.version_info < (3, 11))' 2>/dev/null
}

install_with_uv() {
    if ! venv_is_ours; then
        rm -rf .venv && "$uv" venv --quiet --no-config --python "$python" .venv || return 1
    fi
    "$uv" pip install --quiet --python .venv/bin/python --require-hashes -r "$lock" &&
        "$uv" pip install --quiet --python .venv/bin/python --no-deps --no-build-isolation -e .
}

install_with_pip() {
    if ! venv_is_ours || ! .venv/bin/python -m pip --version >/dev/null 2>&1; then
        need_venv
        rm -rf .venv && "$python" -m venv .venv || return 1
    fi
    .venv/bin/python -m pip install --quiet --require-hashes -r "$lock" &&
        .venv/bin/python -m pip install --quiet --no-deps --no-build-isolation -e .
}

python=$(find_python)
find_uv
say "installing $lock into .venv with ${uv:-pip}"
if [ -n "$uv" ] && ! install_with_uv; then
    say "uv could not install $lock; trying pip, which may know another index"
    uv=
fi
if [ -z "$uv" ] && ! install_with_pip; then
    say "$lock could not be installed. The lines above say why; a package index must be reachable once."
    exit 1
fi
printf '%s\n' "$PWD" >.venv/.place
touch .venv/.run
if [ "$kind" = test ]; then touch .venv/.test; fi # test.txt contains all of run.txt
