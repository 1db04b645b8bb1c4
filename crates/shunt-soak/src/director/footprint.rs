//! What shuntd and the machine hold, and whether it has grown.

use shunt_harness::process::{comm, descendants, kilobytes};
use std::collections::BTreeMap;
use std::fs;

/// How much larger shuntd may be at the end.
const MEMORY_SLACK_KB: u64 = 4096;
/// How much more a host's may be: it notes the last 65,536 ends of connections.
const NOTED_KB: u64 = 8192;
/// A host's shuntd makes 64 sockets at once by which clients of other namespaces are called, and keeps those that
/// nobody has been given yet.
const SPARE: usize = 64;

/// What shuntd and the machine hold.
#[derive(Clone, Debug, Default)]
pub(super) struct Footprint {
    pub(super) processes: usize,
    pub(super) descriptors: usize,
    /// How many descriptors there are of each kind, as `/proc` names it without numbers.
    kinds: BTreeMap<String, usize>,
    pub(super) memory_kb: u64,
    pub(super) shared_kb: u64,
}

impl Footprint {
    /// Now, in a run that is native or shunted.
    pub(super) fn take(native: bool) -> Self {
        let family = descendants(std::process::id());
        let own = family.iter().copied().find(|&pid| comm(pid) == "shuntd");
        // Without one of our own we look at the one that serves us.
        let daemon = own.or_else(|| if native { None } else { anyones_daemon() });
        let path = |name: &str| format!("/proc/{}/{name}", daemon.unwrap_or(0));
        let kinds = kinds(&path("fd"));
        Self {
            processes: family.len(),
            descriptors: kinds.values().sum(),
            kinds,
            memory_kb: kilobytes(path("status"), "VmRSS:").unwrap_or(0),
            shared_kb: kilobytes("/proc/meminfo", "Shmem:").unwrap_or(0),
        }
    }
}

fn anyones_daemon() -> Option<u32> {
    let pids = fs::read_dir("/proc").ok()?.flatten();
    pids.filter_map(|entry| entry.file_name().to_str()?.parse().ok())
        .find(|&pid| comm(pid) == "shuntd")
}

fn kinds(directory: &str) -> BTreeMap<String, usize> {
    let mut kinds = BTreeMap::new();
    for entry in fs::read_dir(directory).into_iter().flatten().flatten() {
        let Ok(target) = fs::read_link(entry.path()) else {
            continue;
        };
        let name = target
            .to_string_lossy()
            .replace(|c: char| c.is_ascii_digit(), "");
        *kinds.entry(name).or_default() += 1;
    }
    kinds
}

/// What has grown, if anything, where shuntd is a user's own or the host's.
pub(super) fn leaks(begin: &Footprint, end: &Footprint, is_hosts: bool) -> Option<String> {
    if end.processes > begin.processes {
        return Some(format!(
            "{} processes are left, {} at the beginning",
            end.processes, begin.processes
        ));
    }
    if begin.descriptors > 0 && end.descriptors == 0 {
        return Some("there is no shuntd to compare with that of the beginning".into());
    }
    if end.descriptors > begin.descriptors + if is_hosts { SPARE } else { 0 } {
        return Some(format!(
            "shuntd holds {} descriptors, {} at the beginning: {:?}, then {:?}",
            end.descriptors, begin.descriptors, end.kinds, begin.kinds
        ));
    }
    let noted = if is_hosts { NOTED_KB } else { 0 };
    if end.memory_kb > begin.memory_kb + MEMORY_SLACK_KB + noted {
        return Some(format!(
            "shuntd takes {} kB, {} at the beginning",
            end.memory_kb, begin.memory_kb
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Footprint, SPARE, leaks};
    use std::collections::BTreeMap;

    #[test]
    fn growth_is_a_leak() {
        let small = Footprint {
            processes: 1,
            descriptors: 5,
            memory_kb: 1000,
            shared_kb: 0,
            kinds: BTreeMap::new(),
        };
        let leak = |end: &Footprint, is_hosts| leaks(&small, end, is_hosts).is_some();
        let holds = |descriptors| Footprint {
            descriptors,
            ..small.clone()
        };
        let large = Footprint {
            memory_kb: 14_000,
            ..small.clone()
        };
        assert!(!leak(&small, false));
        let noted = Footprint {
            memory_kb: 9000,
            ..small.clone()
        };
        assert!(leak(&large, false) && leak(&large, true));
        assert!(leak(&noted, false) && !leak(&noted, true));
        assert!(leak(&holds(6), false) && leak(&holds(0), false));
        assert!(!leak(&holds(5 + SPARE), true) && leak(&holds(6 + SPARE), true));
    }
}
