#!/usr/bin/env bash
# What an owner's other traffic and its own job feel while another job reads its memory: hosts as in p2p.sh, links of 1 Gbit/s.
#   usage: tests/netns/p2p_beside.sh PROGRAM [BYTES]      PROGRAM: build/release/bin/p2p_hosts
# Prints the rate of one flow into the owner's host and of one out of it, alone and beside the reads; the owner's updates of its own
# worker, alone and beside; and the processor time that the owner spends on a byte that is read.
# Exit code 77, with the reason, where there are no such namespaces: not root, or a kernel or container without them.
set -euo pipefail
program=$1 bytes=${2:-256MiB}
source "$(dirname "${BASH_SOURCE[0]}")/hosts.sh"
folder=$(mktemp -d)
clean() {
  trap - EXIT INT TERM
  exec 9>&-
  remove_hosts
  rm -rf "$folder"
}
trap clean EXIT
trap 'exit 130' INT TERM
make_hosts 10.79.0. 1000 1000 1000  # the owner, the target, somebody else

# Sends for so many seconds from one host to another; what has arrived, in Mbit/s.
flow() {
  local from=$1 to=$2 seconds=$3
  host "$to" python3 - "10.79.0.$((to + 1))" <<'P' &
import socket, sys, time
with socket.create_server((sys.argv[1], 29600)) as listener:
    connection, _ = listener.accept()
    begin, count = time.monotonic(), 0
    while data := connection.recv(1 << 18):
        count += len(data)
    print(f"{count * 8 / 1e6 / (time.monotonic() - begin):.0f}")
P
  local receiver=$!
  host "$from" python3 - "10.79.0.$((to + 1))" "$seconds" <<'P'
import socket, sys, time
for _ in range(100):
    try:
        connection = socket.create_connection((sys.argv[1], 29600))
        break
    except OSError:
        time.sleep(0.05)
end, block = time.monotonic() + float(sys.argv[2]), bytes(1 << 18)
while time.monotonic() < end:
    connection.sendall(block)
connection.close()
P
  wait $receiver
}

processor_seconds() { awk -v hertz="$(getconf CLK_TCK)" '{ print ($14 + $15) / hertz }' "/proc/$1/stat"; }
median() { sort -n | awk '{ v[NR] = $1 } END { if (NR) printf "%.3f s (%d updates)", v[int((NR + 1) / 2)], NR; else printf "none" }'; }

mkfifo "$folder/open"
exec 9<>"$folder/open"
start_owner() {
  rm -f "$folder/metas.json" "$folder/own"
  ip netns exec "$netns-0" "$program" owner --rank 0 --hosts 1 --rendezvous 10.79.0.1:29400 --metas "$folder/metas.json" \
    --bytes "$bytes" "$@" <"$folder/open" 9>&- >"$folder/own" &
  owner=$!
  until [ -e "$folder/metas.json" ]; do sleep 0.1; done
}
start_target() {
  ip netns exec "$netns-1" "$program" target --rank 0 --hosts 1 --rendezvous 10.79.0.2:29500 --metas "$folder/metas.json" \
    --bytes "$bytes" --updates "$1" 9>&- >"$folder/result" &
  target=$!
}
stop() { kill "$@" 2>/dev/null || true; wait "$@" 2>/dev/null || true; }

start_owner
before=$(processor_seconds $owner)
start_target 3
wait $target
after=$(processor_seconds $owner)
echo "reads alone:          $(awk '{ print $1 }' "$folder/result") s each; $(awk -v s="$after" -v b="$before" -v n="$(numfmt --from=auto "${bytes%B}")" \
  'BEGIN { printf "owner %.2f ns of processor time per byte", (s - b) * 1e9 / (4 * n) }')"
for direction in "2 0 into" "0 2 out-of"; do
  read -r from to name <<<"$direction"
  alone=$(flow "$from" "$to" 4)
  start_target 20
  sleep 1
  beside=$(flow "$from" "$to" 4)
  stop $target
  echo "a flow $name the owner: alone $alone Mbit/s, beside the reads $beside"
done
stop $owner
start_owner --own-updates
sleep 6
lines=$(wc -l <"$folder/own")
alone=$(tail -n +2 "$folder/own" | median)
start_target 3
wait $target
beside=$(tail -n +$((lines + 2)) "$folder/own" | median)
echo "the owner's updates:  alone $alone, beside the reads $beside; the reads $(awk '{ print $1 }' "$folder/result") s each"
stop $owner
