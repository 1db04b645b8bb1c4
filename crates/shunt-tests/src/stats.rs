//! The statistics that Shunt's processes leave behind, added up.

use std::collections::BTreeMap;
use std::path::Path;

use serde_json::Value;

/// Sums over all processes of a run.
#[derive(Clone, Debug, Default, PartialEq)]
pub(crate) struct Stats {
    pub(crate) processes: u64,
    pub(crate) connections: u64,
    pub(crate) shunted: u64,
    pub(crate) downgraded: u64,
    pub(crate) tx_ring: u64,
    pub(crate) tx_kernel: u64,
    pub(crate) reasons: BTreeMap<String, u64>,
    /// Lines that are not what was promised.
    pub(crate) malformed: u64,
}

impl Stats {
    /// Reads the file; one that is not there has no lines.
    pub(crate) fn read(file: &Path) -> Self {
        Self::parse(&std::fs::read_to_string(file).unwrap_or_default())
    }

    fn parse(text: &str) -> Self {
        let mut stats = Self::default();
        for line in text.lines().filter(|l| !l.trim().is_empty()) {
            match serde_json::from_str::<Value>(line) {
                Ok(value) => stats.add(&value),
                Err(_) => stats.malformed += 1,
            }
        }
        stats
    }

    fn add(&mut self, line: &Value) {
        let number = |path: &str| line.pointer(path).and_then(Value::as_u64).unwrap_or(0);
        if line
            .pointer("/tx/ring_bytes")
            .and_then(Value::as_u64)
            .is_none()
        {
            self.malformed += 1;
        }
        self.processes += 1;
        self.connections += number("/connections/total");
        self.shunted += number("/connections/shunted");
        self.downgraded += number("/connections/downgraded");
        self.tx_ring += number("/tx/ring_bytes");
        self.tx_kernel += number("/tx/kernel_bytes");
        for (name, count) in line
            .get("reasons")
            .and_then(Value::as_object)
            .into_iter()
            .flatten()
        {
            *self.reasons.entry(name.clone()).or_default() += count.as_u64().unwrap_or(0);
        }
    }

    /// Percentage of the sent bytes that went through rings.
    pub(crate) fn share(&self) -> f64 {
        let all = self.tx_ring + self.tx_kernel;
        if all == 0 {
            0.0
        } else {
            self.tx_ring as f64 * 100.0 / all as f64
        }
    }

    /// One line for a person.
    pub(crate) fn brief(&self) -> String {
        let reasons: Vec<String> = self
            .reasons
            .iter()
            .map(|(name, n)| format!("{name}={n}"))
            .collect();
        format!(
            "{}/{} shunted, {} downgraded, {:.1}% of {} bytes by ring {}",
            self.shunted,
            self.connections,
            self.downgraded,
            self.share(),
            self.tx_ring + self.tx_kernel,
            reasons.join(" ")
        )
    }
}

impl std::ops::AddAssign<&Self> for Stats {
    fn add_assign(&mut self, other: &Self) {
        self.processes += other.processes;
        self.connections += other.connections;
        self.shunted += other.shunted;
        self.downgraded += other.downgraded;
        self.tx_ring += other.tx_ring;
        self.tx_kernel += other.tx_kernel;
        self.malformed += other.malformed;
        for (name, count) in &other.reasons {
            *self.reasons.entry(name.clone()).or_default() += count;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::Stats;

    #[test]
    fn lines_add_up() {
        let line = r#"{"pid":1,"comm":"x","connections":{"total":2,"shunted":1,"downgraded":0},"reasons":{"PENDING":1},"tx":{"ring_bytes":30,"kernel_bytes":10}}"#;
        let stats = Stats::parse(&format!("{line}\n{line}\nnonsense\n"));
        assert_eq!(
            (stats.processes, stats.connections, stats.malformed),
            (2, 4, 1)
        );
        assert_eq!(stats.reasons["PENDING"], 2);
        assert!((stats.share() - 75.0).abs() < 1e-9);
    }
}
