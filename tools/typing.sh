#!/usr/bin/env bash
# Asks several type checkers about the built wheel, as a program that uses it would: tools/typing.sh
#
# tests/typing/api.py has to be right, and every line marked in tests/typing/wrong.py has to be refused. The checkers
# live in .cache/typing, which is made anew when their lock changes. pyright needs node: where there is none, it is
# left out, and that is said.
set -euo pipefail
cd "$(dirname "$0")/.."
say() { echo "typing: $*" >&2; }

uv=$(command -v uv || true)
if [ -z "$uv" ] && [ -x .cache/uv/bin/uv ]; then uv=.cache/uv/bin/uv; fi
if [ -z "$uv" ]; then
    say "uv not found. Run 'make .venv/.run' first (it installs a private one), or put uv on PATH."
    exit 1
fi
export UV_NO_PROGRESS=1 UV_PYTHON_DOWNLOADS=never
if [ -e /etc/ssl/certs/ca-certificates.crt ]; then export UV_SYSTEM_CERTS=${UV_SYSTEM_CERTS:-1}; fi

env=$PWD/.cache/typing
if ! cmp -s requirements/typing.txt "$env/lock.txt"; then
    rm -rf "$env"
    "$uv" venv --quiet --no-config --python .venv/bin/python "$env"
    "$uv" pip install --quiet --python "$env/bin/python" --require-hashes -r requirements/typing.txt
    cp requirements/typing.txt "$env/lock.txt"
fi

place=$(mktemp -d "${TMPDIR:-/tmp}/runcue-typing.XXXXXX")
trap 'rm -rf "$place"' EXIT
.venv/bin/python -m hatchling build -t wheel -d "$place/dist" >/dev/null 2>"$place/said" || { cat "$place/said" >&2; exit 1; }
"$uv" pip install --quiet --python "$env/bin/python" --no-deps --reinstall "$place"/dist/*.whl
cp tests/typing/*.py "$place"
cd "$place" # where there is no src/, and no configuration of ours

code=0
# What a checker says is shown only where it does not agree.
agrees() { "$@" >said.txt 2>&1 || { cat said.txt; code=1; }; }

say "$("$env/bin/mypy" --version)"
agrees "$env/bin/mypy" --config-file= --strict --cache-dir "$place/cache" api.py wrong.py

say "$("$env/bin/pyrefly" --version)"
echo "python-interpreter-path = \"$env/bin/python\"" >pyrefly.toml
agrees "$env/bin/pyrefly" check --config pyrefly.toml api.py
# It does not say which marks are not needed, so they are taken away: each such line, and no other, is an error then.
grep -n '# type: ignore' wrong.py | cut -d: -f1 >marked.txt
sed 's/  # type: ignore.*//' wrong.py >plain.py
"$env/bin/pyrefly" check --config pyrefly.toml --output-format min-text plain.py >told.txt 2>said.txt || true
(grep -oE 'plain\.py:[0-9]+' told.txt || true) | cut -d: -f2 | sort -nu >refused.txt
if ! diff marked.txt refused.txt >differs.txt; then
    cat said.txt
    say "pyrefly refuses (>) or accepts (<) other lines of tests/typing/wrong.py than those marked:"
    grep '^[<>]' differs.txt
    code=1
fi

if command -v node >/dev/null; then
    say "$("$env/bin/pyright" --version | tail -n 1)"
    echo '{"typeCheckingMode": "strict", "reportUnnecessaryTypeIgnoreComment": "error"}' >pyrightconfig.json
    agrees "$env/bin/pyright" --pythonpath "$env/bin/python" api.py wrong.py --project pyrightconfig.json
else
    say "pyright is left out: it needs node, and there is none on PATH."
fi
if [ $code -eq 0 ]; then say "tests/typing/api.py is right, and every line marked in tests/typing/wrong.py is refused."; fi
exit $code
