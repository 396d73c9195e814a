#!/usr/bin/env bash
# Runs tests on the Windows CPython, under Wine:  tools/windows/run.sh [smoke | FOLDER OR FILE ...]
#
# Makes the lab in .cache/windows if it is not there (setup.sh: about two minutes, and apt-get as root for Wine).
# PostgreSQL is served from here, by TCP. What cannot be tried there is listed in tests/apart.py, each with its reason.
# With `smoke` only what shows within minutes whether Windows works at all. In the end it tells the counts of each part.
#
#   WINDOWS_PYTHON=3.12   another Python, in a lab of its own: 3.11, 3.12 or 3.13 (the default)
#   JOBS=1                tests at once (2)
set -euo pipefail
cd "$(dirname "$0")/../.."

version=${WINDOWS_PYTHON:-3.13}
lab=.cache/windows
[ "$version" = 3.13 ] || lab=.cache/windows-$version
PYTHON=$version tools/windows/setup.sh "$lab"
run=("$lab/python" -m pytest -p no:cacheprovider --timeout 300 -n "${JOBS:-2}" -q -rsfE)
if [ "${1:-}" = smoke ]; then
    exec "${run[@]}" tests/stores/presence/test_windows.py tests/executors/test_windows.py tests/cli/test_windows.py \
        tests/web/test_windows.py
fi
parts=(tests/core tests/testing tests/edge tests/engine tests/stores tests/executors tests/cli tests/batch tests/sim
    tests/web tests/torture/test_short.py)
if [ $# -gt 0 ]; then parts=("$@"); fi

coproc SERVER { exec .venv/bin/python -m tests.pg.serve; }
server=$SERVER_PID
trap 'kill "$server" 2> /dev/null || true' EXIT
read -r RUNCUE_TEST_PG_DSN <&"${SERVER[0]}"
export RUNCUE_TEST_PG_DSN

code=0
told=()
for part in "${parts[@]}"; do
    echo "== $part"
    "${run[@]}" "$part" | tee "$lab/last.txt" || code=1
    told+=("$part: $(tail -n 1 "$lab/last.txt" | tr -d '\r')")
done
printf '%s\n' "" "CPython $version:" "${told[@]}"
exit $code
