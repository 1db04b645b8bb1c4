//! What shuntd and the machine hold, and whether it has grown.

use super::proc::{anyones_daemon, comm, descendants, field_kb};
use std::fs;

/// How much larger shuntd may be at the end.
const MEMORY_SLACK_KB: u64 = 4096;

/// What shuntd and the machine hold.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Footprint {
    pub(super) processes: usize,
    pub(super) descriptors: usize,
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
        Self {
            processes: family.len(),
            descriptors: fs::read_dir(path("fd")).map_or(0, Iterator::count),
            memory_kb: field_kb(&path("status"), "VmRSS:"),
            shared_kb: field_kb("/proc/meminfo", "Shmem:"),
        }
    }
}

/// What has grown, if anything.
pub(super) fn leaks(begin: &Footprint, end: &Footprint) -> Option<String> {
    if end.processes > begin.processes {
        return Some(format!(
            "{} processes are left, {} at the beginning",
            end.processes, begin.processes
        ));
    }
    if end.descriptors > begin.descriptors {
        return Some(format!(
            "shuntd holds {} descriptors, {} at the beginning",
            end.descriptors, begin.descriptors
        ));
    }
    if end.memory_kb > begin.memory_kb + MEMORY_SLACK_KB {
        return Some(format!(
            "shuntd takes {} kB, {} at the beginning",
            end.memory_kb, begin.memory_kb
        ));
    }
    None
}

#[cfg(test)]
mod tests {
    use super::{Footprint, leaks};

    #[test]
    fn growth_is_a_leak() {
        let small = Footprint {
            processes: 1,
            descriptors: 5,
            memory_kb: 1000,
            shared_kb: 0,
        };
        assert_eq!(leaks(&small, &small), None);
        assert!(
            leaks(
                &small,
                &Footprint {
                    descriptors: 6,
                    ..small
                }
            )
            .is_some()
        );
        assert!(
            leaks(
                &small,
                &Footprint {
                    memory_kb: 9000,
                    ..small
                }
            )
            .is_some()
        );
    }
}
