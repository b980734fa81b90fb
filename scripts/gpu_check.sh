#!/usr/bin/env bash
# Tests and measures the bundle on a machine with GPUs; a table comes last. Every step has its own time limit.
#   usage: gpu_check.sh [STEP...]     steps: device ceilings small one many large flat two   (default: the first six)
#   OUT: where log.txt and results.jsonl go (default: gpu-check beside the bundle)
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
[ -d "$here/bin" ] || here=$here/../build/bundle
out=${OUT:-$here/gpu-check}
mkdir -p "$out"
results=$out/results.jsonl
log=$out/log.txt
failed=()

step() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  echo "== $name: ${*/#$here\/bin\//}"
  local text=$out/last.txt
  timeout -k 5 "$limit" "$@" >"$text" 2>&1
  local code=$?
  { echo "== $name: $*"; cat "$text"; } >>"$log"
  [ $code = 0 ] || failed+=("$name ($code)")
  grep -vE '^\[ +(OK|RUN) |^\[-+\]|^$' "$text" | tail -n 22
  rm -f "$text"
  echo "-- $name: exit code $code after $((SECONDS - begin)) s"
}
update() { # NAME SECONDS OPTIONS...
  step "$1" "$2" "$here/bin/gpu_update" --json "$results" "${@:3}"
}

gpus=$(nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader 2>/dev/null) || gpus=
[ -n "$gpus" ] || { echo "gpu_check: no GPU here (nvidia-smi does not answer)"; exit 1; }
echo "$gpus"
echo "$(nproc) processors, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo) at the moment, kernel $(uname -r), $(df -h /dev/shm | awk 'NR == 2 {print $2}') /dev/shm"

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(device ceilings small one many large)
for s in "${steps[@]}"; do
  case $s in
    device) step device 120 "$here/bin/ckpt_device_test" ;;
    ceilings)
      step ceilings 90 "$here/bin/checkpoint-engine" bench
      timeout 90 "$here/bin/checkpoint-engine" bench --json >"$out/ceilings.json" ;;
    small) update small 120 --gib 1.5 --updates 3 --files /tmp ;;
    one) update one-9GB 120 --gib 8 --files /tmp ;;
    many)
      update two-ranks 120 --gib 4 --ranks 2
      update four-ranks 150 --gib 4 --ranks 4 ;;
    large) update one-34GB 240 --gib 32 ;;
    flat) # twenty updates each way: the device memory that is kept must not grow
      update flat-two-ranks 150 --gib 8 --ranks 2 --updates 20
      update flat-four-ranks 150 --gib 8 --ranks 4 --updates 20 ;;
    two)
      update two-gpus-17GB 150 --gib 16 --ranks 2 --gpus 2
      update two-gpus-apart 120 --gib 8 --ranks 2 --gpus 2 --isolate 1
      update two-gpus-69GB 300 --gib 64 --ranks 2 --gpus 2 ;;
    *) echo "gpu_check: no step $s"; exit 2 ;;
  esac
done

echo
echo "== results"
[ -s "$results" ] && python3 - "$results" <<'PYTHON'
import json, sys
print(f"{'GB':>7} {'ranks':>5} {'GPUs':>4} {'H2D':>6} {'regist.':>8} {'again':>6} {'files':>6} {'first':>7} {'verified':>8} {'%':>5} {'unverif.':>8} {'%':>5} {'over ms':>7} {'bucket ms':>9} {'GiB':>5}")
for line in open(sys.argv[1]):
    r = json.loads(line); gb = r["total_bytes"] / 1e9; h2d = r["upload_gb_per_s"]
    rate = lambda s: gb / s if s else 0
    print(f"{gb:7.2f} {r['ranks']:5} {r['gpus']:4} {h2d:6.1f} {rate(r['register_first_seconds']):8.1f} {rate(r['register_seconds']):6.1f} "
          f"{rate(r['register_files_seconds']):6.1f} {r['first_seconds']:7.3f} {r['verified_seconds']:8.3f} {rate(r['verified_seconds'])/h2d*100:5.1f} "
          f"{r['unverified_seconds']:8.3f} {rate(r['unverified_seconds'])/h2d*100:5.1f} {(r['verified_seconds']-gb/h2d)*1e3:7.0f} "
          f"{r['first_bucket_seconds']*1e3:9.1f} {r['extra_device_bytes']/2**30:5.2f}")
PYTHON
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
