//! The statistics that processes under Shunt append at their exit, one line of JSON each (`shunt(1)`, `--stats`).

use std::collections::BTreeMap;
use std::fs;
use std::ops::AddAssign;
use std::path::Path;

use anyhow::{Result, ensure};
use serde_json::Value;

/// Bytes by the way that they took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Bytes {
    /// Through rings.
    pub ring: u64,
    /// Through the kernel.
    pub kernel: u64,
}

impl Bytes {
    /// The share that went through rings, 0 to 1; 0 of nothing.
    pub fn ring_share(self) -> f64 {
        share(self.ring, self.kernel)
    }
}

impl AddAssign for Bytes {
    fn add_assign(&mut self, other: Self) {
        self.ring += other.ring;
        self.kernel += other.kernel;
    }
}

/// Sums over processes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Stats {
    /// Lines.
    pub processes: u64,
    /// Ends of connections.
    pub connections: u64,
    /// Those of them that have moved to rings.
    pub shunted: u64,
    /// Those of these that have gone back to TCP.
    pub downgraded: u64,
    /// Ends of connections that were used again.
    pub used_again: u64,
    /// Bytes sent.
    pub sent: Bytes,
    /// Bytes received.
    pub received: Bytes,
    /// Data and readiness calls that made no system call.
    pub user_calls: u64,
    /// Those that did.
    pub kernel_calls: u64,
    /// How often a peer was woken.
    pub doorbells: u64,
    /// How often a call slept.
    pub sleeps: u64,
    /// Why connections are not shunted: names of reasons, and how many connections have each.
    pub reasons: BTreeMap<String, u64>,
    /// Lines that are not what was promised.
    pub malformed: u64,
}

impl Stats {
    /// The sums over all lines of a file; none if it does not exist.
    ///
    /// # Errors
    ///
    /// If one of the lines is not what was promised.
    pub fn read(file: &Path) -> Result<Self> {
        Self::read_of(file, None)
    }

    /// The same, only of processes of this name, if there is one.
    ///
    /// # Errors
    ///
    /// As of [`Self::read`].
    pub fn read_of(file: &Path, name: Option<&str>) -> Result<Self> {
        let sums = Self::sum(&fs::read_to_string(file).unwrap_or_default(), name);
        ensure!(
            sums.malformed == 0,
            "{}: {} lines are not statistics",
            file.display(),
            sums.malformed
        );
        Ok(sums)
    }

    /// The same, with lines counted that are not what was promised.
    pub fn count(file: &Path) -> Self {
        Self::sum(&fs::read_to_string(file).unwrap_or_default(), None)
    }

    fn sum(text: &str, name: Option<&str>) -> Self {
        let mut sums = Self::default();
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            match serde_json::from_str::<Value>(line) {
                Ok(value) if name.is_none_or(|name| value["comm"] == name) => {
                    sums += &Self::of(&value);
                }
                Ok(_) => {}
                Err(_) => sums.malformed += 1,
            }
        }
        sums
    }

    fn of(line: &Value) -> Self {
        let number = |at: &str| line.pointer(at).and_then(Value::as_u64);
        let at = |at: &str| number(at).unwrap_or(0);
        let reasons = line["reasons"].as_object().into_iter().flatten();
        Self {
            processes: 1,
            connections: at("/connections/total"),
            shunted: at("/connections/shunted"),
            downgraded: at("/connections/downgraded"),
            used_again: at("/recycled/used_again"),
            sent: Bytes {
                ring: at("/tx/ring_bytes"),
                kernel: at("/tx/kernel_bytes"),
            },
            received: Bytes {
                ring: at("/rx/ring_bytes"),
                kernel: at("/rx/kernel_bytes"),
            },
            user_calls: at("/calls/user"),
            kernel_calls: at("/calls/kernel"),
            doorbells: at("/doorbells/sent"),
            sleeps: at("/sleeps"),
            reasons: reasons
                .map(|(name, count)| (name.clone(), count.as_u64().unwrap_or(0)))
                .collect(),
            malformed: u64::from(number("/tx/ring_bytes").is_none()),
        }
    }

    /// Bytes of both directions.
    pub fn bytes(&self) -> Bytes {
        let mut both = self.sent;
        both += self.received;
        both
    }

    /// The share of all bytes that went through rings, 0 to 1.
    pub fn ring_share(&self) -> f64 {
        self.bytes().ring_share()
    }

    /// The share of data and readiness calls that went without any system call, 0 to 1. What woke the peer, or slept, has
    /// called the kernel, too. A readiness call that slept is among the kernel's already: the result errs on the low side.
    pub fn free_share(&self) -> f64 {
        let calls = self.user_calls + self.kernel_calls;
        let free = self.user_calls.saturating_sub(self.doorbells + self.sleeps);
        share(free, calls - free)
    }

    /// One line for people.
    pub fn summary(&self) -> String {
        let bytes = self.bytes();
        let mut text = format!(
            "ring {:.2} % of {}, {}/{} shunted ({:.1} %)",
            bytes.ring_share() * 100.0,
            amount(bytes.ring + bytes.kernel),
            self.shunted,
            self.connections,
            share(self.shunted, self.connections.saturating_sub(self.shunted)) * 100.0
        );
        for (count, what) in [
            (self.downgraded, "downgraded"),
            (self.used_again, "used again"),
        ] {
            if count > 0 {
                text += &format!(", {count} {what}");
            }
        }
        for (name, count) in &self.reasons {
            text += &format!(" {name}={count}");
        }
        text
    }
}

impl AddAssign<&Self> for Stats {
    fn add_assign(&mut self, other: &Self) {
        self.processes += other.processes;
        self.connections += other.connections;
        self.shunted += other.shunted;
        self.downgraded += other.downgraded;
        self.used_again += other.used_again;
        self.sent += other.sent;
        self.received += other.received;
        self.user_calls += other.user_calls;
        self.kernel_calls += other.kernel_calls;
        self.doorbells += other.doorbells;
        self.sleeps += other.sleeps;
        self.malformed += other.malformed;
        for (name, count) in &other.reasons {
            *self.reasons.entry(name.clone()).or_default() += count;
        }
    }
}

/// The first of two as a part of both, 0 to 1; 0 of nothing.
fn share(part: u64, rest: u64) -> f64 {
    if part + rest == 0 {
        0.0
    } else {
        part as f64 / (part + rest) as f64
    }
}

/// A number of bytes for people.
pub fn amount(bytes: u64) -> String {
    match bytes {
        0..10_000 => format!("{bytes} B"),
        10_000..10_000_000 => format!("{:.1} kB", bytes as f64 / 1e3),
        _ => format!("{:.1} MB", bytes as f64 / 1e6),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINES: &str = r#"{"comm":"a","connections":{"total":2,"shunted":1,"downgraded":1},"reasons":{"PEER_PLAIN":1},"tx":{"ring_bytes":300,"kernel_bytes":0},"rx":{"ring_bytes":0,"kernel_bytes":50},"calls":{"user":90,"kernel":10},"doorbells":{"sent":3},"sleeps":7}
{"comm":"b","connections":{"total":2,"shunted":1,"downgraded":0},"reasons":{"PEER_PLAIN":1},"tx":{"ring_bytes":0,"kernel_bytes":50},"rx":{"ring_bytes":0,"kernel_bytes":0},"calls":{"user":0,"kernel":100},"doorbells":{"sent":0},"sleeps":0}
"#;

    #[test]
    fn lines_add_up() {
        let sums = Stats::sum(LINES, None);
        assert_eq!(
            (sums.processes, sums.connections, sums.shunted),
            (2, 4, 2),
            "{sums:?}"
        );
        assert_eq!(sums.reasons["PEER_PLAIN"], 2);
        assert_eq!((sums.sent.ring, sums.sent.kernel), (300, 50));
        assert!((sums.ring_share() - 0.75).abs() < 1e-9);
        assert!((sums.free_share() - 0.4).abs() < 1e-9);
        assert_eq!(
            sums.summary(),
            "ring 75.00 % of 400 B, 2/4 shunted (50.0 %), 1 downgraded PEER_PLAIN=2"
        );
    }

    #[test]
    fn those_of_one_name_are_told_apart() {
        let sums = Stats::sum(LINES, Some("a"));
        assert_eq!(sums.processes, 1);
        assert!((sums.free_share() - 0.8).abs() < 1e-9);
        assert_eq!(Stats::sum(LINES, Some("aa")), Stats::default());
    }

    #[test]
    fn what_is_no_line_of_statistics_is_counted_and_refused() {
        let sums = Stats::sum("nonsense\n\n{\"comm\":\"a\"}\n", None);
        assert_eq!(sums.malformed, 2);
        let file = std::env::temp_dir().join(format!("shunt-stats.{}", std::process::id()));
        fs::write(&file, "nonsense\n").unwrap();
        let [good, bad] = [Path::new("/nonexistent"), &file].map(Stats::read);
        fs::remove_file(&file).unwrap();
        assert_eq!(good.unwrap(), Stats::default());
        let bad = bad.unwrap_err().to_string();
        assert!(bad.ends_with(": 1 lines are not statistics"), "{bad}");
    }
}
