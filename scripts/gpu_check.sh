#!/usr/bin/env bash
# Tests and measures the bundle on a machine with GPUs; a table comes last. Every step has its own time limit.
#   usage: gpu_check.sh [STEP...]
#   on one GPU:   device ceilings small one many large (the default), flat (twenty updates each way), contract (the collectives' tests), failures, chain
#                 (through host memory), loaded (metas of another job), overlap, from-device, compare, compare-small, sizes (chunk x bucket x overlap), kept (--keep-buffers), nccl-alone
#                 (what a communicator of one rank takes), multi (multi_gpu.py, several ranks on one GPU),
#                 in-place (updates out of files in /dev/shm), little-memory (PS_MEM_FRACTION leaves two ranks one bucket at a time)
#   on two:       two, nccl, kill, compare-two
#   compare needs torch and the package checkpoint-engine 0.4.2 with what it imports; nccl needs libnccl.so.2 (torch brings it)
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
nccl=$(python3 -c 'import nvidia.nccl; print(list(nvidia.nccl.__path__)[0])' 2>/dev/null) && export LD_LIBRARY_PATH=$nccl/lib:${LD_LIBRARY_PATH:-}
[ -n "$gpus" ] || { echo "gpu_check: no GPU here (nvidia-smi does not answer)"; exit 1; }
echo "$gpus"
echo "$(nproc) processors, $(awk '/MemTotal/ {printf "%.0f GiB", $2 / 1048576}' /proc/meminfo) at the moment, kernel $(uname -r), $(df -h /dev/shm | awk 'NR == 2 {print $2}') /dev/shm"

steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(device ceilings small one many large)
for s in "${steps[@]}"; do
  case $s in
    device) step device 120 "$here/bin/ckpt_device_test" ;;
    contract) # spreading as the tests have it, on GPUs: threads, processes over CUDA IPC, and NCCL where there are two
      step contract 240 "$here/bin/ckpt_collective_test" --gtest_filter='*cuda*'
      step contract-processes 120 "$here/bin/ckpt_spread_processes_test" ;;
    ceilings)
      step ceilings 90 "$here/bin/checkpoint-engine" bench ;;
    small) update small 120 --gib 1.5 --updates 3 --files /tmp ;;
    one) update one-9GB 120 --gib 8 --files /tmp ;;
    many)
      update two-ranks 120 --gib 4 --ranks 2
      update four-ranks 150 --gib 4 --ranks 4 ;;
    large) update one-34GB 240 --gib 32 ;;
    flat) # twenty updates each way: the device memory that is kept must not grow
      update flat-two-ranks 150 --gib 8 --ranks 2 --updates 20
      update flat-four-ranks 150 --gib 8 --ranks 4 --updates 20 ;;
    failures) # twenty updates that are cancelled in the middle: the memory that is kept must not grow
      for ranks in 1 2 4; do update "failures-$ranks-ranks" 120 --gib 4 --ranks $ranks --updates 2 --failures 20; done
      update kill-one-gpu 90 --gib 4 --ranks 2 --updates 1 --kill-rank 1 ;;
    chain) # over the transport, through pinned host memory, twenty updates: ranks that act as hosts, and --collective chain
      update chain-two-ranks 150 --gib 1.5 --ranks 2 --hosts 2 --updates 10
      update chain-four-ranks 200 --gib 1.5 --ranks 4 --hosts 4 --updates 10
      update chain-chosen-two-ranks 150 --gib 1.5 --ranks 2 --collective chain --updates 20
      update chain-chosen-four-ranks 200 --gib 1.5 --ranks 4 --collective chain --updates 20 ;;
    loaded) # the way of GPUs without an RDMA NIC, or with a UCX without CUDA: `--device cuda` of `update --load-metas-file`
      update loaded-one-rank 120 --gib 4 --loaded 1 --updates 3
      update loaded-two-ranks 150 --gib 4 --ranks 2 --loaded 1 --updates 3
      step loaded-says-how 30 "$here/bin/checkpoint-engine" inspect --network --ranks 1 ;;
    overlap)
      for overlap in on off; do for chunk in 8MiB 32MiB 64MiB; do
        update "overlap-$overlap-chunk-$chunk" 60 --gib 8 --overlap "$overlap" --chunk "$chunk"
      done; done
      update overlap-off-ring-1GiB-buckets 60 --gib 8 --overlap off --bucket 1GiB
      update overlap-on-small-buckets 60 --gib 8 --bucket 128MiB ;;
    sizes)
      for overlap in on off; do for bucket in 128MiB 256MiB 512MiB; do for chunk in 8MiB 16MiB 32MiB 64MiB; do
        update "$chunk-of-$bucket-overlap-$overlap" 40 --gib 8 --updates 3 --overlap $overlap --bucket $bucket --chunk $chunk
      done; done; done ;;
    kept)
      for keep in 0 1; do for ranks in 1 2 4; do
        update "kept-$keep-ranks-$ranks" 60 --gib 4 --updates 5 --ranks $ranks --keep-buffers $keep
      done; done
      update kept-stock 60 --gib 4 --updates 3 --keep-buffers 1 --worker "python3 $here/bench/compare/stock_worker.py" ;;
    nccl-alone)
      for set in NCCL_DEBUG=WARN NCCL_BUFFSIZE=1048576 NCCL_MAX_CTAS=4 NCCL_CUMEM_ENABLE=0; do
        step "nccl-alone-$set" 60 env "$set" "$here/bin/gpu_update" --gib 1.3 --updates 1 --nccl-ceilings 1 --json "$out/${set%=*}.json"
      done ;;
    multi) step multi 200 python3 "$here/bench/multi_gpu.py" --ranks 2 --gib 8 --seconds 190 --out "$out/multi" ;;
    in-place) # cudaHostRegister of tmpfs pages; bytes compared, the files gone, their memory back after unregister
      update in-place 120 --gib 8 --files /dev/shm --in-place 1 --updates 3
      update in-place-two-ranks 120 --gib 8 --files /dev/shm --in-place 1 --updates 3 --ranks 2 ;;
    little-memory) # 700 MiB for each rank: a smaller ring; 360: the largest tensor (297) and no staging
      for mib in 700 360; do
        fraction=$(nvidia-smi --query-gpu=memory.free --format=csv,noheader,nounits | awk -v mib=$mib 'NR == 1 {print 2 * mib / ($1 - 2 * 2600)}')
        PS_MEM_FRACTION=$fraction update "little-memory-$mib" 90 --gib 2 --shrink 2 --ranks 2 --updates 3
        step "little-memory-$mib-sizes" 10 python3 - "$results" "$mib" <<'PYTHON'
import json, sys
*_, last = open(sys.argv[1])
for rank in json.loads(last)["by_rank"]:
    for update in rank["updates"]:
        ring, staging = update["ring_bytes"] / 2**20, update["staging_bytes"] / 2**20
        print(f"ring {ring:.0f} MiB, staging {staging:.0f} MiB")
        assert ring + staging < 1.2 * float(sys.argv[2]), "more than its share"
        assert (staging > 0) == (sys.argv[2] == "700"), "another fallback"
PYTHON
      done ;;
    from-device) update from-device 60 --gib 8 --from-device 1 --updates 1 ;;
    compare) step compare 290 python3 "$here/bench/compare_reference.py" --gib 8 32 --json "$out/compare.jsonl" ;;
    compare-small) # never slower, from one tensor of 1 KiB up
      step compare-small 150 python3 "$here/bench/compare_reference.py" --tensors 1x1KiB 1x1MiB 16x4MiB 32x16MiB 128x16MiB \
        --updates 3 --json "$out/compare-small.jsonl" ;;
    compare-two) step compare-two 400 python3 "$here/bench/compare_reference.py" --gpus 2 --gib 16 64 --json "$out/compare.jsonl" ;;
    nccl)
      update nccl-17GB 90 --gib 16 --ranks 2 --gpus 2 --collective nccl
      update nccl-69GB 150 --gib 64 --ranks 2 --gpus 2 --collective nccl
      for ctas in 2 4 16; do
        NCCL_MAX_CTAS=$ctas update "nccl-$ctas-CTAs" 60 --gib 4 --ranks 2 --gpus 2 --collective nccl --updates 2
      done ;;
    kill) # a rank in mid-update; the same workers are then updated by new ranks
      for collective in peer nccl; do for rank in 0 1; do
        update "kill-$rank-$collective" 90 --gib 8 --ranks 2 --gpus 2 --updates 1 --collective $collective --kill-rank $rank
      done; done ;;
    kill-stock)
      update kill-1-stock 90 --gib 8 --ranks 2 --gpus 2 --updates 1 --kill-rank 1 \
        --worker "python3 $here/bench/compare/stock_worker.py" ;;
    two)
      update two-gpus-17GB 150 --gib 16 --ranks 2 --gpus 2
      update two-gpus-apart 120 --gib 8 --ranks 2 --gpus 2 --isolate 1
      update two-gpus-69GB 300 --gib 64 --ranks 2 --gpus 2 ;;
    *) echo "gpu_check: no step $s"; exit 2 ;;
  esac
done

echo
echo "== results"
[ ! -s "$results" ] || python3 - "$results" <<'PYTHON'
import json, sys
missed = []
def limit(what, value, most, unit):
    if value > most: missed.append(f"{what}: {value:.3f} {unit}, at most {most:.3f} wanted")
def check(r):
    """The targets that a run can miss with every byte right."""
    name = f"{r['total_bytes'] / 1e9:.2f} GB, {r['ranks']} ranks, {r['gpus']} GPUs, {r['collective']}"
    limit(f"{name}: made by later updates", r["streams_made_later"], 0, "streams and tables")
    limit(f"{name}: cancelled update returns", r["cancelled_seconds"], 1, "s")
    by_gpu = {}
    for rank in r["by_rank"]: by_gpu[rank["gpu"]] = max(by_gpu.get(rank["gpu"], 0), rank["kept_device_bytes"])
    if r["ranks"] == r["gpus"]:  # a context on a GPU that is another rank's would be seen here
        limit(f"{name}: kept on one GPU more than on another", (max(by_gpu.values()) - min(by_gpu.values())) / 2**30, 0.25, "GiB")
    if r["collective"] == "nccl" or r["loaded"]: return  # NCCL's memory, and the network's rate
    if not r["keep_buffers"]: limit(f"{name}: kept after all updates", r["kept_device_bytes"] / 2**30, 0.1, "GiB")
    if r["collective"] == "chain" or r["hosts"] > 1 or r["ranks"] > r["gpus"] or r["worker"] != "native": return
    if r["ring"] == "0" and r["chunk"] == "32MiB": limit(f"{name}: device memory", r["extra_device_bytes"] / 2**30, 1.5, "GiB")
    if r["overlap"] != "off": limit(f"{name}: later updates", r["verified_seconds"], r["total_bytes"] / r["upload_gb_per_s"] / 1e9 * 1.05 + 0.04, "s")
for line in open(sys.argv[1]):
    r = json.loads(line)
    if "killed_rank" in r:
        for told in r["told"]:
            print(f"rank {r['killed_rank']} killed ({r['collective']}): rank {told['rank']} had the cause after {told['seconds']:.3f} s")
            limit(f"rank {r['killed_rank']} killed ({r['collective']})", told["seconds"], 1, "s")
        continue
    check(r)
    gb = r["total_bytes"] / 1e9; h2d = r["upload_gb_per_s"]
    rate = lambda s: gb / s if s else 0
    print(f"{gb:7.2f} {r['ranks']:5} {r['gpus']:4} {h2d:6.1f} {rate(r['register_first_seconds']):8.1f} {rate(r['register_seconds']):6.1f} "
          f"{rate(r['register_files_seconds']):6.1f} {r['first_seconds']:7.3f} {r['verified_seconds']:8.3f} {rate(r['verified_seconds'])/h2d*100:5.1f} "
          f"{r['unverified_seconds']:8.3f} {rate(r['unverified_seconds'])/h2d*100:5.1f} {(r['verified_seconds']-gb/h2d)*1e3:7.0f} "
          f"{r['first_bucket_seconds']*1e3:9.1f} {r['extra_device_bytes']/2**30:5.2f} {r['kept_device_bytes']/2**30:5.2f}  {r['collective']} overlap {r['overlap']} chunk {r['chunk']} bucket {r['bucket']}")
    print(f"        streams, events and digest tables made: first update {r['streams_made_first']:.0f}, later ones {r['streams_made_later']:.0f}"
          # Of several on one GPU it cannot be told from what the others have meanwhile.
          + (f"; CUDA context {r['context_bytes'] / 2**20:.0f} MiB" if r["ranks"] <= r["gpus"] else ""))
    if r["failures"]: print(f"        {r['failures']} updates cancelled, the slowest returned after {r['cancelled_seconds']:.3f} s")
    if r["register_device_seconds"]:
        print(f"        from device memory: first {rate(r['register_device_first_seconds']):.1f}, again {rate(r['register_device_seconds']):.1f} GB/s, "
              f"D2H {r['download_gb_per_s']:.1f}")
for text in missed: print("missed:", text)
sys.exit(1 if missed else 0)
PYTHON
[ $? = 0 ] || failed+=("targets")
[ ${#failed[@]} = 0 ] || { echo "failed: ${failed[*]}"; exit 1; }
