#!/usr/bin/env bash
# Runs every fuzz target of build/fuzz for some seconds each on its seed corpus; a crash leaves its input in build/fuzz.
#   usage: scripts/fuzz.sh [SECONDS]
set -euo pipefail
cd "$(dirname "${BASH_SOURCE[0]}")/.."
seconds=${1:-60}
for target in build/fuzz/bin/*_fuzz; do
  name=$(basename "$target")
  mkdir -p "build/fuzz/corpus/$name"
  seeds=()
  if [ -d "fuzz/corpus/${name%_fuzz}" ]; then seeds+=("fuzz/corpus/${name%_fuzz}"); fi
  case $name in *safetensors*) seeds+=(tests/data/safetensors) ;; esac
  echo "$name"
  "$target" -max_total_time="$seconds" -timeout=10 -rss_limit_mb=4096 -artifact_prefix="build/fuzz/$name-" \
    "build/fuzz/corpus/$name" "${seeds[@]}" >"build/fuzz/$name.log" 2>&1 || { tail -30 "build/fuzz/$name.log"; exit 1; }
done
