//! Real programs, each in a container or on the host: how a shell starts the server, how it is asked, and how a client
//! finds out whether all that it gets is right.

use crate::demo::{memcslap, redis_csv, wrk};

/// A server and its clients. Shells run all commands, and have the server's `ADDRESS` and `PORT` in their environment;
/// those of loads also `SECONDS_LONG`, if a load takes a time, or is to take about one.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) port: u16,
    /// Options of its container.
    pub(super) options: &'static [&'static str],
    pub(super) server: &'static str,
    /// What is done first, beside the server and without Shunt.
    pub(super) prepare: Option<&'static str>,
    /// A client that ends with 1 if it gets anything wrong; `$0` is the source of a program in Python.
    pub(super) check: &'static str,
    pub(super) source: &'static str,
    pub(super) loads: &'static [Load],
}

/// A client that tells how fast it was served.
pub(super) struct Load {
    pub(super) name: &'static str,
    pub(super) client: &'static str,
    /// Requests a second, in what it has printed.
    pub(super) rate: fn(&str) -> Option<f64>,
    /// What the rate should be at least, as a multiple of the native one's.
    pub(super) goal: Option<f64>,
}

pub(super) const PROGRAMS: [Program; 4] = [REDIS, MEMCACHED, NGINX, POSTGRESQL];

const REDIS: Program = Program {
    name: "redis",
    port: 6379,
    options: &[],
    server: "exec redis-server --protected-mode no --save ''",
    prepare: None,
    check: "/usr/bin/python3 -c \"$0\" $PORT $ADDRESS 0.01",
    source: include_str!("../../../tests/programs/redis_check.py"),
    loads: &[
        Load {
            name: "redis GET, 1 client",
            client: "redis-benchmark -h $ADDRESS -p $PORT -t get -c 1 -n 40000 --csv",
            rate: |output| Some(redis_csv(output)?.rate),
            goal: Some(10.0),
        },
        Load {
            name: "redis GET, 50 clients",
            client: "redis-benchmark -h $ADDRESS -p $PORT -t get -c 50 -n 100000 --csv",
            rate: |output| Some(redis_csv(output)?.rate),
            goal: None,
        },
    ],
};

const MEMCACHED: Program = Program {
    name: "memcached",
    port: 11211,
    options: &[],
    server: "exec memcached -u nobody -U 0 -t 4 -m 256",
    prepare: None,
    check: "/usr/bin/python3 -c \"$0\" $PORT $ADDRESS 0.01",
    source: include_str!("../../../tests/programs/memcached_check.py"),
    loads: &[Load {
        name: "memcached get, 50 clients",
        client: "memcslap --servers=$ADDRESS:$PORT --concurrency=50 --execute-number=$((2000 * SECONDS_LONG)) --test=get --flush",
        rate: |output| Some(memcslap(output, 50.0)?.rate),
        goal: Some(4.0),
    }],
};

const NGINX: Program = Program {
    name: "nginx",
    port: 8000,
    options: &[],
    server: "echo \"daemon off; user nobody nogroup; pid /run/nginx.pid;
        events { worker_connections 1024; }
        http {
            access_log off; sendfile on; tcp_nopush on; keepalive_requests 100000000;
            client_body_temp_path /tmp/t1; proxy_temp_path /tmp/t2; fastcgi_temp_path /tmp/t3;
            uwsgi_temp_path /tmp/t4; scgi_temp_path /tmp/t5;
            server { listen $PORT; root /; }
        }\" > /tmp/nginx.conf
        exec nginx -e stderr -c /tmp/nginx.conf",
    prepare: None,
    check: "/usr/bin/python3 -c \"$0\" $PORT $ADDRESS 0.01 /usr/bin/python3.11 /usr/bin/env",
    source: include_str!("nginx_check.py"),
    loads: &[
        Load {
            name: "nginx 1.5 kB, 1 client",
            client: "wrk -t 1 -c 1 -d ${SECONDS_LONG}s --latency http://$ADDRESS:$PORT/usr/share/common-licenses/BSD",
            rate: |output| Some(wrk(output)?.rate),
            goal: Some(3.0),
        },
        Load {
            name: "nginx 1.5 kB, 16 clients",
            client: "wrk -t 1 -c 16 -d ${SECONDS_LONG}s --latency http://$ADDRESS:$PORT/usr/share/common-licenses/BSD",
            rate: |output| Some(wrk(output)?.rate),
            goal: Some(3.0),
        },
    ],
};

const POSTGRESQL: Program = Program {
    name: "PostgreSQL",
    port: 5432,
    options: &[
        "--user",
        "postgres",
        "--tmpfs",
        "/data:mode=1777",
        "--volume",
        "/etc/passwd:/etc/passwd:ro",
    ],
    server: "PATH=/usr/lib/postgresql/15/bin:$PATH
        initdb -D /data/db -U postgres -A trust --no-sync --no-instructions --locale=C --encoding=UTF8 > /dev/null
        echo 'host all all all trust' >> /data/db/pg_hba.conf
        exec postgres -D /data/db -p $PORT -c listen_addresses=* -c unix_socket_directories= -c fsync=off",
    prepare: Some("until /usr/lib/postgresql/15/bin/pg_isready -q -h $ADDRESS -p $PORT; do sleep 0.1; done
        /usr/lib/postgresql/15/bin/pgbench -h $ADDRESS -p $PORT -U postgres -i -I dtGvp -q -s 2 postgres"),
    check: "/usr/bin/python3 -c \"$0\" $PORT $ADDRESS 0.01 /usr/lib/postgresql/15/bin/psql",
    source: include_str!("postgresql_check.py"),
    loads: &[
        Load {
            name: "PostgreSQL SELECT, 1 client",
            client: "/usr/lib/postgresql/15/bin/pgbench -h $ADDRESS -p $PORT -U postgres -n -S -c 1 -T $SECONDS_LONG postgres",
            rate: pgbench,
            goal: None,
        },
        Load {
            name: "PostgreSQL SELECT, 16 clients",
            client: "/usr/lib/postgresql/15/bin/pgbench -h $ADDRESS -p $PORT -U postgres -n -S -c 16 -T $SECONDS_LONG postgres",
            rate: pgbench,
            goal: None,
        },
    ],
};

fn pgbench(output: &str) -> Option<f64> {
    let line = output
        .lines()
        .find_map(|line| line.strip_prefix("tps = "))?;
    line.split_whitespace().next()?.parse().ok()
}

#[cfg(test)]
mod tests {
    #[test]
    fn the_rate_of_pgbench_is_read() {
        let output = "latency average = 0.1 ms\ntps = 9512.25 (without initial connection time)\n";
        assert!((super::pgbench(output).unwrap() - 9512.25).abs() < 1e-9);
    }
}
