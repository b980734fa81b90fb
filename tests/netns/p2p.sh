#!/usr/bin/env bash
# One job owns a checkpoint, another fills itself out of its memory: every rank of both is a host of its own, a network
# namespace with one link, shaped in both directions, to a bridge in a namespace apart. Nothing outside them is touched.
#   usage: tests/netns/p2p.sh PROGRAM OWNERS TARGETS RATES [--replicas] [--jobs|--fan-out] [--ipv6] [--at-most RATIO] [options of p2p_hosts...]
#   --jobs: every target is a job of its own, all of them read the owners. --fan-out: each of them reads the one before it, which
#   is being filled meanwhile. Both measure the first update, a line for each target.
#   PROGRAM: build/release/bin/p2p_hosts. RATES: Mbit/s of each link, owners first, with commas; one for all.
# Prints: owners, targets, rates; the bound in seconds, median, spread, median / bound, median / (bound without headers).
# The bound is what the bottleneck link needs for the checkpoint and the headers around it, as its shaper counts them: a frame of 1514
# bytes carries 1448 of the checkpoint over IPv4, 1428 over IPv6. Acknowledgements, requests and the control plane are not counted.
# --at-most: the exit code is 1 when median / bound is larger.
# Exit code 77, with the reason, where there are no such namespaces: not root, or a kernel or container without them.
set -euo pipefail
program=$1 owners=$2 targets=$3
IFS=, read -ra rates <<<"$4"
shift 4
hosts=$((owners + targets))
while ((${#rates[@]} < hosts)); do rates+=("${rates[0]}"); done
bytes=$((256 << 20)) replicas=0 jobs='' prefix=10.78.0. payload=1448 most=0
options=()
while (($# > 0)); do
  case $1 in
    --jobs | --fan-out) jobs=$1; options+=(--updates 0) ;;
    --ipv6) prefix=fd78:: payload=1428 ;;
    --at-most) most=$2; shift ;;
    *) options+=("$1") ;;
  esac
  [ "$1" = --replicas ] && replicas=1
  case $1 in *MiB) bytes=$((${1%MiB} << 20)) ;; *GiB) bytes=$((${1%GiB} << 30)) ;; esac
  shift
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
make_hosts "$prefix" "${rates[@]:0:hosts}"

# What the bottleneck needs: each owner gives its share (with replicas, as its link allows), each target takes everything.
bound=$(awk -v b="$bytes" -v o="$owners" -v r="$replicas" -v list="${rates[*]:0:hosts}" -v headers="1514/$payload" 'BEGIN {
  n = split(list, rate, " "); for (i = 1; i <= o; ++i) sum += rate[i]
  for (i = 1; i <= n; ++i) {
    share = i > o ? b : r ? b * rate[i] / sum : b / o
    t = share * 8 / (rate[i] * 1e6); if (t > most) most = t
  }
  split(headers, of, "/"); print most * of[1] / of[2] }')
# A line of results beside the bound; fails when it took too long.
judge() {
  awk -v bound="$bound" -v payload="$payload" -v most="$most" '{
    printf "%9.3f %9.3f %16s %6.2f %6.2f\n", bound, $1, $2, $1 / bound, $1 / bound * 1514 / payload
    if (most > 0 && $1 > most * bound) late = 1 }
    END { exit late || NR == 0 }'
}

mkfifo "$folder/open"
exec 9<>"$folder/open"  # what the owners read: they serve as long as we live
for ((i = 0; i < owners; ++i)); do
  PS_NETWORK_MBIT=${rates[i]} host "$i" "$program" owner --rank "$i" --hosts "$owners" --rendezvous "$(host_port 0 29400)" \
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
      --rendezvous "$(host_port "$((owners + i))" 29500)" --metas "$before" "${offer[@]}" "${options[@]}" \
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
    judge <"$folder/result-$i" || code=1
  done
  exit $code
fi
for ((i = 0; i < targets; ++i)); do
  PS_NETWORK_MBIT=${rates[owners + i]} host "$((owners + i))" "$program" target --rank "$i" --hosts "$targets" \
    --rendezvous "$(host_port "$owners" 29500)" --metas "$folder/metas.json" "${options[@]}" 9>&- >>"$folder/result" &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
judge <"$folder/result" || code=1
exit $code
