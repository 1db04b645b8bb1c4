//! `shunt stats`: adds up the lines that the processes of a run wrote.

use std::collections::BTreeMap;
use std::fmt::Write;
use std::path::Path;
use std::process::ExitCode;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};

/// One line, or the sum of all.
#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Totals {
    /// How many lines were added up.
    #[serde(skip_deserializing)]
    processes: u64,
    connections: Connections,
    /// Connections that were not (or no longer) shunted, by reason.
    reasons: BTreeMap<String, u64>,
    tx: Bytes,
    rx: Bytes,
    calls: Calls,
    doorbells: Doorbells,
    sleeps: u64,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Connections {
    total: u64,
    shunted: u64,
    downgraded: u64,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Bytes {
    ring_bytes: u64,
    kernel_bytes: u64,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Calls {
    user: u64,
    kernel: u64,
}

#[derive(Debug, Default, Deserialize, Serialize)]
#[serde(default)]
struct Doorbells {
    sent: u64,
    received: u64,
}

/// Prints the totals of a file.
pub(crate) fn stats(file: &Path, json: bool) -> Result<ExitCode> {
    let text =
        std::fs::read_to_string(file).with_context(|| format!("cannot read {}", file.display()))?;
    let totals =
        sum(&text).with_context(|| format!("{} is not a statistics file", file.display()))?;
    if json {
        crate::print_json(&totals)?;
    } else {
        crate::print(&totals.text())?;
    }
    Ok(ExitCode::SUCCESS)
}

fn sum(text: &str) -> Result<Totals> {
    let mut totals = Totals::default();
    for (i, line) in text
        .lines()
        .enumerate()
        .filter(|(_, line)| !line.trim().is_empty())
    {
        let one: Totals =
            serde_json::from_str(line).with_context(|| format!("line {} is not valid", i + 1))?;
        totals.add(one);
    }
    Ok(totals)
}

impl Totals {
    fn add(&mut self, one: Self) {
        let pairs = [
            (&mut self.processes, 1),
            (&mut self.connections.total, one.connections.total),
            (&mut self.connections.shunted, one.connections.shunted),
            (&mut self.connections.downgraded, one.connections.downgraded),
            (&mut self.tx.ring_bytes, one.tx.ring_bytes),
            (&mut self.tx.kernel_bytes, one.tx.kernel_bytes),
            (&mut self.rx.ring_bytes, one.rx.ring_bytes),
            (&mut self.rx.kernel_bytes, one.rx.kernel_bytes),
            (&mut self.calls.user, one.calls.user),
            (&mut self.calls.kernel, one.calls.kernel),
            (&mut self.doorbells.sent, one.doorbells.sent),
            (&mut self.doorbells.received, one.doorbells.received),
            (&mut self.sleeps, one.sleeps),
        ];
        for (sum, value) in pairs {
            *sum = sum.saturating_add(value);
        }
        for (name, count) in one.reasons {
            let sum = self.reasons.entry(name).or_default();
            *sum = sum.saturating_add(count);
        }
    }

    fn text(&self) -> String {
        let c = &self.connections;
        let mut text = String::new();
        let mut line = |name: &str, value: String| {
            let _ = writeln!(text, "{name:<12}{value}");
        };
        line("processes", self.processes.to_string());
        let part = share(c.shunted, c.total);
        line(
            "connections",
            format!(
                "{}, shunted {} ({part}), downgraded {}",
                c.total, c.shunted, c.downgraded
            ),
        );
        for (name, bytes) in [("sent", &self.tx), ("received", &self.rx)] {
            let all = bytes.ring_bytes.saturating_add(bytes.kernel_bytes);
            let part = share(bytes.ring_bytes, all);
            line(
                name,
                format!("{all} bytes, {} in rings ({part})", bytes.ring_bytes),
            );
        }
        let all = self.calls.user.saturating_add(self.calls.kernel);
        let part = share(self.calls.user, all);
        line(
            "calls",
            format!("{all}, {} without the kernel ({part})", self.calls.user),
        );
        let bells = &self.doorbells;
        line(
            "doorbells",
            format!("sent {}, received {}", bells.sent, bells.received),
        );
        line("sleeps", self.sleeps.to_string());
        for (name, count) in &self.reasons {
            line("not shunted", format!("{count:>8}  {name}"));
        }
        text
    }
}

/// A part of a whole, in percent, never rounded up to all of it.
fn share(part: u64, whole: u64) -> String {
    if whole == 0 {
        return "-".to_owned();
    }
    let tenths = u128::from(part) * 1000 / u128::from(whole);
    format!("{}.{} %", tenths / 10, tenths % 10)
}

#[cfg(test)]
mod tests {
    use super::*;

    const LINE: &str = r#"{"pid":1,"comm":"x","connections":{"total":3,"shunted":2,"downgraded":1},"reasons":{"PEER_PLAIN":1},"tx":{"ring_bytes":999,"kernel_bytes":1},"rx":{"ring_bytes":5,"kernel_bytes":0},"calls":{"user":7,"kernel":1},"doorbells":{"sent":2,"received":3},"sleeps":4}"#;

    #[test]
    fn lines_add_up() {
        let totals = sum(&format!("{LINE}\n\n{LINE}\n")).unwrap();
        assert_eq!(
            (totals.processes, totals.connections.total, totals.sleeps),
            (2, 6, 8)
        );
        assert_eq!(totals.reasons["PEER_PLAIN"], 2);
        let text = totals.text();
        assert!(
            text.contains("2000 bytes, 1998 in rings (99.9 %)"),
            "{text}"
        );
    }

    #[test]
    fn a_damaged_line_is_named() {
        let error = sum(&format!("{LINE}\n{{\n")).unwrap_err();
        assert_eq!(error.to_string(), "line 2 is not valid");
    }

    #[test]
    fn shares_are_not_rounded_up() {
        assert_eq!(share(9999, 10_000), "99.9 %");
        assert_eq!(share(0, 0), "-");
        assert_eq!(share(u64::MAX, u64::MAX), "100.0 %");
    }
}
