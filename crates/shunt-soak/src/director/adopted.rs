//! Processes whose parents have ended: they are the director's children then. A user's shuntd, which `shunt run` starts for
//! the first worker, is one, and so is every shuntd after it.

use super::Director;
use rustix::process::{Pid, Signal, WaitOptions, WaitStatus, waitpid};
use shunt_harness::process::{comm, descendants, signal};
use std::collections::BTreeSet;

/// One that has ended.
#[derive(Debug)]
struct Ended {
    name: String,
    status: WaitStatus,
}

impl Director<'_> {
    /// Takes note of those that have ended, so that none is counted among the processes that are left. A shuntd that a
    /// signal has ended, of which the director knows nothing, is a failure.
    pub(super) fn reap_adopted(&mut self) {
        for ended in reap(&self.started_here()) {
            if let Some(text) = crash(&ended) {
                self.fail(text);
            }
        }
    }

    /// Kills the user's shuntd, if it is there; the next worker's `shunt run` starts another one.
    pub(super) fn kill_users_daemon(&mut self) {
        self.reap_adopted();
        let running = descendants(std::process::id());
        if let Some(pid) = running.into_iter().find(|&pid| comm(pid) == "shuntd") {
            signal(pid, Signal::KILL);
            self.kills += 1;
            self.daemon_kills += 1;
        }
    }

    /// Children whose ends the director awaits by other ways.
    fn started_here(&self) -> BTreeSet<u32> {
        let workers = self.workers.values().map(|worker| worker.child.id());
        let daemon = self.daemon.iter().filter_map(|daemon| daemon.pid());
        workers.chain(daemon).collect()
    }
}

/// Reaps the children of this process that have ended, but for some.
fn reap(all_but: &BTreeSet<u32>) -> Vec<Ended> {
    let family = descendants(std::process::id()).into_iter();
    let others = family.filter(|pid| !all_but.contains(pid));
    // Descendants that are children of others are refused.
    let reap_one = |pid: u32| {
        let name = comm(pid);
        let pid = Pid::from_raw(i32::try_from(pid).ok()?)?;
        let (_, status) = waitpid(Some(pid), WaitOptions::NOHANG).ok()??;
        Some(Ended { name, status })
    };
    others.filter_map(reap_one).collect()
}

/// What is wrong with how a process has ended. (One that finds another shuntd in its place ends with an error, which is
/// as it should be, and SIGKILL comes from the director.)
fn crash(ended: &Ended) -> Option<String> {
    let by = ended.status.terminating_signal()?;
    (ended.name == "shuntd" && by != Signal::KILL.as_raw())
        .then(|| format!("shuntd was ended by signal {by}"))
}

#[cfg(test)]
mod tests {
    use super::*;
    use shunt_harness::process::wait_until;
    use std::process::{Command, Stdio};
    use std::time::Duration;

    const LIMIT: Duration = Duration::from_secs(10);

    #[test]
    fn who_has_lost_its_parent_and_ended_is_not_left() {
        rustix::process::set_child_subreaper(Pid::from_raw(1)).unwrap();
        let mut mine = Command::new("true").spawn().unwrap();
        let spared = BTreeSet::from([mine.id()]);
        let shell = Command::new("sh")
            .args(["-c", "sleep 60 & echo $!"])
            .stdout(Stdio::piped())
            .stderr(Stdio::null())
            .spawn();
        let mut shell = shell.unwrap();
        let mut line = String::new();
        let out = std::io::BufReader::new(shell.stdout.take().unwrap());
        std::io::BufRead::read_line(&mut { out }, &mut line).unwrap();
        shell.wait().unwrap();
        let orphan: u32 = line.trim().parse().unwrap();
        let is_left = || descendants(std::process::id()).contains(&orphan);
        // The shell tells of it before it has become `sleep`.
        assert!(wait_until(LIMIT, || is_left() && comm(orphan) == "sleep"));
        assert!(reap(&spared).is_empty() && is_left());
        signal(orphan, Signal::TERM);
        let mut ended = Vec::new();
        assert!(wait_until(LIMIT, || {
            ended.extend(reap(&spared));
            !ended.is_empty()
        }));
        assert!(!is_left());
        assert_eq!(ended[0].name, "sleep");
        assert_eq!(
            ended[0].status.terminating_signal(),
            Some(Signal::TERM.as_raw())
        );
        assert_eq!(crash(&ended[0]), None);
        ended[0].name = "shuntd".to_owned();
        assert!(crash(&ended[0]).is_some());
        // What is awaited elsewhere can be awaited still.
        assert!(mine.wait().unwrap().success());
    }
}
