#!/usr/bin/env bash
# Fetches what tests read with Node into .cache/node:  tools/node.sh
#
# It needs node and npm, and changes nothing outside of the checkout; requirements/test-npm says what is fetched.
set -euo pipefail
cd "$(dirname "$0")/.."

home=.cache/node

say() { echo "node: $*" >&2; }

for tool in node npm; do
    command -v "$tool" >/dev/null || { say "There is no $tool: tests in JavaScript cannot run." && exit 1; }
done
mkdir -p "$home"
cp requirements/test-npm/package.json requirements/test-npm/package-lock.json "$home"
npm ci --prefix "$home" --ignore-scripts --no-audit --no-fund --fetch-timeout=20000 --fetch-retries=1 >&2 || { say "npm could not fetch them." && exit 1; }
touch "$home/.ready"
