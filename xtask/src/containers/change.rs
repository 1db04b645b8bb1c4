//! What changes under connections that are there: the policy, and shuntd itself.

use super::place::Place;
use super::{LIMIT, Lab, Net, Pair};
use crate::process::{Job, signal_pid, wait_until};
use crate::stats::Stats;
use anyhow::{Result, ensure};
use rustix::process::Signal;
use serde_json::Value;
use std::fs;
use std::path::PathBuf;

const DENY: &str = "[[policy.rule]]\naction = \"deny\"\nport = 7000\nnamespace = \"other\"\n";

/// A pair whose client goes on until it is told to end.
struct Lasting {
    pair: Pair,
    end: PathBuf,
}

impl Lab {
    /// What a new policy forbids goes back to TCP with its reason, and no byte is lost; new connections stay there.
    pub(super) fn after_a_new_policy(&self, daemon: &Job, net: &Net) -> Result<String> {
        let lasting = self.lasting("denied", net)?;
        self.await_one(net, |row| row["path"] == "shm")?;
        fs::write(self.config(), DENY)?;
        signal_pid(daemon.pid(), Signal::HUP);
        self.await_one(net, |row| row["reason"] == "POLICY")?;
        let stats = lasting.pair.stats.clone();
        let shares = lasting.finish()?;
        // Who is left by its peer before it hears of the policy says that.
        let mut sums = Stats::default();
        for stats in &stats {
            sums += &Stats::read(stats)?;
        }
        let is_denied = sums.reasons.contains_key("POLICY") && sums.downgraded == 2;
        ensure!(is_denied, "{}", sums.summary());
        fs::write(self.config(), "")?;
        signal_pid(daemon.pid(), Signal::HUP);
        Ok(shares)
    }

    /// Another shuntd lists a connection between two namespaces that one before it has paired: once, and as it is.
    pub(super) fn list_after_a_restart(&self, net: &Net) -> Result<String> {
        let daemon = self.daemon(net.host.command())?;
        let lasting = self.lasting("listed", net)?;
        self.await_one(net, |row| row["path"] == "shm")?;
        daemon.stop(Signal::TERM)?;
        let daemon = self.daemon(net.host.command())?;
        self.await_one(net, |row| {
            let processes = row["processes"].as_array().map_or(0, Vec::len);
            row["path"] == "shm" && processes == 2
        })?;
        let shares = lasting.finish()?;
        daemon.stop(Signal::TERM)?;
        Ok(shares)
    }

    fn lasting(&self, name: &str, net: &Net) -> Result<Lasting> {
        let [client, server] = [&net.client, &net.server].map(Place::Namespace);
        let end = self.directory.join(format!("{name}.end"));
        let (server, server_stats) = self.server(name, server, "1")?;
        let path = end.display().to_string();
        let words = ["10.77.0.3", "7000", name, &path];
        let (client, client_stats) = self.end("lasting", name, client, &words)?;
        let under_way = || client.output().contains("under way");
        ensure!(wait_until(LIMIT, under_way), "{}", client.tail());
        let pair = Pair {
            jobs: [client, server],
            stats: [client_stats, server_stats],
        };
        Ok(Lasting { pair, end })
    }

    /// Waits until the host's list has one connection of the server's, and that is as it should be.
    fn await_one(&self, net: &Net, is_it: impl Fn(&Value) -> bool) -> Result<()> {
        let mut seen = Vec::new();
        let is_so = || {
            seen = self.rows(net.host.command(), &[7000]).unwrap_or_default();
            seen.len() == 1 && is_it(&seen[0])
        };
        ensure!(wait_until(LIMIT, is_so), "listed: {seen:?}");
        Ok(())
    }
}

impl Lasting {
    /// Ends it, and waits for both.
    fn finish(self) -> Result<String> {
        fs::write(&self.end, "")?;
        self.pair.finish(0.0)
    }
}
