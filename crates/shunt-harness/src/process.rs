//! Other processes, as `/proc` shows them.

use std::fs;
use std::path::Path;
use std::thread::sleep;
use std::time::{Duration, Instant};

use rustix::process::{Pid, Signal, kill_process};

/// How often [`wait_until`] looks.
const TICK: Duration = Duration::from_millis(5);

/// The children of a process, theirs, and so on. While some of them end, the kernel may leave out others
/// (`proc_tid_children(5)`).
pub fn descendants(pid: u32) -> Vec<u32> {
    let mut found = Vec::new();
    let Ok(threads) = fs::read_dir(format!("/proc/{pid}/task")) else {
        return found;
    };
    for thread in threads.flatten() {
        let children = fs::read_to_string(thread.path().join("children")).unwrap_or_default();
        for child in children
            .split_whitespace()
            .filter_map(|word| word.parse().ok())
        {
            found.push(child);
            found.extend(descendants(child));
        }
    }
    found
}

/// The name of a process; an empty one if there is no such process.
pub fn comm(pid: u32) -> String {
    fs::read_to_string(format!("/proc/{pid}/comm"))
        .unwrap_or_default()
        .trim()
        .to_owned()
}

/// The number behind a name in a file of `/proc`, such as `VmRSS:` in `status`: there, kilobytes.
pub fn kilobytes(file: impl AsRef<Path>, name: &str) -> Option<u64> {
    let text = fs::read_to_string(file).ok()?;
    let rest = text.lines().find_map(|line| line.strip_prefix(name))?;
    rest.split_whitespace().next()?.parse().ok()
}

/// A process's line of numbers (`proc_pid_stat(5)`).
pub struct Stat {
    /// From the state on, which is field 3.
    words: Vec<String>,
}

impl Stat {
    /// Of the process whose directory in `/proc` this is; empty if it is gone.
    pub fn read(directory: &Path) -> Self {
        Self::parse(&fs::read_to_string(directory.join("stat")).unwrap_or_default())
    }

    /// The name, in parentheses, may contain anything.
    fn parse(line: &str) -> Self {
        let rest = line.rsplit(')').next().unwrap_or_default();
        Self {
            words: rest.split_whitespace().map(str::to_owned).collect(),
        }
    }

    /// A field, by the number that it has in the manual; 0 where there is none, or a negative one.
    pub fn field(&self, number: usize) -> u64 {
        let word = number.checked_sub(3).and_then(|at| self.words.get(at));
        word.and_then(|word| word.parse().ok()).unwrap_or(0)
    }
}

/// Sends a signal to one process, if it is there; never to a group, and not to the first process.
pub fn signal(pid: u32, signal: Signal) {
    let pid = i32::try_from(pid).ok().filter(|&pid| pid > 1);
    if let Some(pid) = pid.and_then(Pid::from_raw) {
        let _ = kill_process(pid, signal);
    }
}

/// Looks until something is so; `false` if it is not within `limit`.
pub fn wait_until(limit: Duration, mut is_so: impl FnMut() -> bool) -> bool {
    let end = Instant::now() + limit;
    while !is_so() {
        if Instant::now() > end {
            return false;
        }
        sleep(TICK);
    }
    true
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::process::Command;

    #[test]
    fn a_child_of_a_child_is_found_and_ended() {
        let mut shell = Command::new("sh")
            .args(["-c", "sleep 60 & wait"])
            .spawn()
            .unwrap();
        let is_sleep = |pid: &u32| comm(*pid) == "sleep";
        let sleeping = || descendants(std::process::id()).into_iter().find(is_sleep);
        let limit = Duration::from_secs(10);
        assert!(wait_until(limit, || sleeping().is_some()));
        assert!(descendants(std::process::id()).contains(&shell.id()));
        signal(sleeping().unwrap(), Signal::KILL);
        assert!(shell.wait().unwrap().success());
        assert_eq!(comm(shell.id()), "");
    }

    #[test]
    fn a_name_may_look_like_fields() {
        let stat = Stat::parse("7 (a) b 9) S 1 2 3 0 -1 4194560 9 9 9 9 120 30 4 5 20 0\n");
        let fields = [4, 14, 15, 16, 17].map(|number| stat.field(number));
        assert_eq!(fields, [1, 120, 30, 4, 5]);
        assert_eq!([2, 3, 8, 99].map(|number| stat.field(number)), [0; 4]);
        let own = Stat::read(Path::new("/proc/self"));
        assert_eq!(own.field(4), u64::from(std::os::unix::process::parent_id()));
    }

    #[test]
    fn what_never_comes_is_not_waited_for() {
        assert!(!wait_until(Duration::from_millis(1), || false));
        assert!(kilobytes("/proc/self/status", "VmRSS:").unwrap() > 0);
        assert_eq!(kilobytes("/proc/self/status", "NoSuchName:"), None);
    }
}
