#!/usr/bin/env bash
# Runs chain_hosts on several hosts, which are network namespaces: each has one link, shaped in both directions, to a bridge
# in a namespace of its own. Nothing outside these namespaces is touched.
#   usage: tests/netns/chain.sh PROGRAM HOSTS [RATE_MBIT] [options of chain_hosts...]
# With --at-most RATIO the exit code is 1 when an update takes longer than that many times the line.
# Exit code 77, with the reason, where there are no such namespaces: not root, or a kernel or container without them.
set -euo pipefail
program=$1 hosts=$2 rate=${3:-1000}
shift $(($# < 3 ? $# : 3))

source "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"
clean() {
  trap - EXIT INT TERM
  remove_hosts
}
trap clean EXIT
trap 'exit 130' INT TERM
rates=()
for ((i = 0; i < hosts; ++i)); do rates+=("$rate"); done
make_hosts 10.77.0. "${rates[@]}"

pids=()
for ((i = 0; i < hosts; ++i)); do
  host "$i" "$program" --rank "$i" --hosts "$hosts" --rendezvous "$(host_port 0 29400)" --rate "$((rate * 125000))" "$@" &
  pids+=($!)
done
code=0
for pid in "${pids[@]}"; do wait "$pid" || code=$?; done
exit $code
