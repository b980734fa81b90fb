#!/usr/bin/env bash
# One job owns a checkpoint, another fills itself out of its memory: every rank of both is a host of its own, a network
# namespace with one link, shaped in both directions, to a bridge in a namespace apart. Nothing outside them is touched.
#   usage: tests/netns/p2p.sh PROGRAM OWNERS TARGETS RATES [--replicas] [options of p2p_hosts...]
#   PROGRAM: build/release/bin/p2p_hosts. RATES: Mbit/s of each link, owners first, with commas; one for all.
# Prints: owners, targets, rates, what the bottleneck needs in seconds, median, spread, median / bottleneck.
# Exit code 77, with the reason, where there are no such namespaces: not root, or a kernel or container without them.
set -euo pipefail
program=$1 owners=$2 targets=$3
IFS=, read -ra rates <<<"$4"
shift 4
hosts=$((owners + targets))
while ((${#rates[@]} < hosts)); do rates+=("${rates[0]}"); done
bytes=$((256 << 20)) replicas=0
for argument; do
  [ "$argument" = --replicas ] && replicas=1
  case $argument in *MiB) bytes=$((${argument%MiB} << 20)) ;; esac
done

skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v tc >/dev/null && command -v ip >/dev/null || skip "no ip and tc (package iproute2)"

name=cp$$
folder=$(mktemp -d)
net() { ip netns exec "$name-net" "$@"; }
host() { local i=$1; shift; ip netns exec "$name-$i" "$@"; }
clean() {
  trap - EXIT INT TERM
  [ -z "$(jobs -pr)" ] || kill $(jobs -pr) 2>/dev/null || true
  wait
  local i
  for i in net $(seq 0 $((hosts - 1))); do ip netns delete "$name-$i" 2>/dev/null || true; done
  rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM

# A bucket of more than a packet that the kernel has not cut yet (64 KiB), and a queue of 20 ms.
shape() { tc qdisc add dev "$1" root tbf rate "${rate}mbit" burst 128kb latency 20ms; }
ip netns add "$name-net" 2>/dev/null || skip "the kernel refuses network namespaces"
net ip link add bridge type bridge || skip "the kernel has no bridges"
net ip link set bridge up
for ((i = 0; i < hosts; ++i)); do
  ip netns add "$name-$i"
  net ip link add "link$i" type veth peer name eth0 netns "$name-$i" || skip "the kernel has no veth"
  net ip link set "link$i" master bridge up
  host "$i" ip link set lo up
  host "$i" ip address add "10.78.0.$((i + 1))/24" dev eth0
  host "$i" ip link set eth0 up
  # The same on every machine. Where a namespace may not choose cubic, reno is always allowed; both go by losses, where bbr
  # measures the way, which between namespaces takes microseconds.
  host "$i" sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null ||
    host "$i" sysctl -qw net.ipv4.tcp_congestion_control=reno
  net bash -c "$(declare -f shape); rate=${rates[i]}; shape link$i" || skip "the kernel has no token bucket (sch_tbf)"
  host "$i" bash -c "$(declare -f shape); rate=${rates[i]}; shape eth0"
done

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
    --metas "$folder/metas.json" "$@" <"$folder/open" 9>&- &
done
printf '%3d -> %d  %-24s ' "$owners" "$targets" "$(IFS=,; echo "${rates[*]}")$([ $replicas = 0 ] || echo ' replicas')"
pids=()
for ((i = 0; i < targets; ++i)); do
  PS_NETWORK_MBIT=${rates[owners + i]} host "$((owners + i))" "$program" target --rank "$i" --hosts "$targets" \
    --rendezvous "10.78.0.$((owners + 1)):29500" --metas "$folder/metas.json" --line "$line" "$@" 9>&- &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
