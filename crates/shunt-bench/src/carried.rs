//! What the statistics of processes under Shunt say of a measurement.

use std::path::Path;

use anyhow::{Result, ensure};
use serde::{Deserialize, Serialize};
use shunt_harness::stats::Stats;

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
        let all = Stats::read(file)?;
        ensure!(all.processes > 0, "no process under Shunt left statistics");
        Ok(Self {
            ring: all.ring_share(),
            free: Stats::read_of(file, who)?.free_share(),
        })
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
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn no_statistics_are_an_error() {
        assert!(Carried::read(Path::new("/nonexistent"), None).is_err());
    }
}
