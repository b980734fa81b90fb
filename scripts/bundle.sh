#!/usr/bin/env bash
# Makes a folder that runs on machines without any of our packages (Ubuntu 24.04 or newer): the program, the tests of devices and
# collectives, and the GPU benchmark, with the shared libraries that they need. It may be copied anywhere. GPUs need a driver that knows the
# CUDA version of the build (580 or newer for CUDA 13, 525 or newer for CUDA 12); without GPUs no driver is needed.
#   usage: scripts/bundle.sh [--without-cuda] [--python PYTHON] [FOLDER]        default: build/bundle
# With --python the Python package for that version of Python is in FOLDER/python: PYTHONPATH=FOLDER/python is all that it needs.
# PYTHON must have nanobind and scikit-build-core; the package imports pyzmq where it meets ranks of the field's package.
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
python=
cuda=ON
if [ "${1:-}" = --without-cuda ]; then
  cuda=OFF
  shift
fi
if [ "${1:-}" = --python ]; then
  python=$(command -v "$2")
  shift 2
fi
out=${1:-build/bundle}
build=build/release-bundle
with_python=()
if [ -n "$python" ]; then
  build=build/release-bundle-$("$python" -c 'import sys; print("cp%d%d" % sys.version_info[:2])')
  with_python=(-DCKPT_BUILD_PYTHON=ON "-DPython_EXECUTABLE=$python" -DCMAKE_MODULE_LINKER_FLAGS=-Wl,--disable-new-dtags)
fi
programs=(checkpoint-engine ckpt_device_test ckpt_collective_test ckpt_spread_processes_test gpu_update)
limit_mib=64
# What every such machine has, and in a newer version than the one that we were linked to.
system='linux-vdso|ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libgcc_s|libstdc\+\+'

bash scripts/setup.sh
if [ $cuda = ON ]; then
  CUDACXX=$(bash scripts/cuda_toolkit.sh)
  export CUDACXX
fi
# An RPATH (not a RUNPATH) on the program is also searched for what its libraries need.
cmake --preset release -B "$build" -DCKPT_CUDA=$cuda -DCMAKE_BUILD_RPATH="\$ORIGIN/../lib;\$ORIGIN/../../lib" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags \
  "${with_python[@]}" >/dev/null
cmake --build "$build" --target "${programs[@]}" ${python:+python_package}

rm -rf "$out"
mkdir -p "$out/bin" "$out/lib/ucx"
for program in "${programs[@]}"; do
  install -m 755 -s "$build/bin/$program" "$out/bin/"
done
extensions=()
if [ -n "$python" ]; then
  mkdir "$out/python"
  # The entry point for vLLM is in there.
  "$python" -c 'import sys; from scikit_build_core.build import prepare_metadata_for_build_wheel as make; make(sys.argv[1])' "$out/python" >/dev/null
  cp -r "$build/python/checkpoint_engine" "$out/python/"
  extensions=("$out"/python/checkpoint_engine/_core*.so)
  strip --strip-unneeded "${extensions[@]}"
fi
cp scripts/gpu_check.sh scripts/interop_gpu.sh "$out/"
cp -r tests/interop "$out/interop"
mkdir "$out/bench"
cp -r bench/compare_reference.py bench/multi_gpu.py bench/compare "$out/bench/"
find "$out" -name __pycache__ -prune -exec rm -rf {} +

needed() { ldd "$@" | awk '$2 == "=>" {print $3}' | sort -u | grep -vE "/($system)[.-]" || true; }
for library in $(needed "${programs[@]/#/$build/bin/}" "${extensions[@]}"); do
  install -m 644 "$(readlink -f "$library")" "$out/lib/$(basename "$library")"
done
# UCX opens its modules by itself, in the folder ucx beside libucs. What they need of RDMA comes with the machine's drivers.
ucx=$(dirname "$(ldconfig -p | awk '/libucs.so.0 / {print $NF; exit}')")/ucx
for module in "$ucx"/libuct_*.so.0; do
  install -m 644 "$(readlink -f "$module")" "$out/lib/ucx/$(basename "$module")"
done
strip --strip-unneeded "$out"/lib/*.so* "$out"/lib/ucx/*.so*

# Everything resolves inside, wherever the folder lies.
moved=$(mktemp -d)
trap 'rm -rf "$moved"' EXIT
cp -r "$out/." "$moved/"
outside=$(env -i ldd "$moved"/bin/* ${python:+"$moved"/python/checkpoint_engine/_core*.so} | awk '$2 == "=>" {print $1, $3}' | grep -vE "^($system)[.-]" | grep -v " $moved/" | sort -u || true)
[ -z "$outside" ] || { echo "bundle: these do not come from the bundle:" >&2; echo "$outside" >&2; exit 1; }
env -i "$moved/bin/checkpoint-engine" --version
[ -z "$python" ] || env -i "PYTHONPATH=$moved/python" "$python" -c 'import checkpoint_engine; print("Python package", checkpoint_engine.__version__)'
size=$(du -sm "$out" | cut -f1)
[ "$size" -lt "$limit_mib" ] || { echo "bundle: $size MiB, the limit is $limit_mib" >&2; exit 1; }
echo "bundle: $out, $size MiB"
