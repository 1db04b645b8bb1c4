//! The statistics that processes under Shunt append at their exit.

use anyhow::{Context, Result};
use serde_json::Value;
use std::collections::BTreeMap;
use std::fs;
use std::ops::AddAssign;
use std::path::Path;

/// Sums over processes.
#[derive(Clone, Debug, Default)]
pub(crate) struct Stats {
    pub(crate) processes: u64,
    pub(crate) connections: u64,
    pub(crate) shunted: u64,
    pub(crate) downgraded: u64,
    pub(crate) ring_bytes: u64,
    pub(crate) kernel_bytes: u64,
    pub(crate) user_calls: u64,
    pub(crate) kernel_calls: u64,
    pub(crate) reasons: BTreeMap<String, u64>,
}

impl Stats {
    /// The sums over all lines of a file; none if it does not exist.
    pub(crate) fn read(path: &Path) -> Result<Self> {
        Self::read_of(path, "")
    }

    /// Like [`Self::read`], only of processes whose name starts with `name`.
    pub(crate) fn read_of(path: &Path, name: &str) -> Result<Self> {
        let mut sums = Self::default();
        let Ok(text) = fs::read_to_string(path) else {
            return Ok(sums);
        };
        for line in text.lines().filter(|line| !line.trim().is_empty()) {
            let value: Value = serde_json::from_str(line)
                .with_context(|| format!("{}: not a statistics line: {line}", path.display()))?;
            if value["comm"].as_str().unwrap_or_default().starts_with(name) {
                sums += &Self::parse(&value);
            }
        }
        Ok(sums)
    }

    fn parse(value: &Value) -> Self {
        let at = |pointer: &str| value.pointer(pointer).and_then(Value::as_u64).unwrap_or(0);
        let reasons = value["reasons"].as_object().into_iter().flatten();
        Self {
            processes: 1,
            connections: at("/connections/total"),
            shunted: at("/connections/shunted"),
            downgraded: at("/connections/downgraded"),
            ring_bytes: at("/tx/ring_bytes") + at("/rx/ring_bytes"),
            kernel_bytes: at("/tx/kernel_bytes") + at("/rx/kernel_bytes"),
            user_calls: at("/calls/user"),
            kernel_calls: at("/calls/kernel"),
            reasons: reasons
                .map(|(name, count)| (name.clone(), count.as_u64().unwrap_or(0)))
                .collect(),
        }
    }

    /// The share of payload bytes that went through rings, 0 to 1.
    pub(crate) fn ring_share(&self) -> f64 {
        share(self.ring_bytes, self.kernel_bytes)
    }

    /// One line for people.
    pub(crate) fn summary(&self) -> String {
        let mut text = format!(
            "ring {:.2} % of {}, {}/{} shunted ({:.1} %)",
            self.ring_share() * 100.0,
            bytes(self.ring_bytes + self.kernel_bytes),
            self.shunted,
            self.connections,
            share(self.shunted, self.connections.saturating_sub(self.shunted)) * 100.0
        );
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
        self.ring_bytes += other.ring_bytes;
        self.kernel_bytes += other.kernel_bytes;
        self.user_calls += other.user_calls;
        self.kernel_calls += other.kernel_calls;
        for (name, count) in &other.reasons {
            *self.reasons.entry(name.clone()).or_default() += count;
        }
    }
}

#[allow(clippy::cast_precision_loss)] // For display and thresholds only.
fn share(part: u64, rest: u64) -> f64 {
    if part + rest == 0 {
        0.0
    } else {
        part as f64 / (part + rest) as f64
    }
}

/// A byte count for people.
#[allow(clippy::cast_precision_loss)] // For display only.
pub(crate) fn bytes(count: u64) -> String {
    match count {
        0..10_000 => format!("{count} B"),
        10_000..10_000_000 => format!("{:.1} kB", count as f64 / 1e3),
        _ => format!("{:.1} MB", count as f64 / 1e6),
    }
}

/// The middle value.
pub(crate) fn median(values: &[f64]) -> f64 {
    let mut sorted = values.to_vec();
    sorted.sort_by(f64::total_cmp);
    match sorted.len() {
        0 => f64::NAN,
        n if n % 2 == 1 => sorted[n / 2],
        n => f64::midpoint(sorted[n / 2 - 1], sorted[n / 2]),
    }
}

#[cfg(test)]
mod tests {
    use super::{Stats, median};
    use serde_json::json;

    #[test]
    fn lines_add_up() {
        let line = json!({"pid":1,"comm":"x","connections":{"total":2,"shunted":1,"downgraded":0},
            "reasons":{"PEER_PLAIN":1},"tx":{"ring_bytes":98,"kernel_bytes":1},
            "rx":{"ring_bytes":0,"kernel_bytes":1},"calls":{"user":9,"kernel":1},
            "doorbells":{"sent":0,"received":0},"sleeps":0});
        let mut sums = Stats::parse(&line);
        sums += &Stats::parse(&line);
        assert_eq!(
            (sums.connections, sums.shunted, sums.user_calls),
            (4, 2, 18)
        );
        assert_eq!(sums.reasons["PEER_PLAIN"], 2);
        assert!((sums.ring_share() - 0.98).abs() < 1e-9);
    }

    #[test]
    fn median_of_even_and_odd() {
        assert!((median(&[3.0, 1.0, 2.0]) - 2.0).abs() < 1e-9);
        assert!((median(&[4.0, 1.0, 2.0, 3.0]) - 2.5).abs() < 1e-9);
    }
}
