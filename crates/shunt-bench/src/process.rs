//! What `/proc` says of processes.

use std::collections::HashMap;
use std::fs;
use std::path::{Path, PathBuf};

use anyhow::{Context, Result};
use shunt_harness::process::{Stat, kilobytes};

/// What is known of a process.
#[derive(Default)]
pub(crate) struct Process {
    parent: u32,
    /// That its threads have run, and the children that it has waited for.
    pub(crate) seconds: f64,
    /// Of its own, those that it has spent outside the kernel, in hundredths.
    pub(crate) user: f64,
}

impl Process {
    pub(crate) fn of(number: u32) -> Self {
        Self::read(&PathBuf::from(format!("/proc/{number}")))
    }

    /// By `proc_pid_stat(5)` its parent (4), and in hundredths of a second its time outside the kernel (14), and
    /// that of children that are gone (16 and 17).
    fn read(directory: &Path) -> Self {
        let stat = Stat::read(directory);
        let gone = stat.field(16) + stat.field(17);
        let threads = numbers(&directory.join("task")).map(|thread| {
            let text = fs::read_to_string(thread.join("schedstat")).unwrap_or_default();
            let ran = text.split_whitespace().next();
            ran.and_then(|ns| ns.parse::<u64>().ok()).unwrap_or(0)
        });
        Self {
            parent: stat.field(4) as u32,
            seconds: threads.sum::<u64>() as f64 / 1e9 + gone as f64 / 100.0,
            user: stat.field(14) as f64 / 100.0,
        }
    }
}

/// Seconds that these and all that they have started have run, all in all and outside the
/// kernel. By everybody's parent: the kernel's lists of children leave some out while others end, as a server's do after
/// a load.
pub(crate) fn cpu_of_families(roots: &[u32]) -> [f64; 2] {
    let mut all = HashMap::new();
    for process in numbers(Path::new("/proc")) {
        if let Some(number) = process.file_name().and_then(|n| n.to_str()?.parse().ok()) {
            all.insert(number, Process::read(&process));
        }
    }
    let is_of_them = |mut number: u32| {
        // No chain is longer than there are processes.
        for _ in 0..all.len() {
            if roots.contains(&number) {
                return true;
            }
            number = all.get(&number).map_or(0, |process| process.parent);
        }
        false
    };
    let ours = all.iter().filter(|&(&number, _)| is_of_them(number));
    ours.fold([0.0; 2], |[seconds, user], (_, process)| {
        [seconds + process.seconds, user + process.user]
    })
}

/// Bytes of memory of this process, those that it shares counted by its part.
pub(crate) fn resident() -> Result<u64> {
    resident_of(Path::new("/proc/self"))
}

/// The same of all processes of this name in our network namespace.
pub(crate) fn resident_of_all(name: &str) -> u64 {
    let network = |process: &Path| fs::read_link(process.join("ns/net")).ok();
    let ours = network(Path::new("/proc/self"));
    numbers(Path::new("/proc"))
        .filter(|process| {
            let found = fs::read_to_string(process.join("comm")).unwrap_or_default();
            found.trim_end() == name && network(process) == ours
        })
        .filter_map(|process| resident_of(&process).ok())
        .sum()
}

fn resident_of(process: &Path) -> Result<u64> {
    let found = kilobytes(process.join("smaps_rollup"), "Pss:");
    Ok(found.context("no Pss")? << 10)
}

fn numbers(directory: &Path) -> impl Iterator<Item = PathBuf> + use<> {
    let entries = fs::read_dir(directory).into_iter().flatten().flatten();
    entries
        .filter(|entry| entry.file_name().as_encoded_bytes()[0].is_ascii_digit())
        .map(|entry| entry.path())
}

/// Whether a process has this library.
pub(crate) fn has_loaded(number: u32, library: &str) -> bool {
    let maps = fs::read_to_string(format!("/proc/{number}/maps")).unwrap_or_default();
    maps.contains(library)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn this_process_has_run_and_is_of_its_own_family() {
        let me = std::process::id();
        let seconds = Process::of(me).seconds;
        assert!(seconds > 0.0);
        assert!(cpu_of_families(&[me])[0] >= seconds);
        assert!(has_loaded(me, "libc.so") && !has_loaded(me, "no such library"));
    }
}
