#!/usr/bin/env bash
# All rows of the proof of P2P between hosts (docs/benchmarks.md), each by p2p.sh, which says what the columns are.
#   usage: tests/netns/p2p_rows.sh PROGRAM [options of p2p.sh and p2p_hosts...]      e.g. --at-most 1.10 --bytes 1GiB --updates 1
# Exit code 1 when a row fails or takes longer than --at-most says; 77 where there are no network namespaces.
set -uo pipefail
row() { "$(dirname "${BASH_SOURCE[0]}")/p2p.sh" "$program" "$@"; local rc=$?; [ $rc != 77 ] || exit 77; [ $rc = 0 ] || code=1; }
program=$1 code=0
shift
row 1 1 1000 "$@"
row 1 1 1000 --ipv6 "$@"
row 1 4 1000 "$@"
row 4 1 1000 "$@"
row 4 2 1000 "$@"
row 4 1 250,500,1000,1000,1000 "$@"
row 2 1 500,500,1000 --replicas "$@"
row 2 2 500,500,1000,1000 --replicas "$@"
row 2 1 500,250,1000 --replicas "$@"
exit $code
