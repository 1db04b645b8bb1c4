//! `shunt metrics`: what `shunt ss` knows, added up, for Prometheus.

mod serve;

use std::borrow::Cow;
use std::process::ExitCode;
use std::time::{Duration, Instant};

use anyhow::Result;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::host::Host;
use crate::ss::{List, Source};
pub(crate) use serve::Place;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Path {
    path: &'static str,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: Cow<'static, str>,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct State {
    state: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    by: &'static str,
}

/// Prints the metrics once, or lets whoever connects have them.
pub(crate) fn metrics(places: &[Place]) -> Result<ExitCode> {
    let mut metrics = Metrics::new();
    match places {
        [] => crate::print(&metrics.text()?)?,
        places => match serve::serve(places, &mut metrics)? {},
    }
    Ok(ExitCode::SUCCESS)
}

/// For this time what is known of other hosts counts: that changes seldom, and is a question of its own.
const HOSTS_LAST: Duration = Duration::from_secs(1);

/// The metrics, from one answer to the next. Everything is a gauge: it goes down when a connection ends.
struct Metrics {
    source: Source,
    /// When the daemon was asked about other hosts.
    asked: Option<Instant>,
    registry: Registry,
    daemon_up: Gauge,
    listeners: Gauge,
    queued: Gauge,
    sleeps: Gauge,
    /// Connections by path, as in [`PATHS`].
    connections: [Gauge; 3],
    /// Bytes by path.
    bytes: [Gauge; 3],
    /// Connections on TCP by reason.
    reasons: Family<Reason, Gauge>,
    /// Calls that memory has answered, and the kernel.
    calls: [Gauge; 2],
    /// Other hosts by state.
    hosts: Family<State, Gauge>,
    /// Ends of connections to them by state.
    host_ends: Family<State, Gauge>,
}

/// A path that nobody takes has a zero.
const PATHS: [&str; 3] = ["shm", "rdma", "tcp"];

impl Metrics {
    fn new() -> Self {
        let mut registry = Registry::with_prefix("shunt");
        let mut gauge = |name: &str, help: &str| {
            let gauge = Gauge::default();
            registry.register(name, help, gauge.clone());
            gauge
        };
        let daemon_up = gauge("daemon_up", "Whether a shuntd answers");
        let listeners = gauge("listeners", "Sockets that programs under Shunt listen on");
        let queued = gauge(
            "queued_bytes",
            "Bytes in rings that their receivers have not taken",
        );
        let sleeps = gauge(
            "open_sleeps",
            "Waits for one open connection alone that went to sleep",
        );
        let mut by_path = |name: &str, help: &str| {
            let family = Family::<Path, Gauge>::default();
            registry.register(name, help, family.clone());
            PATHS.map(|path| family.get_or_create_owned(&Path { path }))
        };
        let connections = by_path("connections", "Open connections by path");
        let bytes = by_path("open_bytes", "Payload of open connections by path");
        let reasons = Family::default();
        registry.register(
            "tcp_connections",
            "Open connections on TCP by reason, see shunt-reasons(7)",
            reasons.clone(),
        );
        let calls = Family::<Answered, Gauge>::default();
        registry.register(
            "open_calls",
            "Calls on open connections, by who answered them",
            calls.clone(),
        );
        let hosts = Family::default();
        registry.register(
            "hosts",
            "Other hosts that were looked for, by what came of it",
            hosts.clone(),
        );
        let host_ends = Family::default();
        registry.register(
            "host_ends",
            "Ends of open connections to other hosts, by whether they have met the other end",
            host_ends.clone(),
        );
        Self {
            source: Source::default(),
            asked: None,
            registry,
            daemon_up,
            listeners,
            queued,
            sleeps,
            connections,
            bytes,
            reasons,
            calls: ["memory", "kernel"].map(|by| calls.get_or_create_owned(&Answered { by })),
            hosts,
            host_ends,
        }
    }

    /// The metrics of now. That no daemon answers is one of them.
    fn text(&mut self) -> Result<String> {
        self.text_at(Instant::now())
    }

    fn text_at(&mut self, now: Instant) -> Result<String> {
        let list = self.source.collect(|_| true).ok();
        if list.is_none() {
            self.asked = None;
        }
        self.count(list);
        if self.asked.is_none_or(|asked| now - asked >= HOSTS_LAST) {
            self.asked = Some(now);
            // Only root's daemon has any, and only root is told.
            let hosts = self.source.hosts().ok().flatten();
            self.count_hosts(&hosts.unwrap_or_default());
        }
        let mut text = String::new();
        encode(&mut text, &self.registry)?;
        Ok(text)
    }

    /// Whether it stays connected to a daemon.
    fn is_connected(&self) -> bool {
        self.source.is_connected()
    }

    /// Leaves the daemons, until it is asked again.
    fn disconnect(&mut self) {
        self.source = Source::default();
    }

    /// `None`: no daemon answers.
    fn count(&self, list: Option<List>) {
        set(&self.daemon_up, list.is_some().into());
        let list = list.unwrap_or_default();
        let connections = &list.connections;
        set(&self.listeners, list.listeners.len() as u64);
        let queues = connections.iter().filter_map(|c| c.queue);
        let queued = queues.map(|queue| queue.to_client.saturating_add(queue.to_server));
        set(&self.queued, sum(queued));
        let ends = connections.iter().flat_map(|c| &c.processes);
        let counts = ends.filter_map(|end| end.counts.as_ref());
        set(
            &self.sleeps,
            sum(counts.clone().map(|counts| counts.sleeps)),
        );
        let calls = counts.flat_map(|counts| [counts.sent, counts.received]);
        set(&self.calls[0], sum(calls.clone().map(|calls| calls.user)));
        set(&self.calls[1], sum(calls.map(|calls| calls.kernel)));
        for (gauge, path) in self.connections.iter().zip(PATHS) {
            let taken = connections.iter().filter(|c| c.path == path);
            set(gauge, taken.count() as u64);
        }
        let ways = connections.iter().flat_map(|c| {
            let is_rdma = c.path == "rdma";
            [c.bytes.to_client, c.bytes.to_server].map(|way| (is_rdma, way))
        });
        // What is on TCP by now was mostly in shared memory before.
        for (gauge, rdma) in self.bytes.iter().zip([false, true]) {
            let of_path = ways.clone().filter(|(is_rdma, _)| *is_rdma == rdma);
            set(gauge, sum(of_path.map(|(_, way)| way.ring)));
        }
        set(&self.bytes[2], sum(ways.map(|(_, way)| way.kernel)));
        self.reasons.clear();
        for reason in connections.iter().filter_map(|c| c.reason.clone()) {
            self.reasons.get_or_create(&Reason { reason }).inc();
        }
    }

    fn count_hosts(&self, hosts: &[Host]) {
        self.hosts.clear();
        self.host_ends.clear();
        let of = |state: &str| State {
            state: state.to_owned(),
        };
        for host in hosts {
            let state = host.reason.as_deref().unwrap_or("found");
            self.hosts.get_or_create(&of(state)).inc();
            for (state, ends) in [("waiting", host.waiting), ("met", host.met)] {
                self.host_ends.get_or_create(&of(state)).inc_by(ends.into());
            }
        }
    }
}

fn sum(counts: impl Iterator<Item = u64>) -> u64 {
    counts.fold(0, u64::saturating_add)
}

fn set(gauge: &Gauge, count: u64) {
    gauge.set(count.try_into().unwrap_or(i64::MAX));
}

#[cfg(test)]
mod dashboard;

#[cfg(test)]
mod tests {
    use rustix::net::{
        AddressFamily, RecvFlags, SendFlags, SocketFlags, SocketType, recv, send, socketpair,
    };
    use shunt_abi::message::{Kind, MESSAGE_BYTES, Message};
    use zerocopy::IntoBytes as _;

    use super::*;
    use crate::control::Control;
    use crate::ss::connection::tests::{detail, row};
    use crate::ss::connection::{connection, listener};
    use shunt_abi::message::{FLAG_REACHES, FLAG_SHUNTED};

    pub(super) fn example() -> String {
        let (mut shm, mut rdma, mut tcp) = (row(), row(), row());
        (shm.flags, shm.pids) = (FLAG_SHUNTED, [7, 8]);
        (rdma.flags, rdma.bytes) = (FLAG_SHUNTED | FLAG_REACHES, [[20, 3], [0, 0]]);
        tcp.status = shunt_abi::Reason::PeerPlain as u8;
        let list = List {
            connections: vec![
                connection(&shm, Some(&detail())),
                connection(&rdma, None),
                connection(&tcp, None),
            ],
            listeners: vec![listener(&tcp, |_| None)],
        };
        let host = |reason: Option<&str>| Host {
            address: [10, 1, 0, 2].into(),
            reason: reason.map(str::to_owned),
            waiting: 2,
            met: 1,
            seconds: 5,
        };
        let metrics = Metrics::new();
        metrics.count(Some(list));
        metrics.count_hosts(&[host(None), host(Some("HOST_KEY"))]);
        let mut text = String::new();
        encode(&mut text, &metrics.registry).unwrap();
        text
    }

    #[test]
    fn what_is_listed_is_added_up() {
        let text = example();
        for line in [
            "shunt_daemon_up 1",
            "shunt_listeners 1",
            "shunt_queued_bytes 9",
            "shunt_open_sleeps 8",
            "shunt_connections{path=\"shm\"} 1",
            "shunt_connections{path=\"rdma\"} 1",
            "shunt_connections{path=\"tcp\"} 1",
            "shunt_open_bytes{path=\"shm\"} 14",
            "shunt_open_bytes{path=\"rdma\"} 20",
            "shunt_open_bytes{path=\"tcp\"} 5",
            "shunt_tcp_connections{reason=\"PEER_PLAIN\"} 1",
            "shunt_open_calls{by=\"memory\"} 10",
            "shunt_open_calls{by=\"kernel\"} 2",
            "shunt_hosts{state=\"found\"} 1",
            "shunt_hosts{state=\"HOST_KEY\"} 1",
            "shunt_host_ends{state=\"waiting\"} 4",
            "shunt_host_ends{state=\"met\"} 2",
        ] {
            assert!(text.lines().any(|other| other == line), "{line}:\n{text}");
        }
        assert!(text.ends_with("# EOF\n"), "{text}");
    }

    #[test]
    fn a_daemon_is_asked_about_other_hosts_once_a_second_at_most() {
        let kind = SocketType::SEQPACKET;
        let pair = socketpair(AddressFamily::UNIX, kind, SocketFlags::CLOEXEC, None);
        let (own, daemon) = pair.unwrap();
        // It knows nothing, and says so.
        let daemon = std::thread::spawn(move || {
            let (mut bytes, mut asked) = ([0; MESSAGE_BYTES], Vec::new());
            while let Ok((length @ 1.., _)) = recv(&daemon, &mut bytes[..], RecvFlags::empty()) {
                asked.extend(Message::parse(&bytes[..length]).unwrap().kind());
                let end = Message::new(Kind::End);
                send(&daemon, end.as_bytes(), SendFlags::NOSIGNAL).unwrap();
            }
            asked
        });
        let mut metrics = Metrics::new();
        metrics.source = Source::of(Control::at_other_end(own));
        let began = Instant::now();
        for time in [0, 500, 999, 1000] {
            let now = began + Duration::from_millis(time);
            metrics.text_at(now).unwrap();
        }
        drop(metrics);
        let (list, hosts) = (Kind::List, Kind::Hosts);
        let asked = daemon.join().unwrap();
        assert_eq!(asked, [list, hosts, list, list, list, hosts]);
    }
}
