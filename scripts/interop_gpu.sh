#!/usr/bin/env bash
# Proofs on a machine with an H100 or H200: real vLLM 0.23, updated by our ranks and by those of the field's package checkpoint-engine
# 0.4.2, through its worker and through ours; and our Python package with torch's tensors on the GPU.
#   usage: interop_gpu.sh FOLDER [STEP...]         steps: plugin cuda bf16 block-fp8 fp8 (all of them where none is named)
#          interop_gpu.sh --pack FOLDER            fills FOLDER, on a machine with PyPI: vLLM (scripts/pack_vllm.py) and the field's package
# It runs from a bundle with our Python package (scripts/bundle.sh --python PYTHON, with that machine's version of Python); Python there has
# torch 2.11, transformers, httpx and their like. Each step has a time limit; a table comes last, all of it is in OUT.
# plugin is our program alone, by weight transfer and by our worker extension, with 1.1 GB of weights; the others have 16.4 and 9.4 GB.
#   OUT: where logs, results.jsonl and vllm.jsonl go (default: interop-gpu beside the bundle)
#   LIMIT: seconds for a step of the large checkpoints (default 420)
#   SCRATCH: 55 GB for checkpoints, made once (default: /tmp/interop-gpu);  GPUS: tensor parallel over so many (default 1)
set -uo pipefail
here=$(cd "$(dirname "${BASH_SOURCE[0]}")" && pwd)
if [ "${1:-}" = --pack ]; then
  mkdir -p "$2"
  python3 -m pip download -q --disable-pip-version-check --no-deps -d "$2" checkpoint-engine==0.4.2 opentelemetry-api==1.45.2 &&
    python3 "$here/pack_vllm.py" "$2/vllm.tar.xz"
  exit
fi
[ -d "$here/bin" ] || here=$here/../build/bundle
folder=$(cd "${1:?folder with vllm.tar.xz and the wheels}" && pwd)
shift
steps=("$@")
[ ${#steps[@]} -gt 0 ] || steps=(plugin cuda bf16 block-fp8 fp8)
out=${OUT:-$here/interop-gpu}
scratch=${SCRATCH:-/tmp/interop-gpu}
gpus=${GPUS:-1}
mkdir -p "$out" "$scratch"
exec > >(tee -a "$out/log.txt") 2>&1
failed=()

say() { printf '== [%d s] %s\n' $SECONDS "$*"; }
step() { # NAME SECONDS COMMAND...
  local name=$1 limit=$2 begin=$SECONDS
  shift 2
  say "$name"
  timeout -k 10 "$limit" "$@"
  local code=$?
  [ $code = 0 ] || failed+=("$name ($code)")
  printf '{"step": "%s", "exit_code": %d, "seconds": %d}\n' "$name" $code $((SECONDS - begin)) >>"$out/results.jsonl"
  say "$name: exit code $code after $((SECONDS - begin)) s"
}

nvidia-smi --query-gpu=name,driver_version,memory.total --format=csv,noheader || { echo "interop_gpu: no GPU here"; exit 1; }
python3 -c 'import sys, torch, transformers; print("Python", sys.version.split()[0], "torch", torch.__version__, "transformers", transformers.__version__)'
echo "$(nproc) processors, $(df -h --output=avail "$scratch" | tail -n 1) free below $scratch"

# Our package for another Python would not load.
PYTHONPATH=$here/python python3 -c 'import checkpoint_engine; print("our package", checkpoint_engine.__version__)' ||
  { echo "interop_gpu: $here/python is not for this Python: scripts/bundle.sh --python PYTHON"; exit 1; }

# Written while vLLM is unpacked and engines start; what an earlier call is still writing is left to it.
write_checkpoints() { # SHAPES
  local target=$scratch/$1
  [ -e "$target/written" ] || ! flock -n "$target.lock" rm -rf "$target" && return
  PYTHONPATH=$here/interop setsid nohup flock -n "$target.lock" sh -c 'python3 "$0" --shapes "$1" "$2" && touch "$2/written"' \
    "$here/interop/gpu_checkpoints.py" "$1" "$target" >>"$out/checkpoints.log" 2>&1 &
}
case " ${steps[*]} " in *" plugin "*) write_checkpoints small ;; esac
case " ${steps[*]} " in *" bf16 "* | *fp8*) write_checkpoints 8b ;; esac

if [ ! -e "$scratch/ready" ]; then
  say "unpack"
  mkdir -p "$scratch/vllm" "$scratch/field"
  python3 -c 'import sys, tarfile; tarfile.open(sys.argv[1]).extractall(sys.argv[2], filter="tar")' "$folder/vllm.tar.xz" "$scratch/vllm" &&
    python3 -c 'import sys, zipfile; [zipfile.ZipFile(wheel).extractall(sys.argv[1]) for wheel in sys.argv[2:]]' "$scratch/field" "$folder"/*.whl &&
    touch "$scratch/ready" || { echo "interop_gpu: $folder cannot be unpacked"; exit 1; }
  python3 -m compileall -q -j 0 "$scratch/vllm/site" "$scratch/field" >/dev/null 2>&1
  say "unpacked"
fi

prove=(python3 "$here/interop/prove_vllm_gpu.py" --program "$here/bin/checkpoint-engine" --ours "$here/python" --vllm "$scratch/vllm/site" --out "$out"
  --tensor-parallel "$gpus")
for each in "${steps[@]}"; do
  case $each in
    cuda) step cuda 150 env "PYTHONPATH=$here/python:$here/interop" python3 "$here/interop/prove_cuda.py" ;;
    plugin) step plugin "${LIMIT:-420}" "${prove[@]}" --program-only --checkpoints "$scratch/small" bf16 ;;
    bf16 | block-fp8 | fp8) step "$each" "${LIMIT:-420}" "${prove[@]}" --field "$scratch/field" --checkpoints "$scratch/8b" "$each" ;;
    *) echo "interop_gpu: no step $each"; exit 2 ;;
  esac
done
cat "$out/checkpoints.log" 2>/dev/null
say "done: ${#steps[@]} steps, ${#failed[@]} failed${failed[*]:+ (${failed[*]})}"
[ ${#failed[@]} = 0 ]
