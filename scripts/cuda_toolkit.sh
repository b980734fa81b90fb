#!/usr/bin/env bash
# Prints the path of an nvcc: CUDACXX, the one on PATH, that of /usr/local/cuda, or one that it installs from PyPI into build/cuda
# (100 MB, once): the compiler with its headers and the static runtime, which is all that the cuda backend is built with.
#   usage: CUDACXX=$(scripts/cuda_toolkit.sh)
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
for found in "${CUDACXX:-}" "$(command -v nvcc || true)" /usr/local/cuda/bin/nvcc; do
  if [ -x "$found" ]; then
    echo "$found"
    exit 0
  fi
done

root=$PWD/build/cuda
nvcc=$root/nvidia/cu13/bin/nvcc
if [ ! -e "$root/complete" ]; then
  echo "no CUDA toolkit here: installing nvcc into $root" >&2
  rm -rf "$root"
  packages=(nvidia-cuda-nvcc==13.0.88 nvidia-nvvm==13.0.88 nvidia-cuda-crt==13.0.88 nvidia-cuda-runtime==13.0.96)
  "$(bash scripts/venv.sh)" -m pip install -q --disable-pip-version-check --no-deps --target "$root" "${packages[@]}" >&2
  ln -s lib "$root/nvidia/cu13/lib64"  # where nvcc.profile looks for the static runtime
  touch "$root/complete"
fi
echo "$nvcc"
