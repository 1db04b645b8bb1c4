//! What the statistics of processes under Shunt say of a measurement.

use std::fs;
use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use serde_json::Value;

/// How bytes and calls went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Deserialize, Serialize)]
pub(crate) struct Carried {
    /// The share of all bytes that went through rings.
    pub(crate) ring: f64,
    /// The share of all data and readiness calls that made no system call.
    pub(crate) free: f64,
}

impl Carried {
    /// Of all processes that have left their line in the file; the calls of those of one
    /// name, if there is one.
    pub(crate) fn read(file: &Path, who: Option<&str>) -> Result<Self> {
        Self::of(&fs::read_to_string(file).unwrap_or_default(), who)
    }

    /// The same, of which most must have gone by ring.
    pub(crate) fn mostly_by_ring(file: &Path, who: Option<&str>) -> Result<Self> {
        let carried = Self::read(file, who)?;
        ensure!(
            carried.ring > 0.5,
            "only {:.0} % went by ring",
            carried.ring * 100.0
        );
        Ok(carried)
    }

    fn of(text: &str, who: Option<&str>) -> Result<Self> {
        ensure!(!text.is_empty(), "no process under Shunt left statistics");
        let (mut ring, mut bytes, mut free, mut calls) = (0.0, 0.0, 0.0, 0.0);
        for line in text.lines() {
            let line: Value = serde_json::from_str(line)?;
            let number = |value: &Value| value.as_f64().unwrap_or(0.0);
            for half in ["tx", "rx"] {
                let by_ring = number(&line[half]["ring_bytes"]);
                ring += by_ring;
                bytes += by_ring + number(&line[half]["kernel_bytes"]);
            }
            if who.is_some_and(|name| line["comm"] != name) {
                continue;
            }
            // What woke the peer, or slept, has called the kernel, too. A readiness call
            // that slept is among the kernel's already: the result errs on the low side.
            let (user, kernel) = (&line["calls"]["user"], &line["calls"]["kernel"]);
            free += number(user) - number(&line["doorbells"]["sent"]) - number(&line["sleeps"]);
            calls += number(user) + number(kernel);
        }
        let share = |part: f64, all: f64| if all > 0.0 { part.max(0.0) / all } else { 0.0 };
        Ok(Self {
            ring: share(ring, bytes),
            free: share(free, calls),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn all_processes_count() {
        let text = r#"{"comm":"a","tx":{"ring_bytes":300,"kernel_bytes":0},"rx":{"ring_bytes":0,"kernel_bytes":50},"calls":{"user":90,"kernel":10},"doorbells":{"sent":3},"sleeps":7}
{"comm":"b","tx":{"ring_bytes":0,"kernel_bytes":50},"rx":{"ring_bytes":0,"kernel_bytes":0},"calls":{"user":0,"kernel":100},"doorbells":{"sent":0},"sleeps":0}"#;
        let carried = Carried::of(text, None).unwrap();
        assert_eq!(
            carried,
            Carried {
                ring: 0.75,
                free: 0.4
            }
        );
        assert!((Carried::of(text, Some("a")).unwrap().free - 0.8).abs() < 1e-9);
    }

    #[test]
    fn no_statistics_are_an_error() {
        assert!(Carried::of("", None).is_err());
    }
}
