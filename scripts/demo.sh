#!/usr/bin/env bash
# The main job in one go: installs what is missing, builds, makes a checkpoint, starts two receiving instances of two workers
# each, updates them with four ranks, twice (the first update touches the workers' memory for the first time, the second is
# what a training step costs), and has every byte compared with the files after each.
#   usage: scripts/demo.sh [DIVISOR]      1, the default: qwen3-0.6b at its full width, 1.2 GB; 4: a sixteenth of that
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
shrink=${1:-1}
bash scripts/setup.sh
export CCACHE_BASEDIR=$PWD
mkdir -p build
cmake --preset release >build/configure-release.log 2>&1 || { cat build/configure-release.log; exit 1; }
cmake --build build/release --target checkpoint-engine -- --quiet

program=$PWD/build/release/bin/checkpoint-engine
work=$(mktemp -d)
receivers=()
cleanup() {
  local code=$?
  if [ $code != 0 ]; then
    for log in "$work"/receive*.log; do [ -s "$log" ] && { echo "demo: $(basename "$log"):"; cat "$log"; } >&2; done
  fi
  for pid in "${receivers[@]}"; do kill "$pid" 2>/dev/null || true; done
  rm -rf "$work"
}
trap cleanup EXIT

"$program" make-checkpoint --like qwen3-0.6b --shrink "$shrink" --shard-size 400MB "$work/checkpoint"
for instance in 0 1; do
  "$program" receive --workers 2 --uds "$work/engine$instance.sock" --expect "$work/checkpoint" --exit-after 2 \
    >"$work/receive$instance.log" 2>&1 &
  receivers+=($!)
done
for update in first second; do
  echo "$update update"
  "$program" update --nproc 4 --device host --checkpoint-path "$work/checkpoint" --engine vllm --inference-parallel-size 2 \
    --uds "$work/engine0.sock,$work/engine1.sock" --report "$work/report.json"
done
for i in 0 1; do
  wait "${receivers[$i]}" || { echo "demo: receiving instance $i failed" >&2; exit 1; }
done
receivers=()
python3 - "$work/report.json" <<'P'
import json, sys
report = json.load(open(sys.argv[1]))
ranks = report["ranks"]
tensors = report["total_tensors"]
loaded = sum(r["loaded_bytes"] for r in ranks)
verified = sum(r["verified_tensors"] for r in ranks)
assert len(ranks) == 4 and verified == 4 * tensors and loaded == 4 * report["total_bytes"], "not everything was verified"
print(f"demo: ok, {tensors} tensors, {loaded} bytes verified on {len(ranks)} workers, {report['gb_per_s']:.2f} GB/s")
P
