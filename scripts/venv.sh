#!/usr/bin/env bash
# Makes .venv with the Python packages of scripts/requirements-test.txt, once; prints its python.
#   usage: python=$(scripts/venv.sh)
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
venv=$root/.venv
stamp=$venv/.requirements
if ! cmp -s "$root/scripts/requirements-test.txt" "$stamp"; then
  python3 -m venv "$venv" >&2
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps -r "$root/scripts/requirements-test.txt" >&2
  cp "$root/scripts/requirements-test.txt" "$stamp"
fi
echo "$venv/bin/python"
