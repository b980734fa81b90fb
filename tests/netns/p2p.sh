#!/usr/bin/env bash
# One job owns a checkpoint, another fills itself out of its memory: every rank of both is a host of its own, a network
# namespace with one link, shaped in both directions, to a bridge in a namespace apart. Nothing outside them is touched.
#   usage: tests/netns/p2p.sh PROGRAM OWNERS TARGETS RATES [--replicas] [--jobs|--fan-out] [options of p2p_hosts...]
#   --jobs: every target is a job of its own, all of them read the owners. --fan-out: each of them reads the one before it, which
#   is being filled meanwhile. Both measure the first update, a line for each target.
#   PROGRAM: build/release/bin/p2p_hosts. RATES: Mbit/s of each link, owners first, with commas; one for all.
# Prints: owners, targets, rates, what the bottleneck needs in seconds, median, spread, median / bottleneck.
# Exit code 77, with the reason, where there are no such namespaces: not root, or a kernel or container without them.
set -euo pipefail
program=$1 owners=$2 targets=$3
IFS=, read -ra rates <<<"$4"
shift 4
hosts=$((owners + targets))
while ((${#rates[@]} < hosts)); do rates+=("${rates[0]}"); done
bytes=$((256 << 20)) replicas=0 jobs=
options=()
for argument; do
  case $argument in --jobs | --fan-out) jobs=$argument; options+=(--updates 0) ;; *) options+=("$argument") ;; esac
  [ "$argument" = --replicas ] && replicas=1
  case $argument in *MiB) bytes=$((${argument%MiB} << 20)) ;; *GiB) bytes=$((${argument%GiB} << 30)) ;; esac
done

source "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"
folder=$(mktemp -d)
clean() {
  trap - EXIT INT TERM
  remove_hosts
  rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM
make_hosts 10.78.0 "${rates[@]:0:hosts}"

# What the bottleneck needs: each owner gives its share (with replicas, as its link allows), each target takes everything.
line=$(awk -v b="$bytes" -v o="$owners" -v r="$replicas" -v list="${rates[*]}" 'BEGIN {
  n = split(list, rate, " "); for (i = 1; i <= o; ++i) sum += rate[i]
  for (i = 1; i <= n; ++i) {
    share = i > o ? b : r ? b * rate[i] / sum : b / o
    t = share * 8 / (rate[i] * 1e6); if (t > most) most = t
  }
  printf "%.4f", most }')

mkfifo "$folder/open"
exec 9<>"$folder/open"  # what the owners read: they serve as long as we live
for ((i = 0; i < owners; ++i)); do
  PS_NETWORK_MBIT=${rates[i]} host "$i" "$program" owner --rank "$i" --hosts "$owners" --rendezvous 10.78.0.1:29400 \
    --metas "$folder/metas.json" "${options[@]}" <"$folder/open" 9>&- &
done
printf '%3d -> %d  %-24s ' "$owners" "$targets" "$(IFS=,; echo "${rates[*]}")$([ $replicas = 0 ] || echo ' replicas')"
pids=()
if [ -n "$jobs" ]; then
  echo
  before=$folder/metas.json
  for ((i = 0; i < targets; ++i)); do
    offer=()
    [ "$jobs" = --jobs ] || offer=(--offer "$folder/metas-$i.json")
    PS_NETWORK_MBIT=${rates[owners + i]} host "$((owners + i))" "$program" target --rank 0 --hosts 1 \
      --rendezvous "10.78.0.$((owners + i + 1)):29500" --metas "$before" --line "$line" "${offer[@]}" "${options[@]}" \
      <"$folder/open" 9>&- >"$folder/result-$i" &
    pids+=($!)
    [ "$jobs" = --jobs ] || before=$folder/metas-$i.json
  done
  code=0
  for ((i = 0; i < targets; ++i)); do
    until [ -s "$folder/result-$i" ]; do
      kill -0 "${pids[i]}" 2>/dev/null || { code=1; break; }
      sleep 0.2
    done
    cat "$folder/result-$i"
  done
  exit $code
fi
for ((i = 0; i < targets; ++i)); do
  PS_NETWORK_MBIT=${rates[owners + i]} host "$((owners + i))" "$program" target --rank "$i" --hosts "$targets" \
    --rendezvous "10.78.0.$((owners + 1)):29500" --metas "$folder/metas.json" --line "$line" "${options[@]}" 9>&- &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
