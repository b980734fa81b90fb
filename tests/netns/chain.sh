#!/usr/bin/env bash
# Runs chain_hosts on several hosts, which are network namespaces: each has one link, shaped in both directions, to a bridge
# in a namespace of its own. Nothing outside these namespaces is touched.
#   usage: tests/netns/chain.sh PROGRAM HOSTS [RATE_MBIT] [options of chain_hosts...]
# Exit code 77, with the reason, where there are no such namespaces: not root, or a kernel or container without them.
set -euo pipefail
program=$1 hosts=$2 rate=${3:-1000}
shift $(($# < 3 ? $# : 3))

skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v tc >/dev/null && command -v ip >/dev/null || skip "no ip and tc (package iproute2)"

name=ce$$
net() { ip netns exec "$name-net" "$@"; }
host() { local i=$1; shift; ip netns exec "$name-$i" "$@"; }
clean() {
  trap - EXIT INT TERM
  [ -z "$(jobs -pr)" ] || kill $(jobs -pr) 2>/dev/null || true
  wait
  local i
  for i in net $(seq 0 $((hosts - 1))); do ip netns delete "$name-$i" 2>/dev/null || true; done
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
  host "$i" ip address add "10.77.0.$((i + 1))/24" dev eth0
  host "$i" ip link set eth0 up
  # The same on every machine. Where a namespace may not choose cubic, reno is always allowed; both go by losses, where bbr
  # measures the way, which between namespaces takes microseconds.
  host "$i" sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null ||
    host "$i" sysctl -qw net.ipv4.tcp_congestion_control=reno
  net bash -c "$(declare -f shape); rate=$rate; shape link$i" || skip "the kernel has no token bucket (sch_tbf)"
  host "$i" bash -c "$(declare -f shape); rate=$rate; shape eth0"
done

pids=()
for ((i = 0; i < hosts; ++i)); do
  host "$i" "$program" --rank "$i" --hosts "$hosts" --rendezvous 10.77.0.1:29400 --rate "$((rate * 125000))" "$@" &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
