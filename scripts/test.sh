#!/usr/bin/env bash
# Installs what is missing, builds, and runs every test that needs no GPU.
#   usage: scripts/test.sh [quick]     quick: the dev preset alone, without sanitizers, fuzzing and the real checkpoint
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
quick=${1:-}
export CCACHE_BASEDIR=$PWD
jobs=$(nproc)
begin=$SECONDS
say() { printf '\n== [%d s] %s\n' $((SECONDS - begin)) "$*"; }

bash scripts/setup.sh

build() {
  say "build $1"
  mkdir -p build
  cmake --preset "$@" >"build/configure-$1.log" 2>&1 || { cat "build/configure-$1.log"; return 1; }
  grep -E "cuda|CUDA" "build/configure-$1.log" || true
  cmake --build "build/$1" -- --quiet
}
# On a machine that others use too, a test that fails is run once more, and ctest says so.
run() {
  say "test $1"
  ctest --repeat until-pass:2 --test-dir "build/$1" --output-on-failure -j "$jobs" "${@:2}"
}

build dev
run dev
[ "$quick" = quick ] && exit 0

python=$(bash scripts/venv.sh)
build release -DCKPT_BUILD_PYTHON=ON -DPython_EXECUTABLE="$python"
say "the program, and a checkpoint that nobody here made"
"$python" -m pytest -q tests/python/test_{p2p,program,real_checkpoint,service}.py
say "the Python package, as pip installs it"
bash scripts/test_wheel.sh

for sanitizer in asan tsan; do
  build "$sanitizer"
  run "$sanitizer"
  if [ "$sanitizer" = asan ]; then
    say "the program as processes, under asan"
    CHECKPOINT_ENGINE=$PWD/build/asan/bin/checkpoint-engine "$python" -m pytest -q tests/python/test_program.py -k "not memory"
  fi
done

build fuzz
say "fuzz, a few seconds each"
bash scripts/fuzz.sh 5
say "done"
