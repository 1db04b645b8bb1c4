//! Clients of a daemon that was killed. They go on, and come to its successor only when
//! they need one; but the region of what they count is among their descriptors.

use crate::process;

/// What `/proc` shows of a region's file.
const REGION: &[u8] = b"/memfd:shunt-counters (deleted)";
/// A process has one; while it forks there may be one more.
const MOST: usize = 4;

/// A descriptor that looks like a region.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct Survivor {
    pub(crate) pid: u32,
    pub(crate) region: i32,
}

/// Looks through all processes.
pub(crate) fn find() -> Vec<Survivor> {
    let mut found = Vec::new();
    for pid in process::all() {
        let before = found.len();
        process::descriptors(pid, |region, target| {
            if target == REGION && found.len() - before < MOST {
                found.push(Survivor { pid, region });
            }
        });
    }
    found
}
