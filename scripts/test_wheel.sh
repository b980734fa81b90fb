#!/usr/bin/env bash
# Installs the package by pip into a new virtual environment, and runs the package's tests against what is installed there.
#   usage: scripts/test_wheel.sh [PYTHON]        PYTHON: 3.10 or newer (default: python3)
# Behind a release build of the same tree ccache has most of it: a minute.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=${1:-python3}
# All but those of the program alone.
mapfile -t tests < <(printf '%s\n' "$PWD"/tests/python/test_*.py | grep -vE '/test_(p2p|program|real_checkpoint|service)\.py$')
scratch=$(mktemp -d)
trap 'rm -rf "$scratch"' EXIT
if command -v ccache >/dev/null; then
  export CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache CCACHE_BASEDIR=$PWD CCACHE_NOHASHDIR=1
fi

"$python" -m venv "$scratch/venv"
venv=$scratch/venv/bin
# What the package is built with is in the same environment, so that nothing is fetched twice.
mapfile -t needed < <(grep -vE '^#|^gt-' scripts/requirements-test.txt)
# The versions are those of one Python; another has its own newest ones.
[ $# = 0 ] || needed=("${needed[@]%%==*}")
"$venv/pip" install -q --disable-pip-version-check scikit-build-core "${needed[@]}"
"$venv/pip" install -q --disable-pip-version-check --no-build-isolation .
# Elsewhere than in the tree, so that nothing but the installed package is found.
cd "$scratch"
"$venv/python" -c 'import checkpoint_engine, sys; print("installed", checkpoint_engine.__version__, "for Python", sys.version.split()[0], checkpoint_engine.__file__)'
"$venv/checkpoint-engine" --version
CHECKPOINT_ENGINE=$venv/checkpoint-engine "$venv/python" -m pytest -q -p no:cacheprovider "${tests[@]}"
