//! `shunt metrics`: what `shunt ss` knows, added up, for Prometheus.

mod serve;

use std::process::ExitCode;

use anyhow::Result;
use prometheus_client::encoding::EncodeLabelSet;
use prometheus_client::encoding::text::encode;
use prometheus_client::metrics::family::Family;
use prometheus_client::metrics::gauge::Gauge;
use prometheus_client::registry::Registry;

use crate::host::Host;
use crate::ss::connection::Way;
use crate::ss::{List, Source};
pub(crate) use serve::Place;

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Path {
    path: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Reason {
    reason: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct State {
    state: String,
}

#[derive(Clone, Debug, Hash, PartialEq, Eq, EncodeLabelSet)]
struct Answered {
    by: String,
}

/// Prints the metrics once, or lets whoever connects have them.
pub(crate) fn metrics(place: Option<&Place>) -> Result<ExitCode> {
    match place {
        None => crate::print(&text(&mut Source::default())?)?,
        Some(place) => match serve::serve(place)? {},
    }
    Ok(ExitCode::SUCCESS)
}

/// The metrics of now. That no daemon answers is one of them.
fn text(source: &mut Source) -> Result<String> {
    let list = source.collect(|_| true);
    let up = list.is_ok();
    let none = || List {
        connections: Vec::new(),
        listeners: Vec::new(),
    };
    // Only root's daemon has any, and only root is told.
    let hosts = source.hosts().ok().flatten().unwrap_or_default();
    Ok(written(&list.unwrap_or_else(|_| none()), &hosts, up)?)
}

/// Everything is a gauge: it goes down when a connection ends.
fn written(list: &List, hosts: &[Host], up: bool) -> Result<String, std::fmt::Error> {
    let mut registry = Registry::with_prefix("shunt");
    let gauge = |registry: &mut Registry, name: &str, help: &str, value: u64| {
        let gauge = Gauge::<i64>::default();
        gauge.set(value.try_into().unwrap_or(i64::MAX));
        registry.register(name, help, gauge);
    };
    gauge(
        &mut registry,
        "daemon_up",
        "Whether a shuntd answers",
        up.into(),
    );
    gauge(
        &mut registry,
        "listeners",
        "Sockets that programs under Shunt listen on",
        list.listeners.len() as u64,
    );
    let queues = list.connections.iter().filter_map(|c| c.queue);
    let queued = queues.map(|queue| queue.to_client.saturating_add(queue.to_server));
    gauge(
        &mut registry,
        "queued_bytes",
        "Bytes in rings that their receivers have not taken",
        queued.fold(0, u64::saturating_add),
    );
    let ends = || list.connections.iter().flat_map(|c| &c.processes);
    let sleeps = ends().filter_map(|end| Some(end.counts.as_ref()?.sleeps));
    gauge(
        &mut registry,
        "open_sleeps",
        "Waits of open connections that went to sleep",
        sleeps.fold(0, u64::saturating_add),
    );
    by_path(list, &mut registry);
    by_reason(list, &mut registry);
    by_answer(list, &mut registry);
    by_state(hosts, &mut registry);
    let mut text = String::new();
    encode(&mut text, &registry)?;
    Ok(text)
}

fn add(gauge: &Gauge, count: u64) {
    gauge.inc_by(count.try_into().unwrap_or(i64::MAX));
}

fn by_path(list: &List, registry: &mut Registry) {
    let connections = Family::<Path, Gauge>::default();
    let bytes = Family::<Path, Gauge>::default();
    let of = |path: &str| Path {
        path: path.to_owned(),
    };
    for path in ["shm", "tcp"] {
        // A path that nobody takes has a zero.
        let taken = list.connections.iter().filter(|c| c.path == path);
        add(&connections.get_or_create(&of(path)), taken.count() as u64);
    }
    let sum = |part: fn(Way) -> u64| {
        let ways = list
            .connections
            .iter()
            .flat_map(|c| [c.bytes.to_client, c.bytes.to_server]);
        ways.map(part).fold(0, u64::saturating_add)
    };
    add(&bytes.get_or_create(&of("shm")), sum(|way| way.ring));
    add(&bytes.get_or_create(&of("tcp")), sum(|way| way.kernel));
    registry.register("connections", "Open connections by path", connections);
    registry.register("open_bytes", "Payload of open connections by path", bytes);
}

fn by_reason(list: &List, registry: &mut Registry) {
    let reasons = Family::<Reason, Gauge>::default();
    for name in list.connections.iter().filter_map(|c| c.reason.clone()) {
        add(&reasons.get_or_create(&Reason { reason: name }), 1);
    }
    registry.register(
        "tcp_connections",
        "Open connections on TCP by reason, see shunt-reasons(7)",
        reasons,
    );
}

fn by_state(hosts: &[Host], registry: &mut Registry) {
    let states = Family::<State, Gauge>::default();
    let ends = Family::<State, Gauge>::default();
    let of = |state: &str| State {
        state: state.to_owned(),
    };
    for host in hosts {
        let state = host.reason.as_deref().unwrap_or("found");
        add(&states.get_or_create(&of(state)), 1);
        add(&ends.get_or_create(&of("waiting")), host.waiting.into());
        add(&ends.get_or_create(&of("met")), host.met.into());
    }
    registry.register(
        "hosts",
        "Other hosts that were looked for, by what came of it",
        states,
    );
    registry.register(
        "host_ends",
        "Ends of open connections to other hosts, by whether they have met the other end",
        ends,
    );
}

fn by_answer(list: &List, registry: &mut Registry) {
    let calls = Family::<Answered, Gauge>::default();
    let ends = list.connections.iter().flat_map(|c| &c.processes);
    let (mut user, mut kernel) = (0_u64, 0_u64);
    for counts in ends.filter_map(|end| end.counts.as_ref()) {
        for calls in [counts.sent, counts.received] {
            user = user.saturating_add(calls.user);
            kernel = kernel.saturating_add(calls.kernel);
        }
    }
    for (by, count) in [("memory", user), ("kernel", kernel)] {
        add(&calls.get_or_create(&Answered { by: by.to_owned() }), count);
    }
    registry.register(
        "open_calls",
        "Calls on open connections, by who answered them",
        calls,
    );
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::ss::connection::tests::{detail, row};
    use crate::ss::connection::{connection, listener};
    use shunt_abi::message::FLAG_SHUNTED;

    fn example() -> String {
        let (mut shm, mut tcp) = (row(), row());
        (shm.flags, shm.pids) = (FLAG_SHUNTED, [7, 8]);
        tcp.status = shunt_abi::Reason::PeerPlain as u8;
        let list = List {
            connections: vec![connection(&shm, Some(&detail())), connection(&tcp, None)],
            listeners: vec![listener(&tcp)],
        };
        let host = |reason: Option<&str>| Host {
            address: [10, 1, 0, 2].into(),
            reason: reason.map(str::to_owned),
            waiting: 2,
            met: 1,
            seconds: 5,
        };
        let hosts = [host(None), host(Some("HOST_KEY"))];
        written(&list, &hosts, true).unwrap()
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
            "shunt_connections{path=\"tcp\"} 1",
            "shunt_open_bytes{path=\"shm\"} 14",
            "shunt_open_bytes{path=\"tcp\"} 2",
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
    fn the_dashboard_asks_for_metrics_that_there_are() {
        let file = "../../packaging/grafana-dashboard.json";
        let path = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join(file);
        let text = std::fs::read_to_string(path).unwrap();
        let dashboard: serde_json::Value = serde_json::from_str(&text).unwrap();
        let panels = dashboard["panels"].as_array().unwrap();
        assert!(!panels.is_empty() && dashboard["schemaVersion"].is_u64());
        let example = example();
        let mut asked = Vec::new();
        for panel in panels {
            assert!(
                panel["title"].is_string() && panel["gridPos"]["w"].is_u64(),
                "{panel}"
            );
            for target in panel["targets"].as_array().unwrap() {
                let expression = target["expr"].as_str().unwrap();
                let words = expression.split(|c: char| !(c.is_ascii_lowercase() || c == '_'));
                asked.extend(words.filter(|word| word.starts_with("shunt_")));
            }
        }
        let exists = |name: &str| example.contains(&format!("# TYPE {name} gauge\n"));
        for name in &asked {
            assert!(exists(name), "there is no metric {name}");
        }
        let all = example
            .lines()
            .filter_map(|line| line.strip_prefix("# TYPE "));
        for name in all.filter_map(|line| line.split_whitespace().next()) {
            assert!(asked.contains(&name), "no panel shows {name}");
        }
    }
}
