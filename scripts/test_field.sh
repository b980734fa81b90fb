#!/usr/bin/env bash
# The real package checkpoint-engine 0.4.2 against a release build of this tree: its worker driven by our ranks, its sender into our
# worker, every tensor compared bit by bit, and its worker whose rank is killed in mid-update. Half a minute.
#   usage: scripts/test_field.sh
# torch is Debian 12's 1.13, which is small, and for its Python alone; scripts/interop.sh does the same with torch 2.13.
set -euo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
python=${FIELD_PYTHON:-/usr/bin/python3}
venv=$root/build/field
release=$root/build/release
here=$root/tests/interop
mkdir -p "$root/build"

if ! cmp -s "$root/scripts/requirements-field.txt" "$venv/.requirements"; then
  rm -rf "$venv"
  "$python" -m venv --system-site-packages "$venv"
  # What Debian has of these is older, and would be taken for them.
  "$venv/bin/pip" install -q --disable-pip-version-check --no-deps --ignore-installed -r "$root/scripts/requirements-field.txt"
  cp "$root/scripts/requirements-field.txt" "$venv/.requirements"
fi
site=$("$venv/bin/python" -c 'import sysconfig; print(sysconfig.get_path("purelib"))')
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT

"$venv/bin/python" -c 'import importlib.metadata, torch; print("checkpoint-engine", importlib.metadata.version("checkpoint-engine"), "torch", torch.__version__)'
failed=0
PYTHONPATH=$here "$venv/bin/python" "$here/prove_workers.py" --small --program "$release/bin/checkpoint-engine" --cache "$scratch" field || failed=1
LOGURU_LEVEL=CRITICAL PYTHONPATH=$release/python "$venv/bin/python" "$here/prove_package.py" --field "$site" sender || failed=1
PYTHONPATH=$release/python "$venv/bin/python" "$here/prove_package.py" torch || failed=1
PYTHONPATH=$release/python "$venv/bin/python" "$here/prove_package.py" separate || failed=1
exit $failed
