//! Two hosts, each of them a network namespace with a shuntd of its own: whether these find each other, what programs are told
//! of connections between both, and that no byte is lost whatever becomes of a daemon. (The kernel shows both ends to either
//! daemon's eBPF program, so these go by addresses.)

use super::place::{Namespace, Place};
use super::{LIMIT, Lab, Net, Pair};
use crate::build::artifact;
use crate::process::{Job, signal_pid, wait_until};
use crate::report::Report;
use crate::stats::Stats;
use anyhow::{Context, Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::Path;
use std::process::Command;
use std::time::Duration;

/// The second host, where the server is.
const SERVER: &str = "10.77.0.3";

/// A host.
struct Host<'a> {
    lab: Lab,
    place: &'a Namespace,
    daemon: Option<Job>,
}

/// Both, connected.
struct Hosts<'a>([Host<'a>; 2]);

/// The steps, as part of those in namespaces.
pub(super) fn steps(report: &mut Report, net: &Net) {
    for (name, step) in [
        ("one key", one_key as fn(&mut Hosts<'_>) -> Result<String>),
        ("another key", another_key),
        ("no shuntd there", no_daemon),
        ("a stopped shuntd", stopped),
        ("a killed shuntd", killed),
    ] {
        report.step(&format!("hosts / {name}"), || {
            step(&mut Hosts::new([&net.client, &net.server])?)
        });
    }
}

/// Both ends are found, and both programs are told what keeps them on TCP.
fn one_key(hosts: &mut Hosts<'_>) -> Result<String> {
    hosts.start(&["key", "key"])?;
    for (host, other) in [(0, "10.77.0.3"), (1, "10.77.0.2")] {
        let (is_right, text) = hosts.0[host].reach(other)?;
        ensure!(is_right, "{text}");
    }
    let pair = hosts.pair("one-key")?;
    hosts.await_reason(1, "NO_DEVICE")?;
    let [near, far] = pair.end()?;
    for stats in [near, far] {
        ensure!(
            stats.reasons.contains_key("NO_DEVICE"),
            "{}",
            stats.summary()
        );
    }
    Ok("NO_DEVICE at both ends".into())
}

fn another_key(hosts: &mut Hosts<'_>) -> Result<String> {
    hosts.start(&["key", "other"])?;
    let (is_right, text) = hosts.0[0].reach(SERVER)?;
    ensure!(!is_right && text.contains("another one"), "{text}");
    let pair = hosts.pair("another-key")?;
    hosts.await_reason(1, "HOST_KEY")?;
    pair.end()?;
    Ok("HOST_KEY".into())
}

fn no_daemon(hosts: &mut Hosts<'_>) -> Result<String> {
    hosts.0[1].begin("key")?;
    let pair = hosts.pair("no-daemon")?;
    hosts.await_reason(1, "HOST_SILENT")?;
    pair.end()?;
    Ok("HOST_SILENT".into())
}

/// The kernel of a stopped daemon's host still accepts calls.
fn stopped(hosts: &mut Hosts<'_>) -> Result<String> {
    hosts.start(&["key", "key"])?;
    let pid = hosts.0[0].daemon.as_ref().context("a daemon")?.pid();
    let pair = hosts.pair("stopped")?;
    signal_pid(pid, Signal::STOP);
    // What was met before has its reason; the next connection meets a daemon that says nothing.
    let later = hosts.pair_at("later", 7001);
    let told = later.and_then(|later| {
        hosts.await_reason(1, "HOST_SILENT")?;
        Ok(later)
    });
    signal_pid(pid, Signal::CONT);
    told?.end()?;
    pair.end()?;
    Ok("HOST_SILENT".into())
}

/// The other end's daemon goes, and comes back.
fn killed(hosts: &mut Hosts<'_>) -> Result<String> {
    hosts.start(&["key", "key"])?;
    let pair = hosts.pair("killed")?;
    hosts.await_reason(1, "NO_DEVICE")?;
    for host in [0, 1] {
        let daemon = hosts.0[host].daemon.take().context("a daemon")?;
        daemon.stop(Signal::KILL)?;
    }
    hosts.start(&["key", "key"])?;
    let later = hosts.pair_at("after", 7001)?;
    hosts.await_reason(1, "NO_DEVICE")?;
    later.end()?;
    pair.end()?;
    Ok("and its successor finds the other".into())
}

impl<'a> Hosts<'a> {
    fn new([near, far]: [&'a Namespace; 2]) -> Result<Self> {
        let host = |name: &str, place| {
            Ok::<_, anyhow::Error>(Host {
                lab: Lab::new(name)?,
                place,
                daemon: None,
            })
        };
        let hosts = Self([host("near", near)?, host("far", far)?]);
        for name in ["key", "other"] {
            let file = hosts.0[0].lab.directory.join(name);
            let _ = fs::remove_file(&file);
            let done = Command::new(artifact("shunt"))
                .args(["host", "key"])
                .arg(&file)
                .output()?;
            ensure!(
                done.status.success(),
                "{}",
                String::from_utf8_lossy(&done.stderr)
            );
            let copied = hosts.0[1].lab.directory.join(name);
            fs::copy(&file, copied)?;
        }
        Ok(hosts)
    }

    /// Starts both daemons.
    fn start(&mut self, keys: &[&str; 2]) -> Result<()> {
        let mut hosts = self.0.iter_mut().zip(keys);
        hosts.try_for_each(|(host, key)| host.begin(key))
    }

    /// A client on the first host and a server on the second one talk until they are told to end.
    fn pair(&self, name: &str) -> Result<Talk> {
        self.pair_at(name, 7000)
    }

    fn pair_at(&self, name: &str, port: u16) -> Result<Talk> {
        let [near, far] = &self.0;
        let port = port.to_string();
        let place = Place::Namespace(far.place);
        let (server, server_stats) = far.lab.server_at(name, place, &port, "1")?;
        let end = near.lab.directory.join(format!("{name}.end"));
        let _ = fs::remove_file(&end);
        let path = end.display().to_string();
        let place = Place::Namespace(near.place);
        let words = [SERVER, &port, name, &path];
        let (client, client_stats) = near.lab.end("lasting", name, place, &words)?;
        let under_way = || client.output().contains("under way");
        ensure!(wait_until(LIMIT, under_way), "{}", client.tail());
        let pair = Pair {
            jobs: [client, server],
            stats: [client_stats, server_stats],
        };
        Ok(Talk { pair, end })
    }

    /// Waits until a host's list has a connection with this reason.
    fn await_reason(&self, host: usize, reason: &str) -> Result<()> {
        let mut seen = Vec::new();
        let is_so = || {
            seen = self.0[host].rows().unwrap_or_default();
            seen.iter().any(|row| row["reason"] == reason)
        };
        ensure!(wait_until(LIMIT, is_so), "no {reason}: {seen:?}");
        Ok(())
    }
}

impl Host<'_> {
    /// Starts its daemon, with this key.
    fn begin(&mut self, key: &str) -> Result<()> {
        let key = self.lab.directory.join(key);
        let text = format!(
            "[hosts]\nkey = \"{}\"\nnetworks = [\"10.77.0.0/24\"]\n",
            key.display()
        );
        fs::write(self.lab.config(), text)?;
        let mut command = self.place.command();
        command
            .arg(artifact("shuntd"))
            .args(["--system", "--verbose", "--by-addresses", "--socket"])
            .arg(&self.lab.socket)
            .arg("--devices")
            .arg(self.lab.directory.join("devices"))
            .arg("--config")
            .arg(self.lab.config());
        let daemon = Job::spawn("shuntd", &self.lab.directory, &mut command)?;
        let hears = || daemon.output().contains("heard at");
        ensure!(
            wait_until(Duration::from_secs(5), hears),
            "{}",
            daemon.tail()
        );
        self.daemon = Some(daemon);
        Ok(())
    }

    /// Calls the other one, and says whether it answers as it should.
    fn reach(&self, address: &str) -> Result<(bool, String)> {
        let mut command = self.place.command();
        command
            .arg(artifact("shuntd"))
            .args(["--reach", address, "--config"])
            .arg(self.lab.config());
        let done = command.output()?;
        let text = [done.stdout, done.stderr].concat();
        let text = String::from_utf8_lossy(&text).into_owned();
        Ok((done.status.success(), text))
    }

    /// Its connections, as `shunt ss` lists them.
    fn rows(&self) -> Result<Vec<Value>> {
        let mut command = self.place.command();
        command
            .arg("env")
            .arg(format!("SHUNT_SOCKET={}", self.lab.socket.display()))
            .arg(artifact("shunt"))
            .args(["ss", "--json"]);
        let output = command.output()?;
        let list: Value = serde_json::from_slice(&output.stdout)?;
        Ok(list["connections"].as_array().cloned().unwrap_or_default())
    }
}

/// A client and a server that talk until they are told to end.
struct Talk {
    pair: Pair,
    end: std::path::PathBuf,
}

impl Talk {
    /// Has them end, every byte right; their statistics.
    fn end(mut self) -> Result<[Stats; 2]> {
        fs::write(&self.end, "")?;
        for job in &mut self.pair.jobs {
            let status = job.wait(LIMIT, &[])?;
            ensure!(
                status.success(),
                "{} ended with {status}\n{}",
                job.name,
                job.tail()
            );
        }
        let read = |stats: &Path| Stats::read(stats);
        let [near, far] = &self.pair.stats;
        Ok([read(near)?, read(far)?])
    }
}
