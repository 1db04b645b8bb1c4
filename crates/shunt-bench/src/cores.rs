//! Which cores the two ends run on.

use anyhow::{Result, bail};
use rustix::thread::{CpuSet, sched_getaffinity, sched_setaffinity};
use serde::{Deserialize, Serialize};

/// Where the two ends of a connection are.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Deserialize, Serialize)]
pub(crate) enum Place {
    /// Each on a core of its own.
    #[serde(rename = "two cores")]
    Two,
    /// Both on the same core.
    #[serde(rename = "one core")]
    One,
    /// Wherever the scheduler likes.
    #[serde(rename = "any core")]
    Any,
}

impl Place {
    pub(crate) fn name(self) -> &'static str {
        match self {
            Self::Two => "two cores",
            Self::One => "one core",
            Self::Any => "any core",
        }
    }
}

/// The cores that may be used.
#[derive(Debug, Serialize)]
pub(crate) struct Places {
    server: usize,
    client: Option<usize>,
    /// How many this process may run on.
    pub(crate) count: usize,
}

impl Places {
    /// The first two that this process may run on, unless others are asked for.
    pub(crate) fn choose(wanted: &[usize]) -> Result<Self> {
        let allowed = sched_getaffinity(None)?;
        let all: Vec<usize> = (0..CpuSet::MAX_CPU)
            .filter(|&n| allowed.is_set(n))
            .collect();
        let chosen = if wanted.is_empty() { &all[..] } else { wanted };
        if let Some(other) = chosen.iter().find(|n| !all.contains(n)) {
            bail!("this process may not run on core {other}");
        }
        Ok(Self {
            server: chosen[0],
            client: chosen.get(1).copied().filter(|&n| n != chosen[0]),
            count: all.len(),
        })
    }

    /// Every placement of two ends that this machine has.
    pub(crate) fn of_two(&self) -> Vec<Place> {
        match self.client {
            Some(_) => vec![Place::Two, Place::One],
            None => vec![Place::One],
        }
    }

    /// The cores of server and client.
    pub(crate) fn cores(&self, place: Place) -> [Option<usize>; 2] {
        match place {
            Place::Two => [Some(self.server), self.client],
            Place::One => [Some(self.server); 2],
            Place::Any => [None; 2],
        }
    }
}

/// Keeps this process on a core.
pub(crate) fn pin(core: usize) -> Result<()> {
    let mut set = CpuSet::new();
    set.set(core);
    Ok(sched_setaffinity(None, &set)?)
}
