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

say "format"
git ls-files '*.h' '*.cc' | xargs clang-format-14 --dry-run -Werror
mkdir -p build
: >build/skipped.txt

# PRESET [OPTION...]; $target: all of it, or one target
build() {
  say "build $1"
  cmake --preset "$@" >"build/configure-$1.log" 2>&1 || { cat "build/configure-$1.log"; return 1; }
  cmake --build "build/$1" --target "${target:-all}" -- --quiet
}
# UCX 1.13, which Debian 12 has, can end a process by an assertion of its own while connections of both sides are being made on
# a busy machine. Tests that ended so, and by nothing else, are run again, at most three times.
ended_by_ucx() {
  local logs=build/$1/Testing/Temporary
  local assertions='(tcp_ep|uc[pst]_[a-z_]+)\.c:[0-9]+ +Assertion'
  [ "$(wc -l <"$logs/LastTestsFailed.log")" -le "$(grep -cE "$assertions" "$logs/LastTest.log")" ]
}
run() {
  say "test $1"
  local again=() left=3
  until ctest --test-dir "build/$1" --output-on-failure -j "$jobs" "${@:2}" "${again[@]}"; do
    [ $left -gt 0 ] && ended_by_ucx "$1" || exit 1
    left=$((left - 1))
    again=(--rerun-failed)
    say "again: an assertion of UCX"
  done
  # What a program skipped for itself, and what ctest calls skipped, each with its reason.
  awk -v preset="$1" '
    $2 == "Test:" { test = $3 }
    /^\[ RUN / { name = $NF }
    /: Skipped$/ { getline reason; print preset ": " test " " name ": " reason }
    /^skipped: / { print preset ": " test ": " substr($0, 10) }' \
    "build/$1/Testing/Temporary/LastTest.log" >>build/skipped.txt
}
python_tests() {
  "$python" -m pytest -q -rs "$@" | tee build/pytest.log
  grep '^SKIPPED' build/pytest.log >>build/skipped.txt || true
}
finish() {
  if [ -s build/skipped.txt ]; then
    say "skipped"
    sort build/skipped.txt
  fi
  say "done"
}

# The cuda backend is compiled everywhere, whether or not this machine has a GPU or a toolkit.
CUDACXX=$(bash scripts/cuda_toolkit.sh)
export CUDACXX

build dev -DCKPT_CUDA=ON
# On a machine that others use too, a test that fails is run once more, and ctest says so; not where sanitizers look for races.
run dev --repeat until-pass:2
if [ "$quick" = quick ]; then
  finish
  exit 0
fi

python=$(bash scripts/venv.sh)
build release -DCKPT_CUDA=ON -DCKPT_BUILD_TESTS=OFF -DCKPT_BUILD_PYTHON=ON -DPython_EXECUTABLE="$python"
say "the program, and a checkpoint that nobody here made"
python_tests tests/python/test_{p2p,program,real_checkpoint,service}.py
say "the Python package, as pip installs it"
bash scripts/test_wheel.sh
say "the field's package checkpoint-engine 0.4.2, its worker and its sender"
bash scripts/test_field.sh
say "the bundle, and the GPUs it has code for"
bash scripts/bundle.sh | tail -n 1
gpu_code=$(for list in elf ptx; do .venv/lib/python3*/site-packages/nvidia/cu13/bin/cuobjdump "--list-$list" build/bundle/bin/checkpoint-engine; done |
  grep -oE 'sm_[0-9]+\.(cubin|ptx)' | paste -sd' ')
echo "$gpu_code"
[ "$gpu_code" = "sm_80.cubin sm_90.cubin sm_100.cubin sm_100.ptx" ]
say "benchmarks, once and small"
"$python" scripts/bench_smoke.py

for sanitizer in asan tsan; do
  build "$sanitizer"
  run "$sanitizer"
  if [ "$sanitizer" = asan ]; then
    say "the program as processes, under asan"
    CHECKPOINT_ENGINE=$PWD/build/asan/bin/checkpoint-engine python_tests tests/python/test_program.py -k "not memory"
  fi
done

target=fuzzers build fuzz
say "fuzz, a few seconds each"
bash scripts/fuzz.sh 5
finish
