#!/usr/bin/env bash
# Writes requirements/*.txt from pyproject.toml: every package pinned and hashed, for all platforms.
# The files name no index and no path, so that any mirror can serve them. Extra arguments go to uv,
# e.g. `tools/lock.sh --upgrade`.
set -euo pipefail
cd "$(dirname "$0")/.."

uv=${UV:-}
if [ -z "$uv" ]; then
    for candidate in "$(command -v uv || true)" .cache/uv/bin/uv; do
        if [ -n "$candidate" ] && [ -x "$candidate" ]; then
            uv=$candidate
            break
        fi
    done
fi
if [ -z "$uv" ]; then
    echo "lock: uv not found. Run 'make .venv/.run' first (it installs a private one), or put uv on PATH." >&2
    exit 1
fi

mkdir -p requirements
lock() {
    local out=$1
    shift
    # A release must be a week old before it is picked: a bad upload is usually withdrawn by then.
    "$uv" pip compile --quiet --no-config \
        --universal --python-version 3.11 --generate-hashes --exclude-newer '1 week' \
        --no-header --no-annotate --no-emit-index-url --no-emit-find-links \
        --output-file "$out" "$@"
    if grep -nE '://|(^|[ =])/' "$out"; then
        echo "lock: $out names an index or a path (lines above); check uv's settings in the environment." >&2
        exit 1
    fi
    echo "lock: $out, $(grep -c '==' "$out") packages"
}

lock requirements/uv.txt --group uv "$@"
lock requirements/run.txt --extra all --group build pyproject.toml "$@"
lock requirements/test.txt --extra all --group build --group test --group lint \
    --constraint requirements/run.txt pyproject.toml "$@"
lock requirements/typing.txt --extra otel --group typing --constraint requirements/test.txt pyproject.toml "$@"
lock requirements/peers.txt --group peers --constraint requirements/test.txt "$@"
lock requirements/peers-arq.txt --group peers-arq --constraint requirements/test.txt "$@"
lock requirements/peers-honker.txt --group peers-honker "$@"
lock requirements/docs.txt --group docs "$@"

# What is written for Node; its lock names no registry either.
npm_lock() {
    local folder=$1
    npm install --prefix "$folder" --package-lock-only --ignore-scripts --no-audit --no-fund \
        --omit-lockfile-registry-resolved >/dev/null
    if grep -nE '://' "$folder/package-lock.json" | grep -v '"url"'; then
        echo "lock: $folder/package-lock.json names a registry (lines above)." >&2
        exit 1
    fi
    echo "lock: $folder/package-lock.json, $(grep -c '"version"' "$folder/package-lock.json") packages"
}

if command -v npm >/dev/null; then
    npm_lock requirements/peers-npm
    npm_lock requirements/test-npm
fi
