#!/usr/bin/env bash
# Makes a folder that runs on machines without any of our packages (Ubuntu 24.04 or newer, any GPU driver): the program, the
# device test and the GPU benchmark, with the shared libraries that they need. It may be copied anywhere.
#   usage: scripts/bundle.sh [FOLDER]        default: build/bundle
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
out=${1:-build/bundle}
programs=(checkpoint-engine ckpt_device_test gpu_update)
limit_mib=64
# What every such machine has, and in a newer version than the one that we were linked to.
system='linux-vdso|ld-linux|libc|libm|libpthread|libdl|librt|libresolv|libgcc_s|libstdc\+\+'

bash scripts/setup.sh
# An RPATH (not a RUNPATH) on the program is also searched for what its libraries need.
cmake --preset release -DCMAKE_BUILD_RPATH="\$ORIGIN/../lib" -DCMAKE_EXE_LINKER_FLAGS=-Wl,--disable-new-dtags >/dev/null
cmake --build build/release --target "${programs[@]}"

rm -rf "$out"
mkdir -p "$out/bin" "$out/lib/ucx"
for program in "${programs[@]}"; do
  install -m 755 -s "build/release/bin/$program" "$out/bin/"
done
cp scripts/gpu_check.sh "$out/"
mkdir "$out/bench"
cp -r bench/compare_reference.py bench/compare "$out/bench/"
rm -rf "$out/bench/compare/__pycache__"

needed() { ldd "$@" | awk '$2 == "=>" {print $3}' | sort -u | grep -vE "/($system)[.-]" || true; }
for library in $(needed build/release/bin/{checkpoint-engine,ckpt_device_test,gpu_update}); do
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
outside=$(env -i ldd "$moved"/bin/* | awk '$2 == "=>" {print $1, $3}' | grep -vE "^($system)[.-]" | grep -v " $moved/" | sort -u || true)
[ -z "$outside" ] || { echo "bundle: these do not come from the bundle:" >&2; echo "$outside" >&2; exit 1; }
env -i "$moved/bin/checkpoint-engine" --version
size=$(du -sm "$out" | cut -f1)
[ "$size" -lt "$limit_mib" ] || { echo "bundle: $size MiB, the limit is $limit_mib" >&2; exit 1; }
echo "bundle: $out, $size MiB"
