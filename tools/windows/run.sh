#!/usr/bin/env bash
# Runs tests on the Windows CPython, under Wine:  tools/windows/run.sh [smoke]
#
# Makes the lab in .cache/windows if it is not there (setup.sh: about two minutes, and apt-get as root for Wine).
# PostgreSQL is served from here, by TCP. What cannot be tried there is listed in tests/apart.py, each with its reason.
# With `smoke` only what shows within minutes whether Windows works at all.
set -euo pipefail
cd "$(dirname "$0")/../.."

lab=.cache/windows
tools/windows/setup.sh "$lab"
run=("$lab/python" -m pytest -p no:cacheprovider --timeout 300 -n "${JOBS:-2}")
if [ "${1:-}" = smoke ]; then
    exec "${run[@]}" -q tests/stores/presence/test_windows.py tests/executors/test_windows.py \
        tests/cli/test_windows.py
fi

coproc SERVER { exec .venv/bin/python -m tests.pg.serve; }
server=$SERVER_PID
trap 'kill "$server" 2> /dev/null || true' EXIT
read -r RUNCUE_TEST_PG_DSN <&"${SERVER[0]}"
export RUNCUE_TEST_PG_DSN

code=0
for part in tests/core tests/testing tests/edge tests/engine tests/stores tests/executors/test_windows.py \
    tests/cli/test_windows.py tests/batch tests/sim tests/torture/test_short.py; do
    echo "== $part"
    "${run[@]}" -q "$part" || code=1
done
exit $code
