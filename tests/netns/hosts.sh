# Hosts for tests between hosts, to be sourced: each is a network namespace with one link, shaped in both directions, to a bridge in a
# namespace apart. Nothing outside them is touched. Exits with 77, and the reason, where there are no such namespaces.
#   make_hosts PREFIX RATE...   host i has the address PREFIX(i+1), as in 10.77.0.1 or fd77::1, and a link of the i-th rate, in Mbit/s
#   host I COMMAND...           runs a command on host I
#   host_port I PORT            how others reach it there
#   remove_hosts                ends the jobs of this shell and removes the namespaces
skip() { echo "skipped: $*"; exit 77; }
[ "$(id -u)" = 0 ] || skip "network namespaces need root"
command -v tc >/dev/null && command -v ip >/dev/null || skip "no ip and tc (package iproute2)"

netns=ckpt$$
netns_hosts=0
net() { ip netns exec "$netns-net" "$@"; }
host() { local i=$1; shift; ip netns exec "$netns-$i" "$@"; }
host_port() { case $netns_prefix in *:) echo "[$netns_prefix$(($1 + 1))]:$2" ;; *) echo "$netns_prefix$(($1 + 1)):$2" ;; esac; }

# A bucket of more than a packet that the kernel has not cut yet (64 KiB), and a queue of 20 ms.
shape() { tc qdisc add dev "$1" root tbf rate "${2}mbit" burst 128kb latency 20ms; }

make_hosts() {
  local i=0 rate mask=/24
  netns_prefix=$1
  case $netns_prefix in *:) mask=/64 ;; esac
  shift
  ip netns add "$netns-net" 2>/dev/null || skip "the kernel refuses network namespaces"
  net ip link add bridge type bridge || skip "the kernel has no bridges"
  net ip link set bridge up
  for rate; do
    ip netns add "$netns-$i"
    netns_hosts=$((i + 1))
    net ip link add "link$i" type veth peer name eth0 netns "$netns-$i" || skip "the kernel has no veth"
    net ip link set "link$i" master bridge up
    host "$i" ip link set lo up
    host "$i" ip address add "$netns_prefix$((i + 1))$mask" dev eth0 $([ $mask = /24 ] || echo nodad)
    host "$i" ip link set eth0 up
    # The same on every machine. Where a namespace may not choose cubic, reno is always allowed; both go by losses, where bbr
    # measures the way, which between namespaces takes microseconds.
    host "$i" sysctl -qw net.ipv4.tcp_congestion_control=cubic 2>/dev/null ||
      host "$i" sysctl -qw net.ipv4.tcp_congestion_control=reno
    net bash -c "$(declare -f shape); shape link$i $rate" || skip "the kernel has no token bucket (sch_tbf)"
    host "$i" bash -c "$(declare -f shape); shape eth0 $rate"
    i=$((i + 1))
  done
}

remove_hosts() {
  local i
  [ -z "$(jobs -pr)" ] || kill $(jobs -pr) 2>/dev/null || true
  wait
  for i in net $(seq 0 $((netns_hosts - 1))); do ip netns delete "$netns-$i" 2>/dev/null || true; done
}
