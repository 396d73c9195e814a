#!/usr/bin/env bash
# Tries the wheel as its users get it:  tools/wheel_test.sh [arguments for pytest]
#
# In a folder of its own: wheel and sdist are built, the wheel is installed without extras, and the tests of the
# unpacked sdist run against it, where there is no src/. What needs the source is left out. Without arguments all
# others run, which takes as long as `make test`.
#
#   PYTHON=python3.12   the interpreter to try it on; the one of .venv otherwise
set -euo pipefail
cd "$(dirname "$0")/.."
here=$PWD
say() { echo "wheel-test: $*" >&2; }

python=${PYTHON:-$here/.venv/bin/python}
uv=$(command -v uv || true)
if [ -z "$uv" ] && [ -x .cache/uv/bin/uv ]; then uv=$here/.cache/uv/bin/uv; fi
export UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never UV_COMPILE_BYTECODE=1 PIP_DISABLE_PIP_VERSION_CHECK=1
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}; fi
unset PYTHONPATH

place=$(mktemp -d "${TMPDIR:-/tmp}/runcue-wheel.XXXXXX")
trap 'rm -rf "$place"' EXIT
env=$place/env

if [ -n "$uv" ]; then
    "$uv" venv --quiet --no-config --python "$python" "$env"
    install() { "$uv" pip install --quiet --python "$env/bin/python" "$@"; }
else
    "$python" -m venv "$env"
    install() { "$env/bin/python" -m pip install --quiet "$@"; }
fi

.venv/bin/python -m hatchling build -d "$place/dist" >/dev/null
install "$place"/dist/*.whl
found=$("$env/bin/python" -c '
from importlib.metadata import distributions
print(*sorted({one.name.lower() for one in distributions()} - {"pip", "setuptools"}))')
say "runcue brings along: $found"
if [ "$found" != "apsw click msgspec runcue" ]; then
    say "that is not what a base install needs (apsw click msgspec)."
    exit 1
fi

install --require-hashes -r requirements/test.txt
tar -xzf "$place"/dist/*.tar.gz -C "$place"
cd "$place"/runcue-*/
rm -rf src
"$env/bin/python" -c '
import sys, runcue
if not runcue.__file__.startswith(sys.prefix):
    sys.exit(f"wheel-test: {runcue.__file__} is not the wheel that was installed.")'
say "testing $("$env/bin/python" -c 'import platform, runcue; print(platform.python_version(), runcue.__file__)')"

# The browser that was fetched for the checkout serves here as well.
if [ -d "$here/.cache/chromium" ]; then mkdir -p .cache && ln -s "$here/.cache/chromium" .cache/chromium; fi
# These read the source, or build from it.
"$env/bin/python" -m pytest -n "${JOBS:-3}" --timeout 300 -p no:cacheprovider \
    --ignore=tests/test_architecture.py --ignore=tests/packaging \
    --deselect=tests/sim/test_page.py::test_the_script_is_valid "$@"
