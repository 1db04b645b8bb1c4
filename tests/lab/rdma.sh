#!/bin/sh
# The first process of the guest of `cargo xtask lab rdma`: two "hosts" a and b, a soft-RoCE device for each, and the trial between them.
#
# rdma_rxe of Linux 6.1 and 6.12 listens in the first network namespace only. So the devices are there, over a veth pair with rules that keep
# packets from taking the short way through lo; the hosts are namespaces, whose processes see both devices (RDMA's namespaces are shared).
PLAN
export PATH=/bin:/usr/sbin
# Debian's busybox prefers its own.
ip() { /usr/sbin/ip "$@"; }
/bin/busybox --install -s /bin
mount -t devtmpfs dev /dev; mount -t proc proc /proc; mount -t sysfs sys /sys; mkdir -p /run/netns /dev/shm
ulimit -l unlimited; ulimit -n 8192
fails=0
fail() { echo "LAB failed: $*"; fails=$((fails + 1)); }
end() { echo "LAB end: $fails failures, up $(cut -d' ' -f1 /proc/uptime) s"; sync; poweroff -f; }
for module in /modules/*; do insmod "$module" || fail "insmod $module"; done
ip link set lo up
ip netns add a; ip netns add b
ip link add ta netns a type veth peer name tb netns b
ip -n a addr add 10.9.0.1/24 dev ta; ip -n b addr add 10.9.0.2/24 dev tb
for n in a b; do ip -n $n link set lo up; ip -n $n link set t$n up; done
ip link add va type veth peer name vb
for d in va vb; do
  echo 1 > /proc/sys/net/ipv4/conf/$d/accept_local; echo 0 > /proc/sys/net/ipv4/conf/$d/rp_filter; echo 1 > /proc/sys/net/ipv4/conf/$d/arp_ignore
done
echo 0 > /proc/sys/net/ipv4/conf/all/rp_filter
ip rule add pref 10 iif va lookup local; ip rule add pref 10 iif vb lookup local
ip rule add pref 20 to 10.8.0.2 lookup 201; ip rule add pref 20 to 10.8.0.1 lookup 202
ip rule add pref 100 lookup local; ip rule del pref 0
ip addr add 10.8.0.1/24 dev va; ip addr add 10.8.0.2/24 dev vb
ip link set va mtu 4200 up; ip link set vb mtu 4200 up
ip route add 10.8.0.2 dev va src 10.8.0.1 table 201; ip route add 10.8.0.1 dev vb src 10.8.0.2 table 202
rdma link add ra type rxe netdev va || fail "rdma link add ra"
rdma link add rb type rxe netdev vb || fail "rdma link add rb"
# A device can be used once its port is active and has a GID of RoCE version 2 that is made of the interface's IPv4 address: the kernel makes
# both in its own time.
usable() {
  port=/sys/class/infiniband/$1/ports/1
  grep -q ACTIVE $port/state 2>/dev/null || return 1
  for gid in $(grep -l "ffff:$2" $port/gids/? 2>/dev/null); do
    [ "$(cat $port/gid_attrs/types/${gid##*/} 2>/dev/null)" != "RoCE v2" ] || return 0
  done
  return 1
}
for d in ra=0a08:0001 rb=0a08:0002; do
  i=0
  while ! usable ${d%=*} ${d#*=} && [ $i -lt 100 ]; do sleep 0.1; i=$((i + 1)); done
  usable ${d%=*} ${d#*=} || fail "${d%=*}: no active port with a GID of ${d#*=}"
done
echo "LAB up: kernel $(uname -r), $(cut -d' ' -f1 /proc/uptime) s"
sent() { cat /sys/class/infiniband/$1/ports/1/hw_counters/sent_pkts; }
trial() {
  before_a=$(sent ra); before_b=$(sent rb)
  # Not by `ip`, the function: then $! would be a shell between.
  /usr/sbin/ip netns exec b peer listen 10.9.0.2:7000 rb $BYTES $ROUNDS > /tmp/b 2>&1 &
  listener=$!
  /usr/sbin/ip netns exec a peer connect 10.9.0.2:7000 ra $BYTES $ROUNDS > /tmp/a 2>&1 &
  connector=$!
  # A line of what goes on, and no more than that: each side of the trial gives up by itself if nothing moves for a minute.
  i=0
  while kill -0 $connector 2>/dev/null || kill -0 $listener 2>/dev/null; do
    sleep 1; i=$((i + 1)); [ $((i % 20)) != 0 ] || echo "LAB ... $i s: $(tail -n 1 /tmp/a)"
    [ $i -lt 400 ] || break
  done
  for p in $connector $listener; do
    if kill -0 $p 2>/dev/null; then
      fail "the trial hangs"; sed "s/^/LAB stack of $p: /" /proc/$p/task/*/stack; kill $p
    fi
  done
  wait $connector || fail "connecting side"
  wait $listener || fail "listening side"
  sed 's/^/LAB /' /tmp/a; sed 's/^/LAB b: /' /tmp/b
  ra=$(($(sent ra) - before_a)); rb=$(($(sent rb) - before_b))
  # Each of the two parts over the rings is 3 streams each way of $BYTES bytes, in packets of at most 4096.
  least=$((2 * 3 * BYTES / 4096))
  if [ $ra -gt $least ] && [ $rb -gt $least ]; then echo "LAB held: the devices have carried it: $ra and $rb packets sent"; else fail "hw_counters: $ra and $rb packets, $least expected"; fi
}
# Real programs, this machine's: its files are there, read only, below memory that takes what is written.
programs() {
  mkdir -p /machine /memory /root
  mount -t 9p -o trans=virtio,version=9p2000.L,msize=512000,cache=loose,ro machine /machine || { fail "this machine's files"; return; }
  mount -t tmpfs memory /memory; mkdir /memory/upper /memory/work
  mount -t overlay -o lowerdir=/machine,upperdir=/memory/upper,workdir=/memory/work files /root || { fail "overlay"; return; }
  for d in dev run; do mount -o rbind /$d /root/$d; done
  mount -t proc proc /root/proc; mount -t sysfs sys /root/sys;
  mkdir -p /root/dev/shm; mount -t tmpfs memory /root/dev/shm
  before_a=$(sent ra); before_b=$(sent rb)
  chroot /root /usr/bin/env -i PATH=/usr/sbin:/usr/bin:/sbin:/bin /usr/bin/python3 "$TESTS/lab/programs.py" "$RELEASE" "$PROGRAMS" || fail "programs"
  echo "LAB the devices have sent $(($(sent ra) - before_a)) and $(($(sent rb) - before_b)) packets more"
}
for part in $PARTS; do $part; done
end
