//! Which processes have a socket among their descriptors, as `/proc` says.
//!
//! A connection that a process did not make itself is paired only once that process
//! alone has it: another could use its copy without knowing of the ring. Descriptors
//! in messages that nobody has received, those of processes of other users (unless the
//! daemon is root, or else the socket is not paired if it was theirs), and files that an `io_uring` has registered are not seen.

use std::collections::{HashMap, HashSet};

use crate::process;

/// Who has a socket, and by how many descriptors.
pub(crate) type Holders = HashMap<u32, u32>;

/// The holders of each of these sockets, by inode number; one process does not count.
pub(crate) fn of(inodes: &[u64], except: Option<u32>) -> HashMap<u64, Holders> {
    let mut found: HashMap<u64, Holders> = inodes
        .iter()
        .map(|inode| (*inode, Holders::new()))
        .collect();
    for pid in process::all().filter(|pid| Some(*pid) != except) {
        sockets(pid, |inode| {
            if let Some(holders) = found.get_mut(&inode) {
                *holders.entry(pid).or_default() += 1;
            }
        });
    }
    found
}

/// A process that has each of these sockets, but for one process, and by which descriptor. Of several processes it is the one
/// that began last, mostly.
pub(crate) fn descriptors_of(inodes: &[u64], except: u32) -> HashMap<u64, (u32, i32)> {
    let pids: Vec<u32> = process::all().filter(|pid| *pid != except).collect();
    search(pids.into_iter().rev(), inodes)
}

/// Looks at these processes in turn, until each socket is found: one may have tens of thousands of descriptors.
fn search(pids: impl Iterator<Item = u32>, inodes: &[u64]) -> HashMap<u64, (u32, i32)> {
    let mut wanted: HashSet<u64> = inodes.iter().copied().collect();
    let mut found = HashMap::new();
    for pid in pids {
        process::descriptors(pid, |fd, target| {
            if let Some(inode) = socket(target).filter(|inode| wanted.remove(inode)) {
                found.insert(inode, (pid, fd));
            }
        });
        if wanted.is_empty() {
            break;
        }
    }
    found
}

/// Which of these sockets some of these processes have; `None` if one of them cannot be
/// seen.
pub(crate) fn among(pids: impl Iterator<Item = u32>, inodes: &[u64]) -> Option<HashSet<u64>> {
    let wanted: HashSet<u64> = inodes.iter().copied().collect();
    let mut held = HashSet::new();
    for pid in pids {
        sockets(pid, |inode| held.extend(wanted.get(&inode)))?;
    }
    Some(held)
}

/// Calls `visit` with the inode number of every socket among a process's descriptors;
/// `None`: they cannot be seen.
fn sockets(pid: u32, mut visit: impl FnMut(u64)) -> Option<()> {
    process::descriptors(pid, |_, target| {
        if let Some(inode) = socket(target) {
            visit(inode);
        }
    })
}

/// The inode number of the socket that a descriptor names, if it does.
fn socket(target: &[u8]) -> Option<u64> {
    target
        .strip_prefix(b"socket:[")
        .and_then(|rest| rest.strip_suffix(b"]"))
        .and_then(|digits| std::str::from_utf8(digits).ok()?.parse().ok())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::fd::AsFd as _;
    use std::os::unix::net::UnixStream;
    use std::process::{Command, Stdio};

    #[test]
    fn a_childs_copies_are_counted_and_our_own_are_not() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let inode = |socket: &UnixStream| rustix::fs::fstat(socket.as_fd()).unwrap().st_ino;
        let [own, passed] = [inode(&ours), inode(&theirs)];
        let (out, again) = (theirs.try_clone().unwrap(), theirs);
        let mut child = Command::new("sleep")
            .arg("60")
            .stdout(Stdio::from(std::os::fd::OwnedFd::from(out)))
            .stderr(Stdio::from(std::os::fd::OwnedFd::from(again)))
            .spawn()
            .unwrap();
        let found = of(&[own, passed], Some(std::process::id()));
        assert_eq!(found[&own], Holders::new());
        assert_eq!(found[&passed], Holders::from([(child.id(), 2)]));
        child.kill().unwrap();
        child.wait().unwrap();
    }

    #[test]
    fn a_search_ends_when_all_is_found() {
        let (ours, theirs) = UnixStream::pair().unwrap();
        let inodes = [&ours, &theirs].map(|end| rustix::fs::fstat(end.as_fd()).unwrap().st_ino);
        let own = std::process::id();
        let mut looked_at = 0;
        let pids = [1, own, own, own].into_iter().inspect(|_| looked_at += 1);
        let found = search(pids, &inodes);
        assert_eq!(looked_at, 2);
        assert_eq!(inodes.map(|inode| found[&inode].0), [own, own]);
        assert_eq!(search([1].into_iter(), &inodes), HashMap::new());
    }
}
