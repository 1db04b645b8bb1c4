//! The programs, in the order of their tests.

use super::rings::Rings;
use super::{
    apache, asyncio, echo, git, haproxy, http, inetd, mariadb, memcached, message, mosquitto,
    nginx, postgresql, python_web, rabbitmq, redis, rsync, ssh, varnish, zookeeper,
};
use crate::lab::Variant;
use crate::stats::Stats;
use anyhow::Result;

/// One program with one kind of load.
pub(super) struct Program {
    pub(super) name: &'static str,
    pub(super) run: fn(Variant) -> Result<Stats>,
    pub(super) rings: Rings,
    pub(super) variants: &'static [Variant],
}

impl Program {
    /// One that is tested in every variant.
    const fn all(name: &'static str, run: fn(Variant) -> Result<Stats>, rings: Rings) -> Self {
        let variants = &Variant::ALL;
        Self {
            name,
            run,
            rings,
            variants,
        }
    }

    /// One that is tested in every variant but `kill`, which is for those that
    /// make much of one load.
    const fn mixed(name: &'static str, run: fn(Variant) -> Result<Stats>, rings: Rings) -> Self {
        let variants = &[
            Variant::Native,
            Variant::Both,
            Variant::Client,
            Variant::Server,
        ];
        Self {
            name,
            run,
            rings,
            variants,
        }
    }
}

/// The beginning of wrk's connections, half of which get 1 kB and half 100 kB a response:
/// five calls and what comes until they are paired, for which shuntd needs a core beside a load that
/// fills all of them. Measured: 100 to 215 kB on average on an idle machine, 360 kB at worst.
const RESPONSES: u64 = 1_000_000;

const SHORT: Rings = Rings::Any("a connection for each request stays on TCP");

const SHORT_AMONG_OTHERS: Rings = Rings::Floor(0.5, "many connections are for one request");

const LARGE_AMONG_OTHERS: Rings = Rings::Floor(
    0.6,
    "some large bodies are written at once on a new connection",
);

const SHUT_DOWN: Rings = Rings::Floor(
    0.6,
    "what is sent to a peer that has shut down its half goes by TCP where it must wait",
);

const FORKED: Rings = Rings::Floor(
    0.9,
    "until the parent has closed its copy a child's connection stays on TCP",
);

const CLOSED: Rings = Rings::Floor(0.9, "what is unread when its sender closes goes by TCP");

const HANDED_ON: Rings =
    Rings::Any("a connection that goes to another program or process goes back to TCP");

pub(super) const PROGRAMS: &[Program] = &[
    Program::all("redis", redis::run, Rings::Nearly),
    Program::all("memcached", memcached::run, Rings::Nearly),
    Program::all("nginx-wrk", nginx::keep_alive, Rings::AfterStart(RESPONSES)),
    Program::all("nginx-ab", nginx::closing, SHORT),
    Program::all("http", http::run, SHORT),
    Program::all("asyncio", asyncio::run, Rings::Nearly),
    Program::mixed(
        "socat",
        inetd::socat,
        Rings::Any("until the parent has closed its copy a child's connection stays on TCP"),
    ),
    Program::mixed("socat-nofork", inetd::socat_nofork, HANDED_ON),
    Program::mixed("inetd", inetd::at_once, HANDED_ON),
    Program::mixed("inetd-waiting", inetd::waiting, HANDED_ON),
    Program::mixed("inetd-greeted", inetd::greeted, HANDED_ON),
    Program::mixed("apache-prefork", apache::prefork, SHORT_AMONG_OTHERS),
    Program::mixed("apache-event", apache::event, SHORT_AMONG_OTHERS),
    Program::mixed(
        "haproxy",
        haproxy::run,
        Rings::Floor(
            0.4,
            "many connections are for one request, and some come while a reload goes on",
        ),
    ),
    Program::mixed("node-cluster", echo::node_cluster, HANDED_ON),
    Program::mixed(
        "node-shared",
        echo::node_shared,
        Rings::Any("a client that comes before a worker has the listener stays on TCP"),
    ),
    Program::mixed("node-handle", echo::node_handle, HANDED_ON),
    Program::mixed("java-blocking", echo::java, SHUT_DOWN),
    Program::mixed("java-nio", echo::java_nio, SHUT_DOWN),
    Program::mixed("zeromq", message::zeromq, CLOSED),
    Program {
        name: "openmpi",
        run: message::mpi,
        rings: CLOSED,
        variants: &[Variant::Native, Variant::Both, Variant::Client],
    },
    Program::mixed("rsync", rsync::run, FORKED),
    Program::mixed("git-daemon", git::run, HANDED_ON),
    Program::mixed("mosquitto", mosquitto::run, CLOSED),
    Program::mixed(
        "ssh",
        ssh::run,
        Rings::Floor(
            0.4,
            "what is shunted before sshd forks a confined process goes back to TCP",
        ),
    ),
    Program::mixed(
        "login",
        ssh::logins,
        Rings::Any("most connections are short"),
    ),
    Program::mixed("gunicorn-sync", python_web::gunicorn_sync, SHORT),
    Program::mixed(
        "gunicorn-threads",
        python_web::gunicorn_threads,
        LARGE_AMONG_OTHERS,
    ),
    Program::mixed("uwsgi", python_web::uwsgi, LARGE_AMONG_OTHERS),
    Program::mixed("postgresql", postgresql::run, FORKED),
    Program::mixed("mariadb", mariadb::run, CLOSED),
    Program::mixed("varnish", varnish::run, LARGE_AMONG_OTHERS),
    Program::mixed("zookeeper", zookeeper::run, Rings::Nearly),
    Program::mixed("rabbitmq", rabbitmq::run, Rings::Nearly),
];
