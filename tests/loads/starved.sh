#!/bin/sh
# nginx and wrk on core 1, in control groups as Docker has them: for how long does that core's next program wait?
#
#     tests/loads/starved.sh native           without Shunt
#     tests/loads/starved.sh shunt            with it; a second wrk connects in the middle of it
#     tests/loads/starved.sh shunt chrt --rr 1    the same, with shuntd at a real-time priority
#
# As root, with control groups of version 1, two cores, `cargo build --release` done. STILL=1: no third member of the group on core 0.
set -e
how=$1
shift
cd "$(dirname "$0")/../.."
if [ -z "$STARVED_INSIDE" ]; then
    STARVED_INSIDE=1 exec unshare --net "$0" "$how" "$@"
fi
ip link set lo up
release=$PWD/target/release
dir=$(mktemp -d)
group=/sys/fs/cgroup/cpu/shunt-starved
url=http://127.0.0.1:8000/usr/share/common-licenses/BSD
export XDG_RUNTIME_DIR="$dir"
begun=
trap 'kill $begun 2> "$dir/kill"; wait; rm -r "$dir"' EXIT

cat > "$dir/nginx.conf" << END
daemon off; user root; pid $dir/pid;
events { worker_connections 1024; }
http {
    access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;
    client_body_temp_path $dir/t1; proxy_temp_path $dir/t2; fastcgi_temp_path $dir/t3; uwsgi_temp_path $dir/t4; scgi_temp_path $dir/t5;
    server { listen 127.0.0.1:8000; root /; }
}
END
gcc -O2 -o "$dir/starved" tests/loads/starved.c

# A command on a core, in a group, with what its peers have, too.
within() {
    mkdir -p "$group/$1"
    with=
    if [ "$how" = shunt ]; then
        with="LD_PRELOAD=$release/libshunt.so SHUNT_STATS=$dir/stats"
    fi
    member=$1 core=$2
    shift 2
    exec sh -c 'echo 0 > "$0/cgroup.procs"; exec taskset -c "$@"' "$group/$member" "$core" env $with "$@"
}

if [ "$how" = shunt ]; then
    mkfifo "$dir/ready"
    taskset -c 1 "$@" "$release/shuntd" --linger 60 --ready-fd 3 > "$dir/shuntd" 2>&1 3> "$dir/ready" &
    shuntd=$! begun="$begun $!"
    head -c 1 "$dir/ready" > "$dir/is_ready"
fi
within a 1 nginx -e stderr -c "$dir/nginx.conf" > "$dir/nginx" 2>&1 &
begun="$begun $!"
until ss -Hltn | grep -q :8000; do sleep 0.1; done
within b 1 wrk -t 1 -c 1 -d 7s "$url" > "$dir/wrk" 2>&1 &
wrk=$!
sleep 1
"$dir/starved" -s 4 -w none $([ -n "$STILL" ] || echo -e) > "$dir/starved.out" &
starved=$!
if [ "$how" = shunt ]; then
    sleep 2
    waited() { cut -d ' ' -f 2 "/proc/$shuntd/schedstat"; }
    before=$(waited)
    (within d 0 wrk -t 1 -c 4 -d 2s "$url") > "$dir/late" 2>&1
    echo "a later wrk's $(grep -o '"rx":{[^}]*}' "$dir/stats" | head -1); shuntd waited $((($(waited) - before) / 1000000)) ms meanwhile"
fi
wait $starved
cat "$dir/starved.out"
wait $wrk
echo "wrk: $(grep Requests/sec "$dir/wrk")"
